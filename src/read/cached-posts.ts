/**
 * Owns loading posts through the cache: meta by lease fill, bodies by their version. What the cache does not hold comes from Postgres. Meta decides who may see
 * a post; a body is only ever shown with the meta that names its version, or both come from one row.
 */
import type { Call } from '../runtime.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { PostBodies } from '../store/redis/bodies.ts';
import type { PostId, TenantId } from '../timeline/ids.ts';
import { NO_BODY, type Post, type PostMeta } from '../timeline/post.ts';
import { targetsOf } from '../timeline/visibility.ts';
import type { LeaseFill } from './lease-fill.ts';

export interface CachedPostsParts {
  readonly fillMeta: LeaseFill<TenantId, PostId, PostMeta>;
  readonly bodies: PostBodies;
  /** Rows of those of the posts that exist, deleted ones included. */
  readonly loadRows: (call: Call, postIds: readonly PostId[]) => Promise<ReadonlyMap<PostId, Post>>;
  readonly events: {
    bodyRead(result: 'hit' | 'miss' | 'corrupt' | 'error'): void;
    /** Bodies could not be stored; the next reader stores them. */
    bodiesNotStored(error: unknown): void;
  };
}

export type LoadPosts = (call: Call, postIds: readonly PostId[]) => Promise<LoadedPosts>;

/** Answers one entry for each ID, in order, and their targets. */
export function createCachedPosts(parts: CachedPostsParts): LoadPosts {
  return async function loadPosts(call, postIds) {
    const rows = new Map<PostId, Post>();
    const loadMeta = async (ids: readonly PostId[]): Promise<ReadonlyMap<PostId, PostMeta>> => {
      const loaded = await parts.loadRows(call, ids);
      for (const [id, post] of loaded) rows.set(id, post);
      return new Map([...loaded].map(([id, post]) => [id, post.meta]));
    };

    const metas = new Map(await parts.fillMeta(call, call.tenant, postIds, loadMeta));
    const targetIds = new Set<PostId>();
    for (const meta of metas.values()) {
      for (const target of targetsOf(meta)) if (!metas.has(target.postId)) targetIds.add(target.postId);
    }
    for (const [id, meta] of await parts.fillMeta(call, call.tenant, [...targetIds], loadMeta)) metas.set(id, meta);

    const posts = await withBodies(call, metas, rows);
    const targets = new Map<PostId, Post>();
    for (const meta of metas.values()) {
      for (const target of targetsOf(meta)) {
        const post = posts.get(target.postId);
        if (post) targets.set(target.postId, post);
      }
    }
    const entries = postIds.map((postId) => {
      const post = posts.get(postId);
      return { postId, ...(post && { post }) };
    });
    return { entries, targets };
  };

  async function withBodies(
    call: Call,
    metas: ReadonlyMap<PostId, PostMeta>,
    rows: Map<PostId, Post>,
  ): Promise<ReadonlyMap<PostId, Post>> {
    const posts = new Map<PostId, Post>();
    const wanted: PostMeta[] = [];
    const toStore: Post[] = [];
    for (const [id, meta] of metas) {
      const row = rows.get(id);
      if (row) {
        posts.set(id, row);
        if (!row.meta.deleted) toStore.push(row);
      } else if (meta.deleted) posts.set(id, { meta, body: NO_BODY });
      else wanted.push(meta);
    }
    const found = await parts.bodies.read(
      call.signal,
      call.tenant,
      wanted.map((meta) => ({ id: meta.postId, version: meta.bodyVersion })),
    );
    const unread = new Map<PostId, boolean>();
    found.forEach((result, index) => {
      const meta = wanted[index] as PostMeta;
      parts.events.bodyRead(result.kind);
      if (result.kind === 'hit') posts.set(meta.postId, { meta, body: result.value });
      else unread.set(meta.postId, result.kind !== 'error');
    });
    if (unread.size > 0) {
      // The row may be newer than the meta: both of its halves are taken then.
      for (const [id, row] of await parts.loadRows(call, [...unread.keys()])) {
        posts.set(id, row);
        if (unread.get(id) === true && !row.meta.deleted) toStore.push(row);
      }
    }
    await store(call, toStore);
    return posts;
  }

  async function store(call: Call, posts: readonly Post[]): Promise<void> {
    if (posts.length === 0) return;
    const values = posts.map(({ meta, body }) => ({ id: meta.postId, version: meta.bodyVersion, value: body }));
    await parts.bodies.store(call.signal, call.tenant, values).catch((error: unknown) => {
      if (call.signal.aborted) throw error;
      parts.events.bodiesNotStored(error);
    });
  }
}
