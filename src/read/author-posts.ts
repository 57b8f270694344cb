/** (header to come) */
import type { Call } from '../runtime.ts';
import type { UserId } from '../timeline/ids.ts';
import type { PostPage } from './page.ts';

export type ListAuthorPosts = (
  call: Call,
  input: { readonly viewer: UserId; readonly author: UserId; readonly pageSize: number; readonly pageToken: string },
) => Promise<PostPage>;
