/** (header to come) */
import type { Call } from '../runtime.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { Completeness, HomePage } from './page.ts';

export interface HomeHead {
  readonly newCount: number;
  readonly newestPostId?: PostId;
  readonly headToken: string;
  readonly completeness: Completeness;
}

export interface HomeTimeline {
  /** `pageSize` is 1 to 100; `pageToken` is what the caller sent, '' for the newest page. Throws INVALID_PAGE_TOKEN before any store is touched. */
  page(call: Call, input: { readonly viewer: UserId; readonly pageSize: number; readonly pageToken: string }): Promise<HomePage>;
  head(call: Call, input: { readonly viewer: UserId; readonly sinceToken: string }): Promise<HomeHead>;
}
