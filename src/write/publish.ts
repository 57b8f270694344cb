/** (header to come) */
import type { Call } from '../runtime.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { MediaRef, Post, Visibility } from '../timeline/post.ts';

export interface PublishInput {
  readonly author: UserId;
  readonly text: string;
  readonly media: readonly MediaRef[];
  readonly replyTo?: PostId;
  readonly repostOf?: PostId;
  readonly visibility: Visibility;
  /** Already checked for form; unique in the tenant. */
  readonly requestId?: string;
}

export interface Published {
  readonly post: Post;
  readonly ownTimelinePending: boolean;
}

export type PublishPost = (call: Call, input: PublishInput) => Promise<Published>;
