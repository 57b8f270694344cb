/** Owns deleting a post: for ever, its content with it. No read that starts after the answer shows it. */
import { TributaryError } from '../errors.ts';
import type { Call } from '../runtime.ts';
import type { EventKind } from '../store/postgres/outbox.ts';
import type { PostKey } from '../store/postgres/post-rows.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { PostRef, WrittenPost } from '../timeline/post.ts';
import type { Forget } from './forget.ts';

/** Throws POST_NOT_FOUND where the author never had such a post; deleting again changes nothing. */
export type DeletePost = (call: Call, input: { readonly author: UserId; readonly postId: PostId }) => Promise<void>;

/** The verbs of one transaction that deletes. */
export interface DeleteTransaction {
  lock(key: PostKey): Promise<WrittenPost | undefined>;
  erase(key: PostKey): Promise<void>;
  appendTargetCounts(targets: {
    readonly replyTo: PostRef | undefined;
    readonly repostOf: PostRef | undefined;
    readonly delta: -1;
  }): Promise<void>;
  appendEvent(kind: EventKind, payload: Readonly<Record<string, string>>): Promise<void>;
}

export interface DeleteParts {
  /** Throws where the cache did not confirm; deleting again repeats it. */
  readonly forget: Forget;
  readonly transaction: <Result>(call: Call, work: (posts: DeleteTransaction) => Promise<Result>) => Promise<Result>;
}

export function createDelete(parts: DeleteParts): DeletePost {
  return async (call, { author, postId }) => {
    await parts.transaction(call, async (posts) => {
      const key: PostKey = { tenant: call.tenant, author, postId };
      const post = await posts.lock(key);
      if (!post) throw new TributaryError('POST_NOT_FOUND', { message: 'the author has no such post' });
      if (post.meta.deleted) return;
      await posts.erase(key);
      await posts.appendTargetCounts({ replyTo: post.meta.replyTo, repostOf: post.meta.repostOf, delta: -1 });
      await posts.appendEvent('post_deleted', { postId: String(postId), authorId: author });
    });
    await parts.forget(call, { posts: [postId] });
  };
}
