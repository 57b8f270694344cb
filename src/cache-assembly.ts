/** Owns how the cache's stores and the reading through them are put together. Belongs to the composition root, beside assembly.ts. */
import type { Config } from './config.ts';
import type { Metrics } from './metrics/metrics.ts';
import { type CachedPeople, createCachedPeople } from './read/cached-people.ts';
import { createCachedPosts, type LoadPosts } from './read/cached-posts.ts';
import { createCandidates, type OpenCandidates } from './read/candidates.ts';
import { createLeaseFill, type LeaseFillEvents } from './read/lease-fill.ts';
import { type ChangeEvent, createAfterChange } from './repair/after-change.ts';
import { createFollowEntries } from './repair/follow-entries.ts';
import { createForcedRebuild, createRebuild, type RebuildOutcome } from './repair/rebuild.ts';
import type { Call, Runtime } from './runtime.ts';
import { loadAuthors } from './store/postgres/authors.ts';
import type { Database } from './store/postgres/client.ts';
import { loadRelations } from './store/postgres/graph-reads.ts';
import {
  createLoadHomeNewer,
  createLoadHomeOlder,
  findWrittenBy,
  loadNewestOf,
  loadSnapshot,
} from './store/postgres/home-pages.ts';
import { loadPostsById } from './store/postgres/posts.ts';
import { createAuthorProfiles, createPostBodies } from './store/redis/bodies.ts';
import { type Cache, createCache } from './store/redis/client.ts';
import { createAuthorFacts, createPostFacts, createRelationFacts } from './store/redis/facts.ts';
import { createKeys } from './store/redis/keys.ts';
import { type Lineage, readLineages } from './store/redis/lineage.ts';
import { createTimelines, type Timelines } from './store/redis/timelines.ts';
import type { PostId, UserId } from './timeline/ids.ts';
import type { Post } from './timeline/post.ts';
import { createForget, type Forget } from './write/forget.ts';

export interface CacheAssembly {
  readonly timelines: Timelines;
  readonly forget: Forget;
  readonly loadPosts: LoadPosts;
  readonly people: CachedPeople;
  readonly openCandidates: OpenCandidates;
  readonly tidy: (call: Call, viewer: UserId, gone: readonly PostId[]) => void;
  readonly backfill: (call: Call, follower: UserId, followees: readonly UserId[]) => Promise<void>;
  readonly forceRebuild: (call: Call, viewer: UserId) => Promise<RebuildOutcome>;
  readonly afterChange: (call: Call, event: ChangeEvent) => Promise<void>;
  readonly loadLineages: (signal: AbortSignal) => Promise<readonly Lineage[]>;
  /** Ends what goes on behind readers. The connections are to be closed after it. */
  stop(): Promise<void>;
}

/** Life of immutable values, in milliseconds: they take room until the server wants it for others. */
const IMMUTABLE_LIFE_MS = 7 * 86_400_000;
/** Life of a reader's right to store: longer than a load may take. */
const TOKEN_LIFE_MS = 3_000;
/** New follows of one call that are backfilled one by one; for more the timeline is dropped, and rebuilt once when it is read. */
const BACKFILLS_MAX = 8;
/** Tidying calls under way at once; what is beyond is left to the next reader. */
const TIDYING_MAX = 64;
const TIDY_TIMEOUT_MS = 1_000;
/** What a stop waits for rebuilds whose readers have left; one takes some tens of milliseconds. */
const REBUILDS_END_WAIT_MS = 1_000;

export function openCache(config: Config, runtime: Runtime, metrics: Metrics): Cache {
  return createCache({
    ...config.cache,
    clientFailed(error) {
      metrics.cacheClientError();
      runtime.log.warn({ err: error }, 'the connection to the cache failed');
    },
  });
}

export function assembleCache(parts: {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  readonly database: Database;
  readonly cache: Cache;
}): CacheAssembly {
  const { config, runtime, metrics, database, cache } = parts;
  const { clock, log, random } = runtime;
  const { cap, stride } = config.timeline;
  const keys = createKeys(config.timeline.shards);
  const newToken = (): string => random.bytes(9).toString('base64url');

  const timelines = createTimelines(cache, keys, { ...config.timeline, rebuildLeaseMs: config.rebuild.leaseMs });
  const factOptions = { lifeMs: config.cache.factLifeMs, tokenLifeMs: TOKEN_LIFE_MS, random: () => random.fraction() };
  const postFacts = createPostFacts(cache, keys, factOptions);
  const authorFacts = createAuthorFacts(cache, keys, factOptions);
  const relationFacts = createRelationFacts(cache, keys, factOptions);
  const fillEvents = (layer: 'post' | 'author' | 'relation'): LeaseFillEvents => ({
    lookedUp: (result) => metrics.cacheRead(layer, result),
    filled: (outcome) => metrics.leaseFilled(outcome),
  });

  const relationsNow = (call: Call, viewer: UserId, authors: readonly UserId[]) =>
    loadRelations(database, call.signal, { tenant: call.tenant, viewer, authors });
  const follows = async (call: Call, viewer: UserId, author: UserId): Promise<boolean> =>
    (await relationsNow(call, viewer, [author])).get(author)?.follows ?? false;

  const people = createCachedPeople({
    fillRelations: createLeaseFill({ facts: relationFacts, newToken, events: fillEvents('relation') }),
    fillAuthors: createLeaseFill({ facts: authorFacts, newToken, events: fillEvents('author') }),
    profiles: createAuthorProfiles(cache, keys, { lifeMs: IMMUTABLE_LIFE_MS }),
    loadRelations: relationsNow,
    loadAuthors: (call, authors) => loadAuthors(database, call.signal, { tenant: call.tenant, authors }),
    events: {
      profileRead: (result) => metrics.cacheRead('profile', result),
      profilesNotStored: () => metrics.cacheStoreFailed('profile'),
    },
  });
  const loadPosts = createCachedPosts({
    fillMeta: createLeaseFill({ facts: postFacts, newToken, events: fillEvents('post') }),
    bodies: createPostBodies(cache, keys, { lifeMs: IMMUTABLE_LIFE_MS }),
    async loadRows(call, postIds) {
      const { entries } = await loadPostsById(database, call.signal, { tenant: call.tenant, postIds });
      return new Map(
        entries.flatMap(({ postId, post }): (readonly [PostId, Post])[] => (post ? [[postId, post]] : [])),
      );
    },
    events: {
      bodyRead: (result) => metrics.cacheRead('body', result),
      bodiesNotStored: () => metrics.cacheStoreFailed('body'),
    },
  });

  const rebuild = createRebuild({
    clock,
    timelines,
    newToken,
    loadSnapshot: (signal, { tenant, viewer }) => loadSnapshot(database, signal, { tenant, viewer, cap }),
    leaseMs: config.rebuild.leaseMs,
    concurrencyMax: config.rebuild.concurrencyMax,
    events: {
      rebuilt: (event) => metrics.timelineRebuilt(event),
      joined: () => metrics.singleFlightJoined('rebuild'),
      failed: (error) => log.warn({ err: error }, 'a timeline could not be rebuilt; the next reader tries again'),
    },
  });
  const entries = createFollowEntries({
    timelines,
    cap,
    stride,
    follows,
    loadRelation: async (call, viewer, author) => (await people.loadRelations(call, viewer, [author])).get(author),
    loadNewestOf: (call, query) => loadNewestOf(database, call.signal, { tenant: call.tenant, ...query }),
    findWrittenBy: (call, author, postIds) =>
      findWrittenBy(database, call.signal, { tenant: call.tenant, author, postIds }),
    events: {
      backfilled: (count) => metrics.backfilled(count),
      cleanedUp: (count) => metrics.entriesCleaned('unfollowed', count),
    },
  });
  const forget = createForget({
    posts: postFacts,
    authors: authorFacts,
    relations: relationFacts,
    events: { forgotten: (outcome) => metrics.forgotten(outcome) },
  });

  let tidying = 0;
  return {
    timelines,
    forget,
    loadPosts,
    people,
    openCandidates: createCandidates({
      timelines,
      loadPosts,
      loadOlder: createLoadHomeOlder(database),
      loadNewer: createLoadHomeNewer(database),
      async rebuild(call, viewer) {
        const outcome = await rebuild(call, viewer, 'absent');
        if (outcome === 'busy') return 'busy';
        return outcome === 'overloaded' || outcome === 'failed' ? 'refused' : 'done';
      },
      waitMs: config.rebuild.waitMs,
      events: { timelineRead: (state) => metrics.cacheRead('timeline', state) },
    }),
    tidy(call, viewer, gone) {
      if (tidying >= TIDYING_MAX) return;
      tidying += 1;
      timelines
        .removeEntries(AbortSignal.timeout(TIDY_TIMEOUT_MS), { tenant: call.tenant, viewer, postIds: gone })
        .then(() => metrics.entriesCleaned('gone', gone.length))
        .catch((error: unknown) => log.debug({ err: error }, 'dead entries were left to the next reader'))
        .finally(() => {
          tidying -= 1;
        });
    },
    async backfill(call, follower, followees) {
      try {
        if (followees.length > BACKFILLS_MAX)
          return await timelines.drop(call.signal, { tenant: call.tenant, viewer: follower });
        for (const followee of followees) await entries.backfill(call, follower, followee);
      } catch (error) {
        if (call.signal.aborted) throw error;
        log.warn({ err: error }, 'a new follow was not backfilled; the outbox does it again');
      }
    },
    forceRebuild: createForcedRebuild({ timelines, rebuild }),
    afterChange: createAfterChange({ forget, entries, follows }),
    loadLineages: (signal) => readLineages(cache, signal),
    stop: () => rebuild.stop(REBUILDS_END_WAIT_MS),
  };
}
