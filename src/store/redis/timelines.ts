/**
 * Owns the verbs over home timelines in Redis, beside those that all sets of entries have.
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
  type PushOutcome,
  pageArgs,
  pageIn,
  pushOutcomeIn,
  type TimelinePage,
} from './entry-sets.ts';
import type { Keys } from './keys.ts';

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
  /** Floors of those timelines that are resident, in whatever state; undefined where one is not, an error where that is not known. In order. */
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

export function createTimelines(cache: Cache, keys: Keys, options: EntrySetOptions): Timelines {
  const keyOf = ({ tenant, viewer }: TimelineOf): string => keys.timeline(tenant, viewer);

  return {
    ...createEntrySets(cache, keyOf, options),

    async push(signal, { tenant, postId, viewers }) {
      const results = await cache.runEach(
        signal,
        'push',
        viewers.map((viewer) => keys.timeline(tenant, viewer)),
        [postId, options.cap, options.stride],
      );
      return results.map(pushOutcomeIn);
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
      const page = pageIn(await cache.run(signal, 'page', [keyOf(query)], pageArgs(query, options)));
      if (page !== 'corrupt') return page;
      // What is absent is rebuilt.
      await cache.remove(signal, [keyOf(query)]);
      return { state: 'absent' };
    },

    async cleanAuthor(signal, of) {
      const both = [keyOf(of), keys.relations(of.tenant, of.viewer)];
      let gone = 0;
      for (const some of inCalls(of.postIds)) {
        const removed = Number(await cache.run(signal, 'cleanAuthor', both, [of.author, ...some]));
        if (removed === -1) return undefined;
        gone += removed;
      }
      return gone;
    },
  };
}
