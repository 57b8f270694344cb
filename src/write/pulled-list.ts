/**
 * Owns showing followers the post of a pulled author at once: added to the author's list before the publish is answered, and its facts brought into the cache behind it, since many will
 * read it in the next moment. What cannot be done in time is done by the fan-out job, and is no part of the answer.
 */
import { TributaryError } from '../errors.ts';
import type { Call, Random } from '../runtime.ts';
import type { PushOutcome } from '../store/redis/timelines.ts';
import type { PostId, TenantId, UserId } from '../timeline/ids.ts';
import { pushAtOnce } from './push-at-once.ts';

export interface ListedPost {
  readonly author: UserId;
  readonly epoch: number;
  readonly postId: PostId;
}

/** Ends once the list is right about the post, or the budget is used up. Never rejects. */
export type ShowPulled = (call: Call, post: ListedPost) => Promise<void>;

export interface ShowPulledParts {
  readonly push: (signal: AbortSignal, post: ListedPost & { readonly tenant: TenantId }) => Promise<PushOutcome>;
  /** Reads the post and its author as a reader would, so that the cache holds what readers need. */
  readonly read: (call: Call, post: ListedPost) => Promise<unknown>;
  readonly random: Random;
  readonly events: {
    /** The list did not confirm; the job tries again. */
    listPending(): void;
    /** Readers will load it themselves. */
    notWarmed(error: unknown): void;
  };
}

/** Posts being warmed at once; what is beyond is left to readers. */
const WARMING_MAX = 16;
const WARM_TIMEOUT_MS = 1_000;

export function createShowPulled(parts: ShowPulledParts): ShowPulled {
  let warming = 0;

  /** A fill that nobody waits for. */
  function warm(call: Call, post: ListedPost): void {
    if (warming >= WARMING_MAX) return;
    warming += 1;
    parts
      .read({ tenant: call.tenant, signal: AbortSignal.timeout(WARM_TIMEOUT_MS) }, post)
      .catch(parts.events.notWarmed)
      .finally(() => {
        warming -= 1;
      });
  }

  return async function showPulled(call, post) {
    const push = (signal: AbortSignal) =>
      parts.push(signal, { tenant: call.tenant, ...post }).catch((error: unknown) => {
        if (error instanceof TributaryError) return error;
        throw error;
      });
    if (!(await pushAtOnce(call, parts.random, push))) parts.events.listPending();
    warm(call, post);
  };
}
