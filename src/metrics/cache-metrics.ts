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
  /** What a change of a follow did to a timeline. `entries`: brought in by a backfill, taken out by a clean-up. */
  followEntriesChanged(work: {
    readonly work: 'backfill' | 'clean_up' | 'drop';
    readonly outcome: string;
    readonly entries: number;
    readonly seconds: number;
  }): void;
  /** Entries taken out of timelines because their posts are gone. */
  deadEntriesRemoved(entries: number): void;
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
  const followWork = new Histogram({
    name: 'tributary_follow_entries_seconds',
    help: 'Time of bringing entries in after a follow or taking them out after its end, by work (backfill, clean_up, drop) and outcome.',
    labelNames: ['work', 'outcome'],
    buckets: CALL_SECONDS,
    registers,
  });
  const backfilled = counter('tributary_backfilled_entries_total', 'Entries brought into timelines by new follows.');
  const cleaned = counter('tributary_cleaned_entries_total', 'Entries taken out of timelines, by why.', ['why']);
  return {
    cacheRead: (layer, result) => reads.inc({ layer, result }),
    leaseFilled: (outcome) => fills.inc({ outcome }),
    cacheStoreFailed: (layer) => unstored.inc({ layer }),
    forgotten: (outcome) => forgotten.inc({ outcome }),
    cacheClientError: () => clientErrors.inc(),
    timelineRebuilt: ({ reason, outcome, seconds }) => rebuilds.observe({ reason, outcome }, seconds),
    singleFlightJoined: (what) => joins.inc({ what }),
    followEntriesChanged({ work, outcome, entries, seconds }) {
      followWork.observe({ work, outcome }, seconds);
      if (work === 'backfill') backfilled.inc(entries);
      if (work === 'clean_up') cleaned.inc({ why: 'unfollowed' }, entries);
    },
    deadEntriesRemoved: (entries) => cleaned.inc({ why: 'gone' }, entries),
  };
}
