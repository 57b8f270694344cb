/**
 * Owns the second look at ended follows. The event of an unfollow cleans up at once; a push or a rebuild that had read the follow before its end may still bring an entry after that.
 * So every ended follow is cleaned once more when nothing of its time can be under way, and is marked only then: whatever dies before that is done again.
 * Processes that look at the same follow at once do the same work twice, and nothing wrong.
 */
import type { Call } from '../runtime.ts';
import { type EndedFollow, QUEUE_START } from '../store/postgres/ended-follows.ts';
import type { FollowEntries } from './follow-entries.ts';

export interface CleanEndedParts {
  readonly loadUncleaned: (
    signal: AbortSignal,
    query: { readonly after: string; readonly settledMs: number; readonly most: number },
  ) => Promise<readonly EndedFollow[]>;
  readonly cleanUp: FollowEntries['cleanUp'];
  readonly markCleaned: (signal: AbortSignal, follows: readonly EndedFollow[]) => Promise<void>;
  /** Longer than a push or a rebuild may be under way with what it read. */
  readonly settledMs: number;
  /** `error`: the first of them. */
  readonly failed: (error: unknown, count: number) => void;
}

/** Follows of one round. */
const BATCH_MAX = 200;
/** Clean-ups at once: each holds one connection at most. */
const CONCURRENCY_MAX = 4;

/** Cleans one batch; answers whether there is probably more. */
export function createCleanEnded(parts: CleanEndedParts): (signal: AbortSignal) => Promise<boolean> {
  /** What cannot be cleaned now holds up nothing behind it: it is met again once the end of the queue was reached. */
  let after = QUEUE_START;

  return async function runOnce(signal) {
    const batch = await parts.loadUncleaned(signal, { after, settledMs: parts.settledMs, most: BATCH_MAX });
    const clean: EndedFollow[] = [];
    const faults: unknown[] = [];
    const waiting = batch.values();
    async function cleanInTurn(): Promise<void> {
      for (const follow of waiting) {
        if (signal.aborted) return;
        const call: Call = { tenant: follow.tenant, signal };
        await parts.cleanUp(call, follow.follower, follow.followee).then(
          (isClean) => isClean && clean.push(follow),
          (error: unknown) => faults.push(error),
        );
      }
    }
    await Promise.all(Array.from({ length: CONCURRENCY_MAX }, cleanInTurn));
    if (faults.length > 0 && !signal.aborted) parts.failed(faults[0], faults.length);
    await parts.markCleaned(signal, clean);
    const full = batch.length === BATCH_MAX;
    after = full ? (batch.at(-1)?.endedAt ?? QUEUE_START) : QUEUE_START;
    // Where the cache is away nothing comes of going on at once.
    return full && faults.length === 0;
  };
}
