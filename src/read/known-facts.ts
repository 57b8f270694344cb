/**
 * Owns reading what the cache knows, for the time when Postgres is away: hits, and nothing but hits. What is not known is named, never filled in: who asks leaves it out.
 *
 * Its look-ups leave no token where they miss: nothing will be loaded under it, and whoever comes when Postgres is back must be able to store.
 */
import type { Call } from '../runtime.ts';
import type { LoadedAuthor } from '../store/postgres/authors.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { AuthorProfiles, PostBodies } from '../store/redis/bodies.ts';
import type { AuthorFacts, Facts, PostFacts, RelationFacts } from '../store/redis/facts.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { Post, PostBody, PostMeta, Relation } from '../timeline/post.ts';
import { targetsOf } from '../timeline/visibility.ts';

export interface Known<Id, Value> {
  readonly values: ReadonlyMap<Id, Value>;
  readonly unknown: ReadonlySet<Id>;
}

export interface KnownFacts {
  /** One entry for each ID, in order. `unknown`: those without a post, or with a target, of which it cannot be told what there is. */
  posts(call: Call, postIds: readonly PostId[]): Promise<LoadedPosts & { readonly unknown: ReadonlySet<PostId> }>;
  relations(call: Call, viewer: UserId, authors: readonly UserId[]): Promise<Known<UserId, Relation>>;
  /** By state; `withoutProfile` says whether somebody has a profile that is not known. */
  authors(
    call: Call,
    authors: readonly UserId[],
  ): Promise<Known<UserId, LoadedAuthor> & { readonly withoutProfile: boolean }>;
}

export interface KnownFactsParts {
  readonly posts: Pick<PostFacts, 'lookUp'>;
  readonly bodies: Pick<PostBodies, 'read'>;
  readonly relations: Pick<RelationFacts, 'lookUp'>;
  readonly authors: Pick<AuthorFacts, 'lookUp'>;
  readonly profiles: Pick<AuthorProfiles, 'read'>;
}

const NO_TOKEN = '';

const NO_BODY: PostBody = { text: '', media: [] };

export function createKnownFacts(parts: KnownFactsParts): KnownFacts {
  async function hits<Scope, Id, Value>(
    facts: Pick<Facts<Scope, Id, Value>, 'lookUp'>,
    call: Call,
    scope: Scope,
    ids: readonly Id[],
  ): Promise<Known<Id, Value>> {
    const values = new Map<Id, Value>();
    const unknown = new Set<Id>();
    const results = ids.length === 0 ? [] : await facts.lookUp(call.signal, scope, ids, NO_TOKEN);
    results.forEach((result, at) => {
      const id = ids[at] as Id;
      if (result.kind === 'hit') values.set(id, result.value);
      else unknown.add(id);
    });
    return { values, unknown };
  }

  async function withBodies(call: Call, metas: readonly PostMeta[]): Promise<ReadonlyMap<PostId, Post>> {
    const shown = metas.filter((meta) => !meta.deleted);
    const wanted = shown.map((meta) => ({ id: meta.postId, version: meta.bodyVersion }));
    const found = await parts.bodies.read(call.signal, call.tenant, wanted);
    const posts = new Map<PostId, Post>();
    for (const meta of metas) if (meta.deleted) posts.set(meta.postId, { meta, body: NO_BODY });
    found.forEach((result, at) => {
      const meta = shown[at] as PostMeta;
      if (result.kind === 'hit') posts.set(meta.postId, { meta, body: result.value });
    });
    return posts;
  }

  return {
    async posts(call, postIds) {
      const own = await hits(parts.posts, call, call.tenant, postIds);
      const targetIds = [...own.values.values()]
        .flatMap((meta) => targetsOf(meta).map((target) => target.postId))
        .filter((postId) => !own.values.has(postId));
      const others = await hits(parts.posts, call, call.tenant, [...new Set(targetIds)]);
      const metas = new Map([...own.values, ...others.values]);
      const posts = await withBodies(call, [...metas.values()]);

      const unknown = new Set<PostId>();
      const targets = new Map<PostId, Post>();
      const entries = postIds.map((postId) => {
        const post = posts.get(postId);
        if (!post) unknown.add(postId);
        for (const { postId: targetId } of post ? targetsOf(post.meta) : []) {
          const target = posts.get(targetId);
          if (target) targets.set(targetId, target);
          else unknown.add(postId);
        }
        // Shown without its target it would say that the target is gone, or hidden.
        return { postId, ...(post && !unknown.has(postId) && { post }) };
      });
      return { entries, targets, unknown };
    },

    relations: (call, viewer, authors) => hits(parts.relations, call, { tenant: call.tenant, viewer }, authors),

    async authors(call, authors) {
      const facts = await hits(parts.authors, call, call.tenant, authors);
      const wanted = [...facts.values].flatMap(([id, { profileVersion }]) =>
        profileVersion > 0 ? [{ id, version: profileVersion }] : [],
      );
      const found = await parts.profiles.read(call.signal, call.tenant, wanted);
      const profiles = new Map(
        found.flatMap((result) => (result.kind === 'hit' ? [[result.value.author, result.value]] : [])),
      );
      const values = new Map(
        [...facts.values].map(([id, { state }]): [UserId, LoadedAuthor] => {
          const profile = profiles.get(id);
          return [id, { state, ...(profile && { profile }) }];
        }),
      );
      return { values, unknown: facts.unknown, withoutProfile: profiles.size < wanted.length };
    },
  };
}
