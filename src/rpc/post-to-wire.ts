/** Owns the wire form of posts and profiles as messages, for the answers to those who wrote them, and of what has a word of its own on the wire. */
import { create, type MessageInitShape } from '@bufbuild/protobuf';
import { type Timestamp, TimestampSchema } from '@bufbuild/protobuf/wkt';
import {
  AuthorProfileSchema,
  type AuthorProfile as WireAuthorProfile,
  Completeness as WireCompleteness,
} from '../gen/tributary/v1/author_pb.ts';
import {
  PostSchema,
  ModerationState as WireModeration,
  type Post as WirePost,
  Visibility as WireVisibility,
} from '../gen/tributary/v1/post_pb.ts';
import type { Completeness } from '../read/page.ts';
import { postIdMs } from '../timeline/ids.ts';
import type { ModerationState, PostRef, Visibility, WrittenPost, WrittenProfile } from '../timeline/post.ts';

export const VISIBILITY: Readonly<Record<Visibility, WireVisibility>> = {
  public: WireVisibility.PUBLIC,
  followers: WireVisibility.FOLLOWERS,
  private: WireVisibility.PRIVATE,
};

export const MODERATION: Readonly<Record<ModerationState, WireModeration>> = {
  clear: WireModeration.CLEAR,
  sensitive: WireModeration.SENSITIVE,
  hidden: WireModeration.HIDDEN,
};

export const COMPLETENESS: Readonly<Record<Completeness, WireCompleteness>> = {
  complete: WireCompleteness.COMPLETE,
  reduced: WireCompleteness.REDUCED,
  stale: WireCompleteness.STALE,
  partial: WireCompleteness.PARTIAL,
  unavailable: WireCompleteness.UNAVAILABLE,
};

export function postToWire({ meta, body }: WrittenPost): WirePost {
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

export function authorToWire(profile: WrittenProfile): WireAuthorProfile {
  return create(AuthorProfileSchema, {
    authorId: profile.author,
    displayName: profile.displayName,
    avatarAddress: profile.avatarAddress,
    bio: profile.bio,
    protected: profile.protected,
    profileVersion: BigInt(profile.profileVersion),
  });
}

export function timestampOf(ms: number): Timestamp {
  const seconds = Math.floor(ms / 1_000);
  return create(TimestampSchema, { seconds: BigInt(seconds), nanos: Math.round((ms - seconds * 1_000) * 1_000_000) });
}

function refToWire(ref: PostRef): { postId: string; authorId: string } {
  return { postId: String(ref.postId), authorId: ref.author };
}
