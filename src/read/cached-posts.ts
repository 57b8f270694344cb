/**
 * Owns loading posts through the cache, in two stages: meta by lease fill, which decides who may see a post; then bodies by their version, of what is shown. What the cache does not hold comes
 * from Postgres. A body is only ever shown with the meta that names its version, or both come from one row.
 */
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { PostBodies } from '../store/redis/bodies.ts';
import type { PostId, TenantId } from '../timeline/ids.ts';
import type { Post, PostBody, PostMeta, TargetRef } from '../timeline/post.ts';
import { targetsOf } from '../timeline/visibility.ts';
import type { ReadCall } from './batches.ts';
import type { LeaseFill } from './lease-fill.ts';
import { createTurnReads, type TurnReadsParts } from './turn-reads.ts';
import { createVersionedCache, type VersionedCacheParts } from './versioned-cache.ts';

export interface CachedPostsParts {
  readonly fillMeta: LeaseFill<TenantId, PostId, PostMeta>;
  readonly bodies: PostBodies;
  /** Those of the posts that exist, deleted ones included, and their targets. */
  readonly loadRows: (call: ReadCall, postIds: readonly PostId[]) => Promise<LoadedPosts>;
  readonly bytesMax: number;
  /** Longest life of a read that several wait for. */
  readonly limitMs: number;
  readonly events: {
    readonly meta: TurnReadsParts<unknown, unknown, unknown>['events'];
    readonly body: VersionedCacheParts<PostId, PostBody, Post>['events'];
  };
}

export interface CachedPosts {
  /** What does not exist is absent. Requests of one turn ask together. */
  loadMetas(call: ReadCall, postIds: readonly PostId[]): Promise<ReadonlyMap<PostId, PostMeta>>;
  /** The posts of these metas. One of which only Postgres had the body comes with the meta of its row where that is a later one; one that is gone is absent. */
  loadBodies(call: ReadCall, metas: readonly PostMeta[]): Promise<ReadonlyMap<PostId, Post>>;
  /** Those of the posts whose bodies are known without Postgres. */
  knownBodies(call: ReadCall, metas: readonly PostMeta[]): Promise<ReadonlyMap<PostId, Post>>;
  /** Bytes of bodies held by the process, and reads under way. */
  size(): { readonly bytes: number; readonly underWay: number };
}

export function createCachedPosts(parts: CachedPostsParts): CachedPosts {
  const bodies = createVersionedCache<PostId, PostBody, Post>({
    store: parts.bodies,
    loadRows: async (call, ids) => rowsOf(await parts.loadRows(call, ids)),
    heldBy: ({ meta, body }) =>
      meta.deleted ? undefined : { id: meta.postId, version: meta.bodyVersion, value: body },
    bytesOf: bytesOfBody,
    bytesMax: parts.bytesMax,
    limitMs: parts.limitMs,
    events: parts.events.body,
  });

  const loadMetas = createTurnReads<TenantId, PostId, PostMeta>({
    nameOf: (tenant) => tenant,
    tenantOf: (tenant) => tenant,
    read: (call, tenant, ids, found) =>
      parts.fillMeta(
        call,
        tenant,
        ids,
        async (missing) => {
          const loaded = await parts.loadRows(call, missing);
          const rows = rowsOf(loaded);
          // Before the meta is: whoever reads that it is there finds the body too.
          bodies.keep(call, rows.values());
          return new Map([...rows].map(([id, { meta }]) => [id, namingAll(meta, loaded.targets)]));
        },
        found,
      ),
    limitMs: parts.limitMs,
    events: parts.events.meta,
  });

  return {
    loadMetas: (call, postIds) => loadMetas(call, call.tenant, postIds),

    async loadBodies(call, metas) {
      const found = await bodies.read(
        call,
        metas.map((meta) => ({ id: meta.postId, version: meta.bodyVersion })),
      );
      const posts = new Map<PostId, Post>();
      for (const meta of metas) {
        const body = found.get(meta.postId);
        if (body?.kind === 'value') posts.set(meta.postId, { meta, body: body.value });
        if (body?.kind === 'row') posts.set(meta.postId, latestOf(meta, body.row));
      }
      return posts;
    },

    async knownBodies(call, metas) {
      const known = await bodies.readKnown(
        call,
        metas.map((meta) => ({ id: meta.postId, version: meta.bodyVersion })),
      );
      return new Map(
        metas.flatMap((meta): (readonly [PostId, Post])[] => {
          const body = known.get(meta.postId);
          return body ? [[meta.postId, { meta, body }]] : [];
        }),
      );
    },

    size: () => ({ bytes: bodies.size().bytes, underWay: bodies.size().underWay + loadMetas.open() }),
  };
}

/** Others may have begun to load the row before this meta was read, so either may be the later one; nothing is shown by the earlier. */
function latestOf(meta: PostMeta, row: Post): Post {
  const isLater = row.meta.metaVersion > meta.metaVersion || row.meta.bodyVersion !== meta.bodyVersion;
  return isLater ? row : { meta, body: row.body };
}

function rowsOf({ entries }: LoadedPosts): ReadonlyMap<PostId, Post> {
  return new Map(entries.flatMap(({ postId, post }): (readonly [PostId, Post])[] => (post ? [[postId, post]] : [])));
}

/** The meta with whom each of its targets names: a page that reads it from the cache can then ask for all relations at once. */
function namingAll(meta: PostMeta, targets: LoadedPosts['targets']): PostMeta {
  const naming = (ref: TargetRef | undefined): TargetRef | undefined => {
    const target = ref && targets.get(ref.postId);
    const names = target ? targetsOf(target.meta).map(({ author }) => author) : [];
    return ref && names.length > 0 ? { ...ref, names } : ref;
  };
  const replyTo = naming(meta.replyTo);
  const repostOf = naming(meta.repostOf);
  return { ...meta, ...(replyTo && { replyTo }), ...(repostOf && { repostOf }) };
}

/** What is encoded, and an object of some hundred bytes about it. */
function bytesOfBody(body: PostBody): number {
  return 100 + body.byteLength;
}
