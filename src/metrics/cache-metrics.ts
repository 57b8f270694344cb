/** Owns the measures of the cache: what reads found, what fills were worth, how timelines were rebuilt and kept true. */
import { Counter, Histogram, type Registry } from 'prom-client';
import { CALL_SECONDS } from './buckets.ts';

/** What is cached: home timelines, facts of posts, authors and relations, bodies of posts, profiles of authors. */
export type CacheLayer = 'timeline' | 'post' | 'author' | 'relation' | 'body' | 'profile';

export interface CacheMetrics {
  /** `result`: hit, miss, loading (somebody else fills it), corrupt, error; for timelines ready, absent, building, error. */
  cacheRead(layer: CacheLayer, result: string): void;
  /** `won`: stored. `voided`: a change took the right to store away. `failed`: Redis did not answer. */
  leaseFilled(outcome: 'won' | 'voided' | 'failed'): void;
  /** What was loaded could not be stored; the next reader stores it. */
  cacheStoreFailed(layer: CacheLayer): void;
  /** Deletions after a change, by whether Redis confirmed them. */
  forgotten(outcome: 'confirmed' | 'failed'): void;
  cacheClientError(): void;
  timelineRebuilt(rebuild: { readonly reason: string; readonly outcome: string; readonly seconds: number }): void;
  /** A caller waited for work that another had begun. */
  singleFlightJoined(what: 'rebuild'): void;
  backfilled(entries: number): void;
  /** Entries taken out of timelines: of an author no longer followed, or of a post that is gone. */
  entriesCleaned(why: 'unfollowed' | 'gone', entries: number): void;
  /** Servers that took over from one that had been seen before. */
  cacheFailedOver(servers: number): void;
  /** Opened anew after a failover. */
  ranAgain(what: { readonly jobs: number; readonly events: number }): void;
}

export function cacheMetrics(registry: Registry): CacheMetrics {
  const registers = [registry];
  const counter = <Label extends string>(
    name: string,
    help: string,
    labelNames: readonly Label[] = [],
  ): Counter<Label> => new Counter({ name, help, labelNames: [...labelNames], registers });
  const reads = counter('tributary_cache_reads_total', 'Reads of the cache, by layer and result.', ['layer', 'result']);
  const fills = counter('tributary_lease_fills_total', 'Facts loaded for the cache, by whether they could be stored.', [
    'outcome',
  ]);
  const unstored = counter(
    'tributary_cache_store_failures_total',
    'Immutable values that could not be stored, by layer.',
    ['layer'],
  );
  const forgotten = counter(
    'tributary_cache_deletions_total',
    'Deletions of cached facts after a change, by outcome.',
    ['outcome'],
  );
  const clientErrors = counter('tributary_cache_client_errors_total', 'Errors of the connection to the cache.');
  const rebuilds = new Histogram({
    name: 'tributary_rebuild_seconds',
    help: 'Time of rebuilding a timeline from Postgres, by reason and outcome.',
    labelNames: ['reason', 'outcome'],
    buckets: CALL_SECONDS,
    registers,
  });
  const joins = counter('tributary_single_flight_joins_total', 'Callers who waited for work that another had begun.', [
    'what',
  ]);
  const backfilled = counter('tributary_backfilled_entries_total', 'Entries brought into timelines by new follows.');
  const cleaned = counter('tributary_cleaned_entries_total', 'Entries taken out of timelines, by why.', ['why']);
  const failovers = counter('tributary_cache_failovers_total', 'Servers of the cache that took over from another.');
  const again = counter('tributary_reruns_total', 'Fan-out jobs and events opened anew after a failover, by what.', [
    'what',
  ]);
  return {
    cacheRead: (layer, result) => reads.inc({ layer, result }),
    leaseFilled: (outcome) => fills.inc({ outcome }),
    cacheStoreFailed: (layer) => unstored.inc({ layer }),
    forgotten: (outcome) => forgotten.inc({ outcome }),
    cacheClientError: () => clientErrors.inc(),
    timelineRebuilt: ({ reason, outcome, seconds }) => rebuilds.observe({ reason, outcome }, seconds),
    singleFlightJoined: (what) => joins.inc({ what }),
    backfilled: (entries) => backfilled.inc(entries),
    entriesCleaned: (why, entries) => cleaned.inc({ why }, entries),
    cacheFailedOver: (servers) => failovers.inc(servers),
    ranAgain({ jobs, events }) {
      if (jobs > 0) again.inc({ what: 'jobs' }, jobs);
      if (events > 0) again.inc({ what: 'events' }, events);
    },
  };
}
