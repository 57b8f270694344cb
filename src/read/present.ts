/**
 * Owns what is shown of posts that have been judged visible: bodies, profiles of their authors, counters, and those of their targets that the viewer may see. All of it is asked for in one
 * batch, and of nothing that is hidden. Profiles and counters may fail: they are left out, and the page says that it is reduced. A body may not, but where Postgres is away: then home leaves
 * out the post, and whatever names it, and says so.
 */
import { TributaryError } from '../errors.ts';
import type { Log } from '../runtime.ts';
import type { AuthorFact } from '../store/redis/facts.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { AuthorProfile, Post, PostCounts, PostMeta } from '../timeline/post.ts';
import { type HiddenReason, hiddenAsTarget, targetsOf, type VisibilityFacts } from '../timeline/visibility.ts';
import type { ReadCall } from './batches.ts';
import type { LoadCounts } from './cached-counts.ts';
import type { CachedPeople } from './cached-people.ts';
import type { CachedPosts } from './cached-posts.ts';
import type { Fallback } from './known-facts.ts';
import type { PostView } from './page.ts';
import type { PageFacts } from './page-facts.ts';

export interface Presented {
  /** In the order given. Absent where a body turned out to be gone, or came with a later meta that hides the post; and where a plain repost would show nothing, since that is so of its target. */
  readonly views: readonly PostView[];
  readonly authors: ReadonlyMap<UserId, AuthorProfile>;
  readonly reduced: boolean;
  /** Whether posts are missing because their bodies, or those of their targets, are not known. */
  readonly leftOut: boolean;
  /** How many are absent for good. */
  readonly missing: number;
}

export interface Presenter {
  /** Begins to load what the posts will need of Postgres if they are shown: for a page that had to ask it anyway. */
  begin(metas: readonly PostMeta[]): void;
  /** `judge`: what the posts were judged by, for those whose meta turns out to be a later one. */
  present(
    metas: readonly PostMeta[],
    judge: (post: PostMeta, facts: VisibilityFacts) => HiddenReason | undefined,
  ): Promise<Presented>;
}

export type OpenPresenter = (call: ReadCall, facts: PageFacts) => Presenter;

export interface PresenterParts {
  readonly log: Log;
  readonly posts: Pick<CachedPosts, 'loadBodies'>;
  readonly people: Pick<CachedPeople, 'loadProfiles'>;
  /** Undefined where they are left out on purpose. */
  readonly loadCounts: (...asked: Parameters<LoadCounts>) => Promise<Awaited<ReturnType<LoadCounts>> | undefined>;
  /** Where Postgres is away. */
  readonly fallback?: Pick<Fallback, 'hasDatabase' | 'mayLeaveOut'> &
    Pick<CachedPosts, 'knownBodies'> &
    Pick<CachedPeople, 'knownProfiles'>;
}

export function createOpenPresenter({ log, posts, people, loadCounts, fallback }: PresenterParts): OpenPresenter {
  return function openPresenter(call, facts) {
    const counts = new Map<PostId, PostCounts>();
    let begun: Promise<unknown> = Promise.resolve();

    const withoutDatabase = (): typeof fallback =>
      fallback?.mayLeaveOut && !fallback.hasDatabase() ? fallback : undefined;

    /** False where they are left out on purpose. */
    async function countAll(postIds: readonly PostId[]): Promise<boolean> {
      if (postIds.length === 0) return true;
      const loaded = await loadCounts(call, postIds);
      for (const [id, counted] of loaded ?? []) counts.set(id, counted);
      return loaded !== undefined;
    }

    /** Undefined where they could not be loaded. */
    async function leftOut<Result>(what: string, loading: Promise<Result>): Promise<Result | undefined> {
      try {
        return await loading;
      } catch (error) {
        if (call.signal.aborted) throw error;
        log.warn({ err: error }, `${what} left out of a page`);
        return undefined;
      }
    }

    /** Those that are known, where all of them cannot be loaded. */
    async function loadProfiles(
      authors: ReadonlyMap<UserId, AuthorFact>,
    ): Promise<{ readonly profiles: ReadonlyMap<UserId, AuthorProfile>; readonly whole: boolean }> {
      const all = await leftOut('profiles', people.loadProfiles(call, authors));
      if (all) return { profiles: all, whole: true };
      const known = fallback && (await leftOut('profiles', fallback.knownProfiles(call, authors)));
      const wanted = [...authors.values()].filter(({ profileVersion }) => profileVersion !== 0).length;
      return { profiles: known ?? new Map(), whole: known?.size === wanted };
    }

    async function bodiesOf(wanted: readonly PostMeta[]): Promise<Bodies> {
      const away = withoutDatabase();
      if (away) return { posts: await away.knownBodies(call, wanted), whole: false };
      try {
        return { posts: await posts.loadBodies(call, wanted), whole: true };
      } catch (error) {
        const now = withoutDatabase();
        if (call.signal.aborted || !(error instanceof TributaryError) || !now) throw error;
        return { posts: await now.knownBodies(call, wanted), whole: false };
      }
    }

    async function loadBodies(metas: ReadonlyMap<PostId, PostMeta>): Promise<Bodies> {
      const loaded = new Map<PostId, Post>();
      const wanted: PostMeta[] = [];
      for (const meta of metas.values()) {
        const row = facts.row(meta.postId);
        if (row && row.meta.bodyVersion === meta.bodyVersion) loaded.set(meta.postId, { meta, body: row.body });
        else wanted.push(meta);
      }
      const bodies = await bodiesOf(wanted);
      for (const [id, post] of bodies.posts) {
        loaded.set(id, post);
        if (post.meta.metaVersion > (metas.get(id)?.metaVersion ?? 0)) facts.learn(post.meta);
      }
      return { posts: loaded, whole: bodies.whole };
    }

    return {
      begin(metas) {
        const loading = countAll(metas.map(({ postId }) => postId).filter((id) => !counts.has(id)));
        begun = Promise.allSettled([begun, loading]);
      },

      async present(metas, judge) {
        const shown = new Map(metas.map((meta) => [meta.postId, meta]));
        for (const meta of metas) {
          for (const ref of targetsOf(meta)) {
            const target = facts.target(ref.postId);
            if (target && hiddenAsTarget(target, facts) === undefined) shown.set(target.postId, target);
          }
        }
        const authors = new Map([...shown.values()].map(({ author }) => [author, facts.authorFact(author)]));
        await begun;
        const uncounted = metas.map(({ postId }) => postId).filter((id) => !counts.has(id));
        const [bodies, profiles, counted] = await Promise.all([
          loadBodies(shown),
          loadProfiles(authors),
          leftOut('counters', countAll(uncounted)),
        ]);
        const unknown = new Set(bodies.whole ? [] : [...shown.keys()].filter((id) => !bodies.posts.has(id)));

        const visible = (id: PostId, by: (post: PostMeta, facts: VisibilityFacts) => HiddenReason | undefined) => {
          const post = bodies.posts.get(id);
          return post && by(post.meta, facts) === undefined ? post : undefined;
        };
        let missing = 0;
        const views = metas.flatMap(({ postId }): readonly PostView[] => {
          const post = visible(postId, judge);
          if (!post) {
            if (!bodies.posts.has(postId) && !unknown.has(postId)) missing += 1;
            return [];
          }
          if (targetsOf(post.meta).some((target) => unknown.has(target.postId))) return [];
          const replyTo = post.meta.replyTo && visible(post.meta.replyTo.postId, hiddenAsTarget);
          const repostOf = post.meta.repostOf && visible(post.meta.repostOf.postId, hiddenAsTarget);
          if (post.meta.plainRepost && !repostOf) {
            missing += 1;
            return [];
          }
          const of = counts.get(postId);
          const isCounted = of !== undefined && (of.reposts !== undefined || of.replies !== undefined);
          return [
            { post, ...(replyTo && { replyTo }), ...(repostOf && { repostOf }), ...(isCounted && { counts: of }) },
          ];
        });
        return {
          views,
          authors: profilesOf(views, profiles.profiles),
          reduced: !profiles.whole || !counted,
          leftOut: unknown.size > 0,
          missing,
        };
      },
    };
  };
}

interface Bodies {
  readonly posts: ReadonlyMap<PostId, Post>;
  /** Postgres was asked: what is absent is gone, and not merely not known. */
  readonly whole: boolean;
}

/** Of all authors whom the views show. */
function profilesOf(
  views: readonly PostView[],
  profiles: ReadonlyMap<UserId, AuthorProfile>,
): ReadonlyMap<UserId, AuthorProfile> {
  const of = new Map<UserId, AuthorProfile>();
  for (const view of views) {
    for (const post of [view.post, view.replyTo, view.repostOf]) {
      const profile = post && profiles.get(post.meta.author);
      if (profile) of.set(profile.author, profile);
    }
  }
  return of;
}
