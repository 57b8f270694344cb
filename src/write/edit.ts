/** (header to come) */
import type { Call } from '../runtime.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { MediaRef, Post, Visibility } from '../timeline/post.ts';

export interface EditInput {
  readonly author: UserId;
  readonly postId: PostId;
  readonly text?: string;
  readonly media?: readonly MediaRef[];
  readonly visibility?: Visibility;
  readonly expectedMetaVersion?: number;
}

export type EditPost = (call: Call, input: EditInput) => Promise<Post>;
