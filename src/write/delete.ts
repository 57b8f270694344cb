/** (header to come) */
import type { Call } from '../runtime.ts';
import type { PostId, UserId } from '../timeline/ids.ts';

export type DeletePost = (call: Call, input: { readonly author: UserId; readonly postId: PostId }) => Promise<void>;
