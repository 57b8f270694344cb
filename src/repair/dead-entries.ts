/**
 * Owns taking entries whose posts are gone for good out of timelines and lists, behind the readers who met them. Saves work only: what it does not get to, the next reader finds again.
 */
import type { Call } from '../runtime.ts';
import type { PulledLists } from '../store/redis/pulled-lists.ts';
import type { Timelines } from '../store/redis/timelines.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { PulledAuthor } from '../timeline/pulled.ts';

/** Entries of a viewer's timeline, and those among them that came from lists. */
export interface DeadEntries {
  readonly viewer: UserId;
  readonly postIds: readonly PostId[];
  readonly lists: readonly (PulledAuthor & { readonly postIds: readonly PostId[] })[];
}

export interface RemoveDeadParts {
  readonly timelines: Pick<Timelines, 'removeEntries'>;
  readonly lists: Pick<PulledLists, 'removeEntries'>;
  readonly events: { removed(entries: number): void; leftThere(error: unknown): void };
}

/** Removals under way at once; what is beyond is left to the next reader. */
const REMOVALS_MAX = 64;
const REMOVAL_TIMEOUT_MS = 1_000;

/** Answers at once. */
export function createRemoveDead(parts: RemoveDeadParts): (call: Call, dead: DeadEntries) => void {
  let underWay = 0;

  async function remove({ tenant }: Call, { viewer, postIds, lists }: DeadEntries): Promise<void> {
    // Not the reader's signal: the reader has left.
    const signal = AbortSignal.timeout(REMOVAL_TIMEOUT_MS);
    await Promise.all([
      parts.timelines.removeEntries(signal, { tenant, viewer, postIds }),
      ...lists.map((list) => parts.lists.removeEntries(signal, { tenant, ...list })),
    ]);
    parts.events.removed(postIds.length);
  }

  return (call, dead) => {
    if (underWay >= REMOVALS_MAX) return;
    underWay += 1;
    remove(call, dead)
      .catch(parts.events.leftThere)
      .finally(() => {
        underWay -= 1;
      });
  };
}
