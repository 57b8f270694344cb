/**
 * Owns ours as it runs Twip: the product's flows and workers, put together by its own assemblies, in a tenant for each way to deliver. Left out are the queue, the relays and the front door,
 * which no rival has: a job that was published is delivered at once.
 *
 * Invariant: a post counts when its job has ended as its class says it should.
 */
import { fromBinary } from '@bufbuild/protobuf';
import type pg from 'pg';
import { assemble } from '../../src/assembly.ts';
import { assembleCache, openCache, openLaneCache, openSortedSets } from '../../src/cache-assembly.ts';
import type { Config } from '../../src/config.ts';
import { PostSchema } from '../../src/gen/tributary/v1/post_pb.ts';
import { assembleDeliver } from '../../src/lane-assembly.ts';
import { createMetrics } from '../../src/metrics/metrics.ts';
import type { CachedPosts } from '../../src/read/cached-posts.ts';
import type { OpenHomeSource } from '../../src/read/candidates.ts';
import type { Flows } from '../../src/rpc/flows.ts';
import { type Call, type Runtime, systemRuntime } from '../../src/runtime.ts';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import type { PulledLists } from '../../src/store/redis/pulled-lists.ts';
import type { Timelines } from '../../src/store/redis/timelines.ts';
import { POST_ID_MAX, type PostId, type TenantId, type UserId } from '../../src/timeline/ids.ts';
import { LANES, type Lane } from '../../src/timeline/lanes.ts';
import { LIMITS } from '../../src/timeline/limits.ts';
import type { Post } from '../../src/timeline/post.ts';
import { createBlame } from '../../src/write/fanout-blame.ts';
import type { Deliver } from '../../src/write/fanout-deliver.ts';
import type { TwipContender } from './twip-contender.ts';
import { followeesOf, type TwipGraph } from './twip-graph.ts';

export interface OursParts {
  readonly flows: Flows;
  readonly openSource: OpenHomeSource;
  readonly posts: CachedPosts;
  readonly timelines: Timelines;
  readonly lists: PulledLists;
  /** As the first check of a viewer without a timeline does it, and fails where it did not. */
  makeTimeline(call: Call, viewer: UserId): Promise<void>;
  /** For rivals that use the same kind of client. */
  readonly database: Database;
  /** Where the job of a post that was just published goes. */
  readonly deliver: (signal: AbortSignal, job: { readonly tenant: TenantId; readonly postId: PostId }) => Promise<void>;
  close(): Promise<void>;
}

/** Which policy a tenant follows. `hybrid`: timelines of those who read, and lists of the authors for whom pushing costs more than pulling. */
export const POLICIES = ['hybrid', 'push', 'pull'] as const;
export type Policy = (typeof POLICIES)[number];

const STATEMENT_TIMEOUT_MS = 30_000;
/** Rows of one statement, sets made at once. */
const ROWS_AT_ONCE = 10_000;
/** As many as may be rebuilt at once. */
const SETS_AT_ONCE = 32;
const PULL_EPOCH = 1;
/** Pages of one check: as many as a timeline of the largest cap fills. */
const PAGES_MAX = 100;

export function userIdOf(user: number): UserId {
  return `u${String(user).padStart(7, '0')}` as UserId;
}

export async function openOurs(config: Config, signal: AbortSignal): Promise<OursParts> {
  const runtime: Runtime = systemRuntime('warn');
  const metrics = createMetrics();
  const open = (pool: string, connectionsMax: number): Database =>
    createDatabase({
      ...config.database,
      url: config.databaseUrl,
      pool,
      connectionsMax,
      statementTimeoutMs: STATEMENT_TIMEOUT_MS,
      events: {
        clientFailed: (_pool, error) => runtime.log.warn({ err: error }, 'a database connection failed'),
        statementCancelled: () => undefined,
      },
    });
  const database = open('requests', config.database.poolRequests);
  const forWorkers = open('fanout', config.database.poolWorkers);
  const cache = openCache(config, runtime, metrics);
  const laneCache = openLaneCache(config, runtime, metrics);
  const cached = assembleCache({ config, runtime, metrics, database, cache });
  const sets = openSortedSets(config, metrics, laneCache);
  const lanesOf = new Map<PostId, Lane>();
  const { flows } = assemble({
    config,
    runtime,
    metrics,
    database,
    cache: cached,
    nudge: ({ postId, lane }) => void lanesOf.set(postId, lane),
  });
  const delivers = Object.fromEntries(
    LANES.map((lane): [Lane, Deliver] => [
      lane,
      assembleDeliver(
        {
          config,
          runtime,
          metrics,
          lane,
          blame: createBlame(),
          hintMoved() {
            throw new Error('a fan-out has moved to a larger lane');
          },
        },
        { database: forWorkers, ...sets, close: async () => undefined },
        { othersWait: async () => false, isEnding: () => false },
      ),
    ]),
  ) as Record<Lane, Deliver>;
  await Promise.all([cache.ready(signal), laneCache.ready(signal)]);
  return {
    flows,
    openSource: cached.openSource,
    posts: cached.posts,
    timelines: sets.timelines,
    lists: sets.lists,
    database,
    async makeTimeline(call, viewer) {
      const outcome = await cached.forceRebuild(call, viewer);
      if (outcome !== 'rebuilt') throw new Error(`a rebuild ended as ${outcome}`);
    },
    async deliver(until, { tenant, postId }) {
      const lane = lanesOf.get(postId);
      if (lane === undefined) throw new Error('a post was published and its job not hinted at');
      lanesOf.delete(postId);
      const outcome = await delivers[lane](until, { tenant, postId, generation: 1 });
      if (outcome !== 'delivered' && outcome !== 'pulled') throw new Error(`a fan-out ended as ${outcome}`);
    },
    async close() {
      await cached.stop();
      await Promise.all([cache.close(), laneCache.close(), database.close(), forWorkers.close()]);
    },
  };
}

/** Writes the graph into a tenant; the authors in `pulled` are read from lists, whose place is made. */
export async function seedGraph(
  client: pg.Client,
  of: {
    readonly tenant: TenantId;
    readonly graph: TwipGraph;
    readonly pulled: ReadonlySet<number>;
    readonly signal: AbortSignal;
  },
): Promise<void> {
  const { tenant, graph, pulled, signal } = of;
  for (let from = 0; from < graph.users; ) {
    signal.throwIfAborted();
    const followers: UserId[] = [];
    const followees: UserId[] = [];
    for (; from < graph.users && followers.length < ROWS_AT_ONCE; from += 1) {
      for (const followee of followeesOf(graph, from)) {
        followers.push(userIdOf(from));
        followees.push(userIdOf(followee));
      }
    }
    await client.query(
      `INSERT INTO follows (tenant_id, follower_id, followee_id) SELECT $1, f, t FROM unnest($2::text[], $3::text[]) AS pairs (f, t)`,
      [tenant, followers, followees],
    );
  }
  const users = Array.from({ length: graph.users }, (_, user) => user);
  await client.query(
    `INSERT INTO authors (tenant_id, author_id, follower_count, fanout_class, class_target, class_epoch)
    SELECT $1, author, followers, class, class, epoch FROM unnest($2::text[], $3::bigint[], $4::text[], $5::bigint[]) AS a (author, followers, class, epoch)`,
    [
      tenant,
      users.map(userIdOf),
      [...graph.followerCounts],
      users.map((user) => (pulled.has(user) ? 'pull' : 'push')),
      users.map((user) => (pulled.has(user) ? PULL_EPOCH : 0)),
    ],
  );
  await client.query('VACUUM (ANALYZE) follows, authors');
}

/** What has to be there before the first post: lists of the pulled authors, which are empty since nobody has posted, and the timelines of `viewers`. */
export async function seedSets(
  ours: OursParts,
  of: {
    readonly tenant: TenantId;
    readonly pulled: Iterable<number>;
    readonly viewers: Iterable<number>;
    readonly signal: AbortSignal;
  },
): Promise<void> {
  const { tenant, signal } = of;
  await inParallel(of.pulled, async (user) => {
    const list = { tenant, author: userIdOf(user), epoch: PULL_EPOCH, token: 'bench' };
    await ours.lists.begin(signal, list);
    if (!(await ours.lists.commit(signal, { ...list, floor: 0 }))) throw new Error('a rebuild lost its token');
  });
  await inParallel(of.viewers, (user) => ours.makeTimeline({ tenant, signal }, userIdOf(user)));
}

async function inParallel(items: Iterable<number>, work: (item: number) => Promise<void>): Promise<void> {
  const rest = items[Symbol.iterator]();
  const worker = async (): Promise<void> => {
    for (let next = rest.next(); !next.done; next = rest.next()) await work(next.value);
  };
  await Promise.all(Array.from({ length: SETS_AT_ONCE }, worker));
}

/**
 * A check answers texts of the entries of home, as a rival's does: what is beside them in a page (relations, states and profiles of authors, counts, the verdict of visibility) is left out, see `whole
 * pages` for that. Since no clock is shared with them, "since the last check" is "above the newest entry that was there".
 */
export function oursContender(name: string, ours: OursParts, tenant: TenantId, signal: AbortSignal): TwipContender {
  const call: Call = { tenant, signal };
  /** Newest entry that a viewer was shown since the login. */
  const newest = new Map<number, PostId>();
  let partials = 0;
  return {
    name,
    partials: () => partials,
    ...writing(ours, call),
    async check({ user, since }) {
      const viewer = userIdOf(user);
      const source = ours.openSource(call, viewer);
      const seen = since === 0 ? undefined : newest.get(user);
      const texts: string[] = [];
      let position: number = seen ?? POST_ID_MAX;
      let latest = seen ?? 0;
      for (let pages = 0; pages < PAGES_MAX; pages += 1) {
        const { ids } = await source[seen === undefined ? 'older' : 'newer'](position, LIMITS.pageSizeMax, nobody);
        for (const postId of ids) if (postId > latest) latest = postId;
        texts.push(...(await textsOf(ours, call, ids)));
        const last = ids.at(-1);
        if (ids.length < LIMITS.pageSizeMax || last === undefined) break;
        position = seen === undefined ? last - 1 : last;
      }
      if (source.partial() || source.stale()) partials += 1;
      if (latest > 0) newest.set(user, latest as PostId);
      else newest.delete(user);
      return texts;
    },
  };
}

const nobody = (): void => undefined;

async function textsOf(ours: OursParts, call: Call, ids: readonly PostId[]): Promise<readonly string[]> {
  if (ids.length === 0) return [];
  const metas = await ours.posts.loadMetas(call, ids);
  const posts = await ours.posts.loadBodies(call, [...metas.values()]);
  return ids.map((postId) => {
    const post = posts.get(postId);
    if (!post) throw new Error(`post ${postId} is not there`);
    return textIn(post);
  });
}

function textIn({ body }: Post): string {
  return fromBinary(PostSchema, body).text;
}

/** The same with whole pages, as a caller of the service gets them: judged, with profiles and counts, and looking back for entries that arrive late. */
export function wholePages(ours: OursParts, tenant: TenantId, signal: AbortSignal): TwipContender {
  const call: Call = { tenant, signal };
  const heads = new Map<number, string>();
  let partials = 0;
  return {
    name: 'whole pages',
    partials: () => partials,
    ...writing(ours, call),
    async check({ user, since }) {
      const viewer = userIdOf(user);
      const texts: string[] = [];
      let pageToken = since === 0 ? '' : (heads.get(user) ?? '');
      const isNewer = pageToken !== '';
      for (let pages = 0; pages < PAGES_MAX; pages += 1) {
        const page = await ours.flows.home.page(call, { viewer, pageSize: LIMITS.pageSizeMax, pageToken });
        if (page.completeness !== 'complete') partials += 1;
        if (pages === 0 || isNewer) heads.set(user, page.headToken);
        for (const { post } of page.views) texts.push(textIn(post));
        pageToken = page.nextPageToken;
        if (pageToken === '') break;
      }
      return texts;
    },
  };
}

function writing(ours: OursParts, call: Call): Pick<TwipContender, 'post' | 'subscribe'> {
  const { flows } = ours;
  return {
    async post({ user, text }) {
      const { post } = await flows.publish(call, { author: userIdOf(user), text, media: [], visibility: 'public' });
      await ours.deliver(call.signal, { tenant: call.tenant, postId: post.meta.postId });
    },
    async subscribe({ user, to }) {
      await flows.relate.follow(call, { follower: userIdOf(user), followee: userIdOf(to) });
    },
  };
}
