/**
 * Owns the price of a timeline: bytes of Redis memory for each entry, after a rebuild and a day of pushes and trims through the product's own scripts, beside the same
 * entries on a server that keeps them as skiplists.
 *
 * Invariant: both servers get the same calls in the same order, and end with the same entries in every timeline; a timeline that was evicted or is not in the form it
 * is meant to have fails the run.
 */
import path from 'node:path';
import { Redis } from 'ioredis';
import { startRedis } from '../../src/embedded/redis.ts';
import type { EmbeddedServer } from '../../src/embedded/server.ts';
import { createSeeded } from '../../src/sample/seeded.ts';
import { createCache } from '../../src/store/redis/client.ts';
import { TRIM_STRIDE } from '../../src/store/redis/entry-scripts.ts';
import { createKeys } from '../../src/store/redis/keys.ts';
import { partSizesFor } from '../../src/store/redis/timeline-parts.ts';
import { createTimelines, type Timelines } from '../../src/store/redis/timelines.ts';
import {
  composePostId,
  ID_EPOCH_MS,
  type PostId,
  parseTenantId,
  parseUserId,
  type TenantId,
  type UserId,
} from '../../src/timeline/ids.ts';
import { type Bench, type BenchOptions, withFolder } from './bench.ts';
import { partsOf } from './crowd.ts';
import type { Measured } from './rounds.ts';

const TIMELINES = 10_000;
const CAP = 800;
/** Cuts of the day after the rebuild, each of which trims once, beside the one that the first push makes. */
const CUTS = 5;
const BYTES_MAX = 24;
const RATIO_MAX = 0.25;
/** Ten thousand skiplists of this size take more than a gigabyte, and nothing may be evicted. */
const MAXMEMORY = '6gb';
const DAY_MS = 86_400_000;
const DAY_BEGINS_MS = ID_EPOCH_MS + 6 * 365 * DAY_MS;
/** Of one call into the product. */
const DEADLINE_MS = 120_000;
const ASKED_AT_ONCE = 500;
const REBUILT_AT_ONCE = 50;

interface Side {
  readonly name: string;
  readonly encoding: string;
  readonly timelines: Timelines;
  readonly redis: Redis;
  ready(): Promise<void>;
  close(): Promise<void>;
}

export const bench: Bench = {
  run: ({ report, signal }) =>
    withTwo(async (servers) => {
      const sides = [
        openSide('timelines', 'listpack', servers[0]),
        openSide('skiplist', 'skiplist', servers[1]),
      ] as const;
      try {
        const tenant = parsed(parseTenantId('bench'));
        const viewers = Array.from({ length: TIMELINES }, (_, index) => parsed(parseUserId(`viewer-${index}`)));
        const between = partSizesFor(CAP).entries;
        const day = dayOfPosts(CAP + (CUTS + 1) * between);
        const rebuilt = day.slice(0, CAP);
        // The first push cuts what the rebuild left, the last one has just cut and trimmed: as many entries as the cap. The third part fills the head up again, to the last entry before the next cut.
        const trimmed = day.slice(CAP, CAP + CUTS * between + 1);
        const filling = day.slice(CAP + trimmed.length);

        await Promise.all(sides.map((side) => side.ready()));
        report('rebuilding');
        await Promise.all(sides.map((side) => rebuild(side, { tenant, viewers, posts: rebuilt, signal })));
        await pushAll(sides, { tenant, viewers, posts: trimmed, report, signal });
        const [ours, skiplist] = await Promise.all(sides.map((side) => measure(side, tenant, viewers, CAP)));
        await pushAll(sides, { tenant, viewers, posts: filling, report, signal });
        const [oursFull] = await Promise.all(sides.map((side) => measure(side, tenant, viewers, CAP + filling.length)));
        if (!ours || !skiplist || !oursFull) throw new Error('a side was not measured');
        return {
          name: 'memory',
          unit: 'bytes/entry',
          ours,
          against: { skiplist },
          oursMax: BYTES_MAX,
          ratioMax: RATIO_MAX,
          conditions: [
            `${TIMELINES.toLocaleString('en-US')} timelines of cap ${CAP}, in parts of ${between}, rebuilt with ${CAP} entries, then ${trimmed.length} pushes to each, with ${CUTS + 1} cuts; lowest and highest: of one timeline;`,
            `MEMORY USAGE of all keys, summed, divided by their entries, of which there are ${CAP} in each;`,
            `${oursFull.median.toFixed(1)} bytes/entry at ${CAP + filling.length} entries, just before the next cut.`,
          ],
        };
      } finally {
        await Promise.allSettled(sides.map((side) => side.close()));
      }
    }),
};

interface Work {
  readonly tenant: TenantId;
  readonly viewers: readonly UserId[];
  readonly posts: readonly PostId[];
  readonly signal: AbortSignal;
}

async function rebuild({ timelines }: Side, { tenant, viewers, posts, signal }: Work): Promise<void> {
  for (let from = 0; from < viewers.length; from += REBUILT_AT_ONCE) {
    signal.throwIfAborted();
    const deadline = AbortSignal.timeout(DEADLINE_MS);
    await Promise.all(
      viewers.slice(from, from + REBUILT_AT_ONCE).map(async (viewer) => {
        const of = { tenant, viewer, token: 'bench' };
        await timelines.begin(deadline, of);
        await timelines.addOlder(deadline, { ...of, postIds: posts });
        if (!(await timelines.commit(deadline, { ...of, floor: 0 }))) throw new Error('a rebuild lost its token');
      }),
    );
  }
}

async function pushAll(sides: readonly Side[], work: Work & Pick<BenchOptions, 'report'>): Promise<void> {
  for (const [index, postId] of work.posts.entries()) {
    work.signal.throwIfAborted();
    await Promise.all(
      sides.map(async ({ name, timelines }) => {
        const outcomes = await timelines.push(AbortSignal.timeout(DEADLINE_MS), { ...work, postId });
        const odd = outcomes.find((outcome) => outcome !== 'added');
        if (odd !== undefined) throw new Error(`a push into ${name} came to ${odd}`);
      }),
    );
    if ((index + 1) % 100 === 0) work.report(`${index + 1} of ${work.posts.length} posts pushed to everybody`);
  }
}

async function measure(side: Side, tenant: TenantId, viewers: readonly UserId[], entries: number): Promise<Measured> {
  const keys = createKeys(256);
  const perEntry: number[] = [];
  let bytes = 0;
  for (let from = 0; from < viewers.length; from += ASKED_AT_ONCE) {
    await Promise.all(
      viewers.slice(from, from + ASKED_AT_ONCE).map(async (viewer) => {
        let held = 0;
        let used = 0;
        for (const key of partsOf(keys, tenant, viewer)) {
          const [members, encoding, usage] = await Promise.all([
            side.redis.zcard(key),
            side.redis.object('ENCODING', key),
            side.redis.memory('USAGE', key, 'SAMPLES', 0),
          ]);
          if (members === 0) continue;
          if (encoding !== side.encoding) throw new Error(`${key} is a ${String(encoding)}, not a ${side.encoding}`);
          held += members - 1;
          used += Number(usage);
        }
        if (held !== entries) throw new Error(`${viewer} holds ${held} entries, not ${entries}`);
        bytes += used;
        perEntry.push(used / entries);
      }),
    );
  }
  return {
    name: side.name,
    median: bytes / (entries * viewers.length),
    lowest: Math.min(...perEntry),
    highest: Math.max(...perEntry),
  };
}

/** Post IDs at random moments of one day, oldest first. */
function dayOfPosts(count: number): readonly PostId[] {
  const random = createSeeded(1);
  const step = DAY_MS / count;
  return Array.from({ length: count }, (_, index) =>
    composePostId({
      ms: DAY_BEGINS_MS + Math.floor((index + random.fraction()) * step),
      generator: Math.floor(random.fraction() * 100),
      sequence: 0,
    }),
  );
}

function openSide(name: string, encoding: string, server: EmbeddedServer): Side {
  const cache = createCache({
    urls: [server.url],
    cluster: false,
    commandTimeoutMs: 30_000,
    connectTimeoutMs: 5_000,
    clientFailed: (error) => console.error(`${name}: ${error.message}`),
  });
  const redis = new Redis(server.url);
  const timelines = createTimelines(cache, createKeys(256), {
    cap: CAP,
    stride: TRIM_STRIDE,
    lifeMs: 30 * DAY_MS,
    rebuildLeaseMs: DEADLINE_MS,
  });
  return {
    name,
    encoding,
    redis,
    timelines,
    ready: () => cache.ready(AbortSignal.timeout(DEADLINE_MS)),
    async close() {
      redis.disconnect();
      await cache.close();
    },
  };
}

/** The cache as we run it, and one without listpacks. Both end with the work. */
function withTwo<Result>(
  work: (servers: readonly [EmbeddedServer, EmbeddedServer]) => Promise<Result>,
): Promise<Result> {
  return withFolder(async (home) => {
    const started: EmbeddedServer[] = [];
    try {
      const start = async (folder: string, extraArgs: readonly string[]): Promise<EmbeddedServer> => {
        const dataDir = path.join(home, folder);
        const server = await startRedis({ role: 'cache', dataDir, maxmemory: MAXMEMORY, extraArgs });
        started.push(server);
        return server;
      };
      const ours = await start('listpack', []);
      const other = await start('skiplist', ['--zset-max-listpack-entries', '0']);
      return await work([ours, other]);
    } finally {
      await Promise.allSettled(started.map((server) => server.stop()));
    }
  });
}

function parsed<Id>(id: Id | undefined): Id {
  if (id === undefined) throw new Error('not an ID');
  return id;
}
