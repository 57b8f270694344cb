/**
 * Owns the comparison of fan-out: the worker's own code end to end (rows of Postgres in, confirmed timelines out), beside the bare script it ends in and three usual ways to do the same.
 *
 * Invariant: every push is a new post to timelines that are full, trims included; and at its end the run fails unless each resident follower holds the last post of its author, and nobody else has a
 * timeline.
 */
import path from 'node:path';
import { Redis } from 'ioredis';
import { startRedis } from '../../src/embedded/redis.ts';
import type { Servers } from '../../src/embedded/servers.ts';
import { openBareScript } from './bare-script.ts';
import { type Bench, type BenchOptions, withServers } from './bench.ts';
import { type Cost, measureCost, medianOf } from './cost.ts';
import type { BenchResult, Figure } from './result.ts';
import {
  createListPipeline,
  createZaddPipeline,
  followerAt,
  openJobPerFollower,
  type Rival,
  type SetStore,
  seedLists,
  seedSets,
} from './rivals.ts';
import { type Contender, ratePerSecond, runRounds } from './rounds.ts';
import { CAP, openWorkerUnderTest, type WorkerUnderTest } from './worker-under-test.ts';

const TIMELINES = 100_000;
const TIMELINES_MAX = 200_000;
const TIMELINES_MIN = 400;
/** Authors of each kind: their followers are the timelines, in equal shares, enough of them for the bulk lane. */
const AUTHORS = 5;
/** There are as many times fewer skiplists, since each takes six times the memory. Fewer are no disadvantage. */
const SKIPLIST_PART = 5;
/** Followers of one fan-out by jobs, so that it ends within a round. */
const JOB_FOLLOWERS_MAX = 1_000;
const WARM_UPS = 1;
/** 200,000 timelines take 4 GB, as many sets of the rivals the same, their lists 2 GB; 40,000 skiplists 5 GB; nothing may be evicted. */
const MEMORY_MAX = '14gb';

/** What is asked: of the worker by rival, of its cost, and of the worth of the rival whose cost is known. */
const RATIO_MIN = { 'bare script': 0.6, 'zadd pipeline': 1.5, 'list pipeline': 1, 'job per follower': 10 };
const CLIENT_MICROS_MAX = 5;
const BYTES_MAX = 24;
const QUARTER_RATIO_MIN = 2;
const ZADD_CLIENT_MICROS = 20;
const ZADD_CLIENT_TOLERANCE = 1.3;

interface Slices {
  readonly contender: Contender;
  /** Of the rounds that count. */
  costs(): readonly Cost[];
}

export const bench: Bench = {
  size: { of: 'timelines', preset: TIMELINES, min: TIMELINES_MIN, max: TIMELINES_MAX },
  run: (options) =>
    withServers(
      async (servers, folder) => {
        const stock = await startRedis({
          role: 'cache',
          dataDir: path.join(folder, 'stock'),
          maxmemory: MEMORY_MAX,
          extraArgs: ['--zset-max-listpack-entries', '128'],
        });
        try {
          return await compare(options, servers, stock.url);
        } finally {
          await stock.stop();
        }
      },
      { cacheMemory: MEMORY_MAX },
    ),
};

async function compare(options: BenchOptions, servers: Servers, stockUrl: string): Promise<BenchResult> {
  const { signal, report, size = TIMELINES } = options;
  const opened: { close(): Promise<void> | void }[] = [];
  const connect = (url: string): Redis => {
    const redis = new Redis(url, { maxRetriesPerRequest: null });
    opened.push({ close: () => redis.disconnect() });
    return redis;
  };
  try {
    const cache = connect(servers.cache.url);
    const stock = connect(stockUrl);
    const queue = connect(servers.queue.url);
    report(`filling ${size} timelines, and as many sets and lists for the rivals`);
    const worker = await openWorkerUnderTest({ servers, redis: cache, timelines: size, authors: AUTHORS, signal });
    opened.push(worker);
    const bytes = await worker.bytesPerEntry();
    // Their own connections, as the worker has.
    const store: SetStore = { redis: connect(servers.cache.url), newestFirst: true };
    const lists = connect(servers.cache.url);
    const skiplists: SetStore = { redis: connect(stockUrl), newestFirst: false };
    const skiplistCount = Math.floor(size / SKIPLIST_PART);
    await seedSets(signal, store, size);
    await seedLists(signal, lists, size);
    await seedSets(signal, skiplists, skiplistCount);

    const bare = openBareScript({ redis: connect(servers.cache.url), timelines: worker.keysOf('full') });
    const jobs = openJobPerFollower({ queue, worker: connect(servers.queue.url), store });
    opened.push(jobs);

    const followers = Array.from({ length: size }, (_, index) => followerAt(index));
    const rival = (
      name: string,
      push: Rival,
      measured: readonly Redis[],
      most: { readonly count?: number; readonly each?: number } = {},
    ) => {
      const groups = groupsOf(followers.slice(0, most.count ?? size), most.each ?? size / AUTHORS);
      let turn = 0;
      return slicesOf(options, name, measured, async (count) => {
        await ratePerSecond({
          workers: 1,
          durationMs: options.roundMs,
          operation: async () => count(await push(worker.nextId(), groups[turn++ % groups.length] ?? [])),
        });
      });
    };
    const ours = workerSlices(options, worker, 'full', cache);
    const quarter = workerSlices(options, worker, 'quarter', cache);
    const others: Readonly<Record<string, Slices>> = {
      'bare script': slicesOf(options, 'bare script', [cache], (count) => bare(worker.nextId, options.roundMs, count)),
      'zadd pipeline': rival('zadd pipeline', createZaddPipeline(store), [cache]),
      'list pipeline': rival('list pipeline', createListPipeline(lists), [cache]),
      'job per follower': rival('job per follower', jobs.push, [cache, queue], {
        each: Math.min(JOB_FOLLOWERS_MAX, size / AUTHORS),
      }),
      'zadd pipeline, skiplists': rival('zadd pipeline, skiplists', createZaddPipeline(skiplists), [stock], {
        count: skiplistCount,
      }),
    };

    const all = [ours, quarter, ...Object.values(others)];
    const measured = await runRounds({
      contenders: all.map(({ contender }) => contender),
      rounds: options.rounds,
      warmUps: WARM_UPS,
      report,
    });
    await worker.verify();
    for (const redis of [cache, stock]) await refuseEvictions(redis);

    const [oursMeasured, quarterMeasured, ...othersMeasured] = measured;
    if (!oursMeasured || !quarterMeasured) throw new Error('a contender was not measured');
    const against = Object.fromEntries(
      Object.keys(others).flatMap((name, index) => {
        const other = othersMeasured[index];
        return other ? [[name, other]] : [];
      }),
    );
    const figures: Record<string, Figure> = {
      'client CPU': { value: medianOf(ours.costs(), 'clientMicros'), unit: 'µs/delivery', max: CLIENT_MICROS_MAX },
      'Redis CPU': { value: medianOf(ours.costs(), 'redisMicros'), unit: 'µs/delivery' },
      memory: { value: bytes, unit: `bytes/entry at ${CAP} entries and more`, max: BYTES_MAX },
      '25 % resident': { value: quarterMeasured.median, unit: 'followers/s' },
      '25 % resident client CPU': { value: medianOf(quarter.costs(), 'clientMicros'), unit: 'µs/follower' },
      '25 % resident / 100 %': {
        value: quarterMeasured.median / oursMeasured.median,
        unit: 'times the followers/s',
        min: QUARTER_RATIO_MIN,
      },
    };
    for (const [name, slices] of Object.entries(others)) {
      figures[`${name} client CPU`] = { value: medianOf(slices.costs(), 'clientMicros'), unit: 'µs/delivery' };
      figures[`${name} Redis CPU`] = { value: medianOf(slices.costs(), 'redisMicros'), unit: 'µs/delivery' };
    }
    return {
      name: 'fanout',
      unit: 'deliveries/s',
      ours: oursMeasured,
      against,
      ratioMin: RATIO_MIN,
      figures,
      invalid: slowRivals(figures),
      conditions: [
        `${size.toLocaleString('en-US')} timelines of ${CAP} to ${CAP + worker.phases - 1} entries in parts, −ID listpacks, fan-outs to ${(size / AUTHORS).toLocaleString('en-US')} followers, ${worker.jobsAtOnce} at once (${worker.lane} lane), page of ${worker.followerPage};`,
        `rivals: followers ready in memory, as many sets (−ID listpacks too) and lists on the same Redis; skiplists: ${skiplistCount.toLocaleString('en-US')} sets on a Redis with its own presets, at six times the memory, nothing asked;`,
        `client CPU: of the process that pushes; Redis CPU: of the servers that hold timelines (and of the queue, for job per follower);`,
        `${options.rounds} rounds of ${options.roundMs / 1_000} s each in turns after ${WARM_UPS} warm-up; only the ratios within the run count.`,
      ],
    };
  } finally {
    for (const each of opened.reverse()) await each.close();
  }
}

/** A rate by rounds, and what each of them cost. */
function slicesOf(
  { signal }: BenchOptions,
  name: string,
  measured: readonly Redis[],
  work: (count: (deliveries: number) => void) => Promise<void>,
): Slices {
  const costs: Cost[] = [];
  return {
    contender: {
      name,
      async round() {
        signal.throwIfAborted();
        const cost = await measureCost(measured, async () => {
          let deliveries = 0;
          await work((count) => {
            signal.throwIfAborted();
            deliveries += count;
          });
          return deliveries;
        });
        costs.push(cost);
        return cost.perSecond;
      },
    },
    costs: () => costs.slice(WARM_UPS),
  };
}

/** Deliveries of whole fan-outs; where not all followers are resident, followers. */
function workerSlices(options: BenchOptions, worker: WorkerUnderTest, kind: 'full' | 'quarter', cache: Redis): Slices {
  const name = kind === 'full' ? 'worker' : 'worker, 25 % resident';
  const slices = slicesOf(options, name, [cache], async (count) => {
    await ratePerSecond({
      workers: worker.jobsAtOnce,
      durationMs: options.roundMs,
      operation: async () => count(await worker.deliverNext(kind)),
    });
  });
  return {
    ...slices,
    contender: {
      name,
      async round() {
        // Publishing is not the worker's work: what the round will need is there before it begins.
        await worker.publishAhead(kind);
        return slices.contender.round();
      },
    },
  };
}

function slowRivals(figures: Readonly<Record<string, Figure>>): readonly string[] {
  const cost = figures['zadd pipeline client CPU']?.value ?? 0;
  if (cost <= ZADD_CLIENT_MICROS * ZADD_CLIENT_TOLERANCE) return [];
  return [
    `the zadd pipeline costs ${cost.toFixed(1)} µs of client CPU per delivery here, more than ${ZADD_CLIENT_TOLERANCE} times the ${ZADD_CLIENT_MICROS} µs it is known for`,
  ];
}

async function refuseEvictions(redis: Redis): Promise<void> {
  const evicted = /^evicted_keys:(\d+)/m.exec(await redis.info('stats'))?.[1];
  if (evicted !== '0') throw new Error(`${evicted} keys were evicted: the run compared other timelines than it says`);
}

function groupsOf<Item>(items: readonly Item[], most: number): readonly (readonly Item[])[] {
  const groups: Item[][] = [];
  for (let at = 0; at < items.length; at += most) groups.push(items.slice(at, at + most));
  return groups;
}
