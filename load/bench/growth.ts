/**
 * Owns the question whether the cost of an operation grows with the service: publish, deliver, read, rebuild at a hundredth, a tenth and the whole of so many viewers.
 * Invariant: what one operation has to do is the same at every step (as many followers of an author, as many entries of a timeline); only how many others there are differs.
 */
import { Redis } from 'ioredis';
import pg from 'pg';
import type { Servers } from '../../src/embedded/servers.ts';
import type { Call } from '../../src/runtime.ts';
import { systemClock } from '../../src/runtime.ts';
import { createSeeded, type Seeded } from '../../src/sample/seeded.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { createKeys, type Keys } from '../../src/store/redis/keys.ts';
import { composePostId, ID_EPOCH_MS, type PostId, type TenantId, type UserId } from '../../src/timeline/ids.ts';
import { type Bench, type BenchOptions, benchConfig, PATIENT, PUSHED, withServers } from './bench.ts';
import { copyKeys, countHolders, viewerAt } from './crowd.ts';
import { type CpuMeter, createCpuMeter, minus, totalOf } from './processes-cpu.ts';
import type { BenchResult, Figure, Sweep } from './result.ts';
import { formatFigure } from './rounds.ts';
import { type OursParts, openOurs } from './twip-ours.ts';

const VIEWERS = 1_000_000;
/** The smallest step has as many viewers as there are workers. */
const VIEWERS_MIN = 2_000;
/** Of the largest number of viewers. */
const STEPS = [0.01, 0.1, 1] as const;
const FOLLOWS_EACH = 5;
const FOLLOWERS_EACH = 1_000;
/** Where there are too few viewers for such authors, there are so many, with fewer followers. */
const AUTHORS_MIN = 10;
/** A timeline holds those of all authors that its viewer follows. */
const POSTS_EACH = 16;
const OPERATIONS = { publish: 400, deliver: 400, read: 6_000, rebuild: 600 } as const;
type Operation = keyof typeof OPERATIONS;
/** A smaller run has as many fewer, but so many at least. */
const OPERATIONS_MIN = 40;
const AT_ONCE = 16;
const PAGE_SIZE = 50;
const VIEWERS_OF_A_STATEMENT = 20_000;
/** A million timelines of 80 entries take 3 GB. */
const MEMORY_MAX = '8gb';
/** The usual size writes 5.5 million follows, which is most of it. */
const RUN_MAX_MS = 5_400_000;
const FIRST_POST = composePostId({ ms: ID_EPOCH_MS + 366 * 86_400_000, generator: 0, sequence: 0 });

export const bench: Bench = {
  size: { of: 'viewers at the largest step', preset: VIEWERS, min: VIEWERS_MIN, max: 5_000_000 },
  run: (options) => withServers((servers) => grow(options, servers), { cacheMemory: MEMORY_MAX }),
};

interface Cost {
  /** Microseconds of an operation: of the CPU of all processes, and of time at so many at once. */
  readonly cpu: number;
  readonly time: number;
}

async function grow(options: BenchOptions, servers: Servers): Promise<BenchResult> {
  const { size = VIEWERS, report } = options;
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(RUN_MAX_MS)]);
  const config = benchConfig(servers, { ...PATIENT, ...PUSHED, REBUILDS_MAX: String(AT_ONCE) });
  await migrate(servers.postgres.url);
  const client = new pg.Client({ connectionString: servers.postgres.url });
  const redis = new Redis(servers.cache.url);
  const ours = await openOurs(config, signal);
  try {
    await client.connect();
    const meter = createCpuMeter(servers, [redis]);
    const keys = createKeys(config.timeline.shards);
    const steps: { readonly viewers: number; readonly costs: Readonly<Record<Operation, Cost>> }[] = [];
    const part = Math.min(1, size / VIEWERS);
    const counts = (operation: Operation): number => Math.max(OPERATIONS_MIN, Math.round(OPERATIONS[operation] * part));
    for (const step of STEPS) {
      const viewers = Math.round(size * step);
      const crowd = crowdOf(viewers);
      report(`${viewers} viewers of ${crowd.authors} authors: filling`);
      await fillPostgres(client, crowd, signal);
      await fillRedis({ ours, redis, keys, crowd, signal });
      const parts = { ours, redis, keys, crowd, meter, signal, random: createSeeded(viewers) };
      // Connections and compiled code are made once, by whoever comes first.
      await measure({ ...parts, counts: () => OPERATIONS_MIN });
      const costs = await measure({ ...parts, counts });
      report(
        `${viewers} viewers: ${Object.entries(costs)
          .map(([operation, { cpu }]) => `${operation} ${formatFigure(cpu)} µs`)
          .join(', ')}`,
      );
      steps.push({ viewers, costs });
    }
    return resultOf(steps);
  } finally {
    await ours.close();
    redis.disconnect();
    await client.end();
  }
}

/** Viewer v follows the authors v, v + stride, v + 2 strides, … modulo their number: everybody's followers are all over the viewers. */
interface Crowd {
  readonly tenant: TenantId;
  readonly viewers: number;
  readonly authors: number;
  readonly stride: number;
}

function crowdOf(viewers: number): Crowd {
  const authors = Math.max(AUTHORS_MIN, Math.floor((viewers * FOLLOWS_EACH) / FOLLOWERS_EACH));
  return { tenant: `of-${viewers}` as TenantId, viewers, authors, stride: Math.floor(authors / FOLLOWS_EACH) };
}

function authorAt(index: number): UserId {
  return `a${String(index).padStart(7, '0')}` as UserId;
}

function followersOf({ viewers, authors, stride }: Crowd, author: number): readonly UserId[] {
  const followers: UserId[] = [];
  for (let k = 0; k < FOLLOWS_EACH; k += 1) {
    for (let at = (author - k * stride + FOLLOWS_EACH * authors) % authors; at < viewers; at += authors) {
      followers.push(viewerAt(at));
    }
  }
  return followers;
}

async function fillPostgres(client: pg.Client, crowd: Crowd, signal: AbortSignal): Promise<void> {
  const { tenant, viewers, authors, stride } = crowd;
  for (let from = 0; from < viewers; from += VIEWERS_OF_A_STATEMENT) {
    signal.throwIfAborted();
    await client.query(
      `INSERT INTO follows (tenant_id, follower_id, followee_id)
      SELECT $1, 'v' || lpad(v::text, 9, '0'), 'a' || lpad(((v + k * $4::int) % $5::int)::text, 7, '0')
      FROM generate_series($2::int, $3::int) v, generate_series(0, ${FOLLOWS_EACH - 1}) k`,
      [tenant, from, Math.min(from + VIEWERS_OF_A_STATEMENT, viewers) - 1, stride, authors],
    );
  }
  await client.query(
    `INSERT INTO authors (tenant_id, author_id, follower_count)
    SELECT $1, followee_id, count(*) FROM follows WHERE tenant_id = $1 GROUP BY followee_id`,
    [tenant],
  );
  await client.query(
    `WITH made AS (
      INSERT INTO posts (tenant_id, author_id, post_id, text, visibility)
      SELECT $1, 'a' || lpad(a::text, 7, '0'), $2::bigint + (p * $3::bigint + a) * 32, 'A post of some length, as people write them all day long.', 'public'
      FROM generate_series(0, $3::int - 1) a, generate_series(0, ${POSTS_EACH - 1}) p
      RETURNING author_id, post_id
    ), stats AS (
      INSERT INTO post_stats (tenant_id, post_id, author_id) SELECT $1, post_id, author_id FROM made
    )
    INSERT INTO self_entries (tenant_id, viewer_id, post_id) SELECT $1, author_id, post_id FROM made`,
    [tenant, FIRST_POST, authors],
  );
  await client.query('VACUUM (ANALYZE) follows, authors, posts, post_stats, self_entries');
}

/** Whoever follows the same authors has the same timeline: the service builds one of each kind, the others are copies. */
async function fillRedis(of: {
  readonly ours: OursParts;
  readonly redis: Redis;
  readonly keys: Keys;
  readonly crowd: Crowd;
  readonly signal: AbortSignal;
}): Promise<void> {
  const { ours, redis, keys, crowd, signal } = of;
  const { tenant, viewers, authors } = crowd;
  const kinds = Math.min(authors, viewers);
  await inParallel(kinds, (kind) => ours.makeTimeline({ tenant, signal }, viewerAt(kind)));
  // So short a timeline is one set.
  if ((await redis.exists([...keys.timelineRing(tenant, viewerAt(0))])) > 0)
    throw new Error('a timeline has several parts');
  const nameOf = (index: number): string => keys.timeline(tenant, viewerAt(index));
  if (viewers === kinds) return;
  await copyKeys(signal, redis, function* () {
    for (let index = kinds; index < viewers; index += 1) yield { from: nameOf(index % kinds), to: nameOf(index) };
  });
}

async function measure(of: {
  readonly ours: OursParts;
  readonly redis: Redis;
  readonly keys: Keys;
  readonly crowd: Crowd;
  readonly meter: CpuMeter;
  readonly counts: (operation: Operation) => number;
  readonly random: Seeded;
  readonly signal: AbortSignal;
}): Promise<Readonly<Record<Operation, Cost>>> {
  const { ours, redis, keys, crowd, meter, counts, random, signal } = of;
  const { tenant, viewers, authors } = crowd;
  const call: Call = { tenant, signal };
  const posted: { readonly author: number; readonly postId: PostId }[] = [];
  async function costOf(count: number, work: (index: number, worker: number) => Promise<void>): Promise<Cost> {
    const before = await meter.read();
    const startedMs = systemClock.monotonicMs();
    await inParallel(count, work);
    const ms = systemClock.monotonicMs() - startedMs;
    return { cpu: (totalOf(minus(await meter.read(), before)) * 1e6) / count, time: (ms * 1e3) / count };
  }
  const read = async (viewer: UserId): Promise<void> => {
    const page = await ours.flows.home.page(call, { viewer, pageSize: PAGE_SIZE, pageToken: '' });
    if (page.views.length !== PAGE_SIZE) throw new Error(`a page has ${page.views.length} entries`);
  };

  const publish = await costOf(counts('publish'), async () => {
    const author = random.below(authors);
    const { post } = await ours.flows.publish(call, {
      author: authorAt(author),
      text: 'A post for everybody.',
      media: [],
      visibility: 'public',
    });
    posted.push({ author, postId: post.meta.postId });
  });
  const followers = posted.reduce((sum, { author }) => sum + followersOf(crowd, author).length, 0);
  const perJob = await costOf(posted.length, async (index) => {
    const { postId } = posted[index] as (typeof posted)[number];
    await ours.deliver(signal, { tenant, postId });
  });
  const perDelivery = posted.length / followers;
  const deliver = { cpu: perJob.cpu * perDelivery, time: perJob.time * perDelivery };
  for (const { author, postId } of posted.slice(-AT_ONCE)) {
    const wanted = followersOf(crowd, author);
    const { holders } = await countHolders(redis, { keys, tenant, postId, viewers: wanted });
    if (holders !== wanted.length) throw new Error(`${holders} of ${wanted.length} timelines hold post ${postId}`);
  }

  // Of viewers who come back: relations and posts are in the cache by then.
  const readers = Array.from({ length: Math.min(viewers, counts('read') / 4) }, () => viewerAt(random.below(viewers)));
  await inParallel(readers.length, (index) => read(readers[index] as UserId));
  const reading = await costOf(counts('read'), () => read(random.pick(readers)));
  // Each worker has viewers of its own: two rebuilds of one at once would be in each other's way.
  const rebuild = await costOf(counts('rebuild'), (_, worker) =>
    ours.makeTimeline(call, viewerAt(worker + AT_ONCE * random.below(Math.floor(viewers / AT_ONCE)))),
  );
  return { publish, deliver, read: reading, rebuild };
}

async function inParallel(count: number, work: (index: number, worker: number) => Promise<void>): Promise<void> {
  let next = 0;
  await Promise.all(
    Array.from({ length: AT_ONCE }, async (_, worker) => {
      while (next < count) await work(next++, worker);
    }),
  );
}

const OF_AN_OPERATION: Readonly<Record<Operation, string>> = {
  publish: 'post',
  deliver: 'delivery',
  read: 'page',
  rebuild: 'timeline',
};

function resultOf(
  steps: readonly { readonly viewers: number; readonly costs: Readonly<Record<Operation, Cost>> }[],
): BenchResult {
  const figures: Record<string, Figure> = {};
  const operations = Object.keys(OPERATIONS) as readonly Operation[];
  for (const { viewers, costs } of steps) {
    for (const operation of operations) {
      const { cpu, time } = costs[operation];
      const name = `${operation} at ${viewers.toLocaleString('en-US')}`;
      figures[name] = { value: cpu, unit: `µs of CPU/${OF_AN_OPERATION[operation]}` };
      figures[`${name}, time`] = { value: time, unit: `µs/${OF_AN_OPERATION[operation]}, ${AT_ONCE} at once` };
    }
  }
  const [first] = steps;
  const last = steps.at(-1);
  if (!first || !last) throw new Error('there was no step');
  const pageOf = ({ viewers, costs }: (typeof steps)[number]) => ({
    name: `a page at ${viewers.toLocaleString('en-US')} viewers`,
    median: costs.read.cpu,
    lowest: costs.read.cpu,
    highest: costs.read.cpu,
  });
  const sweep: Sweep = {
    title: 'CPU of all processes for one operation, by the number of viewers',
    x: { label: 'viewers', values: steps.map(({ viewers }) => viewers), isLogarithmic: true },
    y: { label: 'µs of CPU', isLogarithmic: true },
    series: operations.map((operation) => ({
      name: `${operation} (a ${OF_AN_OPERATION[operation]})`,
      values: steps.map(({ costs }) => costs[operation].cpu),
    })),
  };
  return {
    name: 'growth',
    unit: 'µs of CPU/page',
    ours: pageOf(last),
    against: Object.fromEntries(steps.slice(0, -1).map((step) => [`at ${step.viewers}`, pageOf(step)])),
    figures,
    sweep,
    conditions: [
      `each viewer follows ${FOLLOWS_EACH} authors, each author has up to ${FOLLOWERS_EACH.toLocaleString('en-US')} followers all over the viewers and ${POSTS_EACH} posts from before; everybody has a timeline;`,
      `a page: the newest ${PAGE_SIZE} entries, whole, of viewers who come back; a rebuild: of any viewer; CPU of this process, Redis and Postgres together;`,
      `every follower was found to have the posts that were delivered last.`,
    ],
  };
}
