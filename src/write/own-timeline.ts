/**
 * Owns showing authors their own post at once: pushed into their own timeline, where that is resident, before the publish is answered. Where it cannot be done in time
 * the answer says so, and the fan-out job, which delivers to the author too, heals it.
 */
import { TributaryError } from '../errors.ts';
import { after, type Call, pause, type Random, untilAborted } from '../runtime.ts';
import type { PushOutcome } from '../store/redis/timelines.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { PostForViewers } from './push-post.ts';

/** Whether the author's timeline is right about the post: holds it, or is not resident. Never rejects: the post is durable already. */
export type ShowOwn = (call: Call, author: UserId, postId: PostId) => Promise<boolean>;

export interface ShowOwnParts {
  readonly push: (signal: AbortSignal, post: PostForViewers) => Promise<readonly (PushOutcome | TributaryError)[]>;
  readonly random: Random;
  /** The answer says `own_timeline_pending`. */
  readonly pending: () => void;
}

const TRIES_MAX = 3;
/** All tries together, pauses included: no publish waits longer than this for its own timeline. */
const BUDGET_MS = 300;
/** Pause before the second try, in milliseconds, with full jitter; doubled before the third. */
const RETRY_BASE_MS = 20;

export function createShowOwn(parts: ShowOwnParts): ShowOwn {
  return async function showOwn(call, author, postId) {
    // By hand and not by AbortSignal.timeout, whose timer fires for every publish although it was answered long ago.
    const limit = new AbortController();
    const { signal } = limit;
    const cancelLimit = after(BUDGET_MS, () => limit.abort(new TributaryError('DEADLINE_EXCEEDED')));
    const leave = (): void => limit.abort(call.signal.reason);
    call.signal.addEventListener('abort', leave);
    if (call.signal.aborted) leave();
    try {
      for (let attempt = 1; attempt <= TRIES_MAX; attempt += 1) {
        if (attempt > 1) await pause(signal, RETRY_BASE_MS * 2 ** (attempt - 2) * parts.random.fraction());
        const pushing = parts.push(signal, { tenant: call.tenant, postId, viewers: [author] });
        const [outcome] = await untilAborted(pushing, signal);
        if (outcome !== undefined && !(outcome instanceof TributaryError)) return true;
      }
    } catch {
      // The budget or the caller's deadline has passed; the fan-out job goes on.
    } finally {
      cancelLimit();
      call.signal.removeEventListener('abort', leave);
    }
    parts.pending();
    return false;
  };
}
