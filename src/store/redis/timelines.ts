/**
 * Owns the verbs over home timelines in Redis, beside those that all sets of entries have. A timeline is kept in parts, which is nobody's business but that of this folder.
 */
import { TributaryError } from '../../errors.ts';
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import { type Cache, isForeignType, isManyKeysRefusal } from './client.ts';
import {
  createEntrySets,
  type EntrySetOptions,
  type EntrySets,
  inCalls,
  type PageRange,
  type PushAnswer,
  type PushOutcome,
  pageArgs,
  pushAnswerIn,
  type TimelinePage,
} from './entry-sets.ts';
import type { Keys } from './keys.ts';
import { readPartByPart, unlessRefused } from './part-by-part.ts';
import { askParts, fullFrom, partSizesFor, TIMELINES_PER_CALL } from './timeline-parts.ts';

export type { PushOutcome, TimelinePage };

export interface TimelineOf {
  readonly tenant: TenantId;
  readonly viewer: UserId;
}

export interface Timelines extends EntrySets<TimelineOf> {
  /**
   * Adds one post to the timelines of many viewers that are resident; one outcome or error for each, in order. `cutLater`: for who is waited for; a head that is full is left to the next push of
   * somebody else.
   */
  push(
    signal: AbortSignal,
    post: {
      readonly tenant: TenantId;
      readonly postId: PostId;
      readonly viewers: readonly UserId[];
      readonly cutLater?: boolean;
    },
  ): Promise<readonly (PushOutcome | TributaryError)[]>;
  /** Floors of those timelines that are resident, in whatever state, or IDs below them; undefined where one is not, an error where that is not known. In order. */
  floors(
    signal: AbortSignal,
    of: { readonly tenant: TenantId; readonly viewers: readonly UserId[] },
  ): Promise<readonly (number | TributaryError | undefined)[]>;
  /** Lengthens the life of a timeline that is read. */
  page(signal: AbortSignal, query: TimelineOf & PageRange): Promise<TimelinePage>;
  /** Removes an author's entries while the cached relation says that the viewer does not follow; undefined where it does not say so. */
  cleanAuthor(
    signal: AbortSignal,
    of: TimelineOf & { readonly author: UserId; readonly postIds: readonly PostId[] },
  ): Promise<number | undefined>;
}

/** Timelines that are cut before it is looked at whether it goes well: four calls' worth. */
const CUTS_AT_ONCE = 4 * TIMELINES_PER_CALL;

export interface TimelineOptions extends EntrySetOptions {
  readonly events?: TimelineEvents;
}

export interface TimelineEvents {
  /** A full head was cut, or could not be: it takes pushes still, and the next one tries again. Not called for a head that somebody else has cut. */
  timelineCut(outcome: 'done' | 'failed'): void;
  /** A timeline was made absent since it could not take what it should while its slot moved. */
  timelineDropped(): void;
}

export function createTimelines(cache: Cache, keys: Keys, options: TimelineOptions): Timelines {
  const { cap, stride } = options;
  const keyOf = ({ tenant, viewer }: TimelineOf): string => keys.timeline(tenant, viewer);
  const ringOf = ({ tenant, viewer }: TimelineOf): readonly string[] => keys.timelineRing(tenant, viewer);
  const partsOf = (of: TimelineOf): readonly string[] => [keyOf(of), ...ringOf(of)];
  const sizes = partSizesFor(cap);

  /** A cut that fails is left to the next push, and so are those after it: nobody should wait for a server that does not answer. */
  async function cut(signal: AbortSignal, tenant: TenantId, viewers: readonly UserId[]): Promise<void> {
    for (let from = 0; from < viewers.length; from += CUTS_AT_ONCE) {
      const keySets = viewers.slice(from, from + CUTS_AT_ONCE).map((viewer) => partsOf({ tenant, viewer }));
      const results = await cache.runEachSet(signal, 'cut', keySets, [sizes.entries, sizes.keep, cap]);
      for (const result of results) {
        if ('error' in result) options.events?.timelineCut('failed');
        else if (result.value === 1) options.events?.timelineCut('done');
      }
      if (results.some((result) => 'error' in result)) return;
    }
  }

  /** A timeline that cannot take what it should, since its keys may not be named together for as long as their slot moves, is made absent: its next reader rebuilds it. */
  async function dropRefused(signal: AbortSignal, of: readonly TimelineOf[]): Promise<void> {
    await cache.remove(signal, of.flatMap(partsOf));
    for (const _ of of) options.events?.timelineDropped();
  }
  const sets = createEntrySets(cache, keyOf, ringOf, options);

  /** Pushes of a post that others have overtaken. */
  async function pushOlder(
    signal: AbortSignal,
    { tenant, postId }: { readonly tenant: TenantId; readonly postId: PostId },
    viewers: readonly UserId[],
  ): Promise<readonly (PushAnswer | TributaryError)[]> {
    const keySets = viewers.map((viewer) => partsOf({ tenant, viewer }));
    const answers = (await cache.runEachSet(signal, 'pushOlder', keySets, [postId, cap, stride])).map(pushAnswerIn);
    const isRefused = (_: unknown, index: number): boolean => {
      const answer = answers[index];
      return answer instanceof TributaryError && isManyKeysRefusal(answer) && !isForeignType(answer);
    };
    const refused = viewers.filter(isRefused);
    if (refused.length === 0) return answers;
    await dropRefused(
      signal,
      refused.map((viewer) => ({ tenant, viewer })),
    );
    return answers.map((answer, index) => (isRefused(answer, index) ? 'absent' : answer));
  }

  return {
    ...sets,

    async addOlder(signal, of) {
      return unlessRefused(
        () => sets.addOlder(signal, of),
        async () => {
          await dropRefused(signal, [of]);
          return false;
        },
      );
    },

    raiseFloor: (signal, of) =>
      unlessRefused(
        () => sets.raiseFloor(signal, of),
        () => dropRefused(signal, [of]),
      ),

    async push(signal, { tenant, postId, viewers, cutLater = false }) {
      const results = await cache.runEach(
        signal,
        'push',
        viewers.map((viewer) => keys.timeline(tenant, viewer)),
        [postId, cap, stride, fullFrom(sizes)],
      );
      const answers = results.map(pushAnswerIn);
      const whose = (what: PushAnswer): readonly UserId[] => viewers.filter((_, index) => answers[index] === what);
      const older = (await pushOlder(signal, { tenant, postId }, whose('older'))).values();
      if (!cutLater) await cut(signal, tenant, whose('full'));
      return answers.map((answer): PushOutcome | TributaryError => {
        const last = answer === 'older' ? (older.next().value ?? 'older') : answer;
        if (last === 'older') throw new Error('a late push was not answered');
        return last === 'full' ? 'added' : last;
      });
    },

    async floors(signal, { tenant, viewers }) {
      const keysOf = viewers.map((viewer) => keys.timeline(tenant, viewer));
      const results = await cache.runEach(signal, 'floors', keysOf, []);
      return results.map((result) => {
        if ('error' in result) return result.error;
        const floor = Number(result.value);
        return floor < 0 ? undefined : floor;
      });
    },

    async page(signal, query) {
      const args = pageArgs(query, options);
      const ask = (withRing: boolean) => cache.run(signal, 'page', withRing ? partsOf(query) : [keyOf(query)], args);
      const page = await unlessRefused(
        async () => (await askParts(query, sizes, ask, (reply) => reply)).page,
        () => readPartByPart(cache, signal, partsOf(query), query, args),
      );
      if (page !== 'corrupt') return page;
      // What is absent is rebuilt.
      await cache.remove(signal, partsOf(query));
      return { state: 'absent' };
    },

    async cleanAuthor(signal, of) {
      const names = [keyOf(of), keys.relations(of.tenant, of.viewer), ...ringOf(of)];
      let gone = 0;
      for (const some of inCalls(of.postIds)) {
        const removed = Number(await cache.run(signal, 'cleanAuthor', names, [of.author, ...some]));
        if (removed === -1) return undefined;
        gone += removed;
      }
      return gone;
    },
  };
}
