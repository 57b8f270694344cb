/**
 * Owns the wire form of posts and authors. Maps are keyed by user ID on an object without prototype: `__proto__` and `constructor` are
 * user IDs like any other.
 */
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import {
  AuthorProfileSchema,
  type AuthorProfile as WireAuthorProfile,
  Completeness as WireCompleteness,
} from '../gen/tributary/v1/author_pb.ts';
import {
  PostSchema,
  PostViewSchema,
  ModerationState as WireModeration,
  type Post as WirePost,
  type PostView as WirePostView,
  Visibility as WireVisibility,
} from '../gen/tributary/v1/post_pb.ts';
import type { Completeness, PostView, Views } from '../read/page.ts';
import { postIdMs } from '../timeline/ids.ts';
import type { AuthorProfile, ModerationState, Post, PostRef, Visibility } from '../timeline/post.ts';

const VISIBILITY: Readonly<Record<Visibility, WireVisibility>> = {
  public: WireVisibility.PUBLIC,
  followers: WireVisibility.FOLLOWERS,
  private: WireVisibility.PRIVATE,
};

const MODERATION: Readonly<Record<ModerationState, WireModeration>> = {
  clear: WireModeration.CLEAR,
  sensitive: WireModeration.SENSITIVE,
  hidden: WireModeration.HIDDEN,
};

const COMPLETENESS: Readonly<Record<Completeness, WireCompleteness>> = {
  complete: WireCompleteness.COMPLETE,
  reduced: WireCompleteness.REDUCED,
  stale: WireCompleteness.STALE,
  partial: WireCompleteness.PARTIAL,
  unavailable: WireCompleteness.UNAVAILABLE,
};

export function completenessToWire(completeness: Completeness): WireCompleteness {
  return COMPLETENESS[completeness];
}

export function postToWire({ meta, body }: Post): WirePost {
  const post: MessageInitShape<typeof PostSchema> = {
    postId: String(meta.postId),
    authorId: meta.author,
    text: body.text,
    media: body.media.map((item) => ({ ...item })),
    visibility: VISIBILITY[meta.visibility],
    moderationState: MODERATION[meta.moderation],
    metaVersion: BigInt(meta.metaVersion),
    bodyVersion: BigInt(meta.bodyVersion),
    publishedAt: timestampOf(postIdMs(meta.postId)),
  };
  if (meta.replyTo !== undefined) post.replyTo = refToWire(meta.replyTo);
  if (meta.repostOf !== undefined) post.repostOf = refToWire(meta.repostOf);
  if (body.editedAtMs !== undefined) post.editedAt = timestampOf(body.editedAtMs);
  return create(PostSchema, post);
}

export function viewToWire({ post, replyTo, repostOf, counts }: PostView): WirePostView {
  const view: MessageInitShape<typeof PostViewSchema> = { post: postToWire(post) };
  if (replyTo !== undefined) view.replyTo = postToWire(replyTo);
  if (repostOf !== undefined) view.repostOf = postToWire(repostOf);
  if (counts !== undefined) {
    // A count that is not known stays absent: it is not zero.
    view.counts = {
      ...(counts.reposts === undefined ? {} : { reposts: BigInt(counts.reposts) }),
      ...(counts.replies === undefined ? {} : { replies: BigInt(counts.replies) }),
    };
  }
  return create(PostViewSchema, view);
}

export function authorToWire(profile: AuthorProfile): WireAuthorProfile {
  return create(AuthorProfileSchema, {
    authorId: profile.author,
    displayName: profile.displayName,
    avatarAddress: profile.avatarAddress,
    bio: profile.bio,
    protected: profile.protected,
    profileVersion: BigInt(profile.profileVersion),
  });
}

export function authorsToWire(authors: Views['authors']): Record<string, WireAuthorProfile> {
  const map: Record<string, WireAuthorProfile> = Object.create(null);
  for (const [author, profile] of authors) map[author] = authorToWire(profile);
  return map;
}

export function timestampOf(ms: number): Timestamp {
  const seconds = Math.floor(ms / 1_000);
  return create(TimestampSchema, { seconds: BigInt(seconds), nanos: Math.round((ms - seconds * 1_000) * 1_000_000) });
}

function refToWire(ref: PostRef): { postId: string; authorId: string } {
  return { postId: String(ref.postId), authorId: ref.author };
}
