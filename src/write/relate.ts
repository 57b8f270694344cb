/** (header to come) */
import type { Call } from '../runtime.ts';
import type { UserId } from '../timeline/ids.ts';
import type { AuthorProfile } from '../timeline/post.ts';

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
  follow(call: Call, input: { readonly follower: UserId; readonly followee: UserId }): Promise<{ readonly relationVersion: number }>;
  /** `followees` are different from each other and from the follower; at most 500. */
  batchFollow(call: Call, input: { readonly follower: UserId; readonly followees: readonly UserId[] }): Promise<readonly FollowResult[]>;
  unfollow(call: Call, input: { readonly follower: UserId; readonly followee: UserId }): Promise<{ readonly relationVersion: number }>;
  removeFollower(call: Call, input: { readonly author: UserId; readonly follower: UserId }): Promise<void>;
  block(call: Call, input: { readonly blocker: UserId; readonly blocked: UserId }): Promise<void>;
  unblock(call: Call, input: { readonly blocker: UserId; readonly blocked: UserId }): Promise<void>;
  /** `untilMs`: end in milliseconds since the Unix epoch, in the future; absent for no end. */
  mute(call: Call, input: { readonly muter: UserId; readonly muted: UserId; readonly untilMs?: number }): Promise<void>;
  unmute(call: Call, input: { readonly muter: UserId; readonly muted: UserId }): Promise<void>;
  putAuthor(call: Call, input: ProfileInput): Promise<AuthorProfile>;
}
