/** (header to come) */
import type { Call } from '../runtime.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { Views } from './page.ts';

export interface ReadPosts {
  /** Throws POST_NOT_FOUND, the same whether the post never was, is gone or is hidden; `views` holds exactly one else. */
  one(call: Call, input: { readonly viewer: UserId; readonly postId: PostId }): Promise<Views>;
  /** `postIds` are different from each other; at most 100. Answers in the order asked for. */
  batch(call: Call, input: { readonly viewer: UserId; readonly postIds: readonly PostId[] }): Promise<Views>;
}
