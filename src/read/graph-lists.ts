/** Owns reading the graph: how two users stand to each other, who follows, who is followed. Lists are in the order of the users' IDs. */
import type { Call, Clock } from '../runtime.ts';
import type { UserId } from '../timeline/ids.ts';
import type { Relation } from '../timeline/post.ts';
import type { PageTokens, TokenOwner } from './page-token.ts';

export interface UserPage {
  readonly users: readonly UserId[];
  readonly nextPageToken: string;
}

export interface Relationship {
  readonly following: boolean;
  readonly followedBy: boolean;
  readonly blocking: boolean;
  readonly blockedBy: boolean;
  readonly muting: boolean;
  /** Absent where the mute has no end or there is none. */
  readonly mutedUntilMs?: number;
}

export interface GraphLists {
  relationship(call: Call, input: { readonly viewer: UserId; readonly other: UserId }): Promise<Relationship>;
  /** Throws INVALID_PAGE_TOKEN before any store is touched. */
  followers(
    call: Call,
    input: { readonly user: UserId; readonly pageSize: number; readonly pageToken: string },
  ): Promise<UserPage>;
  following(
    call: Call,
    input: { readonly user: UserId; readonly pageSize: number; readonly pageToken: string },
  ): Promise<UserPage>;
}

interface EdgeQuery {
  readonly user: UserId;
  readonly after: string;
  readonly limit: number;
}

export interface GraphListParts {
  readonly clock: Clock;
  readonly tokens: PageTokens;
  readonly loadRelations: (
    call: Call,
    viewer: UserId,
    authors: readonly UserId[],
  ) => Promise<ReadonlyMap<UserId, Relation>>;
  readonly loadFollowers: (call: Call, query: EdgeQuery) => Promise<readonly UserId[]>;
  readonly loadFollowing: (call: Call, query: EdgeQuery) => Promise<readonly UserId[]>;
}

export function createGraphLists(parts: GraphListParts): GraphLists {
  const { tokens } = parts;

  async function list(
    kind: 'followers' | 'following',
    call: Call,
    input: { readonly user: UserId; readonly pageSize: number; readonly pageToken: string },
  ): Promise<UserPage> {
    const owner: TokenOwner = { tenant: call.tenant, viewer: input.user };
    const after = input.pageToken === '' ? '' : tokens.open(owner, [kind], input.pageToken).after;
    const load = kind === 'followers' ? parts.loadFollowers : parts.loadFollowing;
    // One more than the page shows tells whether anything follows it.
    const found = await load(call, { user: input.user, after, limit: input.pageSize + 1 });
    const users = found.slice(0, input.pageSize);
    const last = users.at(-1);
    return {
      users,
      nextPageToken: found.length > users.length && last !== undefined ? tokens.seal(owner, { kind, after: last }) : '',
    };
  }

  return {
    async relationship(call, { viewer, other }) {
      const [outward, inward] = await Promise.all([
        parts.loadRelations(call, viewer, [other]),
        parts.loadRelations(call, other, [viewer]),
      ]);
      const relation = outward.get(other);
      const reverse = inward.get(viewer);
      if (!relation || !reverse) throw new Error('a relation was asked for and not fetched');
      const until = relation.mutedUntilMs;
      const muting = until !== undefined && until > parts.clock.nowMs();
      return {
        following: relation.follows,
        followedBy: reverse.follows,
        blocking: relation.blocks,
        blockedBy: relation.blockedBy,
        muting,
        ...(muting && Number.isFinite(until) && { mutedUntilMs: until }),
      };
    },
    followers: (call, input) => list('followers', call, input),
    following: (call, input) => list('following', call, input),
  };
}
