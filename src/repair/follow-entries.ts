/**
 * Owns what a change of a follow means for the entries of a resident timeline: a new follow brings the author's posts in (backfill), an ended one lets them go (clean-up).
 * Both ask for the present relation first and are idempotent, so they may run late, twice or in any order; neither decides what is shown, which the relation does at read.
 */
import type { Call } from '../runtime.ts';
import type { Timelines } from '../store/redis/timelines.ts';
import { POST_ID_MAX, type PostId, type UserId } from '../timeline/ids.ts';
import type { Relation } from '../timeline/post.ts';
import { bringIn } from './bring-in.ts';

export interface FollowEntriesParts {
  readonly timelines: Timelines;
  /** From Postgres: the truth now. */
  readonly follows: (call: Call, viewer: UserId, author: UserId) => Promise<boolean>;
  /** Through the cache: leaves the fact there that guards the clean-up. */
  readonly loadRelation: (call: Call, viewer: UserId, author: UserId) => Promise<Relation | undefined>;
  /** An author's newest posts that belong on followers' timelines, newest first; none of one who is pulled, whose list the readers have. */
  readonly loadNewestPushedOf: (
    call: Call,
    query: { readonly author: UserId; readonly above: number; readonly limit: number },
  ) => Promise<readonly PostId[]>;
  readonly findWrittenBy: (call: Call, author: UserId, postIds: readonly PostId[]) => Promise<readonly PostId[]>;
  readonly cap: number;
  readonly stride: number;
  readonly events: { backfilled(entries: number): void; cleanedUp(entries: number): void };
}

export interface FollowEntries {
  /** Brings the author's newest posts above the floor in, at most the cap; where there are more, the floor rises to the oldest of them. */
  backfill(call: Call, viewer: UserId, author: UserId): Promise<void>;
  /** Takes the author's entries out: bounded by what the timeline holds, however many posts the author has. */
  cleanUp(call: Call, viewer: UserId, author: UserId): Promise<void>;
}

export function createFollowEntries(parts: FollowEntriesParts): FollowEntries {
  const { timelines, cap, stride, events } = parts;
  return {
    async backfill(call, viewer, author) {
      const of = { tenant: call.tenant, viewer };
      const page = await timelines.page(call.signal, { ...of, direction: 'older', position: POST_ID_MAX, count: 0 });
      if (page.state === 'absent' || !(await parts.follows(call, viewer, author))) return;
      const newest = await parts.loadNewestPushedOf(call, { author, above: page.floor, limit: cap + 1 });
      const brought = await bringIn(timelines, call.signal, { ...of, newest, floor: page.floor, cap });
      if (brought > 0) events.backfilled(brought);
    },

    async cleanUp(call, viewer, author) {
      const of = { tenant: call.tenant, viewer };
      const page = await timelines.page(call.signal, {
        ...of,
        direction: 'older',
        position: POST_ID_MAX,
        count: cap + stride,
      });
      if (page.state === 'absent' || page.ids.length === 0) return;
      const relation = await parts.loadRelation(call, viewer, author);
      if (!relation || relation.follows) return;
      const postIds = await parts.findWrittenBy(call, author, page.ids);
      if (postIds.length === 0) return;
      const gone = await timelines.cleanAuthor(call.signal, { ...of, author, postIds });
      if (gone !== undefined) events.cleanedUp(gone);
    },
  };
}
