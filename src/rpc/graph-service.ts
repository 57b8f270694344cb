/** Owns the wire form of GraphService. Decides nothing: fields in, flow, message out. */
import {
  BatchFollowResult_Refusal,
  GraphService,
  type PutAuthorRequest,
} from '../gen/tributary/v1/graph_service_pb.ts';
import type { Clock } from '../runtime.ts';
import type { UserId } from '../timeline/ids.ts';
import { LIMITS } from '../timeline/limits.ts';
import type { FollowRefusal, FollowResult, ProfileInput } from '../write/relate.ts';
import { readFields } from './fields.ts';
import type { Flows } from './flows.ts';
import { type Method, unary } from './methods.ts';
import { authorToWire, timestampOf } from './post-to-wire.ts';

const READ = { effect: 'read', access: 'service' } as const;
const WRITE = { effect: 'write', access: 'service' } as const;

const REFUSAL: Readonly<Record<FollowRefusal, BatchFollowResult_Refusal>> = {
  blocked: BatchFollowResult_Refusal.BLOCKED,
  follow_limit_reached: BatchFollowResult_Refusal.FOLLOW_LIMIT_REACHED,
};

export function graphServiceMethods(flows: Pick<Flows, 'relate' | 'graph'>, clock: Clock): readonly Method[] {
  const { relate, graph } = flows;
  const { method } = GraphService;
  return [
    unary(method.follow, WRITE, async (request, call) => {
      const [follower, followee] = differentPair(
        ['follower_id', request.followerId],
        ['followee_id', request.followeeId],
      );
      const { relationVersion } = await relate.follow(call, { follower, followee });
      return { relationVersion: BigInt(relationVersion) };
    }),
    unary(method.unfollow, WRITE, async (request, call) => {
      const [follower, followee] = pair(['follower_id', request.followerId], ['followee_id', request.followeeId]);
      const { relationVersion } = await relate.unfollow(call, { follower, followee });
      return { relationVersion: BigInt(relationVersion) };
    }),
    unary(method.batchFollow, WRITE, async (request, call) => {
      const input = readFields((fields) => {
        const follower = fields.user('follower_id', request.followerId);
        const followees = fields.users('followee_ids', request.followeeIds, LIMITS.batchFollowsMax);
        const own = request.followeeIds.indexOf(follower);
        if (follower !== '' && own >= 0) fields.refuse(`followee_ids[${own}]`, 'must differ from follower_id');
        return { follower, followees };
      });
      const results = await relate.batchFollow(call, input);
      return { results: results.map(followResult) };
    }),
    unary(method.removeFollower, WRITE, async (request, call) => {
      const [author, follower] = pair(['author_id', request.authorId], ['follower_id', request.followerId]);
      await relate.removeFollower(call, { author, follower });
      return {};
    }),
    unary(method.block, WRITE, async (request, call) => {
      const [blocker, blocked] = differentPair(['blocker_id', request.blockerId], ['blocked_id', request.blockedId]);
      await relate.block(call, { blocker, blocked });
      return {};
    }),
    unary(method.unblock, WRITE, async (request, call) => {
      const [blocker, blocked] = pair(['blocker_id', request.blockerId], ['blocked_id', request.blockedId]);
      await relate.unblock(call, { blocker, blocked });
      return {};
    }),
    unary(method.mute, WRITE, async (request, call) => {
      const input = readFields((fields) => {
        const muter = fields.user('muter_id', request.muterId);
        const muted = fields.otherUser('muted_id', request.mutedId, { field: 'muter_id', user: muter });
        const { until } = request;
        return until === undefined
          ? { muter, muted }
          : { muter, muted, untilMs: fields.future('until', until, clock.nowMs()) };
      });
      await relate.mute(call, input);
      return {};
    }),
    unary(method.unmute, WRITE, async (request, call) => {
      const [muter, muted] = pair(['muter_id', request.muterId], ['muted_id', request.mutedId]);
      await relate.unmute(call, { muter, muted });
      return {};
    }),
    unary(method.getRelationship, READ, async (request, call) => {
      const [viewer, other] = pair(['viewer_id', request.viewerId], ['other_id', request.otherId]);
      const { mutedUntilMs, ...relationship } = await graph.relationship(call, { viewer, other });
      return mutedUntilMs === undefined ? relationship : { ...relationship, mutedUntil: timestampOf(mutedUntilMs) };
    }),
    unary(method.listFollowers, READ, async (request, call) => {
      const { users, nextPageToken } = await graph.followers(call, listInput(request));
      return { userIds: [...users], nextPageToken };
    }),
    unary(method.listFollowing, READ, async (request, call) => {
      const { users, nextPageToken } = await graph.following(call, listInput(request));
      return { userIds: [...users], nextPageToken };
    }),
    unary(method.putAuthor, WRITE, async (request, call) => {
      return { author: authorToWire(await relate.putAuthor(call, profileInput(request))) };
    }),
  ];
}

type Field = readonly [field: string, text: string];

function pair([firstField, firstText]: Field, [secondField, secondText]: Field): readonly [UserId, UserId] {
  return readFields((fields) => [fields.user(firstField, firstText), fields.user(secondField, secondText)]);
}

/** Two users who must differ: nobody follows, blocks or mutes themselves. Ending what cannot be is harmless. */
function differentPair([firstField, firstText]: Field, [secondField, secondText]: Field): readonly [UserId, UserId] {
  return readFields((fields) => {
    const first = fields.user(firstField, firstText);
    return [first, fields.otherUser(secondField, secondText, { field: firstField, user: first })];
  });
}

function listInput(request: { readonly userId: string; readonly pageSize: number; readonly pageToken: string }): {
  readonly user: UserId;
  readonly pageSize: number;
  readonly pageToken: string;
} {
  return readFields((fields) => ({
    user: fields.user('user_id', request.userId),
    pageSize: fields.pageSize('page_size', request.pageSize),
    pageToken: request.pageToken,
  }));
}

function profileInput(request: PutAuthorRequest): ProfileInput {
  return readFields((fields) => ({
    author: fields.user('author_id', request.authorId),
    displayName: fields.text('display_name', request.displayName, LIMITS.displayNameCodePointsMax),
    avatarAddress: fields.address('avatar_address', request.avatarAddress, LIMITS.avatarAddressCharsMax),
    bio: fields.text('bio', request.bio, LIMITS.bioCodePointsMax),
    protected: request.protected,
  }));
}

function followResult({ followee, relationVersion, refusal }: FollowResult): {
  followeeId: string;
  relationVersion: bigint;
  refusal: BatchFollowResult_Refusal;
} {
  return {
    followeeId: followee,
    relationVersion: BigInt(relationVersion),
    refusal: refusal === undefined ? BatchFollowResult_Refusal.UNSPECIFIED : REFUSAL[refusal],
  };
}
