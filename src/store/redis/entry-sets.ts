/**
 * Owns the verbs that home timelines and the lists of pulled authors have in common: both are sorted sets of entries with a state, ABSENT, BUILDING or READY. Only READY is complete
 * above its floor, and nothing but `begin` ever creates one.
 */
import type { TributaryError } from '../../errors.ts';
import { type PostId, parsePostId } from '../../timeline/ids.ts';
import type { Cache } from './client.ts';
import { KEYS_PER_CALL_MAX } from './keys.ts';

export type PushOutcome = 'absent' | 'added' | 'present' | 'below_floor';

export type TimelinePage =
  | { readonly state: 'absent' }
  /**
   * `ids` in the order asked for; all that the set holds beyond the position, at most `count`. Complete above the floor in state `ready` only. Where the page is full, the floor may be that of the part
   * that it ends in, which is above the set's own: it says no more than the page needs.
   */
  | { readonly state: 'building' | 'ready'; readonly floor: number; readonly ids: readonly PostId[] };

/** `older`: IDs at or below the position, newest first. `newer`: above it, oldest first. */
export interface PageRange {
  readonly direction: 'older' | 'newer';
  readonly position: number;
  readonly count: number;
}

/** `Of` says which set. */
export interface EntrySets<Of> {
  /**
   * Asks for the right to rebuild. `busy`: another rebuild runs, and is younger than its lease. `owner`: who has no other rebuild of this set under way, whose tokens are `<owner>-…`; what they left there
   * is taken over at once.
   */
  begin(
    signal: AbortSignal,
    of: Of & { readonly token: string; readonly owner?: string },
  ): Promise<'won' | 'busy' | 'ready'>;
  /** Adds posts, of whatever age, in calls of bounded size; with a token only while the rebuild of that token runs. False where the set is not (or no longer) there. */
  addOlder(
    signal: AbortSignal,
    of: Of & { readonly token?: string; readonly postIds: readonly PostId[] },
  ): Promise<boolean>;
  /** Makes it READY, complete above the highest of `floor` and what was trimmed meanwhile. False where the token is gone. */
  commit(signal: AbortSignal, of: Of & { readonly token: string; readonly floor: number }): Promise<boolean>;
  /** Takes back the claim to what lies at or below `floor`. */
  raiseFloor(signal: AbortSignal, of: Of & { readonly floor: number }): Promise<void>;
  /** Removes entries whose posts are gone for good. */
  removeEntries(signal: AbortSignal, of: Of & { readonly postIds: readonly PostId[] }): Promise<void>;
  /** Makes it ABSENT. */
  drop(signal: AbortSignal, of: Of): Promise<void>;
}

export interface EntrySetOptions {
  /** Entries that a trimmed set keeps. */
  readonly cap: number;
  /** Entries beyond the cap before it is trimmed. */
  readonly stride: number;
  /** How long an unread set lives. */
  readonly lifeMs: number;
  /** How long a rebuild keeps others from starting one. */
  readonly rebuildLeaseMs: number;
}

/** What a push script answers; `full`: added to a head that is to be cut, `older`: not yet added, since it belongs to an older part. */
const PUSH_ANSWERS = ['absent', 'added', 'present', 'below_floor', 'full', 'older'] as const;
export type PushAnswer = (typeof PUSH_ANSWERS)[number];
/** The count of entries from which a set is cut, for sets that have no parts. */
export const NEVER_CUT = 0;
/** A read lengthens a life that is shorter than this part of the whole: one write for many reads. */
const RENEW_BELOW = 0.9;
/** A set that is never finished goes away by itself after this many leases. */
const BUILDING_LIFE_LEASES = 10;
/** With it the state member stays below the 64 bytes that a listpack takes (`zset-max-listpack-value`). */
const TOKEN_FORM = /^[A-Za-z0-9_-]{1,40}$/;

/** `ringOf`: the places of older parts; none for sets that are never cut. */
export function createEntrySets<Of>(
  cache: Cache,
  keyOf: (of: Of) => string,
  ringOf: (of: Of) => readonly string[],
  options: EntrySetOptions,
): EntrySets<Of> {
  const { cap, stride } = options;
  const partsOf = (of: Of): readonly string[] => [keyOf(of), ...ringOf(of)];
  return {
    async begin(signal, of) {
      if (!TOKEN_FORM.test(of.token)) throw new Error('a token of a rebuild is 1 to 40 of A-Z, a-z, 0-9, _ and -');
      const lifeMs = options.rebuildLeaseMs * BUILDING_LIFE_LEASES;
      const args = [of.token, options.rebuildLeaseMs, lifeMs, of.owner ?? of.token];
      return (await cache.run(signal, 'begin', [keyOf(of)], args)) as 'won' | 'busy' | 'ready';
    },

    async addOlder(signal, of) {
      // What is BUILDING has no older parts.
      const keys = of.token === undefined ? partsOf(of) : [keyOf(of)];
      for (const some of inCalls(of.postIds)) {
        const added = await cache.run(signal, 'addOlder', keys, [of.token ?? '', cap, stride, ...some]);
        if (added === -1) return false;
      }
      return true;
    },

    commit: async (signal, of) =>
      (await cache.run(signal, 'commit', [keyOf(of)], [of.token, of.floor, options.lifeMs])) === 1,

    async raiseFloor(signal, of) {
      await cache.run(signal, 'raiseFloor', partsOf(of), [of.floor]);
    },

    async removeEntries(signal, of) {
      for (const some of inCalls(of.postIds)) await cache.run(signal, 'takeOutDead', partsOf(of), some);
    },

    drop: (signal, of) => cache.remove(signal, partsOf(of)),
  };
}

/** Post IDs in calls of bounded size. */
export function* inCalls(postIds: readonly PostId[]): Generator<readonly PostId[]> {
  for (let from = 0; from < postIds.length; from += KEYS_PER_CALL_MAX)
    yield postIds.slice(from, from + KEYS_PER_CALL_MAX);
}

/** The arguments of a page script. */
export function pageArgs(
  { direction, position, count }: PageRange,
  { lifeMs }: Pick<EntrySetOptions, 'lifeMs'>,
): readonly (string | number)[] {
  return [direction, position, count, lifeMs, Math.floor(lifeMs * RENEW_BELOW)];
}

/** What a page script answered; `corrupt` where nothing of ours can have written that: no part of it can be trusted. `more`: the script must be run with the places of older parts. */
export function pageIn(reply: unknown): TimelinePage | 'corrupt' | 'more' {
  const [state, floor, ...ids] = reply as readonly string[];
  if (state === undefined) return { state: 'absent' };
  if (state === 'more') return 'more';
  const postIds = ids.map(parsePostId);
  if ((state !== 'r' && !state.startsWith('b')) || !postIds.every((id) => id !== undefined)) return 'corrupt';
  return { state: state === 'r' ? 'ready' : 'building', floor: Number(floor), ids: postIds };
}

export function pushAnswerIn(
  result: { readonly value: unknown } | { readonly error: TributaryError },
): PushAnswer | TributaryError {
  if ('error' in result) return result.error;
  const answer = PUSH_ANSWERS[Number(result.value)];
  if (answer === undefined) throw new Error('a push had an unknown outcome');
  return answer;
}
