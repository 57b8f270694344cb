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
  /** Standing load over what can be borne; 1 is the bound. */
  readonly pressure: number;
}

/** Pressure from which counters are left out: the only thing of a warm page for which Postgres is asked, and the only one that nobody misses much. Before any call is refused. */
export const REDUCE_FROM = 0.3;

export function levelOf({ cache, database, pressure }: Standing): Level {
  if (!cache && !database) return 'unavailable';
  if (!cache) return 'partial';
  if (!database) return 'stale';
  return pressure >= REDUCE_FROM ? 'reduced' : 'full';
}
