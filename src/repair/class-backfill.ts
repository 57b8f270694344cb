/**
 * Owns giving an author's posts back to followers' timelines on the way down from pulling to pushing: timelines that were rebuilt while the author was pulled lack all of them, others
 * those of that time. Page by page of followers, with a checkpoint after each, so that a crash costs one page; done twice it changes nothing.
 *
 * It runs while the author is in BOTH: new posts are pushed, rebuilds take the author's posts in, and readers still have the list, so nothing is missing from any page while it goes on. A
 * timeline is given the posts in whatever state it is; one that a rebuild is building keeps them when that commits.
 */
import { TributaryError } from '../errors.ts';
import { type Clock, pause, throwIfAborted, withGrace } from '../runtime.ts';
import type { ClassBackfill } from '../store/postgres/class-backfills.ts';
import { isForeignType } from '../store/redis/client.ts';
import type { Timelines } from '../store/redis/timelines.ts';
import type { PostId, TenantId, UserId } from '../timeline/ids.ts';
import { bringIn } from './bring-in.ts';

export interface ClassBackfillParts {
  readonly backfills: {
    readonly claim: (
      signal: AbortSignal,
      input: { readonly waitMs: number; readonly leaseMs: number },
    ) => Promise<ClassBackfill | undefined>;
    readonly advance: (
      signal: AbortSignal,
      backfill: ClassBackfill & { readonly finished: boolean; readonly leaseMs: number },
    ) => Promise<boolean>;
    readonly release: (signal: AbortSignal, backfill: ClassBackfill) => Promise<void>;
  };
  readonly loadFollowers: (
    signal: AbortSignal,
    query: { readonly tenant: TenantId; readonly author: UserId; readonly after: string; readonly limit: number },
  ) => Promise<readonly UserId[]>;
  /** Newest first. */
  readonly loadNewestOf: (
    signal: AbortSignal,
    query: { readonly tenant: TenantId; readonly author: UserId; readonly above: number; readonly limit: number },
  ) => Promise<readonly PostId[]>;
  readonly timelines: Pick<Timelines, 'floors' | 'raiseFloor' | 'addOlder' | 'drop'>;
  readonly clock: Clock;
  /** Entries that a trimmed timeline keeps. */
  readonly cap: number;
  readonly followerPage: number;
  /** How long an author is in BOTH before its backfill begins. */
  readonly waitMs: number;
  /** How long a page may take before another begins it too. */
  readonly leaseMs: number;
  readonly events: {
    pageBackfilled(page: { readonly viewers: number; readonly entries: number; readonly seconds: number }): void;
    timelineDropped(): void;
  };
}

/** Pages of one round: a stop waits for one page, and other authors' turns come. */
const PAGES_PER_ROUND = 8;
/** Tries of one timeline before it is dropped. */
const TRIES_MAX = 3;
const RETRY_PAUSE_MS = 100;
/** Timelines at once. Each takes one small call after another, seven for the largest cap. */
const VIEWERS_AT_ONCE = 8;
/** Giving the lease back must work after an abort too. */
const GIVE_BACK_MS = 2_000;
/** What a claim may still take when the process is told to stop, in milliseconds. */
const CLAIM_GRACE_MS = 1_000;

/** One round; answers whether there is probably more to do. */
export function createClassBackfill(parts: ClassBackfillParts): (signal: AbortSignal) => Promise<boolean> {
  const { backfills, timelines, clock, events, leaseMs } = parts;

  return async function runOnce(signal) {
    const claimed = await withGrace(signal, CLAIM_GRACE_MS, (of) =>
      backfills.claim(of, { waitMs: parts.waitMs, leaseMs }),
    );
    if (!claimed) return false;
    let backfill = claimed;
    try {
      for (let page = 0; page < PAGES_PER_ROUND; page += 1) {
        const next = await onePage(signal, backfill);
        if (next === 'over') return true;
        backfill = next;
      }
    } finally {
      // Where it cannot be given back it runs out by itself.
      await backfills.release(AbortSignal.timeout(GIVE_BACK_MS), backfill).catch(() => undefined);
    }
    return true;
  };

  /** Where the next page begins, or that there is none for us. */
  async function onePage(signal: AbortSignal, backfill: ClassBackfill): Promise<ClassBackfill | 'over'> {
    const startedMs = clock.monotonicMs();
    const { tenant, author } = backfill;
    const limit = parts.followerPage;
    const followers = await parts.loadFollowers(signal, { tenant, author, after: backfill.cursor, limit });
    // Once a page and not once a follower. What is published from here on is pushed.
    const newest = await parts.loadNewestOf(signal, { tenant, author, above: 0, limit: parts.cap + 1 });
    const floors = await timelines.floors(signal, { tenant, viewers: followers });
    // A server that did not answer in time says nothing of its timelines: the page is done again.
    const unanswered = floors.find((floor) => floor instanceof TributaryError && !isForeignType(floor));
    if (unanswered) throw unanswered;
    const given = { viewers: 0, entries: 0 };
    for (let from = 0; from < followers.length; from += VIEWERS_AT_ONCE) {
      const some = followers.slice(from, from + VIEWERS_AT_ONCE);
      const counts = await Promise.all(
        some.map((viewer, at) => oneViewer(signal, { tenant, viewer, newest }, floors[from + at])),
      );
      for (const count of counts) {
        if (count === undefined) continue;
        given.viewers += 1;
        given.entries += count;
      }
    }
    events.pageBackfilled({ ...given, seconds: (clock.monotonicMs() - startedMs) / 1_000 });
    const finished = followers.length < limit;
    const done = { ...backfill, cursor: followers.at(-1) ?? backfill.cursor };
    return (await backfills.advance(signal, { ...done, finished, leaseMs })) && !finished ? done : 'over';
  }

  /** Posts given to one timeline; undefined where it is not resident. One that does not take them is dropped, to be rebuilt: it must not look whole. */
  async function oneViewer(
    signal: AbortSignal,
    of: { readonly tenant: TenantId; readonly viewer: UserId; readonly newest: readonly PostId[] },
    floor: number | TributaryError | undefined,
  ): Promise<number | undefined> {
    if (floor === undefined) return undefined;
    if (!(floor instanceof TributaryError)) {
      for (let attempt = 1; attempt <= TRIES_MAX; attempt += 1) {
        try {
          return await bringIn(timelines, signal, { ...of, floor, cap: parts.cap });
        } catch {
          throwIfAborted(signal);
          if (attempt < TRIES_MAX) await pause(signal, RETRY_PAUSE_MS * attempt);
        }
      }
    }
    await timelines.drop(signal, of);
    events.timelineDropped();
    return undefined;
  }
}
