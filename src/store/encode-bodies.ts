/**
 * Owns the encoding of what is shown: content of posts, profiles of authors, as fields of the API's own messages. Done where a row is read, once; from there to the wire the bytes stay as
 * they are.
 *
 * Invariant: a body holds only fields that meta does not, so that a post is its body's bytes and its meta's bytes one after the other. The bytes are in a buffer of their own: what keeps
 * them keeps nothing else.
 */
import { create, toBinary } from '@bufbuild/protobuf';
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import { AuthorProfileSchema } from '../gen/tributary/v1/author_pb.ts';
import { PostSchema } from '../gen/tributary/v1/post_pb.ts';
import type { AuthorProfile, PostBody, PostContent, ProfileBody, WrittenProfile } from '../timeline/post.ts';

export function encodeBody({ text, media, editedAtMs }: PostContent): PostBody {
  const post = create(PostSchema, {
    text,
    media: media.map((ref) => ({ ...ref })),
    ...(editedAtMs !== undefined && { editedAt: timestampFromMs(editedAtMs) }),
  });
  return toBinary(PostSchema, post) as PostBody;
}

export function encodeProfile({ author, profileVersion, ...shown }: WrittenProfile): AuthorProfile {
  const profile = create(AuthorProfileSchema, { ...shown, authorId: author, profileVersion: BigInt(profileVersion) });
  return { author, profileVersion, body: toBinary(AuthorProfileSchema, profile) as ProfileBody };
}
