/**
 * Owns turning loaded posts into what a viewer may see: fetches in one batch every fact that visibility asks for, then decides. A fact that was
 * not fetched is an error, never a default: what hides a post must not be missing by accident. Counters and profiles may fail: they are left out. Where Postgres is away, home leaves out
 * whatever asks for a fact that the cache does not know; everybody else fails.
 */
import { TributaryError } from '../errors.ts';
import type { Call, Clock, Log } from '../runtime.ts';
import type { LoadedAuthor } from '../store/postgres/authors.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import {
  type AuthorProfile,
  type Post,
  type PostCounts,
  type PostRef,
  type Relation,
  UNKNOWN_AUTHOR,
} from '../timeline/post.ts';
import { hiddenAsTarget, targetsOf, type VisibilityFacts } from '../timeline/visibility.ts';
import type { KnownFacts } from './known-facts.ts';
import type { PostView } from './page.ts';

export interface HydrateParts {
  readonly clock: Clock;
  readonly log: Log;
  /** Answers every author asked for. */
  readonly loadRelations: (
    call: Call,
    viewer: UserId,
    authors: readonly UserId[],
  ) => Promise<ReadonlyMap<UserId, Relation>>;
  /** Authors about whom nothing is stored are absent. */
  readonly loadAuthors: (call: Call, authors: readonly UserId[]) => Promise<ReadonlyMap<UserId, LoadedAuthor>>;
  /** Undefined where they are left out on purpose. */
  readonly loadCounts: (call: Call, postIds: readonly PostId[]) => Promise<ReadonlyMap<PostId, PostCounts> | undefined>;
  /** What can be told where the loads above fail. */
  readonly fallback?: HydrateFallback;
}

export interface HydrateFallback {
  readonly known: Pick<KnownFacts, 'relations' | 'authors'>;
  /** Whether Postgres is worth asking; where it is, an unknown fact fails the call, which may be repeated at once. */
  readonly hasDatabase: () => boolean;
  /** Whether posts may be left out for facts that are not known, on a page that says so. */
  readonly mayLeaveOut: boolean;
}

/** The facts of one batch of posts for one viewer, and what is shown beside them. */
export interface Hydrated {
  readonly facts: VisibilityFacts;
  /** The post with those of its targets that the viewer may see. The post itself must have been judged already. */
  view(post: Post): PostView;
  /** Authors named by the views, with their profiles. */
  profilesOf(views: readonly PostView[]): ReadonlyMap<UserId, AuthorProfile>;
  /** Whether counters or profiles could not be loaded. */
  readonly reduced: boolean;
  /** Whether posts are hidden because a fact about them is not known. */
  readonly leftOut: boolean;
}

export type Hydrate = (call: Call, viewer: UserId, loaded: LoadedPosts) => Promise<Hydrated>;

export function createHydrate(parts: HydrateParts): Hydrate {
  return async function hydrate(call, viewer, loaded) {
    const authors = authorsIn(loaded);
    const others = authors.filter((author) => author !== viewer);
    const postIds = loaded.entries.filter((entry) => entry.post).map((entry) => entry.postId);
    const [relations, stored, counts] = await Promise.all([
      orKnown(
        call,
        async () => ({ values: await parts.loadRelations(call, viewer, others), unknown: NOBODY }),
        (known) => known.relations(call, viewer, others),
      ),
      orKnown(
        call,
        async () => ({ values: await parts.loadAuthors(call, authors), unknown: NOBODY, withoutProfile: false }),
        (known) => known.authors(call, authors),
      ),
      parts.loadCounts(call, postIds).catch((error: unknown) => {
        if (call.signal.aborted) throw error;
        parts.log.warn({ err: error }, 'counters left out of a page');
        return undefined;
      }),
    ]);
    const known = new Set(authors);
    const unknown = new Set([...relations.unknown, ...stored.unknown]);

    const facts: VisibilityFacts = {
      viewer,
      unknown,
      nowMs: parts.clock.nowMs(),
      authorState(author) {
        if (!known.has(author)) throw new Error('the state of an author was asked for and not fetched');
        return stored.values.get(author)?.state ?? UNKNOWN_AUTHOR;
      },
      relation(author) {
        const relation = relations.values.get(author);
        if (!relation) throw new Error('a relation was asked for and not fetched');
        return relation;
      },
      target: (postId) => loaded.targets.get(postId)?.meta,
    };

    const visibleTarget = (ref: PostRef | undefined): Post | undefined => {
      const target = ref && loaded.targets.get(ref.postId);
      return target && hiddenAsTarget(target.meta, facts) === undefined ? target : undefined;
    };

    return {
      facts,
      reduced: counts === undefined || stored.withoutProfile,
      leftOut: unknown.size > 0,
      view(post) {
        const replyTo = visibleTarget(post.meta.replyTo);
        const repostOf = visibleTarget(post.meta.repostOf);
        const counted = counts?.get(post.meta.postId);
        return {
          post,
          ...(replyTo && { replyTo }),
          ...(repostOf && { repostOf }),
          ...(counted && { counts: counted }),
        };
      },
      profilesOf(views) {
        const profiles = new Map<UserId, AuthorProfile>();
        for (const view of views) {
          for (const post of [view.post, view.replyTo, view.repostOf]) {
            const profile = post && stored.values.get(post.meta.author)?.profile;
            if (profile) profiles.set(profile.author, profile);
          }
        }
        return profiles;
      },
    };
  };

  /** What `load` gives; else what is known, where that is enough, or where more cannot be had and the page may do without. */
  async function orKnown<Facts extends { readonly unknown: ReadonlySet<UserId> }>(
    call: Call,
    load: () => Promise<Facts>,
    ask: (known: HydrateFallback['known']) => Promise<Facts>,
  ): Promise<Facts> {
    const { fallback } = parts;
    const mayLeaveOut = (): boolean => fallback?.mayLeaveOut === true && !fallback.hasDatabase();
    if (fallback && mayLeaveOut()) return ask(fallback.known);
    try {
      return await load();
    } catch (error) {
      if (!fallback || call.signal.aborted || !(error instanceof TributaryError)) throw error;
      const facts = await ask(fallback.known);
      if (facts.unknown.size > 0 && !mayLeaveOut()) throw error;
      return facts;
    }
  }
}

const NOBODY: ReadonlySet<UserId> = new Set();

/** Authors of the posts, of their targets, and of what those name in turn. */
function authorsIn(loaded: LoadedPosts): readonly UserId[] {
  const authors = new Set<UserId>();
  const add = (post: Post): void => {
    authors.add(post.meta.author);
    for (const target of targetsOf(post.meta)) authors.add(target.author);
  };
  for (const entry of loaded.entries) if (entry.post) add(entry.post);
  for (const target of loaded.targets.values()) add(target);
  return [...authors];
}
