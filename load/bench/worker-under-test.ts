/**
 * Owns the fan-out worker as a benchmark runs it: the service's own parts, put together by the service's own assemblies, over authors whose followers all have a timeline (`full`) or one in four of
 * them (`quarter`). Left out are the queue and the front door.
 *
 * Invariant: a fan-out counts only when its job ended as delivered and its row says that every resident follower took the post.
 */
import type { Redis } from 'ioredis';
import pg from 'pg';
import { openLaneCache, openSortedSets } from '../../src/cache-assembly.ts';
import type { Servers } from '../../src/embedded/servers.ts';
import { assembleDeliver } from '../../src/lane-assembly.ts';
import { createMetrics } from '../../src/metrics/metrics.ts';
import { systemRuntime } from '../../src/runtime.ts';
import { createDatabase } from '../../src/store/postgres/client.ts';
import type { FanoutJobKey } from '../../src/store/postgres/fanout-jobs.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { insertPost } from '../../src/store/postgres/publish.ts';
import { createKeys } from '../../src/store/redis/keys.ts';
import {
  composePostId,
  ID_EPOCH_MS,
  type PostId,
  postIdFrom,
  type TenantId,
  type UserId,
} from '../../src/timeline/ids.ts';
import { type Lane, laneOf } from '../../src/timeline/lanes.ts';
import { createBlame } from '../../src/write/fanout-blame.ts';
import { benchConfig, PATIENT } from './bench.ts';
import { countHolders, partsOf, phasesOf, seedFollowers, seedTimelines, viewerAt } from './crowd.ts';

export const CAP = 800;
const TENANT = 'bench' as TenantId;
const STATEMENT_TIMEOUT_MS = 30_000;
/** Counted IDs begin far above what timelines hold from the start. */
const COUNTED_FROM = composePostId({ ms: ID_EPOCH_MS + 6 * 365 * 86_400_000, generator: 0, sequence: 0 });
/** In a quarter-resident crowd. */
const ABSENT_EACH = 3;
const noMove = (): void => {
  throw new Error('a fan-out has moved to a larger lane');
};
/** Keys that are asked for their memory. */
const SAMPLES = 1_000;

export type Kind = 'full' | 'quarter';

export interface WorkerUnderTest {
  /** Timelines hold from the cap to so many entries less one above it. */
  readonly phases: number;
  readonly followerPage: number;
  readonly jobsAtOnce: number;
  readonly lane: Lane;
  nextId(): PostId;
  /** The keys of all timelines that a kind of crowd has: of each the newest part, then the places of the older ones. */
  keysOf(kind: Kind): readonly (readonly string[])[];
  /** Publishes as many posts as the last round took, and some more. */
  publishAhead(kind: Kind): Promise<void>;
  /** Delivers one post to all followers of the next author; answers how many followers that were. */
  deliverNext(kind: Kind): Promise<number>;
  /** Of timelines that hold the cap and more, until their next cut, in all their parts. */
  bytesPerEntry(): Promise<number>;
  /** Throws unless the last post of every author is on the timelines of all resident followers, and nobody else has a timeline. */
  verify(): Promise<void>;
  close(): Promise<void>;
}

interface Author {
  readonly id: UserId;
  readonly from: number;
  readonly resident: number;
  readonly followers: number;
  lastPost?: PostId;
}

interface Crowd {
  readonly authors: readonly Author[];
  readonly ready: FanoutJobKey[];
  turn: number;
  taken: number;
}

export async function openWorkerUnderTest(parts: {
  readonly servers: Servers;
  readonly redis: Redis;
  readonly timelines: number;
  /** Of each kind. */
  readonly authors: number;
  readonly signal: AbortSignal;
}): Promise<WorkerUnderTest> {
  const { servers, redis, signal } = parts;
  const config = benchConfig(servers, PATIENT);
  const runtime = systemRuntime('warn');
  const metrics = createMetrics();
  await migrate(servers.postgres.url);
  const perAuthor = Math.floor(parts.timelines / parts.authors);
  const lane = laneOf(perAuthor);
  const jobsAtOnce = config.fanout.concurrency[lane];
  const database = createDatabase({
    ...config.database,
    url: config.databaseUrl,
    pool: `fanout-${lane}`,
    connectionsMax: 2 * jobsAtOnce,
    statementTimeoutMs: STATEMENT_TIMEOUT_MS,
    events: {
      clientFailed: (_pool, error) => runtime.log.warn({ err: error }, 'a database connection failed'),
      statementCancelled: () => undefined,
    },
  });
  const cache = openLaneCache(config, runtime, metrics);
  const { timelines, lists } = openSortedSets(config, metrics, cache);
  const close = async (): Promise<void> => {
    await cache.close();
    await database.close();
  };
  const deliver = assembleDeliver(
    { config, runtime, metrics, lane, blame: createBlame(), hintMoved: noMove },
    { database, timelines, lists, close },
    // As of the only worker of a lane in which nobody waits.
    { othersWait: async () => false, isEnding: () => false },
  );
  const keys = createKeys(config.timeline.shards);
  const phases = phasesOf(CAP);
  let counted: number = COUNTED_FROM;
  const nextId = (): PostId => postIdFrom(++counted);
  const crowdOf = (kind: Kind): Crowd => ({
    authors: Array.from({ length: parts.authors }, (_, index): Author => {
      const resident = kind === 'full' ? perAuthor : Math.floor(perAuthor / (1 + ABSENT_EACH));
      return {
        id: `${kind}-${index}` as UserId,
        from: index * perAuthor,
        resident,
        followers: kind === 'full' ? resident : resident * (1 + ABSENT_EACH),
      };
    }),
    ready: [],
    turn: 0,
    taken: 2 * jobsAtOnce,
  });
  const crowds: Readonly<Record<Kind, Crowd>> = { full: crowdOf('full'), quarter: crowdOf('quarter') };

  async function publish(crowd: Crowd): Promise<void> {
    signal.throwIfAborted();
    const author = crowd.authors[crowd.turn++ % crowd.authors.length] as Author;
    const postId = nextId();
    const outcome = await insertPost(database, signal, {
      tenant: TENANT,
      postId,
      author: author.id,
      text: 'A post for everybody.',
      media: [],
      plainRepost: false,
      visibility: 'public',
    });
    if (outcome.kind !== 'published') throw new Error(`a post was not published: ${outcome.kind}`);
    author.lastPost = postId;
    crowd.ready.push({ tenant: TENANT, postId, generation: 1 });
  }

  async function deliverNext(kind: Kind): Promise<number> {
    const crowd = crowds[kind];
    if (crowd.ready.length === 0) await publish(crowd);
    const job = crowd.ready.shift() as FanoutJobKey;
    crowd.taken += 1;
    const outcome = await deliver(signal, job);
    if (outcome !== 'delivered') throw new Error(`a fan-out ended as ${outcome}`);
    return crowd.authors[0]?.followers ?? 0;
  }

  try {
    await cache.ready(AbortSignal.any([signal, AbortSignal.timeout(config.drainTimeoutMs)]));
    const client = new pg.Client({ connectionString: servers.postgres.url });
    await client.connect();
    try {
      for (const [kind, crowd] of Object.entries(crowds)) {
        for (const { id, from, resident } of crowd.authors) {
          const absentEach = kind === 'quarter' ? ABSENT_EACH : 0;
          await seedFollowers(client, signal, { tenant: TENANT, author: id, from, count: resident, absentEach });
        }
      }
      await client.query('VACUUM (ANALYZE) follows, authors');
    } finally {
      await client.end();
    }
    await seedTimelines(signal, {
      redis,
      timelines,
      keys,
      tenant: TENANT,
      count: parts.timelines,
      entries: CAP,
      phases,
    });
  } catch (error) {
    await close();
    throw error;
  }

  const viewersOf = ({ from, resident }: Author): readonly UserId[] =>
    Array.from({ length: resident }, (_, index) => viewerAt(from + index));
  return {
    phases,
    followerPage: config.fanout.followerPage,
    jobsAtOnce,
    lane,
    nextId,
    keysOf: (kind) =>
      crowds[kind].authors.flatMap((author) => viewersOf(author).map((viewer) => partsOf(keys, TENANT, viewer))),
    deliverNext,
    close,

    async publishAhead(kind) {
      const crowd = crowds[kind];
      const wanted = crowd.taken + 2 * jobsAtOnce;
      crowd.taken = 0;
      while (crowd.ready.length < wanted) await publish(crowd);
    },

    async bytesPerEntry() {
      let bytes = 0;
      let entries = 0;
      const samples = Math.min(SAMPLES, parts.timelines);
      for (let sample = 0; sample < samples; sample += 1) {
        const viewer = viewerAt(sample);
        for (const key of partsOf(keys, TENANT, viewer)) {
          const [members, encoding, usage] = await Promise.all([
            redis.zcard(key),
            redis.object('ENCODING', key),
            redis.memory('USAGE', key, 'SAMPLES', 0),
          ]);
          if (members === 0) continue;
          if (encoding !== 'listpack') throw new Error(`${key}: ${members} in a ${encoding}`);
          bytes += Number(usage);
          entries += members - 1;
        }
      }
      return bytes / entries;
    },

    async verify() {
      for (const crowd of Object.values(crowds)) {
        for (const author of crowd.authors) {
          // What was published ahead may still wait.
          for (const job of crowd.ready.splice(0)) {
            const outcome = await deliver(signal, job);
            if (outcome !== 'delivered') throw new Error(`a fan-out ended as ${outcome}`);
          }
          const { lastPost: postId, resident } = author;
          if (postId === undefined) continue;
          const { holders } = await countHolders(redis, { keys, tenant: TENANT, postId, viewers: viewersOf(author) });
          if (holders !== resident) throw new Error(`${holders} of ${resident} timelines hold a post of ${author.id}`);
        }
      }
      const [row] = await database.query<{ readonly wrong: number }>(
        signal,
        {
          name: 'bench-wrong-jobs',
          text: `SELECT count(*)::int AS wrong FROM fanout_jobs WHERE done_at IS NULL
            OR (author_id LIKE 'full-%' AND (delivered <> $1 OR skipped > 1)) OR (author_id LIKE 'quarter-%' AND delivered <> $2)`,
        },
        [perAuthor, Math.floor(perAuthor / (1 + ABSENT_EACH))],
      );
      if (row?.wrong !== 0) throw new Error(`${row?.wrong} fan-outs did not deliver to all resident followers`);
      for (const { id, from, resident } of crowds.quarter.authors) {
        const viewers = Array.from({ length: ABSENT_EACH }, (_, k) =>
          Array.from({ length: resident }, (_, index) => `${viewerAt(from + index)}-${k + 1}` as UserId),
        ).flat();
        const { present } = await countHolders(redis, { keys, tenant: TENANT, postId: nextId(), viewers });
        if (present > 0) throw new Error(`${present} absent followers of ${id} were given timelines`);
      }
    },
  };
}
