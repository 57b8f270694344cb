/**
 * Owns the verbs over home timelines in Redis. A timeline is ABSENT, BUILDING or READY; only READY is complete above its floor. Nothing but `begin` ever
 * creates one.
 */

import type { TributaryError } from '../../errors.ts';
import { type PostId, parsePostId, type TenantId, type UserId } from '../../timeline/ids.ts';
import type { Cache } from './client.ts';
import { KEYS_PER_CALL_MAX, type Keys } from './keys.ts';

export interface TimelineOf {
  readonly tenant: TenantId;
  readonly viewer: UserId;
}

export type PushOutcome = 'absent' | 'added' | 'present' | 'below_floor';

export type TimelinePage =
  | { readonly state: 'absent' }
  /** `ids` in the order asked for; all that the timeline holds beyond the position, at most `count`. Complete above the floor in state `ready` only. */
  | { readonly state: 'building' | 'ready'; readonly floor: number; readonly ids: readonly PostId[] };

export interface Timelines {
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
  /** `older`: IDs at or below the position, newest first. `newer`: above it, oldest first. Lengthens the life of a timeline that is read. */
  page(
    signal: AbortSignal,
    query: TimelineOf & { readonly direction: 'older' | 'newer'; readonly position: number; readonly count: number },
  ): Promise<TimelinePage>;
  /** Asks for the right to rebuild. `busy`: another rebuild runs, and is younger than its lease. */
  begin(signal: AbortSignal, of: TimelineOf & { readonly token: string }): Promise<'won' | 'busy' | 'ready'>;
  /** Adds posts in calls of bounded size; with a token only while the rebuild of that token runs. False where the timeline is not (or no longer) there. */
  addOlder(
    signal: AbortSignal,
    of: TimelineOf & { readonly token?: string; readonly postIds: readonly PostId[] },
  ): Promise<boolean>;
  /** Makes it READY, complete above the highest of `floor` and what was trimmed meanwhile. False where the token is gone. */
  commit(signal: AbortSignal, of: TimelineOf & { readonly token: string; readonly floor: number }): Promise<boolean>;
  /** Takes back the claim to what lies at or below `floor`. */
  raiseFloor(signal: AbortSignal, of: TimelineOf & { readonly floor: number }): Promise<void>;
  /** Removes entries whose posts are gone for good. */
  removeEntries(signal: AbortSignal, of: TimelineOf & { readonly postIds: readonly PostId[] }): Promise<void>;
  /** Removes an author's entries while the cached relation says that the viewer does not follow; undefined where it does not say so. */
  cleanAuthor(
    signal: AbortSignal,
    of: TimelineOf & { readonly author: UserId; readonly postIds: readonly PostId[] },
  ): Promise<number | undefined>;
  /** Makes it ABSENT. */
  drop(signal: AbortSignal, of: TimelineOf): Promise<void>;
}

export interface TimelineOptions {
  /** Entries that a trimmed timeline keeps. */
  readonly cap: number;
  /** Entries beyond the cap before it is trimmed. */
  readonly stride: number;
  /** How long an unread timeline lives. */
  readonly lifeMs: number;
  /** How long a rebuild keeps others from starting one. */
  readonly rebuildLeaseMs: number;
}

const PUSH_OUTCOMES: readonly PushOutcome[] = ['absent', 'added', 'present', 'below_floor'];
/** A read lengthens a life that is shorter than this part of the whole: one write for many reads. */
const RENEW_BELOW = 0.9;
/** A timeline that is never finished goes away by itself after this many leases. */
const BUILDING_LIFE_LEASES = 10;
/** With it the state member stays below the 64 bytes that a listpack takes (`zset-max-listpack-value`). */
const TOKEN_FORM = /^[A-Za-z0-9_-]{1,40}$/;

export function createTimelines(cache: Cache, keys: Keys, options: TimelineOptions): Timelines {
  const { cap, stride } = options;
  const keyOf = ({ tenant, viewer }: TimelineOf): string => keys.timeline(tenant, viewer);

  return {
    async push(signal, { tenant, postId, viewers }) {
      const results = await cache.runEach(
        signal,
        'push',
        viewers.map((viewer) => keys.timeline(tenant, viewer)),
        [postId, cap, stride],
      );
      return results.map((result) => ('error' in result ? result.error : pushOutcome(result.value)));
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
      const args = [
        query.direction,
        query.position,
        query.count,
        options.lifeMs,
        Math.floor(options.lifeMs * RENEW_BELOW),
      ];
      const [state, floor, ...ids] = (await cache.run(signal, 'page', [keyOf(query)], args)) as readonly string[];
      if (state === undefined) return { state: 'absent' };
      const postIds = ids.map(parsePostId);
      if ((state !== 'r' && !state.startsWith('b')) || !postIds.every((id) => id !== undefined)) {
        // Nothing of ours writes this. No part of it can be trusted, and what is absent is rebuilt.
        await cache.remove(signal, [keyOf(query)]);
        return { state: 'absent' };
      }
      return { state: state === 'r' ? 'ready' : 'building', floor: Number(floor), ids: postIds };
    },

    async begin(signal, of) {
      if (!TOKEN_FORM.test(of.token)) throw new Error('a token of a rebuild is 1 to 40 of A-Z, a-z, 0-9, _ and -');
      const args = [of.token, options.rebuildLeaseMs, options.rebuildLeaseMs * BUILDING_LIFE_LEASES];
      return (await cache.run(signal, 'begin', [keyOf(of)], args)) as 'won' | 'busy' | 'ready';
    },

    async addOlder(signal, of) {
      for (const some of inCalls(of.postIds)) {
        const added = await cache.run(signal, 'addOlder', [keyOf(of)], [of.token ?? '', cap, stride, ...some]);
        if (added === -1) return false;
      }
      return true;
    },

    commit: async (signal, of) =>
      (await cache.run(signal, 'commit', [keyOf(of)], [of.token, of.floor, options.lifeMs])) === 1,

    async raiseFloor(signal, of) {
      await cache.run(signal, 'raiseFloor', [keyOf(of)], [of.floor]);
    },

    async removeEntries(signal, of) {
      for (const some of inCalls(of.postIds)) await cache.removeMembers(signal, keyOf(of), some);
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

    drop: (signal, of) => cache.remove(signal, [keyOf(of)]),
  };
}

function* inCalls(postIds: readonly PostId[]): Generator<readonly PostId[]> {
  for (let from = 0; from < postIds.length; from += KEYS_PER_CALL_MAX)
    yield postIds.slice(from, from + KEYS_PER_CALL_MAX);
}

function pushOutcome(value: unknown): PushOutcome {
  const outcome = PUSH_OUTCOMES[Number(value)];
  if (outcome === undefined) throw new Error('a push had an unknown outcome');
  return outcome;
}
