/** Owns the measures of the cache: what reads found, what fills were worth, how timelines were rebuilt and kept true. */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import { CALL_SECONDS } from './buckets.ts';

/** What the process holds itself, bounded in bytes. */
export type ProcessLayer = 'process_body' | 'process_profile' | 'process_list';

/** What is cached: home timelines, lists of pulled authors, who of a viewer's follows is pulled, facts of posts, authors and relations, bodies of posts, profiles of authors, counters. */
export type CacheLayer =
  | 'timeline'
  | 'list'
  | 'pulled'
  | 'post'
  | 'author'
  | 'relation'
  | 'body'
  | 'profile'
  | 'counts'
  | 'process_counts'
  | ProcessLayer;

/** Bounds around none, an ordinary viewer, the bound of lists, and all that a viewer may follow. */
const PULLED_AUTHORS = [0, 10, 100, 500, 5_000];

export interface CacheMetrics {
  /** `result`: hit, miss, loading (somebody else fills it), corrupt, error; for timelines and lists ready, absent, building, error; for lists of the process also short (it did not reach far enough). */
  cacheRead(layer: CacheLayer, result: string, keys?: number): void;
  /** `won`: stored. `voided`: a change took the right to store away. `failed`: Redis did not answer. */
  leaseFilled(outcome: 'won' | 'voided' | 'failed'): void;
  /** So many keys of a layer were loaded from Postgres; meta and bodies of posts are one row. */
  cacheLoaded(layer: 'post' | 'author' | 'relation' | 'counts', keys: number): void;
  /** What was loaded could not be stored; the next reader stores it. */
  cacheStoreFailed(layer: CacheLayer): void;
  /** A full head of a timeline was cut into parts, or could not be. */
  timelineCut(outcome: 'done' | 'failed'): void;
  /** Deletions after a change, by whether Redis confirmed them. */
  forgotten(outcome: 'confirmed' | 'failed'): void;
  cacheClientError(): void;
  rebuilt(rebuild: {
    readonly what: 'timeline' | 'list';
    readonly reason: string;
    readonly outcome: string;
    readonly seconds: number;
  }): void;
  /** Candidates of a home page were fetched with so many pulled authors. */
  pulledAuthors(count: number): void;
  /** Posts of pulled authors were read from Postgres, for authors beyond the bound of lists (`beyond`) or for lists that were not there (`not_ready`). */
  pulledQueried(why: 'beyond' | 'not_ready'): void;
  /** A caller waited for work that another had begun; `post`, `author`, `relation`, `counts`: for facts that others ask for in the same turn. */
  singleFlightJoined(
    what: 'rebuild' | 'list_rebuild' | 'post' | 'author' | 'relation' | 'body' | 'profile' | 'counts' | 'list',
    keys?: number,
  ): void;
  /** What a process cache takes now. */
  processHolds(layer: ProcessLayer, bytes: number): void;
  /** What a change of a follow did to a timeline. `entries`: brought in by a backfill, taken out by a clean-up. */
  followEntriesChanged(work: {
    readonly work: 'backfill' | 'clean_up' | 'drop';
    readonly outcome: string;
    readonly entries: number;
    readonly seconds: number;
  }): void;
  /** Entries taken out of timelines and lists because their posts are gone. */
  deadEntriesRemoved(entries: number): void;
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
  const loads = counter(
    'tributary_cache_loads_total',
    'Keys loaded from Postgres because the cache lacked them, by layer.',
    ['layer'],
  );
  const unstored = counter(
    'tributary_cache_store_failures_total',
    'Immutable values that could not be stored, by layer.',
    ['layer'],
  );
  const cuts = counter(
    'tributary_timeline_cuts_total',
    'Full heads of timelines that were to be made an older part, by outcome.',
    ['outcome'],
  );
  const forgotten = counter(
    'tributary_cache_deletions_total',
    'Deletions of cached facts after a change, by outcome.',
    ['outcome'],
  );
  const clientErrors = counter('tributary_cache_client_errors_total', 'Errors of the connection to the cache.');
  const rebuilds = new Histogram({
    name: 'tributary_rebuild_seconds',
    help: 'Time of rebuilding a timeline, or the list of a pulled author, from Postgres, by reason and outcome.',
    labelNames: ['what', 'reason', 'outcome'],
    buckets: CALL_SECONDS,
    registers,
  });
  const pulled = new Histogram({
    name: 'tributary_pulled_authors',
    help: 'Pulled authors whose posts were merged in for one fetch of home candidates.',
    buckets: PULLED_AUTHORS,
    registers,
  });
  const queried = counter(
    'tributary_pulled_queries_total',
    'Queries for posts of pulled authors that no list gave, by why.',
    ['why'],
  );
  const joins = counter('tributary_single_flight_joins_total', 'Callers who waited for work that another had begun.', [
    'what',
  ]);
  const bytesHeld = new Gauge({
    name: 'tributary_process_cache_bytes',
    help: 'Bytes that the process holds of what is cached, estimated, by layer.',
    labelNames: ['layer'],
    registers,
  });
  const followWork = new Histogram({
    name: 'tributary_follow_entries_seconds',
    help: 'Time of bringing entries in after a follow or taking them out after its end, by work (backfill, clean_up, drop) and outcome.',
    labelNames: ['work', 'outcome'],
    buckets: CALL_SECONDS,
    registers,
  });
  const backfilled = counter('tributary_backfilled_entries_total', 'Entries brought into timelines by new follows.');
  const cleaned = counter('tributary_cleaned_entries_total', 'Entries taken out of timelines, by why.', ['why']);
  const failovers = counter('tributary_cache_failovers_total', 'Servers of the cache that took over from another.');
  const again = counter('tributary_reruns_total', 'Fan-out jobs and events opened anew after a failover, by what.', [
    'what',
  ]);
  return {
    cacheRead: (layer, result, keys = 1) => reads.inc({ layer, result }, keys),
    leaseFilled: (outcome) => fills.inc({ outcome }),
    cacheLoaded: (layer, keys) => loads.inc({ layer }, keys),
    cacheStoreFailed: (layer) => unstored.inc({ layer }),
    timelineCut: (outcome) => cuts.inc({ outcome }),
    forgotten: (outcome) => forgotten.inc({ outcome }),
    cacheClientError: () => clientErrors.inc(),
    rebuilt: ({ what, reason, outcome, seconds }) => rebuilds.observe({ what, reason, outcome }, seconds),
    pulledAuthors: (count) => pulled.observe(count),
    pulledQueried: (why) => queried.inc({ why }),
    singleFlightJoined: (what, keys = 1) => joins.inc({ what }, keys),
    processHolds: (layer, bytes) => bytesHeld.set({ layer }, bytes),
    followEntriesChanged({ work, outcome, entries, seconds }) {
      followWork.observe({ work, outcome }, seconds);
      if (work === 'backfill') backfilled.inc(entries);
      if (work === 'clean_up') cleaned.inc({ why: 'unfollowed' }, entries);
    },
    deadEntriesRemoved: (entries) => cleaned.inc({ why: 'gone' }, entries),
    cacheFailedOver: (servers) => failovers.inc(servers),
    ranAgain({ jobs, events }) {
      if (jobs > 0) again.inc({ what: 'jobs' }, jobs);
      if (events > 0) again.inc({ what: 'events' }, events);
    },
  };
}
