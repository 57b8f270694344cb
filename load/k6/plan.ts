/**
 * Owns the shape of a run: one scenario a role and protocol, by arrival rate, and the thresholds that every run has.
 *
 * Arrival rates, because callers who wait for an answer before they ask again hide every stall of the service. So an iteration that
 * could not start, for want of a free VU, fails the run: it is a call that nobody measured. A threshold over a metric without a sample
 * passes in k6, so each scenario must have iterated as well.
 */
import type { Options, Scenario, Threshold } from 'k6/options';
import { durationMs, type Protocol, type Settings } from './settings.ts';

interface Arrivals {
  readonly kind: 'steady' | 'ramp';
  /** Iterations a second, all protocols together. */
  readonly rate: number;
}

/** Names of scenarios are `<role>_<protocol>`, of their functions `<role>ViaGrpc` and `<role>ViaJson`. */
export function planOf(settings: Settings, roles: Readonly<Record<string, Arrivals>>): Options {
  const scenarios: { [name: string]: Scenario } = {};
  const thresholds: { [metric: string]: Threshold[] } = {
    dropped_iterations: ['count==0'],
    calls_failed: ['rate<0.001'],
    'checks{kind:truth}': ['rate==1'],
    'checks{kind:complete}': [`rate>=${settings.completeRate}`],
  };
  for (const [role, arrivals] of Object.entries(roles)) {
    for (const protocol of settings.protocols) {
      const name = `${role}_${protocol}`;
      scenarios[name] = scenarioOf(settings, role, protocol, arrivals);
      thresholds[`iterations{scenario:${name}}`] = ['count>0'];
      thresholds[`${durationOf(protocol)}{scenario:${name}}`] = [`p(99)<${settings.p99Ms}`];
    }
  }
  return {
    scenarios,
    thresholds,
    setupTimeout: '15m',
    teardownTimeout: '15m',
    summaryTrendStats: ['med', 'p(95)', 'p(99)', 'max'],
  };
}

/** The built-in metric that has the duration of a protocol's calls. */
export function durationOf(protocol: Protocol): string {
  return protocol === 'grpc' ? 'grpc_req_duration' : 'http_req_duration';
}

function scenarioOf(settings: Settings, role: string, protocol: Protocol, { kind, rate }: Arrivals): Scenario {
  const { duration, vus } = settings;
  const shared = {
    exec: `${role}Via${protocol === 'grpc' ? 'Grpc' : 'Json'}`,
    // Protocols share the rate without rounding it.
    timeUnit: `${settings.protocols.length}s`,
    // All from the start: a VU made during the run takes time from those that measure.
    preAllocatedVUs: vus,
    maxVUs: vus,
  };
  if (kind === 'steady') return { executor: 'constant-arrival-rate', rate, duration, ...shared };
  // Half of the time to rise, half to stay.
  const half = `${durationMs(duration) / 2}ms`;
  const stages = [rate, rate].map((target) => ({ target, duration: half }));
  return { executor: 'ramping-arrival-rate', startRate: 0, stages, ...shared };
}
