/**
 * Owns the rungs: at which level the service is, worked out from what is known of its dependencies and of its own load. Pure.
 *
 * A level says what can be served at best; what a page was served with stands in its `completeness`. On no rung is a filter skipped.
 */
import type { Level } from '../metrics/degradation-metrics.ts';

export interface Standing {
  /** Whether the cache, and Postgres, are worth asking. */
  readonly cache: boolean;
  readonly database: boolean;
  /** Whether counters are left out for the load. */
  readonly spared: boolean;
}

/** When to ask again, in milliseconds, for what a rung lacks: some looks of a breaker later. */
export const RETRY_AFTER_MS = 500;

/** Pressure from which counters are left out, the only thing of a warm page for which Postgres is asked; before any call is refused. They come back well below it, or the two would take turns. */
const SPARE_FROM = 0.3;
const SPARE_UNTIL = 0.15;

/** Whether Postgres is spared the counters, at this pressure, after it was or was not. */
export function isSpared(pressure: number, before: boolean): boolean {
  return pressure >= (before ? SPARE_UNTIL : SPARE_FROM);
}

export function levelOf({ cache, database, spared }: Standing): Level {
  if (!cache && !database) return 'unavailable';
  if (!cache) return 'partial';
  if (!database) return 'stale';
  return spared ? 'reduced' : 'full';
}
