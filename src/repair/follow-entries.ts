/**
 * Owns what a change of a follow means for the entries of a resident timeline: a new follow brings the author's posts in (backfill), an ended one lets them go (clean-up).
 * Neither decides what is shown, which the relation does at read. Both are idempotent, and may run late, twice or in any order: a backfill looks at the relation after it has added, and
 * takes back what it brought where the follow ended meanwhile; a clean-up takes only while the cached relation says, in the same moment, that there is no follow.
 */
import { TributaryError } from '../errors.ts';
import type { Call, Clock } from '../runtime.ts';
import type { Timelines } from '../store/redis/timelines.ts';
import { POST_ID_MAX, type PostId, type UserId } from '../timeline/ids.ts';
import type { Relation } from '../timeline/post.ts';
import { bringIn } from './bring-in.ts';

export interface FollowEntriesParts {
  readonly timelines: Timelines;
  readonly clock: Clock;
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
  /** Entries that a timeline holds at most. */
  readonly entriesMax: number;
  readonly events: FollowEntriesEvents;
}

export interface FollowEntriesEvents {
  /** `entries`: brought in, or taken out. */
  followEntriesChanged(work: {
    readonly work: 'backfill' | 'clean_up' | 'drop';
    readonly outcome: EntriesOutcome;
    readonly entries: number;
    readonly seconds: number;
  }): void;
}

/**
 * `done`: the timeline holds what it should. `not_resident`: there is none to change. `undone`: a backfill was overtaken by the end of the follow, and cleaned up after. `undecided`: the
 * cached relation did not stay to guard the clean-up, or says that there is a follow; `failed`: it threw. After either, entries that are not shown may be left.
 */
export type EntriesOutcome = 'done' | 'not_resident' | 'undone' | 'undecided' | 'failed';

export interface FollowEntries {
  /** New follows: backfills each, or, for many at once, drops the timeline, which its next reader rebuilds in one query. */
  begun(call: Call, viewer: UserId, authors: readonly UserId[]): Promise<void>;
  /** Brings the author's newest posts above the floor in, at most the cap; where there are more, the floor rises to the oldest of them. */
  backfill(call: Call, viewer: UserId, author: UserId): Promise<void>;
  /** Takes the author's entries out: bounded by what the timeline holds, however many posts the author has. False where some may be left. */
  cleanUp(call: Call, viewer: UserId, author: UserId): Promise<boolean>;
}

/** New follows that are backfilled one by one. */
const BACKFILLS_MAX = 8;
/** Tries of a clean-up whose guard was deleted by somebody who forgot the relation meanwhile. */
const CLEAN_TRIES_MAX = 3;

type Changed = readonly [outcome: EntriesOutcome, entries: number];

export function createFollowEntries(parts: FollowEntriesParts): FollowEntries {
  const { timelines, clock, cap, entriesMax } = parts;

  async function bringPostsIn(call: Call, viewer: UserId, author: UserId): Promise<Changed> {
    const of = { tenant: call.tenant, viewer };
    const [floor] = await timelines.floors(call.signal, { tenant: call.tenant, viewers: [viewer] });
    if (floor instanceof TributaryError) throw floor;
    if (floor === undefined) return ['not_resident', 0];
    const newest = await parts.loadNewestPushedOf(call, { author, above: floor, limit: cap + 1 });
    const brought = await bringIn(timelines, call.signal, { ...of, newest, floor, cap });
    if (brought === 0) return ['done', 0];
    // An end of the follow that commits after this look has a clean-up after it, which meets these entries.
    if (await parts.follows(call, viewer, author)) return ['done', brought];
    await cleanUp(call, viewer, author);
    return ['undone', 0];
  }

  async function takeOut(call: Call, viewer: UserId, author: UserId): Promise<Changed> {
    const of = { tenant: call.tenant, viewer };
    const query = { ...of, direction: 'older', position: POST_ID_MAX, count: entriesMax } as const;
    const page = await timelines.page(call.signal, query);
    if (page.state === 'absent') return ['not_resident', 0];
    const postIds = await parts.findWrittenBy(call, author, page.ids);
    if (postIds.length === 0) return ['done', 0];
    for (let tries = 0; tries < CLEAN_TRIES_MAX; tries += 1) {
      const relation = await parts.loadRelation(call, viewer, author);
      if (!relation || relation.follows) break;
      const gone = await timelines.cleanAuthor(call.signal, { ...of, author, postIds });
      if (gone !== undefined) return ['done', gone];
    }
    return ['undecided', 0];
  }

  async function measured(
    work: 'backfill' | 'clean_up' | 'drop',
    change: () => Promise<Changed>,
  ): Promise<EntriesOutcome> {
    const startedMs = clock.monotonicMs();
    let changed: Changed = ['failed', 0];
    try {
      changed = await change();
      return changed[0];
    } finally {
      const seconds = (clock.monotonicMs() - startedMs) / 1_000;
      parts.events.followEntriesChanged({ work, outcome: changed[0], entries: changed[1], seconds });
    }
  }

  async function backfill(call: Call, viewer: UserId, author: UserId): Promise<void> {
    await measured('backfill', () => bringPostsIn(call, viewer, author));
  }

  async function cleanUp(call: Call, viewer: UserId, author: UserId): Promise<boolean> {
    return (await measured('clean_up', () => takeOut(call, viewer, author))) !== 'undecided';
  }

  return {
    async begun(call, viewer, authors) {
      if (authors.length > BACKFILLS_MAX) {
        await measured('drop', async () => {
          await timelines.drop(call.signal, { tenant: call.tenant, viewer });
          return ['done', 0];
        });
        return;
      }
      for (const author of authors) await backfill(call, viewer, author);
    },
    backfill,
    cleanUp,
  };
}
