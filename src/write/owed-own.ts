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
  /** One outcome for each post, in order; an error where it was not confirmed. */
  readonly push: (signal: AbortSignal, post: OwnPost) => Promise<PushOutcome | TributaryError>;
  /** Posts that are owed now. */
  readonly owed: (posts: number) => void;
}

/** Some hundred bytes each: an outage of minutes at some hundred posts a second. */
const OWED_MAX = 20_000;
/** With the cache's reconnection within the second that is promised. While a breaker refuses, a try costs nothing. */
const AGAIN_EVERY_MS = 200;
const TRY_MAX_MS = 500;
/** Posts of one try. The first of them goes alone: where it is not confirmed the others would not be either. */
const TOGETHER = 64;

export function createOwedOwn(parts: OwedOwnParts): OwedOwn {
  const owed = new Set<OwnPost>();
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
    if (paid) owed.delete(post);
    return paid;
  }

  /** Ends with nothing owed, or with the first try that was not confirmed. */
  async function payAll(): Promise<void> {
    for (let [first, ...rest] = owed; first && !stopped; [first, ...rest] = owed) {
      if (!(await pay(first))) break;
      await Promise.all(rest.slice(0, TOGETHER).map(pay));
    }
    parts.owed(owed.size);
  }

  return {
    owe(post) {
      if (stopped || owed.size >= OWED_MAX) return;
      owed.add(post);
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
