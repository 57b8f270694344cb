/**
 * Owns what authors are owed: their own posts that could not be brought to their own timelines before the publish was answered. Each is pushed again, all together and every moment, until the
 * push is confirmed; so authors see their own posts within a second of the cache's return, however long the pause of the fan-out job has grown meanwhile.
 *
 * In this process' memory alone, and bounded: what is lost with it, or does not fit, the fan-out job brings. A push is idempotent, and the post may be gone by then: visibility says so.
 */
import type { TributaryError } from '../errors.ts';
import { after } from '../runtime.ts';
import type { PushOutcome } from '../store/redis/timelines.ts';
import type { PostId, TenantId, UserId } from '../timeline/ids.ts';

export interface OwnPost {
  readonly tenant: TenantId;
  readonly author: UserId;
  readonly postId: PostId;
}

export interface OwedOwn {
  owe(post: OwnPost): void;
  /** Forgets what is owed; the fan-out jobs are there. */
  stop(): void;
}

export interface OwedOwnParts {
  /** An error, or a rejection, where it was not confirmed. */
  readonly push: (signal: AbortSignal, post: OwnPost) => Promise<PushOutcome | TributaryError | undefined>;
  readonly monotonicMs: () => number;
  /** Posts that are owed now. */
  readonly owed: (posts: number) => void;
}

/** Some hundred bytes each: an outage of minutes at some hundred posts a second. */
const OWED_MAX = 20_000;
/** With the cache's reconnection within the second that is promised. While a breaker refuses, a try costs nothing. */
const AGAIN_EVERY_MS = 200;
const TRY_MAX_MS = 500;
/** Posts of one try, after one that goes alone: where that is not confirmed the others would hardly be. */
const TOGETHER = 64;
/** Then the job has brought it long ago, or Redis has been away for so long that half a minute more is little. It also ends what one timeline alone will never take. */
const OWED_LIFE_MS = 600_000;

export function createOwedOwn(parts: OwedOwnParts): OwedOwn {
  /** Since when, those first that were tried least lately. */
  const owed = new Map<OwnPost, number>();
  let cancelNext: (() => void) | undefined;
  let stopped = false;

  function later(): void {
    if (stopped || cancelNext) return;
    cancelNext = after(AGAIN_EVERY_MS, () => {
      void payAll().finally(() => {
        cancelNext = undefined;
        if (owed.size > 0) later();
      });
    });
  }

  async function pay(post: OwnPost): Promise<boolean> {
    const outcome = await parts.push(AbortSignal.timeout(TRY_MAX_MS), post).catch(() => undefined);
    const paid = outcome !== undefined && !(outcome instanceof Error);
    const sinceMs = owed.get(post);
    owed.delete(post);
    // To the end of the row: one that is not taken holds no other up.
    if (!paid && sinceMs !== undefined && parts.monotonicMs() - sinceMs < OWED_LIFE_MS) owed.set(post, sinceMs);
    return paid;
  }

  /** Tries each once at most, and ends early where not even the first of a batch was confirmed. */
  async function payAll(): Promise<void> {
    const posts = [...owed.keys()];
    for (let from = 0; from < posts.length && !stopped; from += 1 + TOGETHER) {
      const [first, ...rest] = posts.slice(from, from + 1 + TOGETHER);
      if (!first || !(await pay(first))) break;
      await Promise.all(rest.map(pay));
    }
    parts.owed(owed.size);
  }

  return {
    owe(post) {
      if (stopped || owed.size >= OWED_MAX) return;
      owed.set(post, parts.monotonicMs());
      parts.owed(owed.size);
      later();
    },
    stop() {
      stopped = true;
      owed.clear();
      cancelNext?.();
    },
  };
}
