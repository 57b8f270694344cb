/** Owns the shape of what the read path hands to the front door. */
import type { UserId } from '../timeline/ids.ts';
import type { AuthorProfile, Post, PostCounts } from '../timeline/post.ts';

export const COMPLETENESS = ['complete', 'reduced', 'stale', 'partial', 'unavailable'] as const;
export type Completeness = (typeof COMPLETENESS)[number];

/** A post with what is shown around it; targets only where the viewer may see them. */
export interface PostView {
  readonly post: Post;
  readonly replyTo?: Post;
  readonly repostOf?: Post;
  readonly counts?: PostCounts;
}

export interface Views {
  readonly views: readonly PostView[];
  /** Profiles of all authors in the views and their targets; authors without a profile are absent. */
  readonly authors: ReadonlyMap<UserId, AuthorProfile>;
  readonly completeness: Completeness;
}

export interface PostPage extends Views {
  /** Empty at the end, and only there. */
  readonly nextPageToken: string;
}

export interface HomePage extends PostPage {
  readonly headToken: string;
  readonly retryAfterMs?: number;
}
