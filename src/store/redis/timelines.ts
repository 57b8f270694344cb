/**
 * Owns the verbs over home timelines in Redis, beside those that all sets of entries have. A timeline is kept in parts, which is nobody's business but that of this folder.
 */
import type { TributaryError } from '../../errors.ts';
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import type { Cache } from './client.ts';
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
import { askParts, fullFrom, partSizesFor } from './timeline-parts.ts';

export type { PushOutcome, TimelinePage };

export interface TimelineOf {
  readonly tenant: TenantId;
  readonly viewer: UserId;
}

export interface Timelines extends EntrySets<TimelineOf> {
  /** Adds one post to the timelines of many viewers that are resident; one outcome or error for each, in order. */
  push(
    signal: AbortSignal,
    post: { readonly tenant: TenantId; readonly postId: PostId; readonly viewers: readonly UserId[] },
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

export interface TimelineOptions extends EntrySetOptions {
  readonly events?: TimelineEvents;
}

export interface TimelineEvents {
  /** A full head was cut, or could not be: it takes pushes still, and the next one tries again. */
  timelineCut(outcome: 'done' | 'failed'): void;
}

export function createTimelines(cache: Cache, keys: Keys, options: TimelineOptions): Timelines {
  const { cap, stride } = options;
  const keyOf = ({ tenant, viewer }: TimelineOf): string => keys.timeline(tenant, viewer);
  const ringOf = ({ tenant, viewer }: TimelineOf): readonly string[] => keys.timelineRing(tenant, viewer);
  const partsOf = (of: TimelineOf): readonly string[] => [keyOf(of), ...ringOf(of)];
  const sizes = partSizesFor(cap);

  async function cut(signal: AbortSignal, tenant: TenantId, viewers: readonly UserId[]): Promise<void> {
    const args = [sizes.entries, sizes.keep, cap];
    const calls = viewers.map((viewer) => ({ keys: partsOf({ tenant, viewer }), args }));
    for (const result of await cache.runMany(signal, 'cut', calls))
      options.events?.timelineCut('error' in result ? 'failed' : 'done');
  }

  /** Pushes of a post that others have overtaken, one by one. One that was there already is not told from one below the floor. */
  async function pushOlder(
    signal: AbortSignal,
    { tenant, postId }: { readonly tenant: TenantId; readonly postId: PostId },
    viewers: readonly UserId[],
  ): Promise<readonly (PushOutcome | TributaryError)[]> {
    const args = ['', cap, stride, postId];
    const calls = viewers.map((viewer) => ({ keys: partsOf({ tenant, viewer }), args }));
    return (await cache.runMany(signal, 'addOlder', calls)).map((result) => {
      if ('error' in result) return result.error;
      return result.value === -1 ? 'absent' : result.value === 0 ? 'present' : 'added';
    });
  }

  return {
    ...createEntrySets(cache, keyOf, ringOf, options),

    async push(signal, { tenant, postId, viewers }) {
      const results = await cache.runEach(
        signal,
        'push',
        viewers.map((viewer) => keys.timeline(tenant, viewer)),
        [postId, cap, stride, fullFrom(sizes)],
      );
      const answers = results.map(pushAnswerIn);
      const whose = (what: PushAnswer): readonly UserId[] => viewers.filter((_, index) => answers[index] === what);
      const older = whose('older');
      const [pushed] = await Promise.all([
        pushOlder(signal, { tenant, postId }, older),
        cut(signal, tenant, whose('full')),
      ]);
      const late = pushed.values();
      return answers.map((answer) => {
        if (answer === 'older') return late.next().value as PushOutcome | TributaryError;
        return answer === 'full' ? 'added' : answer;
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
      const { page } = await askParts(query, sizes, ask, (reply) => reply);
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
