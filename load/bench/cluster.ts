/**
 * Owns the price of a cluster: what a page and a delivery cost Redis and the process where calls may not leave a slot, by the number of shards, beside one server that takes them by count alone.
 * Invariant: every contender has the same graph, the same posts and the same work. A cluster is one server here, which owns all slots and refuses what names two: what calls cost does not depend on where
 * the slots lie.
 */
import path from 'node:path';
import { Redis } from 'ioredis';
import { startRedis } from '../../src/embedded/redis.ts';
import type { EmbeddedServer } from '../../src/embedded/server.ts';
import type { Servers } from '../../src/embedded/servers.ts';
import { systemClock } from '../../src/runtime.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { postIdFrom, type TenantId, type UserId } from '../../src/timeline/ids.ts';
import { type Bench, type BenchOptions, benchConfig, PATIENT, PUSHED, withServers } from './bench.ts';
import { type Cost, measureCost, medianOf } from './cost.ts';
import { viewerAt } from './crowd.ts';
import type { BenchResult, Figure } from './result.ts';
import { type Contender, runRounds } from './rounds.ts';
import { type OursParts, openOurs } from './twip-ours.ts';

const TIMELINES = 10_000;
const TIMELINES_MIN = 2_000;
/** As a fan-out reads them. */
const FOLLOWER_PAGE = 2_000;
/** Fifty at the usual size. */
const TIMELINES_PER_READER = 200;
const AUTHORS = 40;
const POSTS_EACH = 3;
const PAGE_SIZE = 20;
const READS_AT_ONCE = 16;
const RUN_MAX_MS = 1_200_000;
const SLOTS = 16_384;
const TENANT = 'cluster' as TenantId;
/** By what stands before the slash: shards, where it is a cluster. */
const KINDS = { 'one server': undefined, '256 shards': 256, '24 shards': 24 } as const;

export const bench: Bench = {
  size: { of: 'timelines that are pushed to', preset: TIMELINES, min: TIMELINES_MIN, max: 1_000_000 },
  run: (options) => withServers((servers, folder) => compare(options, servers, folder)),
};

interface Side extends Contender {
  readonly pages: Cost[];
  readonly deliveries: Cost[];
  close(): Promise<void>;
}

async function compare(options: BenchOptions, servers: Servers, folder: string): Promise<BenchResult> {
  const { size = TIMELINES, rounds, roundMs, report } = options;
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(RUN_MAX_MS)]);
  await migrate(servers.postgres.url);
  const sides: Side[] = [];
  try {
    for (const [name, shards] of Object.entries(KINDS)) {
      report(`${name}: filling`);
      sides.push(await openSide({ name, shards, servers, folder, size, roundMs, signal, isFirst: sides.length === 0 }));
    }
    const [single, many, few] = await runRounds({ contenders: sides, rounds, warmUps: 1, report });
    if (!single || !many || !few) throw new Error('a contender is missing');
    const figures: Record<string, Figure> = {};
    for (const { name, pages, deliveries } of sides) {
      figures[`${name}, page, Redis`] = { value: medianOf(pages, 'redisMicros'), unit: 'µs of CPU' };
      figures[`${name}, page, process`] = { value: medianOf(pages, 'clientMicros'), unit: 'µs of CPU' };
      figures[`${name}, delivery, Redis`] = { value: medianOf(deliveries, 'redisMicros'), unit: 'µs of CPU' };
      figures[`${name}, delivery, process`] = { value: medianOf(deliveries, 'clientMicros'), unit: 'µs of CPU' };
    }
    return {
      name: 'cluster',
      unit: 'µs of Redis CPU/page',
      ours: few,
      against: { 'one server': single, '256 shards': many },
      figures,
      conditions: [
        `warm pages of ${PAGE_SIZE} by ${readersOf(size).length} viewers of ${AUTHORS} authors, ${READS_AT_ONCE} at once, without a front door; pushes to ${size.toLocaleString('en-US')} timelines, ${FOLLOWER_PAGE} a page;`,
        'the cluster is one server that owns all slots; timelines of pushes are short, so a delivery is cheaper than with 800 entries, on all of them alike.',
      ],
    };
  } finally {
    for (const side of sides) await side.close();
  }
}

async function openSide(of: {
  readonly name: string;
  readonly shards: number | undefined;
  readonly servers: Servers;
  readonly folder: string;
  readonly size: number;
  readonly roundMs: number;
  readonly signal: AbortSignal;
  /** Whoever comes first writes the rows. */
  readonly isFirst: boolean;
}): Promise<Side> {
  const { name, shards, servers, signal, size, roundMs } = of;
  const server = await startSide(path.join(of.folder, `cache-${shards ?? 'single'}`), shards !== undefined);
  const redis = new Redis(server.url);
  const settings = {
    REDIS_CACHE_URL: server.url,
    ...(shards !== undefined && { REDIS_CACHE_CLUSTER: 'true', TIMELINE_SHARDS: String(shards) }),
  };
  let ours: OursParts | undefined;
  const close = async (): Promise<void> => {
    await ours?.close();
    redis.disconnect();
    await server.stop();
  };
  try {
    if (shards !== undefined) await redis.call('CLUSTER', 'ADDSLOTSRANGE', 0, SLOTS - 1);
    const parts = await openOurs(benchConfig(servers, { ...PATIENT, ...PUSHED, ...settings }), signal);
    ours = parts;
    const readers = readersOf(size);
    if (of.isFirst) await writeRows(parts, readers, signal);
    for (const reader of readers) await parts.makeTimeline({ tenant: TENANT, signal }, reader);
    const viewers = Array.from({ length: size }, (_, index) => viewerAt(index));
    await inParallel(viewers, async (viewer) => {
      const timeline = { tenant: TENANT, viewer, token: 'bench' };
      await parts.timelines.begin(signal, timeline);
      await parts.timelines.commit(signal, { ...timeline, floor: 0 });
    });
    const pages: Cost[] = [];
    const deliveries: Cost[] = [];
    let pushed = 0;
    return {
      name,
      pages,
      deliveries,
      close,
      async round() {
        const page = await measureCost([redis], () => repeat(roundMs / 2, () => readAll(parts, readers, signal)));
        pages.push(page);
        const push = (): Promise<number> => {
          pushed += 1;
          return pushAll(parts, viewers, pushed, signal);
        };
        deliveries.push(await measureCost([redis], () => repeat(roundMs / 2, push)));
        return page.redisMicros;
      },
    };
  } catch (error) {
    await close();
    throw error;
  }
}

function startSide(dataDir: string, isCluster: boolean): Promise<EmbeddedServer> {
  const extraArgs = ['--cluster-enabled', 'yes', '--cluster-port', '0', '--cluster-announce-ip', '127.0.0.1'];
  return startRedis({ role: 'cache', dataDir, ...(isCluster && { extraArgs }) });
}

function readersOf(size: number): readonly UserId[] {
  return Array.from({ length: Math.floor(size / TIMELINES_PER_READER) }, (_, index) => `reader-${index}` as UserId);
}

async function writeRows({ flows }: OursParts, readers: readonly UserId[], signal: AbortSignal): Promise<void> {
  const call = { tenant: TENANT, signal };
  const authors = Array.from({ length: AUTHORS }, (_, index) => `author-${index}` as UserId);
  for (const follower of readers)
    await inParallel(authors, (followee) => flows.relate.follow(call, { follower, followee }));
  for (let post = 0; post < POSTS_EACH; post += 1)
    for (const author of authors)
      await flows.publish(call, { author, text: 'A post of some length.', media: [], visibility: 'public' });
}

/** Answers how many were done. */
async function repeat(ms: number, work: () => Promise<number>): Promise<number> {
  const untilMs = systemClock.monotonicMs() + ms;
  let done = 0;
  do done += await work();
  while (systemClock.monotonicMs() < untilMs);
  return done;
}

async function readAll({ flows }: OursParts, readers: readonly UserId[], signal: AbortSignal): Promise<number> {
  await inParallel(readers, async (viewer) => {
    const page = await flows.home.page({ tenant: TENANT, signal }, { viewer, pageSize: PAGE_SIZE, pageToken: '' });
    if (page.views.length !== PAGE_SIZE || page.completeness !== 'complete')
      throw new Error(`a page of ${page.views.length} entries is ${page.completeness}`);
  });
  return readers.length;
}

async function pushAll(
  { timelines }: OursParts,
  viewers: readonly UserId[],
  post: number,
  signal: AbortSignal,
): Promise<number> {
  for (let from = 0; from < viewers.length; from += FOLLOWER_PAGE) {
    const some = viewers.slice(from, from + FOLLOWER_PAGE);
    const outcomes = await timelines.push(signal, { tenant: TENANT, postId: postIdFrom(post), viewers: some });
    if (!outcomes.every((outcome) => outcome === 'added')) throw new Error('a timeline did not take a post');
  }
  return viewers.length;
}

async function inParallel<Item>(items: readonly Item[], work: (item: Item) => Promise<unknown>): Promise<void> {
  const rest = items.values();
  const worker = async (): Promise<void> => {
    for (const item of rest) await work(item);
  };
  await Promise.all(Array.from({ length: READS_AT_ONCE }, worker));
}
