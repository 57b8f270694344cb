/**
 * Owns turning loaded posts into what a viewer may see: fetches in one batch every fact that visibility asks for, then decides. A fact that was
 * not fetched is an error, never a default: what hides a post must not be missing by accident. Counters alone may fail: they are left out.
 */
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
  readonly loadCounts: (call: Call, postIds: readonly PostId[]) => Promise<ReadonlyMap<PostId, PostCounts>>;
}

/** The facts of one batch of posts for one viewer, and what is shown beside them. */
export interface Hydrated {
  readonly facts: VisibilityFacts;
  /** The post with those of its targets that the viewer may see. The post itself must have been judged already. */
  view(post: Post): PostView;
  /** Authors named by the views, with their profiles. */
  profilesOf(views: readonly PostView[]): ReadonlyMap<UserId, AuthorProfile>;
  /** Whether counters could not be loaded. */
  readonly reduced: boolean;
}

export type Hydrate = (call: Call, viewer: UserId, loaded: LoadedPosts) => Promise<Hydrated>;

export function createHydrate(parts: HydrateParts): Hydrate {
  return async function hydrate(call, viewer, loaded) {
    const authors = authorsIn(loaded);
    const others = authors.filter((author) => author !== viewer);
    const postIds = loaded.entries.filter((entry) => entry.post).map((entry) => entry.postId);
    const [relations, stored, counts] = await Promise.all([
      parts.loadRelations(call, viewer, others),
      parts.loadAuthors(call, authors),
      parts.loadCounts(call, postIds).catch((error: unknown) => {
        if (call.signal.aborted) throw error;
        parts.log.warn({ err: error }, 'counters left out of a page');
        return undefined;
      }),
    ]);
    const known = new Set(authors);

    const facts: VisibilityFacts = {
      viewer,
      nowMs: parts.clock.nowMs(),
      authorState(author) {
        if (!known.has(author)) throw new Error('the state of an author was asked for and not fetched');
        return stored.get(author)?.state ?? UNKNOWN_AUTHOR;
      },
      relation(author) {
        const relation = relations.get(author);
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
      reduced: counts === undefined,
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
            const profile = post && stored.get(post.meta.author)?.profile;
            if (profile) profiles.set(profile.author, profile);
          }
        }
        return profiles;
      },
    };
  };
}

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
