/**
 * Owns the facts from which a read decides what its viewer may see: meta of posts and of their targets (one level), states of authors, relations. No body, no profile, no counter is among them.
 * A fact that was not fetched is an error, never a default: what hides a post must not be missing by accident. Where Postgres is away, home leaves out whatever asks for a fact that the cache
 * does not know; everybody else fails.
 *
 * What is asked for goes out in as few batches as its dependencies allow:
 *   1. meta of the candidates, unless the rows came from Postgres with them; relations and states of authors who are known by then, as those of lists are;
 *   2. relations and states of the posts' authors and of their targets', meta of the targets, and relations to whom those name: a cached meta tells of its targets' names;
 *   3. only where a meta does not (a row of Postgres tells by itself): relations to whom the targets name.
 * Where the process remembers whom the posts name, all of it goes out with the first.
 * Facts hold for all rounds of one request, and for no other request.
 */
import type { Clock } from '../runtime.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { AuthorFact } from '../store/redis/facts.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { Post, PostMeta, Relation } from '../timeline/post.ts';
import { targetsOf, type VisibilityFacts } from '../timeline/visibility.ts';
import type { ReadCall } from './batches.ts';
import type { CachedPeople } from './cached-people.ts';
import type { CachedPosts } from './cached-posts.ts';
import { type Fallback, orKnown } from './known-facts.ts';
import type { NamedPeopleMemory } from './named-people.ts';

/** Candidates of one fetch, in the page's order. */
export interface Candidates {
  readonly ids: readonly PostId[];
  /** Rows that came with them from Postgres, targets included; undefined for a candidate whose post is not there. */
  readonly rows?: ReadonlyMap<PostId, Post | undefined>;
  /** Authors of some, where the source tells. */
  readonly authors?: ReadonlySet<UserId>;
}

export interface PageFacts extends VisibilityFacts {
  /** Begins to load the meta of posts that will probably be candidates. */
  begin(postIds: readonly PostId[]): void;
  /** Loads what it takes to judge these. `spoiled` is told of their meta where Postgres had to be asked on the way, before the last batch goes out: what would have to ask it again may join. */
  gather(candidates: Candidates, spoiled?: (metas: readonly PostMeta[]) => void): Promise<void>;
  /** Undefined where there is no such post, or where that is not known. */
  meta(postId: PostId): PostMeta | undefined;
  /** Whether it cannot be told now what the post is, or what it names: shown without its target it would say that the target is gone, or hidden. */
  isUnknown(postId: PostId): boolean;
  /** Whether something was asked for that cannot be told now. */
  lacks(): boolean;
  authorFact(author: UserId): AuthorFact;
  /** The post where Postgres gave it with its body. */
  row(postId: PostId): Post | undefined;
  /** Takes over a later meta. */
  learn(meta: PostMeta): void;
}

export interface PageFactsParts {
  readonly clock: Clock;
  readonly posts: Pick<CachedPosts, 'loadMetas'>;
  readonly people: Pick<CachedPeople, 'loadRelations' | 'loadStates'>;
  /** One for all surfaces of the process. */
  readonly named: NamedPeopleMemory;
  /** What can be told where the loads fail. */
  readonly fallback?: Fallback;
}

export type OpenPageFacts = (call: ReadCall, viewer: UserId) => PageFacts;

/** As many as dependencies make; what were still missing then would fail the judging. */
const BATCHES_MAX = 3;

export function createOpenPageFacts({ clock, posts, people, named, fallback }: PageFactsParts): OpenPageFacts {
  return function openPageFacts(call, viewer) {
    /** Undefined for what does not exist. */
    const metas = new Map<PostId, PostMeta | undefined>();
    const rows = new Map<PostId, Post>();
    const relations = new Map<UserId, Relation>();
    const states = new Map<UserId, AuthorFact>();
    /** Authors whose state or relation, and posts whose meta, cannot be told now. */
    const unknown = new Set<UserId>();
    const unknownPosts = new Set<PostId>();
    /** Whether posts were met of whom the process does not remember whom they name. */
    let strangers = false;
    /** A request that asked again for what it is loading already would wait for its own token. */
    const early = new Set<PostId>();
    const failures = new Map<PostId, unknown>();
    let begun: Promise<unknown> = Promise.resolve();
    const askedOfPostgres = (): number => call.batches?.postgres.count() ?? 0;
    let asked = askedOfPostgres();

    function takeRows(ids: readonly PostId[], given: ReadonlyMap<PostId, Post | undefined>): void {
      for (const [id, post] of given) {
        metas.set(id, post?.meta);
        if (post) rows.set(id, post);
      }
      // A target that did not come with the row that names it is not there.
      for (const id of ids)
        for (const ref of targetsIn(given.get(id)))
          if (!given.has(ref.postId) && !metas.has(ref.postId)) metas.set(ref.postId, undefined);
    }

    async function loadMetas(ids: readonly PostId[]): Promise<void> {
      const loaded = await orKnown(
        call,
        fallback,
        () => posts.loadMetas(call, ids),
        (known) => known.metas(call, ids),
      );
      for (const id of ids) {
        const meta = loaded.values.get(id);
        metas.set(id, meta);
        if (strangers && meta && !meta.deleted) named.learn(call.tenant, meta);
      }
      for (const id of loaded.unknown) unknownPosts.add(id);
    }

    async function loadRelations(authors: readonly UserId[]): Promise<void> {
      const loaded = await orKnown(
        call,
        fallback,
        () => people.loadRelations(call, viewer, authors),
        (known) => known.relations(call, viewer, authors),
      );
      for (const [author, relation] of loaded.values) relations.set(author, relation);
      for (const author of loaded.unknown) unknown.add(author);
    }

    async function loadStates(authors: readonly UserId[]): Promise<void> {
      const loaded = await orKnown(
        call,
        fallback,
        () => people.loadStates(call, authors),
        (known) => known.states(call, authors),
      );
      for (const [author, state] of loaded.values) states.set(author, state);
      for (const author of loaded.unknown) unknown.add(author);
    }

    /** What judging these asks for, as far as that is known by now, and is not there. */
    function missing(candidates: Candidates): Missing {
      const wanted: Missing = { metas: new Set(), relations: new Set(), states: new Set() };
      const author = (id: UserId): void => {
        if (!states.has(id) && !unknown.has(id)) wanted.states.add(id);
        relation(id);
      };
      const relation = (id: UserId): void => {
        if (id !== viewer && !relations.has(id) && !unknown.has(id)) wanted.relations.add(id);
      };
      candidates.authors?.forEach(author);
      for (const id of candidates.ids) {
        const isThere = metas.has(id);
        if (!isThere) wanted.metas.add(id);
        const meta = metas.get(id);
        const names = isThere ? meta : named.of(call.tenant, id);
        strangers ||= !isThere && !names;
        if (!names) continue;
        author(names.author);
        if (meta?.deleted) continue;
        for (const ref of targetsOf(names)) {
          author(ref.author);
          ref.names?.forEach(relation);
          if (!metas.has(ref.postId)) wanted.metas.add(ref.postId);
          const target = metas.get(ref.postId);
          if (target) for (const named of targetsOf(target)) relation(named.author);
        }
      }
      return wanted;
    }

    return {
      viewer,
      nowMs: clock.nowMs(),
      unknown,

      begin(postIds) {
        const fresh = postIds.filter((id) => !metas.has(id) && !early.has(id));
        if (fresh.length === 0) return;
        strangers = true;
        for (const id of fresh) early.add(id);
        const loading = loadMetas(fresh).catch((error: unknown) => {
          for (const id of fresh) failures.set(id, error);
        });
        begun = Promise.all([begun, loading]);
      },

      async gather(candidates, spoiled) {
        if (candidates.rows) takeRows(candidates.ids, candidates.rows);
        await begun;
        let isTold = false;
        for (let batch = 0; batch < BATCHES_MAX; batch += 1) {
          const wanted = missing(candidates);
          if (wanted.metas.size + wanted.relations.size + wanted.states.size === 0) break;
          throwFailures(wanted.metas);
          if (!isTold && wanted.states.size + wanted.relations.size > 0 && askedOfPostgres() > asked) {
            isTold = true;
            spoiled?.(candidates.ids.flatMap((id) => metas.get(id) ?? []));
          }
          await Promise.all([
            wanted.metas.size > 0 && loadMetas([...wanted.metas]),
            wanted.relations.size > 0 && loadRelations([...wanted.relations]),
            wanted.states.size > 0 && loadStates([...wanted.states]),
          ]);
        }
        asked = askedOfPostgres();
      },

      meta: (postId) => metas.get(postId),
      isUnknown(postId) {
        const meta = metas.get(postId);
        const named = meta && !meta.deleted ? targetsOf(meta) : [];
        return (
          unknownPosts.has(postId) ||
          named.some(({ postId: id, author }) => {
            const target = metas.get(id);
            return (
              unknownPosts.has(id) ||
              unknown.has(author) ||
              (target !== undefined && targetsOf(target).some((other) => unknown.has(other.author)))
            );
          })
        );
      },
      lacks: () => unknown.size + unknownPosts.size > 0,
      target: (postId) => {
        if (!metas.has(postId)) throw new Error('a target was asked for and not fetched');
        return metas.get(postId);
      },
      authorState: (author) => factOf(author).state,
      authorFact: factOf,
      relation(author) {
        const relation = relations.get(author);
        if (!relation) throw new Error('a relation was asked for and not fetched');
        return relation;
      },
      row: (postId) => rows.get(postId),
      learn: (meta) => void metas.set(meta.postId, meta),
    };

    /** What failed early fails the page that needs it, unless there is another way by now. */
    function throwFailures(wanted: ReadonlySet<PostId>): void {
      if (failures.size === 0 || fallback?.hasDatabase() === false) return;
      for (const id of wanted) if (failures.has(id)) throw failures.get(id);
    }

    function factOf(author: UserId): AuthorFact {
      const fact = states.get(author);
      if (!fact) throw new Error('the state of an author was asked for and not fetched');
      return fact;
    }
  };
}

function targetsIn(post: Post | undefined): ReturnType<typeof targetsOf> {
  return post ? targetsOf(post.meta) : [];
}

interface Missing {
  readonly metas: Set<PostId>;
  readonly relations: Set<UserId>;
  readonly states: Set<UserId>;
}

/** What Postgres answered, as candidates. */
export function candidatesOf({
  entries,
  targets,
}: LoadedPosts): Candidates & { readonly rows: ReadonlyMap<PostId, Post | undefined> } {
  const rows = new Map<PostId, Post | undefined>(targets);
  for (const { postId, post } of entries) if (post || !rows.has(postId)) rows.set(postId, post);
  return { ids: entries.map(({ postId }) => postId), rows };
}
