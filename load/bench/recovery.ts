/**
 * Owns the question how soon the service is itself again after the cache was flushed and after Postgres was restarted, under a steady load of reads and publishes by gRPC; and how many posts a second its queue
 * bears before they wait.
 *
 * Invariant: calls come at their rate whatever happens, and in the end every publish that was answered is there and delivered, or the run fails.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { createClient, type Interceptor } from '@connectrpc/connect';
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { Redis } from 'ioredis';
import type pg from 'pg';
import type { Servers } from '../../src/embedded/servers.ts';
import { Visibility } from '../../src/gen/tributary/v1/post_pb.ts';
import { PostService } from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { pause, systemClock } from '../../src/runtime.ts';
import { createSeeded } from '../../src/sample/seeded.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { type Bench, type BenchOptions, benchEnvironment, withServers } from './bench.ts';
import { findCapacity, LAG_MAX_SECONDS, RAMP_FACTOR, settle, withClient } from './queue-capacity.ts';
import type { BenchResult, Figure } from './result.ts';
import { formatFigure } from './rounds.ts';
import { type Serving, TENANT } from './service-process.ts';
import { OPEN_MAX, type SteadyLoad, secondsUntilBack, startSteadyLoad, stretchOf } from './steady-load.ts';

const READS_PER_SECOND = 200;
/** Of the reads. */
const PUBLISHES_PART = 0.1;
const VIEWERS_PER_READ = 50;
const AUTHORS = 200;
const FOLLOWS_EACH = 20;
/** How long the load is looked at before the first fault, and at most after each; a smaller run has less of the former. */
const BEFORE_MS = 10_000;
const BEFORE_MIN_MS = 1_000;
const AFTER_MAX_MS = 60_000;
/** Seconds in a row that must be good. */
const CALM_SECONDS = 3;
/** Good: at most so many times the p99 from before, or this many milliseconds, whichever is more, and at most this part of errors. */
const P99_TIMES_MAX = 2;
const P99_MS_MIN = 50;
const ERRORS_MAX = 0.01;
const GOAL_SECONDS = 10;
const CALL_MS = 1_000;
const PAGE_SIZE = 20;
const WARM_UP_AT_ONCE = 8;
const LOOK_EVERY_MS = 100;
const RUN_MAX_MS = 900_000;

export const bench: Bench = {
  size: { of: 'reads per second', preset: READS_PER_SECOND, min: 10, max: 5_000 },
  run: (options) => withServers((servers) => recover(options, servers)),
};

interface Callers {
  /** Everybody's first page, as they are once the service has run for a while. */
  warmUp(signal: AbortSignal): Promise<void>;
  read(): Promise<void>;
  publish(): Promise<void>;
  /** IDs of posts whose publish was answered. */
  readonly published: readonly string[];
  close(): void;
}

async function recover(options: BenchOptions, servers: Servers): Promise<BenchResult> {
  const { size = READS_PER_SECOND, report } = options;
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(RUN_MAX_MS)]);
  const part = Math.min(1, size / READS_PER_SECOND);
  const viewers = size * VIEWERS_PER_READ;
  await migrate(servers.postgres.url);
  await withClient(servers, (client) => seedGraph(client, viewers));
  const service = await startProcess(servers);
  const callers = connect(service.serving, viewers);
  const loads: SteadyLoad[] = [];
  try {
    report(`${viewers} viewers read once`);
    await callers.warmUp(signal);
    const reads = startSteadyLoad({ perSecond: size, openMax: OPEN_MAX, call: callers.read });
    const publishes = startSteadyLoad({ perSecond: size * PUBLISHES_PART, openMax: OPEN_MAX, call: callers.publish });
    loads.push(reads, publishes);
    const faults: Readonly<Record<string, () => Promise<unknown>>> = {
      'cache flushed': () => flush(servers.cache.url),
      'queue flushed': () => flush(servers.queue.url),
      'Postgres restarted': () => servers.postgres.restart(),
    };
    const figures: Record<string, Figure> = {};
    const back: number[] = [];
    for (const [name, inflict] of Object.entries(faults)) {
      const fromMs = systemClock.monotonicMs() + BEFORE_MIN_MS / 2;
      await pause(signal, BEFORE_MIN_MS / 2 + Math.max(BEFORE_MIN_MS, BEFORE_MS * part));
      const faultMs = systemClock.monotonicMs();
      const before = stretchOf(reads.samples, fromMs, faultMs);
      report(`${name}: p99 of reads before ${formatFigure(before.p99Ms)} ms, ${percent(before.errorRate)} failed`);
      await inflict();
      const seconds = await untilBack({ reads, publishes, fromMs, faultMs, signal });
      report(`${name}: back after ${seconds ?? `more than ${AFTER_MAX_MS / 1_000}`} s`);
      const value = seconds ?? AFTER_MAX_MS / 1_000;
      back.push(value);
      figures[`${name}, seconds until back`] = { value, unit: 's', max: GOAL_SECONDS };
      figures[`${name}, p99 of reads before`] = { value: before.p99Ms, unit: 'ms' };
      const worst = stretchOf(reads.samples, faultMs, faultMs + (value + CALM_SECONDS) * 1_000);
      figures[`${name}, reads failed until then`] = { value: worst.errorRate * worst.count, unit: `of ${worst.count}` };
    }
    await Promise.all([reads.stop(), publishes.stop()]);
    for (const [message, count] of [...reads.errors, ...publishes.errors]) report(`${count} times: ${message}`);
    await settle(servers, { tenant: TENANT, published: callers.published, signal });

    const capacity = await findCapacity(servers, { publish: callers.publish, part, report, signal });
    await settle(servers, { tenant: TENANT, published: callers.published, signal });
    figures["the queue's capacity"] = { value: capacity.sustained, unit: 'posts/s without growing lag' };
    figures['the ramp ended at'] = { value: capacity.tried, unit: `posts/s: ${capacity.why}` };
    const worst = Math.max(...back);
    return {
      name: 'recovery',
      unit: 's until p99 and errors are back, after the worst fault',
      ours: { name: 'whole service', median: worst, lowest: Math.min(...back), highest: worst },
      against: {},
      oursMax: GOAL_SECONDS,
      figures,
      conditions: [
        `${size.toLocaleString('en-US')} reads and ${formatFigure(size * PUBLISHES_PART)} publishes a second by gRPC, of ${viewers.toLocaleString('en-US')} viewers who follow ${FOLLOWS_EACH} of ${AUTHORS} authors each; the service in one process, its callers and servers on the same machine; a call has ${CALL_MS / 1_000} s and is not tried again;`,
        `back: the first of ${CALM_SECONDS} seconds in a row with at most ${percent(ERRORS_MAX)} of failed calls and a p99 of reads of at most ${P99_TIMES_MAX} times that from before or ${P99_MS_MIN} ms, from the moment of the fault, the restart included;`,
        `capacity: publishes in steps of ${RAMP_FACTOR} times, ${AUTHORS} authors with ${Math.round((viewers * FOLLOWS_EACH) / AUTHORS).toLocaleString('en-US')} followers; sustained where the oldest open job was younger than ${LAG_MAX_SECONDS} s again and again;`,
        `${callers.published.length.toLocaleString('en-US')} publishes were answered; all are there and delivered.`,
      ],
    };
  } finally {
    await Promise.all(loads.map((load) => load.stop()));
    callers.close();
    await service.stop();
  }
}

async function untilBack(of: {
  readonly reads: SteadyLoad;
  readonly publishes: SteadyLoad;
  readonly fromMs: number;
  readonly faultMs: number;
  readonly signal: AbortSignal;
}): Promise<number | undefined> {
  const { reads, publishes, fromMs, faultMs, signal } = of;
  const limit = (load: SteadyLoad): number =>
    Math.max(P99_MS_MIN, P99_TIMES_MAX * stretchOf(load.samples, fromMs, faultMs).p99Ms);
  const limits = { reads: limit(reads), publishes: limit(publishes) };
  for (;;) {
    await pause(signal, LOOK_EVERY_MS);
    const nowMs = systemClock.monotonicMs();
    // What began longest ago may be open still: a second is judged when all of it has ended.
    const judged = { faultMs, untilMs: nowMs - CALL_MS, calm: CALM_SECONDS, errorRateMax: ERRORS_MAX };
    const each = [
      secondsUntilBack(reads.samples, { ...judged, p99MsMax: limits.reads }),
      secondsUntilBack(publishes.samples, { ...judged, p99MsMax: limits.publishes }),
    ].filter((seconds) => seconds !== undefined);
    if (each.length === 2) return Math.max(...each);
    if (nowMs - faultMs > AFTER_MAX_MS) return undefined;
  }
}

async function seedGraph(client: pg.Client, viewers: number): Promise<void> {
  await client.query(
    `INSERT INTO follows (tenant_id, follower_id, followee_id)
    SELECT $1, 'v' || v, 'a' || (v * 7 + k * ${Math.floor(AUTHORS / FOLLOWS_EACH)}) % ${AUTHORS}
    FROM generate_series(0, $2::int - 1) v, generate_series(0, ${FOLLOWS_EACH - 1}) k`,
    [TENANT, viewers],
  );
  await client.query(
    `INSERT INTO authors (tenant_id, author_id, follower_count) SELECT $1, followee_id, count(*) FROM follows GROUP BY followee_id`,
    [TENANT],
  );
  await client.query('VACUUM (ANALYZE) follows, authors');
}

async function flush(url: string): Promise<void> {
  const redis = new Redis(url);
  try {
    await redis.flushall();
  } finally {
    redis.disconnect();
  }
}

function connect({ grpcPort, key }: Serving, viewers: number): Callers {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set('authorization', `Bearer ${key}`);
    return next(request);
  };
  const baseUrl = `http://127.0.0.1:${grpcPort}`;
  const sessionManager = new Http2SessionManager(baseUrl);
  const transport = createGrpcTransport({ baseUrl, sessionManager, interceptors: [authorize] });
  const timeline = createClient(TimelineService, transport);
  const posts = createClient(PostService, transport);
  const random = createSeeded(6);
  const published: string[] = [];
  const read = async (viewer: number): Promise<void> => {
    await timeline.getHomeTimeline({ viewerId: `v${viewer}`, pageSize: PAGE_SIZE }, { timeoutMs: CALL_MS });
  };
  return {
    published,
    async warmUp(signal) {
      let next = 0;
      await Promise.all(
        Array.from({ length: WARM_UP_AT_ONCE }, async () => {
          for (; next < viewers; ) {
            signal.throwIfAborted();
            // Whoever is refused reads again later.
            await read(next++).catch(() => undefined);
          }
        }),
      );
    },
    read: () => read(random.below(viewers)),
    async publish() {
      const { post } = await posts.publishPost(
        { authorId: `a${random.below(AUTHORS)}`, text: 'A post for everybody.', visibility: Visibility.PUBLIC },
        { timeoutMs: CALL_MS },
      );
      if (post) published.push(post.postId);
    },
    close: () => sessionManager.abort(),
  };
}

/** Readers come back beside the rebuilds of those who read lately, as they do in a service. */
const AS_SERVED = { WARM_UP_PER_SECOND: '20' };

interface ServiceProcess {
  readonly serving: Serving;
  stop(): Promise<void>;
}

async function startProcess(servers: Servers): Promise<ServiceProcess> {
  const child: ChildProcess = fork(path.join(import.meta.dirname, 'service-process.ts'), {
    env: { ...process.env, ...benchEnvironment(servers, { LOG_LEVEL: 'fatal', ...AS_SERVED }) },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  const exited = once(child, 'exit');
  exited.catch(() => undefined);
  const [serving] = await Promise.race([
    once(child, 'message'),
    exited.then(() => Promise.reject(new Error('the service ended by itself'))),
  ]);
  return {
    serving: serving as Serving,
    async stop() {
      if (child.connected) child.disconnect();
      await exited;
    },
  };
}

function percent(part: number): string {
  return `${formatFigure(part * 100)} %`;
}
