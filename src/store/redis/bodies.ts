/**
 * Owns what is immutable under its version: bodies of posts, profiles of authors. They come encoded and are handed out so; nobody here looks inside. A key is stored under the version that
 * was read with it, so it needs no invalidation; two who store the same key store the same bytes.
 *
 * A checksum goes before the bytes: nobody opens them before the reader's own client does, and protobuf reads most damaged bytes without complaint, as a post with less in it.
 */
import { crc32 } from 'node:zlib';
import type { TributaryError } from '../../errors.ts';
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import type { AuthorProfile, PostBody, ProfileBody } from '../../timeline/post.ts';
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
    (body) => body,
    (bytes) => bytes as PostBody,
  );
}

export function createAuthorProfiles(cache: Cache, keys: Keys, options: { readonly lifeMs: number }): AuthorProfiles {
  return versioned(
    cache,
    options,
    (tenant, { id, version }) => keys.authorProfile(tenant, id, version),
    ({ body }) => body,
    (bytes, { id, version }) => ({ author: id, profileVersion: version, body: bytes as ProfileBody }),
  );
}

function versioned<Id, Value>(
  cache: Cache,
  options: { readonly lifeMs: number },
  keyOf: (tenant: TenantId, wanted: Version<Id>) => string,
  toBytes: (value: Value) => Uint8Array,
  fromBytes: (bytes: Uint8Array, version: Version<Id>) => Value,
): Versioned<Id, Value> {
  return {
    async read(signal, tenant, wanted) {
      const results = await cache.read(
        signal,
        wanted.map((version) => keyOf(tenant, version)),
      );
      return results.map((result, index): Found<Value> => {
        if ('error' in result) return { kind: 'error', error: result.error };
        if (result.value === undefined) return { kind: 'miss' };
        const bytes = unsealed(result.value as Buffer);
        return bytes === undefined
          ? { kind: 'corrupt' }
          : { kind: 'hit', value: fromBytes(bytes, wanted[index] as Version<Id>) };
      });
    },
    store: (signal, tenant, values) =>
      cache.write(
        signal,
        values.map(({ value, ...version }) => ({ key: keyOf(tenant, version), value: sealed(toBytes(value)) })),
        options.lifeMs,
      ),
  };
}

const CHECKSUM_BYTES = 4;

function sealed(body: Uint8Array): Buffer {
  const bytes = Buffer.allocUnsafe(CHECKSUM_BYTES + body.length);
  bytes.writeUInt32BE(crc32(body));
  bytes.set(body, CHECKSUM_BYTES);
  return bytes;
}

/** What was sealed; undefined for anything else. A copy: what comes from the connection lies in the packet it came in, and whoever keeps it would keep all of that. */
function unsealed(bytes: Buffer): Uint8Array | undefined {
  if (bytes.length < CHECKSUM_BYTES) return undefined;
  const body = new Uint8Array(bytes.subarray(CHECKSUM_BYTES));
  return bytes.readUInt32BE(0) === crc32(body) ? body : undefined;
}
