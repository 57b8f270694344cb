/**
 * Owns showing authors their own post at once: pushed into their own timeline, where that is resident, before the publish is answered. Where it cannot be done in time
 * the answer says so, and it is owed: brought as soon as the cache takes it, by this process or by the fan-out job, which delivers to the author too.
 */
import type { TributaryError } from '../errors.ts';
import type { Call, Random } from '../runtime.ts';
import type { PushOutcome } from '../store/redis/timelines.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { OwnPost } from './owed-own.ts';
import { pushAtOnce } from './push-at-once.ts';
import type { PostForViewers } from './push-post.ts';

/** Whether the author's timeline is right about the post: holds it, or is not resident. Never rejects: the post is durable already. */
export type ShowOwn = (call: Call, author: UserId, postId: PostId) => Promise<boolean>;

export interface ShowOwnParts {
  readonly push: (signal: AbortSignal, post: PostForViewers) => Promise<readonly (PushOutcome | TributaryError)[]>;
  readonly random: Random;
  /** The answer says `own_timeline_pending`. */
  readonly pending: (post: OwnPost) => void;
}

export function createShowOwn(parts: ShowOwnParts): ShowOwn {
  return async function showOwn(call, author, postId) {
    const isShown = await pushAtOnce(call, parts.random, async (signal) => {
      const [outcome] = await parts.push(signal, { tenant: call.tenant, postId, viewers: [author] });
      return outcome;
    });
    if (!isShown) parts.pending({ tenant: call.tenant, author, postId });
    return isShown;
  };
}
