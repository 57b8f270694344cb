/**
 * Owns what is immutable under its version: bodies of posts, profiles of authors, encoded as the API's own messages. A key is stored under the version that
 * was read with it, so it needs no invalidation; two who store the same key store the same bytes.
 *
 * A checksum goes before the message: protobuf reads most damaged bytes without complaint, as a post with less in it.
 */
import { crc32 } from 'node:zlib';
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { timestampFromMs, timestampMs } from '@bufbuild/protobuf/wkt';
import type { TributaryError } from '../../errors.ts';
import { AuthorProfileSchema } from '../../gen/tributary/v1/author_pb.ts';
import { PostSchema } from '../../gen/tributary/v1/post_pb.ts';
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import type { AuthorProfile, PostBody } from '../../timeline/post.ts';
import type { Cache } from './client.ts';
import type { Keys } from './keys.ts';

export type Found<Value> =
  | { readonly kind: 'hit'; readonly value: Value }
  | { readonly kind: 'miss' }
  /** Something is stored that does not read: load it, and store it anew. */
  | { readonly kind: 'corrupt' }
  | { readonly kind: 'error'; readonly error: TributaryError };

export interface Versioned<Id, Value> {
  /** One result for each, in order. */
  read(signal: AbortSignal, tenant: TenantId, wanted: readonly Version<Id>[]): Promise<readonly Found<Value>[]>;
  store(
    signal: AbortSignal,
    tenant: TenantId,
    values: readonly (Version<Id> & { readonly value: Value })[],
  ): Promise<void>;
}

export interface Version<Id> {
  readonly id: Id;
  readonly version: number;
}

export type PostBodies = Versioned<PostId, PostBody>;
export type AuthorProfiles = Versioned<UserId, AuthorProfile>;

export function createPostBodies(cache: Cache, keys: Keys, options: { readonly lifeMs: number }): PostBodies {
  return versioned(
    cache,
    options,
    (tenant, { id, version }) => keys.postBody(tenant, id, version),
    encodeBody,
    decodeBody,
  );
}

export function createAuthorProfiles(cache: Cache, keys: Keys, options: { readonly lifeMs: number }): AuthorProfiles {
  return versioned(
    cache,
    options,
    (tenant, { id, version }) => keys.authorProfile(tenant, id, version),
    encodeProfile,
    decodeProfile,
  );
}

function versioned<Id, Value>(
  cache: Cache,
  options: { readonly lifeMs: number },
  keyOf: (tenant: TenantId, wanted: Version<Id>) => string,
  encode: (value: Value) => Uint8Array,
  decode: (bytes: Uint8Array) => Value,
): Versioned<Id, Value> {
  return {
    async read(signal, tenant, wanted) {
      const results = await cache.read(
        signal,
        wanted.map((version) => keyOf(tenant, version)),
      );
      return results.map((result): Found<Value> => {
        if ('error' in result) return { kind: 'error', error: result.error };
        if (result.value === undefined) return { kind: 'miss' };
        try {
          return { kind: 'hit', value: decode(unsealed(result.value as Buffer)) };
        } catch {
          return { kind: 'corrupt' };
        }
      });
    },
    store: (signal, tenant, values) =>
      cache.write(
        signal,
        values.map(({ value, ...version }) => ({ key: keyOf(tenant, version), value: sealed(encode(value)) })),
        options.lifeMs,
      ),
  };
}

const CHECKSUM_BYTES = 4;

function sealed(message: Uint8Array): Buffer {
  const bytes = Buffer.allocUnsafe(CHECKSUM_BYTES + message.length);
  bytes.writeUInt32BE(crc32(message));
  bytes.set(message, CHECKSUM_BYTES);
  return bytes;
}

/** Throws for bytes that were not stored so. */
function unsealed(bytes: Buffer): Uint8Array {
  const message = bytes.subarray(CHECKSUM_BYTES);
  if (bytes.readUInt32BE(0) !== crc32(message)) throw new Error('the checksum does not fit');
  return message;
}

function encodeBody(body: PostBody): Uint8Array {
  return toBinary(
    PostSchema,
    create(PostSchema, {
      text: body.text,
      media: body.media.map((ref) => ({ ...ref })),
      ...(body.editedAtMs !== undefined && { editedAt: timestampFromMs(body.editedAtMs) }),
    }),
  );
}

function decodeBody(bytes: Uint8Array): PostBody {
  const post = fromBinary(PostSchema, bytes);
  return {
    text: post.text,
    media: post.media.map(({ address, mediaType, altText, widthPixels, heightPixels }) => ({
      address,
      mediaType,
      altText,
      widthPixels,
      heightPixels,
    })),
    ...(post.editedAt && { editedAtMs: timestampMs(post.editedAt) }),
  };
}

function encodeProfile(profile: AuthorProfile): Uint8Array {
  const { author, profileVersion, ...rest } = profile;
  return toBinary(
    AuthorProfileSchema,
    create(AuthorProfileSchema, { ...rest, authorId: author, profileVersion: BigInt(profileVersion) }),
  );
}

function decodeProfile(bytes: Uint8Array): AuthorProfile {
  const profile = fromBinary(AuthorProfileSchema, bytes);
  return {
    author: profile.authorId as UserId,
    displayName: profile.displayName,
    avatarAddress: profile.avatarAddress,
    bio: profile.bio,
    protected: profile.protected,
    profileVersion: Number(profile.profileVersion),
  };
}
