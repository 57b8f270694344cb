/** Owns the measures of degradation: breakers, the level of the ladder, pressure, and calls that were refused for it. */
import { Counter, Gauge, type Registry } from 'prom-client';

/** `cache_node`: whichever master of a cache cluster. */
export const DEPENDENCIES = ['cache', 'cache_node', 'database'] as const;
export type Dependency = (typeof DEPENDENCIES)[number];

export const BREAKER_STATES = ['closed', 'half_open', 'open'] as const;
export type BreakerState = (typeof BREAKER_STATES)[number];

export const LEVELS = ['full', 'reduced', 'stale', 'partial', 'unavailable'] as const;
export type Level = (typeof LEVELS)[number];

/** What load is measured by: calls in flight, delay of the event loop, waits for a database connection. */
export const PRESSURES = ['in_flight', 'event_loop', 'database'] as const;
export type PressureKind = (typeof PRESSURES)[number];

/** In the order in which calls are refused. */
export const SHEDDABLE = ['deep', 'read', 'write'] as const;
export type Sheddable = (typeof SHEDDABLE)[number];

export interface DegradationMetrics {
  breakerChanged(dependency: Dependency, state: BreakerState): void;
  /** Hands over what the gauges read at each scrape. */
  watchDegradation(read: {
    readonly level: () => Level;
    readonly pressure: () => Readonly<Record<PressureKind, number>>;
  }): void;
  /** A call was refused for the load that was highest. */
  callShed(priority: Sheddable, why: PressureKind): void;
  /** A read was refused because as many as may be are served without the cache. */
  degradedReadRefused(): void;
  /** Posts that are not in their authors' own timelines yet, and are brought there by this process. */
  ownPostsOwed(posts: number): void;
}

export function degradationMetrics(registry: Registry): DegradationMetrics {
  const registers = [registry];
  const states = new Gauge({
    name: 'tributary_breaker_state',
    help: 'State of the breaker of a dependency (cache, cache_node, database): 0 closed, 1 half open, 2 open.',
    labelNames: ['dependency'],
    registers,
  });
  const transitions = new Counter({
    name: 'tributary_breaker_transitions_total',
    help: 'Changes of a breaker, by dependency and new state.',
    labelNames: ['dependency', 'state'],
    registers,
  });
  for (const dependency of DEPENDENCIES) states.set({ dependency }, 0);
  let readLevel = (): Level => 'full';
  let readPressure = (): Readonly<Record<PressureKind, number>> => ({ in_flight: 0, event_loop: 0, database: 0 });
  new Gauge({
    name: 'tributary_degradation_level',
    help: 'Rung of the ladder: 0 full, 1 reduced, 2 stale, 3 partial, 4 unavailable.',
    registers,
    collect() {
      this.set(LEVELS.indexOf(readLevel()));
    },
  });
  new Gauge({
    name: 'tributary_pressure_ratio',
    help: 'Standing load over what can be borne, by what it is measured by (in_flight, event_loop, database).',
    labelNames: ['of'],
    registers,
    collect() {
      for (const [of, ratio] of Object.entries(readPressure())) this.set({ of }, ratio);
    },
  });
  const shed = new Counter({
    name: 'tributary_calls_shed_total',
    help: 'Calls refused because of the load, by priority (deep, read, write) and by what the load was measured by.',
    labelNames: ['priority', 'why'],
    registers,
  });
  const refused = new Counter({
    name: 'tributary_degraded_reads_refused_total',
    help: 'Reads refused because as many as may be were being served without the cache.',
    registers,
  });
  const owed = new Gauge({
    name: 'tributary_own_posts_owed',
    help: "Posts that this process still has to bring to their authors' own timelines.",
    registers,
  });
  return {
    breakerChanged(dependency, state) {
      states.set({ dependency }, BREAKER_STATES.indexOf(state));
      transitions.inc({ dependency, state });
    },
    watchDegradation({ level, pressure }) {
      readLevel = level;
      readPressure = pressure;
    },
    callShed: (priority, why) => shed.inc({ priority, why }),
    degradedReadRefused: () => refused.inc(),
    ownPostsOwed: (posts) => owed.set(posts),
  };
}
