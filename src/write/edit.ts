/**
 * Owns changes of a post's text, media, visibility and moderation: lock, decide, write, tell, in one transaction. A change that makes a
 * post eligible for others' timelines again asks for a new generation of its fan-out.
 */
import { invalidField, TributaryError } from '../errors.ts';
import type { Call } from '../runtime.ts';
import type { EventKind } from '../store/postgres/outbox.ts';
import type { PostKey } from '../store/postgres/post-rows.ts';
import type { PostChange } from '../store/postgres/posts.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { MediaRef, ModerationState, Visibility, WrittenPost } from '../timeline/post.ts';
import type { Forget } from './forget.ts';

export interface EditInput {
  readonly author: UserId;
  readonly postId: PostId;
  readonly text?: string;
  readonly media?: readonly MediaRef[];
  readonly visibility?: Visibility;
  readonly expectedMetaVersion?: number;
}

/** Throws POST_NOT_FOUND (also where moderation hides it), VERSION_MISMATCH, POST_KIND_FIXED, INVALID_FIELD where nothing would be left to show. A change to what is there already changes nothing. */
export type EditPost = (call: Call, input: EditInput) => Promise<WrittenPost>;

/** Throws POST_NOT_FOUND. */
export type ModeratePost = (
  call: Call,
  input: { readonly author: UserId; readonly postId: PostId; readonly state: ModerationState },
) => Promise<WrittenPost>;

/** The verbs of one transaction over posts. */
export interface PostTransaction {
  lock(key: PostKey): Promise<WrittenPost | undefined>;
  write(key: PostKey, change: PostChange): Promise<WrittenPost>;
  appendFanoutGeneration(key: PostKey): Promise<void>;
  appendEvent(kind: EventKind, payload: Readonly<Record<string, string>>): Promise<void>;
}

export interface EditParts {
  /** Throws where the cache did not confirm: the change is durable then, and not yet sure to hold everywhere. */
  readonly forget: Forget;
  readonly transaction: <Result>(call: Call, work: (posts: PostTransaction) => Promise<Result>) => Promise<Result>;
}

export function createEdit(parts: EditParts): EditPost {
  return async (call, input) => {
    const post = await parts.transaction(call, (posts) =>
      change(posts, call, input, (before) => edited(before, input)),
    );
    await parts.forget(call, { posts: [input.postId] });
    return post;
  };
}

export function createModerate(parts: EditParts): ModeratePost {
  return async (call, input) => {
    const post = await parts.transaction(call, (posts) =>
      change(posts, call, input, (before) => ({ ...contentOf(before), moderation: input.state })),
    );
    await parts.forget(call, { posts: [input.postId] });
    return post;
  };
}

type Content = Omit<PostChange, 'metaVersion' | 'bodyVersion'>;

async function change(
  posts: PostTransaction,
  call: Call,
  named: { readonly author: UserId; readonly postId: PostId },
  decide: (post: WrittenPost) => Content,
): Promise<WrittenPost> {
  const key: PostKey = { tenant: call.tenant, author: named.author, postId: named.postId };
  const post = await posts.lock(key);
  if (!post || post.meta.deleted) throw notFound();
  const content = decide(post);
  const before = contentOf(post);
  const bodyChanged = content.text !== before.text || !sameMedia(content.media, before.media);
  if (!bodyChanged && content.visibility === before.visibility && content.moderation === before.moderation) return post;

  const written = await posts.write(key, {
    ...content,
    metaVersion: post.meta.metaVersion + 1,
    bodyVersion: post.meta.bodyVersion + (bodyChanged ? 1 : 0),
  });
  if (!eligible(before) && eligible(content)) await posts.appendFanoutGeneration(key);
  await posts.appendEvent('post_changed', { postId: String(named.postId), authorId: named.author });
  return written;
}

function edited(post: WrittenPost, input: EditInput): Content {
  // The answer to an edit shows the post, and what moderation hides is shown to nobody.
  if (post.meta.moderation === 'hidden') throw notFound();
  if (input.expectedMetaVersion !== undefined && input.expectedMetaVersion !== post.meta.metaVersion) {
    throw new TributaryError('VERSION_MISMATCH', { message: `the post's meta_version is ${post.meta.metaVersion}` });
  }
  const content: Content = {
    ...contentOf(post),
    ...(input.text !== undefined && { text: input.text }),
    ...(input.media !== undefined && { media: input.media }),
    ...(input.visibility !== undefined && { visibility: input.visibility }),
  };
  const empty = content.text === '' && content.media.length === 0;
  if (post.meta.plainRepost && !empty) {
    throw new TributaryError('POST_KIND_FIXED', { message: 'a plain repost takes neither text nor media' });
  }
  if (!post.meta.plainRepost && empty) throw invalidField('text', 'a post needs text or media');
  return content;
}

function notFound(): TributaryError {
  return new TributaryError('POST_NOT_FOUND', { message: 'the author has no such post' });
}

function contentOf(post: WrittenPost): Content {
  return {
    text: post.body.text,
    media: post.body.media,
    visibility: post.meta.visibility,
    moderation: post.meta.moderation,
  };
}

/** Whether others' timelines may hold the post at all. */
function eligible(content: Content): boolean {
  return content.visibility !== 'private' && content.moderation !== 'hidden';
}

function sameMedia(a: readonly MediaRef[], b: readonly MediaRef[]): boolean {
  return (
    a.length === b.length &&
    a.every((ref, index) => {
      const other = b[index];
      return (
        other !== undefined &&
        ref.address === other.address &&
        ref.mediaType === other.mediaType &&
        ref.altText === other.altText &&
        ref.widthPixels === other.widthPixels &&
        ref.heightPixels === other.heightPixels
      );
    })
  );
}
