/** Owns the measures of publishing and reading: how long, how complete, and what was left out for which reason. */
import { Counter, Histogram, type Registry } from 'prom-client';
import type { Outcome } from '../errors.ts';
import type { HiddenReason } from '../timeline/visibility.ts';
import { CALL_SECONDS, READ_SECONDS } from './buckets.ts';

/** Where a reader met a post: home walking to older or to newer entries, its head, an author page, a single post, a batch. */
export type Surface = 'home' | 'home_newer' | 'head' | 'author' | 'single' | 'batch';

/** Why a page token was not taken. */
export type TokenRejection = 'too_long' | 'malformed' | 'version' | 'kind' | 'seal';

export type PageCompleteness = 'complete' | 'reduced' | 'stale' | 'partial' | 'unavailable';

export interface TimelineMetrics {
  publishFinished(seconds: number, outcome: Outcome): void;
  /** `redisBatches`, `postgresBatches`: what the read asked of them, one after the other. */
  readFinished(read: {
    readonly surface: Surface;
    readonly seconds: number;
    readonly outcome: Outcome;
    readonly redisBatches: number;
    readonly postgresBatches: number;
  }): void;
  /** An entry was left out by the visibility function. */
  entryFiltered(entry: { readonly surface: Surface; readonly reason: HiddenReason }): void;
  /** An entry named a post that is not there. */
  missingEntry(surface: Surface): void;
  /** `short`: fewer entries than asked for although more follow. `empty`: none although more follow. */
  pageServed(page: {
    readonly surface: Surface;
    readonly completeness: PageCompleteness;
    readonly rounds: number;
    /** Shown on it. */
    readonly entries: number;
    readonly short: boolean;
    readonly empty: boolean;
  }): void;
  tokenRejected(reason: TokenRejection): void;
}

/** Four batches of Redis and two of Postgres are a round, and three rounds the most; what is beyond is worth looking at. */
const REDIS_BATCHES = [0, 1, 2, 3, 4, 8, 12];
const POSTGRES_BATCHES = [0, 1, 2, 4, 6];

export function timelineMetrics(registry: Registry): TimelineMetrics {
  const registers = [registry];
  const publishSeconds = new Histogram({
    name: 'tributary_publish_seconds',
    help: 'Time of the publish flow, from the checked request to the durable post.',
    labelNames: ['outcome'],
    buckets: CALL_SECONDS,
    registers,
  });
  const readSeconds = new Histogram({
    name: 'tributary_read_seconds',
    help: 'Time of a read flow, by surface.',
    labelNames: ['surface', 'outcome'],
    buckets: READ_SECONDS,
    registers,
  });
  const redisBatches = new Histogram({
    name: 'tributary_read_redis_batches',
    help: 'Batches that a read sent to Redis one after the other, by surface; commands that go out together are one.',
    labelNames: ['surface'],
    buckets: REDIS_BATCHES,
    registers,
  });
  const postgresBatches = new Histogram({
    name: 'tributary_read_postgres_batches',
    help: 'Batches of statements that a read sent to Postgres one after the other, by surface; rebuilds are not among them.',
    labelNames: ['surface'],
    buckets: POSTGRES_BATCHES,
    registers,
  });
  const filtered = new Counter({
    name: 'tributary_filtered_entries_total',
    help: 'Entries that the visibility function left out, by surface and reason.',
    labelNames: ['surface', 'reason'],
    registers,
  });
  const missing = new Counter({
    name: 'tributary_missing_entries_total',
    help: 'Entries whose post is not there any more.',
    labelNames: ['surface'],
    registers,
  });
  const pages = new Counter({
    name: 'tributary_pages_total',
    help: 'Pages served, by surface and completeness.',
    labelNames: ['surface', 'completeness'],
    registers,
  });
  const entries = new Counter({
    name: 'tributary_page_entries_total',
    help: 'Entries shown on pages, by surface.',
    labelNames: ['surface'],
    registers,
  });
  const rounds = new Histogram({
    name: 'tributary_page_rounds',
    help: 'Rounds of candidates that a page took: one, and a refill for each further.',
    labelNames: ['surface'],
    buckets: [1, 2, 3],
    registers,
  });
  const short = new Counter({
    name: 'tributary_short_pages_total',
    help: 'Pages with fewer entries than asked for although more follow.',
    labelNames: ['surface'],
    registers,
  });
  const empty = new Counter({
    name: 'tributary_empty_pages_total',
    help: 'Pages without any entry although more follow.',
    labelNames: ['surface'],
    registers,
  });
  const tokens = new Counter({
    name: 'tributary_rejected_tokens_total',
    help: 'Page tokens that were not taken, by reason.',
    labelNames: ['reason'],
    registers,
  });
  return {
    publishFinished: (seconds, outcome) => publishSeconds.observe({ outcome }, seconds),
    readFinished({ surface, seconds, outcome, ...batches }) {
      readSeconds.observe({ surface, outcome }, seconds);
      redisBatches.observe({ surface }, batches.redisBatches);
      postgresBatches.observe({ surface }, batches.postgresBatches);
    },
    entryFiltered: ({ surface, reason }) => filtered.inc({ surface, reason }),
    missingEntry: (surface) => missing.inc({ surface }),
    pageServed(page) {
      const { surface, completeness } = page;
      pages.inc({ surface, completeness });
      entries.inc({ surface }, page.entries);
      rounds.observe({ surface }, page.rounds);
      if (page.short) short.inc({ surface });
      if (page.empty) empty.inc({ surface });
    },
    tokenRejected: (reason) => tokens.inc({ reason }),
  };
}
