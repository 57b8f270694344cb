/** Owns the meta of an ordinary post for tests that need no row of it: public, clear, there, in its first version; whatever a test is about it says itself. */
import type { PostMeta } from '../../src/timeline/post.ts';

export function postMeta(of: Pick<PostMeta, 'postId' | 'author'> & Partial<PostMeta>): PostMeta {
  return {
    visibility: 'public',
    moderation: 'clear',
    deleted: false,
    plainRepost: false,
    metaVersion: 1,
    bodyVersion: 1,
    ...of,
  };
}
