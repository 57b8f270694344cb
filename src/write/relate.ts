/**
 * Owns changes of the graph and of authors' profiles. What one user follows changes one call at a time, and never beside a block (no follow
 * slips past one, or past the limit). Changes are idempotent, and tell the outbox only of what really changed.
 */
import { TributaryError } from '../errors.ts';
import type { Call } from '../runtime.ts';
import type { FollowState, Pair, StartedFollow } from '../store/postgres/graph.ts';
import type { EventKind } from '../store/postgres/outbox.ts';
import type { TenantId, UserId } from '../timeline/ids.ts';
import type { WrittenProfile } from '../timeline/post.ts';
import type { Changed, Forget } from './forget.ts';

export type FollowRefusal = 'blocked' | 'follow_limit_reached';

export interface FollowResult {
  readonly followee: UserId;
  /** 0 where there never was a relation. */
  readonly relationVersion: number;
  readonly refusal?: FollowRefusal;
}

export interface ProfileInput {
  readonly author: UserId;
  readonly displayName: string;
  readonly avatarAddress: string;
  readonly bio: string;
  readonly protected: boolean;
}

export interface Relate {
  /** Throws BLOCKED or FOLLOW_LIMIT_REACHED. */
  follow(
    call: Call,
    input: { readonly follower: UserId; readonly followee: UserId },
  ): Promise<{ readonly relationVersion: number }>;
  /** `followees` are different from each other and from the follower; at most 500. */
  batchFollow(
    call: Call,
    input: { readonly follower: UserId; readonly followees: readonly UserId[] },
  ): Promise<readonly FollowResult[]>;
  unfollow(
    call: Call,
    input: { readonly follower: UserId; readonly followee: UserId },
  ): Promise<{ readonly relationVersion: number }>;
  removeFollower(call: Call, input: { readonly author: UserId; readonly follower: UserId }): Promise<void>;
  block(call: Call, input: { readonly blocker: UserId; readonly blocked: UserId }): Promise<void>;
  unblock(call: Call, input: { readonly blocker: UserId; readonly blocked: UserId }): Promise<void>;
  /** `untilMs`: end in milliseconds since the Unix epoch, in the future; absent for no end. */
  mute(call: Call, input: { readonly muter: UserId; readonly muted: UserId; readonly untilMs?: number }): Promise<void>;
  unmute(call: Call, input: { readonly muter: UserId; readonly muted: UserId }): Promise<void>;
  putAuthor(call: Call, input: ProfileInput): Promise<WrittenProfile>;
}

/** The verbs of one transaction over the graph. */
export interface GraphTransaction {
  holdFollows(pair: Pair): Promise<void>;
  /** Counts and tells of what it ends. */
  endFollow(pair: Pair): Promise<number | undefined>;
  insertBlock(pair: Pair): Promise<boolean>;
  deleteBlock(pair: Pair): Promise<boolean>;
  upsertMute(pair: Pair & { readonly untilMs?: number }): Promise<boolean>;
  deleteMute(pair: Pair): Promise<boolean>;
  putProfile(input: ProfileInput & { readonly tenant: TenantId }): Promise<WrittenProfile>;
  appendEvent(kind: EventKind, payload: Readonly<Record<string, string>>): Promise<void>;
}

export interface RelateParts {
  /** Throws where the cache did not confirm the deletion of the facts that changed. */
  readonly forget: Forget;
  /** Brings new followees' posts into the follower's timeline, best effort: the outbox does it again. Never throws but for the call's abort. */
  readonly backfill: (call: Call, follower: UserId, followees: readonly UserId[]) => Promise<void>;
  /** A deletion that hides nothing could not be confirmed: the outbox repeats it. */
  readonly notForgotten: (error: unknown) => void;
  readonly transaction: <Result>(call: Call, work: (graph: GraphTransaction) => Promise<Result>) => Promise<Result>;
  /** Starts what may be started, one call for a follower at a time; counts and tells of it. */
  readonly startFollows: (
    call: Call,
    input: { readonly follower: UserId; readonly followees: readonly UserId[]; readonly followsMax: number },
  ) => Promise<readonly StartedFollow[]>;
  /** In a transaction of its own; otherwise as the transaction's verb. */
  readonly endFollow: (call: Call, pair: Pair) => Promise<number | undefined>;
  readonly loadFollowStates: (
    call: Call,
    follower: UserId,
    followees: readonly UserId[],
  ) => Promise<ReadonlyMap<UserId, FollowState>>;
  /** Authors that one viewer may follow at once. */
  readonly followsMax: number;
}

export function createRelate(parts: RelateParts): Relate {
  const { transaction, followsMax, forget } = parts;

  async function forgetIfPossible(call: Call, changed: Changed): Promise<void> {
    await forget(call, changed).catch(parts.notForgotten);
  }

  async function follow(call: Call, follower: UserId, followees: readonly UserId[]): Promise<readonly FollowResult[]> {
    const answers = await parts.startFollows(call, { follower, followees, followsMax });
    const results = answers.map(followResult);

    // A new follow hides nothing: what the cache does not confirm now, the outbox repeats.
    const held = results.filter(({ refusal }) => refusal === undefined);
    if (held.length > 0)
      await forgetIfPossible(call, { relations: held.map(({ followee }) => [follower, followee] as const) });
    // Those that held before have their posts already, or an event that brings them.
    const started = answers.filter(({ outcome }) => outcome === 'started').map(({ followee }) => followee);
    if (started.length > 0) await parts.backfill(call, follower, started);
    return results;
  }

  async function endFollow(
    call: Call,
    follower: UserId,
    followee: UserId,
  ): Promise<{ readonly relationVersion: number }> {
    const ended = await parts.endFollow(call, { tenant: call.tenant, from: follower, to: followee });
    const relationVersion =
      ended ?? (await parts.loadFollowStates(call, follower, [followee])).get(followee)?.version ?? 0;
    await forget(call, { relations: [[follower, followee]] });
    return { relationVersion };
  }

  return {
    async follow(call, { follower, followee }) {
      const [result] = await follow(call, follower, [followee]);
      if (!result) throw new Error('a follow had no result');
      switch (result.refusal) {
        case undefined:
          return { relationVersion: result.relationVersion };
        case 'blocked':
          throw new TributaryError('BLOCKED', { message: 'a block stands between the two' });
        case 'follow_limit_reached':
          throw new TributaryError('FOLLOW_LIMIT_REACHED', {
            message: `nobody can follow more than ${followsMax} authors`,
          });
        default:
          throw new Error(`unknown refusal: ${result.refusal satisfies never}`);
      }
    },

    batchFollow: (call, { follower, followees }) => follow(call, follower, followees),

    unfollow: (call, { follower, followee }) => endFollow(call, follower, followee),

    async removeFollower(call, { author, follower }) {
      await endFollow(call, follower, author);
    },

    async block(call, { blocker, blocked }) {
      const { tenant } = call;
      await transaction(call, async (graph) => {
        const pair = { tenant, from: blocker, to: blocked };
        await graph.holdFollows(pair);
        const changed = await graph.insertBlock(pair);
        // In one order, whoever blocks: two who block each other must not wait for each other's rows.
        const [first, second] = blocker < blocked ? [blocker, blocked] : [blocked, blocker];
        await graph.endFollow({ tenant, from: first, to: second });
        await graph.endFollow({ tenant, from: second, to: first });
        if (changed) await graph.appendEvent('block_changed', { blockerId: blocker, blockedId: blocked });
      });
      await forget(call, { relations: bothWays(blocker, blocked) });
    },

    async unblock(call, { blocker, blocked }) {
      const { tenant } = call;
      await transaction(call, async (graph) => {
        if (await graph.deleteBlock({ tenant, from: blocker, to: blocked })) {
          await graph.appendEvent('block_changed', { blockerId: blocker, blockedId: blocked });
        }
      });
      await forgetIfPossible(call, { relations: bothWays(blocker, blocked) });
    },

    async mute(call, { muter, muted, untilMs }) {
      await transaction(call, async (graph) => {
        const pair = { tenant: call.tenant, from: muter, to: muted };
        if (await graph.upsertMute({ ...pair, ...(untilMs !== undefined && { untilMs }) })) {
          await graph.appendEvent('mute_changed', { muterId: muter, mutedId: muted });
        }
      });
      await forget(call, { relations: [[muter, muted]] });
    },

    async unmute(call, { muter, muted }) {
      await transaction(call, async (graph) => {
        if (await graph.deleteMute({ tenant: call.tenant, from: muter, to: muted })) {
          await graph.appendEvent('mute_changed', { muterId: muter, mutedId: muted });
        }
      });
      await forgetIfPossible(call, { relations: [[muter, muted]] });
    },

    async putAuthor(call, input) {
      const profile = await transaction(call, async (graph) => {
        const stored = await graph.putProfile({ tenant: call.tenant, ...input });
        await graph.appendEvent('author_changed', { authorId: input.author });
        return stored;
      });
      await forget(call, { authors: [input.author] });
      return profile;
    },
  };
}

function followResult({ followee, version, outcome }: StartedFollow): FollowResult {
  const result = { followee, relationVersion: version };
  switch (outcome) {
    case 'started':
    case 'held':
      return result;
    case 'blocked':
      return { ...result, refusal: 'blocked' };
    case 'full':
      return { ...result, refusal: 'follow_limit_reached' };
    default:
      throw new Error(`unknown outcome: ${outcome satisfies never}`);
  }
}

function bothWays(one: UserId, other: UserId): readonly (readonly [UserId, UserId])[] {
  return [
    [one, other],
    [other, one],
  ];
}
