/** Owns how the cache's stores and the reading through them are put together. Belongs to the composition root, beside assembly.ts. */
import type { Config } from './config.ts';
import { TributaryError } from './errors.ts';
import type { Metrics } from './metrics/metrics.ts';
import { createCachedCounts, type LoadCounts } from './read/cached-counts.ts';
import { type CachedPeople, createCachedPeople } from './read/cached-people.ts';
import { type CachedPosts, createCachedPosts } from './read/cached-posts.ts';
import { createOpenHomeSource, type OpenHomeSource } from './read/candidates.ts';
import { createKnownFacts, type KnownFacts } from './read/known-facts.ts';
import { createLeaseFill, type LeaseFillEvents } from './read/lease-fill.ts';
import { createListMemory } from './read/list-memory.ts';
import { createReadPulledEntries } from './read/pulled-entries.ts';
import { createReadResidentHome } from './read/resident-home.ts';
import { type ChangeEvent, createAfterChange } from './repair/after-change.ts';
import { createCleanEnded } from './repair/clean-ended.ts';
import { createRemoveDead } from './repair/dead-entries.ts';
import { createFollowEntries } from './repair/follow-entries.ts';
import { createForcedRebuild, createRebuild, type RebuildOutcome } from './repair/rebuild.ts';
import type { Call, Runtime } from './runtime.ts';
import { loadAuthors } from './store/postgres/authors.ts';
import type { Database } from './store/postgres/client.ts';
import { loadPostCounts } from './store/postgres/counters.ts';
import { loadUncleanedFollows, markFollowsCleaned } from './store/postgres/ended-follows.ts';
import { loadFollowStates } from './store/postgres/graph.ts';
import { loadRelations } from './store/postgres/graph-reads.ts';
import {
  createLoadHomeNewer,
  createLoadHomeOlder,
  findWrittenBy,
  loadListSnapshot,
  loadNewestPushedOf,
} from './store/postgres/home-pages.ts';
import { loadSnapshot } from './store/postgres/home-snapshot.ts';
import { loadPostsById } from './store/postgres/posts.ts';
import { loadNewestOfMany, loadPulledAuthors } from './store/postgres/pulled-authors.ts';
import { createAuthorProfiles, createPostBodies } from './store/redis/bodies.ts';
import { type Cache, type CacheOptions, createCache } from './store/redis/client.ts';
import { createAuthorFacts, createPostFacts, createPulledFacts, createRelationFacts } from './store/redis/facts.ts';
import { createReadHomeEntries } from './store/redis/home-entries.ts';
import { createKeys } from './store/redis/keys.ts';
import { type Lineage, readLineages } from './store/redis/lineage.ts';
import { createCachedPostCounts } from './store/redis/post-counts.ts';
import { createPulledLists, type PulledLists } from './store/redis/pulled-lists.ts';
import { entriesMaxOf } from './store/redis/timeline-parts.ts';
import { createTimelines, type Timelines } from './store/redis/timelines.ts';
import type { PostId, TenantId, UserId } from './timeline/ids.ts';
import type { PulledAuthor } from './timeline/pulled.ts';
import { createForget, type Forget } from './write/forget.ts';

export interface CacheAssembly {
  readonly timelines: Timelines;
  readonly lists: PulledLists;
  readonly forget: Forget;
  readonly posts: CachedPosts;
  readonly people: CachedPeople;
  readonly loadCounts: LoadCounts;
  /** What the cache knows of facts, without Postgres. */
  readonly known: KnownFacts;
  readonly openSource: OpenHomeSource;
  /** Brings a post and its author into the caches, as a reader would. */
  readonly warm: (call: Call, post: { readonly postId: PostId; readonly author: UserId }) => Promise<void>;
  readonly backfill: (call: Call, follower: UserId, followees: readonly UserId[]) => Promise<void>;
  readonly forceRebuild: (call: Call, viewer: UserId) => Promise<RebuildOutcome>;
  /** Takes an author's entries out while the cached relation says that there is no follow; false where some may be left. */
  readonly cleanUp: (call: Call, viewer: UserId, author: UserId) => Promise<boolean>;
  readonly afterChange: (call: Call, event: ChangeEvent) => Promise<void>;
  /** The master of a cluster that a viewer's home lies on; undefined on one server. */
  readonly nodeOfHome: (tenant: TenantId, viewer: UserId) => string | undefined;
  readonly loadLineages: (signal: AbortSignal) => Promise<readonly Lineage[]>;
  /** One batch of ended follows; answers whether there is probably more. */
  readonly cleanEnded: (signal: AbortSignal) => Promise<boolean>;
  /** Ends what goes on behind readers. The connections are to be closed after it. */
  stop(): Promise<void>;
}

/** Life of immutable values, in milliseconds: they take room until the server wants it for others. */
const IMMUTABLE_LIFE_MS = 7 * 86_400_000;
/** Calls that one page of pushes has in flight, of some two milliseconds each: what others may have to wait behind is bounded, and 2 to 16 pushed at the same rate, within noise. */
const LANE_CALLS_IN_FLIGHT = 4;
/** Bound of one command of a fan-out: some hundred times what it takes where Redis has nothing else to do, and a small part of a lease. */
const LANE_COMMAND_TIMEOUT_MS = 2_000;
/** How long a page of followers may take that is given an author's posts back: it takes some seconds at most. */
export const CLASS_BACKFILL_LEASE_MS = 30_000;
/** What a stop waits for rebuilds whose readers have left; one takes some tens of milliseconds. */
const REBUILDS_END_WAIT_MS = 1_000;

export function openCache(
  config: Config,
  runtime: Runtime,
  metrics: Metrics,
  options: Partial<Pick<CacheOptions, 'callsInFlightMax' | 'commandTimeoutMs' | 'guard'>> = {},
): Cache {
  return createCache({
    ...config.cache,
    ...options,
    clientFailed(error) {
      metrics.cacheClientError();
      runtime.log.warn({ err: error }, 'the connection to the cache failed');
    },
  });
}

/**
 * For a lane of fan-out. Nobody waits for the answer here, and a command that is taken for lost while Redis is merely busy would be sent again, and make it busier: with the bound of a page's commands,
 * four fan-outs at once on a loaded machine had whole pages of pushes taken for lost, again and again.
 */
export function openLaneCache(config: Config, runtime: Runtime, metrics: Metrics): Cache {
  return openCache(config, runtime, metrics, {
    callsInFlightMax: LANE_CALLS_IN_FLIGHT,
    commandTimeoutMs: Math.max(config.cache.commandTimeoutMs, LANE_COMMAND_TIMEOUT_MS),
  });
}

/** Timelines and pulled authors' lists over a connection. */
export function openSortedSets(
  config: Config,
  metrics: Metrics,
  cache: Cache,
): { readonly timelines: Timelines; readonly lists: PulledLists } {
  const keys = createKeys(config.timeline.shards);
  const options = { ...config.timeline, rebuildLeaseMs: config.rebuild.leaseMs };
  return {
    timelines: createTimelines(cache, keys, { ...options, events: metrics }),
    lists: createPulledLists(cache, keys, options),
  };
}

export function assembleCache(parts: {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  readonly database: Database;
  readonly cache: Cache;
  /** Whether Postgres is worth asking; background work, which waits for it, always does. */
  readonly hasDatabase?: () => boolean;
}): CacheAssembly {
  const { config, runtime, metrics, database, cache, hasDatabase = () => true } = parts;
  const { clock, log, random } = runtime;
  const { cap } = config.timeline;
  const keys = createKeys(config.timeline.shards);
  const newToken = (): string => random.bytes(9).toString('base64url');

  const { timelines, lists } = openSortedSets(config, metrics, cache);
  const tokenLifeMs = config.cache.factLoadLeaseMs;
  const factOptions = { lifeMs: config.cache.factLifeMs, tokenLifeMs, random: () => random.fraction() };
  const postFacts = createPostFacts(cache, keys, factOptions);
  const authorFacts = createAuthorFacts(cache, keys, factOptions);
  const pulledFacts = createPulledFacts(cache, keys, { ...factOptions, lifeMs: config.pulled.lifeMs });
  const relationFacts = createRelationFacts(cache, keys, factOptions);
  const fillEvents = (layer: 'post' | 'author' | 'relation'): LeaseFillEvents => ({
    lookedUp: (result, count) => metrics.cacheRead(layer, result, count),
    filled: (outcome) => metrics.leaseFilled(outcome),
  });

  const relationsNow = (call: Call, viewer: UserId, authors: readonly UserId[]) => {
    metrics.cacheLoaded('relation', authors.length);
    return loadRelations(database, call.signal, { tenant: call.tenant, viewer, authors });
  };
  const followStates = (call: Call, follower: UserId, followees: readonly UserId[]) =>
    loadFollowStates(database, call.signal, { tenant: call.tenant, follower, followees });

  const profiles = createAuthorProfiles(cache, keys, { lifeMs: IMMUTABLE_LIFE_MS });
  const bodies = createPostBodies(cache, keys, { lifeMs: IMMUTABLE_LIFE_MS });
  const known = createKnownFacts({
    posts: postFacts,
    // Fields of a hash always take a token.
    relations: createRelationFacts(cache, keys, { ...factOptions, tokenLifeMs: 1 }),
    authors: authorFacts,
  });
  // No reader waits longer, so nothing that readers share has to live longer.
  const limitMs = config.deadlines.readMaxMs;
  const joined = (what: 'relation' | 'post' | 'author' | 'body' | 'profile' | 'list') => (keys: number) =>
    metrics.singleFlightJoined(what, keys);
  const versionEvents = (layer: 'body' | 'profile') => ({
    heldRead: (result: 'hit' | 'miss', count: number) => metrics.cacheRead(`process_${layer}`, result, count),
    storeRead: (result: string, count: number) => metrics.cacheRead(layer, result, count),
    joined: joined(layer),
    held: (bytes: number) => metrics.processHolds(`process_${layer}`, bytes),
    notStored: () => metrics.cacheStoreFailed(layer),
  });
  const people = createCachedPeople({
    fillRelations: createLeaseFill({ facts: relationFacts, newToken, events: fillEvents('relation') }),
    fillAuthors: createLeaseFill({ facts: authorFacts, newToken, events: fillEvents('author') }),
    profiles,
    loadRelations: relationsNow,
    loadAuthors(call, authors) {
      metrics.cacheLoaded('author', authors.length);
      return loadAuthors(database, call.signal, { tenant: call.tenant, authors });
    },
    bytesMax: config.process.profileBytesMax,
    limitMs,
    events: {
      relation: { joined: joined('relation') },
      state: { joined: joined('author') },
      profile: versionEvents('profile'),
    },
  });
  const posts = createCachedPosts({
    fillMeta: createLeaseFill({ facts: postFacts, newToken, events: fillEvents('post') }),
    bodies,
    loadRows(call, postIds) {
      metrics.cacheLoaded('post', postIds.length);
      return loadPostsById(database, call.signal, { tenant: call.tenant, postIds });
    },
    bytesMax: config.process.bodyBytesMax,
    limitMs,
    events: { meta: { joined: joined('post') }, body: versionEvents('body') },
  });
  const loadCounts = createCachedCounts({
    cached: createCachedPostCounts(cache, keys, {
      lifeMs: config.cache.countsLifeMs,
      random: () => random.fraction(),
    }),
    load(call, postIds) {
      metrics.cacheLoaded('counts', postIds.length);
      return loadPostCounts(database, call.signal, { tenant: call.tenant, postIds });
    },
    events: {
      countsRead: (result, count) => metrics.cacheRead('counts', result, count),
      notStored: () => metrics.cacheStoreFailed('counts'),
    },
  });
  const listMemory = createListMemory({
    lists,
    clock,
    random,
    ageMaxMs: config.process.listAgeMaxMs,
    bytesMax: config.process.listBytesMax,
    limitMs,
    events: {
      heldRead: (result, count) => metrics.cacheRead('process_list', result, count),
      listRead: (state, count) => metrics.cacheRead('list', state, count),
      joined: joined('list'),
      held: (bytes) => metrics.processHolds('process_list', bytes),
    },
  });

  const rebuilding = { clock, newToken, random, ...config.rebuild };
  const rebuild = createRebuild<{ readonly viewer: UserId }>({
    ...rebuilding,
    sets: timelines,
    nameOf: ({ viewer }) => viewer,
    loadSnapshot: (signal, of) => loadSnapshot(database, signal, { ...of, cap }),
    events: {
      rebuilt: (event) => metrics.rebuilt({ what: 'timeline', ...event }),
      joined: () => metrics.singleFlightJoined('rebuild'),
      failed: (error) => log.warn({ err: error }, 'a timeline could not be rebuilt; a reader tries again in a moment'),
    },
  });
  const rebuildList = createRebuild<PulledAuthor>({
    ...rebuilding,
    sets: lists,
    nameOf: ({ author, epoch }) => `${author}:${epoch}`,
    loadSnapshot: (signal, { tenant, author }) => loadListSnapshot(database, signal, { tenant, author, cap }),
    events: {
      rebuilt: (event) => metrics.rebuilt({ what: 'list', ...event }),
      joined: () => metrics.singleFlightJoined('list_rebuild'),
      failed: (error) => log.warn({ err: error }, 'a list could not be rebuilt; a reader tries again in a moment'),
    },
  });
  const entries = createFollowEntries({
    timelines,
    clock,
    cap,
    entriesMax: entriesMaxOf(config.timeline),
    follows: async (call, viewer, author) => (await followStates(call, viewer, [author])).get(author)?.active ?? false,
    loadRelation: async (call, viewer, author) => (await people.loadRelations(call, viewer, [author])).get(author),
    loadNewestPushedOf: (call, query) => loadNewestPushedOf(database, call.signal, { tenant: call.tenant, ...query }),
    findWrittenBy: (call, author, postIds) =>
      findWrittenBy(database, call.signal, { tenant: call.tenant, author, postIds }),
    events: metrics,
  });
  const forget = createForget({
    posts: postFacts,
    authors: authorFacts,
    relations: relationFacts,
    pulled: pulledFacts,
    events: { forgotten: (outcome) => metrics.forgotten(outcome) },
  });

  const listReading = {
    lists: listMemory,
    listsMax: config.pulled.listsMax,
    events: { queried: (why: 'beyond' | 'not_ready') => metrics.pulledQueried(why) },
  };
  const forceRebuild = createForcedRebuild({ sets: timelines, rebuild });
  return {
    timelines,
    lists: {
      ...lists,
      // Readers of this process meet the post at once; those of others when their copy is over.
      push: (signal, post) => lists.push(signal, post).finally(() => listMemory.forget(post.tenant, post)),
    },
    forget,
    posts,
    people,
    loadCounts,
    known,
    async warm(call, { postId, author }) {
      const [metas, states] = await Promise.all([posts.loadMetas(call, [postId]), people.loadStates(call, [author])]);
      await Promise.all([posts.loadBodies(call, [...metas.values()]), people.loadProfiles(call, states)]);
    },
    openSource: createOpenHomeSource({
      readResident: createReadResidentHome({
        readEntries: createReadHomeEntries(cache, keys, { ...config.timeline, tokenLifeMs }),
        pulledFacts,
        async loadPulled(call, viewer) {
          try {
            return await loadPulledAuthors(database, call.signal, { tenant: call.tenant, viewer });
          } catch (error) {
            if (call.signal.aborted || hasDatabase() || !(error instanceof TributaryError)) throw error;
            return undefined;
          }
        },
        newToken: () => (hasDatabase() ? newToken() : undefined),
        // One that cannot end would only keep others from rebuilding once Postgres is back.
        rebuild: async (call, viewer) =>
          hasDatabase() ? forReader(await rebuild(call, { viewer }, 'absent')) : 'refused',
        waitMs: config.rebuild.waitMs,
        events: {
          timelineRead: (state) => metrics.cacheRead('timeline', state),
          pulledRead: (result) => metrics.cacheRead('pulled', result),
          pulledFilled: (outcome) => metrics.leaseFilled(outcome),
        },
      }),
      readPulled: createReadPulledEntries({
        ...listReading,
        rebuild: async (call, list) => forReader(await rebuildList(call, list, 'absent')),
        loadNewestOfMany: (call, query) => loadNewestOfMany(database, call.signal, { tenant: call.tenant, ...query }),
      }),
      withoutDatabase: {
        hasDatabase,
        readPulled: createReadPulledEntries({
          ...listReading,
          rebuild: async () => 'refused',
          loadNewestOfMany: async () => [],
        }),
      },
      loadOlder: createLoadHomeOlder(database),
      loadNewer: createLoadHomeNewer(database),
      removeDead: createRemoveDead({
        timelines,
        lists,
        events: {
          removed: (count) => metrics.deadEntriesRemoved(count),
          leftThere: (error) => log.debug({ err: error }, 'dead entries were left to the next reader'),
        },
      }),
      events: { pulledAuthors: (count) => metrics.pulledAuthors(count) },
    }),
    async backfill(call, follower, followees) {
      try {
        await entries.begun(call, follower, followees);
      } catch (error) {
        if (call.signal.aborted) throw error;
        log.warn({ err: error }, 'a new follow was not backfilled; the outbox does it again');
      }
    },
    forceRebuild: (call, viewer) => forceRebuild(call, { viewer }),
    cleanUp: entries.cleanUp,
    afterChange: createAfterChange({ forget, entries, loadFollowStates: followStates }),
    nodeOfHome: (tenant, viewer) => cache.nodeOf(keys.timeline(tenant, viewer)),
    loadLineages: (signal) => readLineages(cache, signal),
    cleanEnded: createCleanEnded({
      loadUncleaned: (signal, query) => loadUncleanedFollows(database, signal, query),
      cleanUp: entries.cleanUp,
      markCleaned: (signal, follows) => markFollowsCleaned(database, signal, follows),
      // A page of followers may be read up to a lease before its push begins, which may take a lease itself.
      settledMs: 2 * Math.max(config.fanout.leaseMs, config.rebuild.leaseMs, CLASS_BACKFILL_LEASE_MS),
      failed: (error, count) =>
        log.warn({ err: error, count }, 'ended follows were not cleaned up; a later round does it'),
    }),
    async stop() {
      await Promise.all([rebuild.stop(REBUILDS_END_WAIT_MS), rebuildList.stop(REBUILDS_END_WAIT_MS)]);
    },
  };
}

/** What a reader makes of a rebuild: look again, wait, or do without. */
function forReader(outcome: RebuildOutcome): 'done' | 'busy' | 'refused' {
  if (outcome === 'busy') return 'busy';
  return outcome === 'rebuilt' || outcome === 'ready' || outcome === 'lost' ? 'done' : 'refused';
}
