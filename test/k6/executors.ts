/**
 * Owns when iterations of a scenario begin in the k6 stand-in, for the executors that our scripts use. Pure.
 * Invariant: an arrival that finds no free VU is dropped, never put off.
 */
import { durationFrom } from './host.ts';

export interface ArrivalScenario {
  readonly executor: 'constant-arrival-rate' | 'ramping-arrival-rate';
  readonly exec: string;
  readonly preAllocatedVUs: number;
  /** For how long an iteration may go on after the last arrival. */
  readonly gracefulStopMs: number;
  /** When iterations begin, in milliseconds from the start, rising. */
  readonly arrivalsMs: readonly number[];
}

interface Stage {
  readonly target: number;
  readonly duration: string;
}

/** A stand-in is for some seconds. */
const ARRIVALS_MAX = 10_000;

const KNOWN = /^(?:executor|exec|preAllocatedVUs|maxVUs|gracefulStop|timeUnit|rate|duration|startRate|stages)$/;

/** Throws where k6 would refuse the scenario, and where the stand-in cannot do what k6 can. */
export function scenarioFrom(name: string, given: Readonly<Record<string, unknown>>): ArrivalScenario {
  const { executor, exec = 'default', gracefulStop = '30s' } = given;
  if (executor !== 'constant-arrival-rate' && executor !== 'ramping-arrival-rate') {
    throw new Error(`scenario ${name}: the stand-in has no executor ${String(executor)}`);
  }
  const unknown = Object.keys(given).filter((key) => !KNOWN.test(key));
  if (unknown.length > 0) throw new Error(`scenario ${name}: the stand-in does not know ${unknown.join(', ')}`);
  const preAllocatedVUs = wholeOf(name, given, 'preAllocatedVUs');
  const maxVUs = given['maxVUs'] ?? preAllocatedVUs;
  if (maxVUs !== preAllocatedVUs) throw new Error(`scenario ${name}: the stand-in makes no VUs during a run`);
  return {
    executor,
    exec: String(exec),
    preAllocatedVUs,
    gracefulStopMs: durationFrom(String(gracefulStop)),
    arrivalsMs: executor === 'constant-arrival-rate' ? steady(name, given) : ramped(name, given),
  };
}

/** From the first moment on, evenly. */
function steady(name: string, given: Readonly<Record<string, unknown>>): readonly number[] {
  const everyMs = unitMs(given) / wholeOf(name, given, 'rate', 1);
  const count = bounded(name, Math.ceil(durationFrom(String(given['duration'])) / everyMs));
  return Array.from({ length: count }, (_, index) => index * everyMs);
}

/** Whenever the area under the line of rates has grown by one. */
function ramped(name: string, given: Readonly<Record<string, unknown>>): readonly number[] {
  const unit = unitMs(given);
  const arrivals: number[] = [];
  let rate = wholeOf(name, given, 'startRate') / unit;
  let fromMs = 0;
  let before = 0;
  for (const { target, duration } of given['stages'] as readonly Stage[]) {
    const lastsMs = durationFrom(duration);
    const slope = (target / unit - rate) / lastsMs;
    const area = (rate + slope * (lastsMs / 2)) * lastsMs;
    for (let index = Math.floor(before) + 1; index <= before + area; index++) {
      bounded(name, arrivals.length);
      arrivals.push(fromMs + timeOf({ area: index - before, rate, slope }));
    }
    before += area;
    fromMs += lastsMs;
    rate = target / unit;
  }
  return arrivals;
}

/** When `rate·t + slope·t²/2` reaches the area. */
function timeOf({
  area,
  rate,
  slope,
}: {
  readonly area: number;
  readonly rate: number;
  readonly slope: number;
}): number {
  if (slope === 0) return area / rate;
  return (Math.sqrt(rate * rate + 2 * slope * area) - rate) / slope;
}

function unitMs(given: Readonly<Record<string, unknown>>): number {
  return durationFrom(String(given['timeUnit'] ?? '1s'));
}

function wholeOf(name: string, given: Readonly<Record<string, unknown>>, key: string, min = 0): number {
  const value = given[key];
  if (typeof value !== 'number' || !Number.isInteger(value) || value < min) {
    throw new Error(`scenario ${name}: ${key} must be a whole number from ${min}`);
  }
  return value;
}

function bounded(name: string, count: number): number {
  if (!(count < ARRIVALS_MAX)) throw new Error(`scenario ${name}: more iterations than the stand-in is for`);
  return count;
}
