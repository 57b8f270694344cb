/**
 * Owns the largest fan-out: one post to a million resident followers by the whole service in a process of its own, which is killed half-way; a second one resumes from the checkpoint.
 *
 * Invariant: the run fails unless in the end every follower's timeline has gained just this one post. Memory is looked at after a collection, at each quarter, in whichever process is there.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { Redis } from 'ioredis';
import pg from 'pg';
import { pause, systemClock } from '../../src/runtime.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { PUBLISH, publishValues } from '../../src/store/postgres/publish.ts';
import { createCache } from '../../src/store/redis/client.ts';
import { createKeys } from '../../src/store/redis/keys.ts';
import { createTimelines } from '../../src/store/redis/timelines.ts';
import { composePostId, ID_EPOCH_MS, type TenantId, type UserId } from '../../src/timeline/ids.ts';
import { type Bench, benchConfig, benchEnvironment, PATIENT, PUSHED, withServers } from './bench.ts';
import { countHolders, seedFollowers, seedTimelines, viewerAt } from './crowd.ts';
import type { HeapReport } from './million-worker.ts';

const FOLLOWERS = 1_000_000;
/** Short ones, since a million of 800 entries take 20 GB: the memory of the worker does not depend on them. */
const ENTRIES = 20;
const MEMORY_MAX = '8gb';
const HEAP_SPREAD_MB_MAX = 20;
const QUARTERS = 4;
const LOOK_EVERY_MS = 10;
const CALL_MS = 30_000;
/** Of the whole fan-out, the wait for the dead worker's lease included. */
const RUN_MAX_MS = 1_800_000;
const BYTES_PER_MB = 1e6;
/** For a run to try it out: the usual lease would be most of it. */
const SHORT_LEASE_MS = 10_000;
/** Any number, as nobody else takes advisory locks in this database. */
const HALT_LOCK = 1_000_000;
const TENANT = 'bench' as TenantId;
const AUTHOR = 'large' as UserId;
const POST = composePostId({ ms: ID_EPOCH_MS + 6 * 365 * 86_400_000, generator: 0, sequence: 0 });

export const bench: Bench = {
  size: { of: 'followers', preset: FOLLOWERS, min: 20_000, max: 5_000_000 },
  run: ({ size = FOLLOWERS, report, signal: interrupted }) =>
    withServers(
      async (servers) => {
        const signal = AbortSignal.any([interrupted, AbortSignal.timeout(RUN_MAX_MS)]);
        const settings = {
          ...PATIENT,
          ...PUSHED,
          ...(size < FOLLOWERS && { FANOUT_LEASE_MS: String(SHORT_LEASE_MS) }),
        };
        const environment = benchEnvironment(servers, settings);
        const config = benchConfig(servers, settings);
        await migrate(servers.postgres.url);
        const client = new pg.Client({ connectionString: servers.postgres.url });
        const redis = new Redis(servers.cache.url);
        const cache = createCache({ ...config.cache, clientFailed: (error) => report(error.message) });
        const keys = createKeys(config.timeline.shards);
        const workers: Worker[] = [];
        const start = async (): Promise<Worker> => {
          const worker = await startWorker(environment);
          workers.push(worker);
          return worker;
        };
        try {
          await client.connect();
          await cache.ready(AbortSignal.timeout(CALL_MS));
          report(`making ${size} followers with timelines of ${ENTRIES} entries`);
          await seedFollowers(client, signal, { tenant: TENANT, author: AUTHOR, from: 0, count: size });
          await client.query('VACUUM (ANALYZE) follows, authors');
          const timelines = createTimelines(cache, keys, { ...config.timeline, rebuildLeaseMs: CALL_MS });
          const filling = { redis, timelines, keys, tenant: TENANT, count: size, entries: ENTRIES, phases: 1 };
          await seedTimelines(signal, filling);

          await haltAt(client, size / 2);
          const first = await start();
          const startedMs = systemClock.monotonicMs();
          await publish(client);
          const heaps: HeapReport[] = [];
          const heapOf = async (worker: Worker, quarter: number): Promise<void> => {
            const heap = await worker.heap();
            heaps.push(heap);
            report(
              `quarter ${quarter}: heap ${megabytes(heap.heapBytes)} MB after collection, ${megabytes(heap.rssBytes)} MB resident`,
            );
          };
          const heapAt = async (worker: Worker, quarter: number): Promise<void> => {
            await untilProgress(client, signal, ({ done }) => done >= (size * quarter) / QUARTERS);
            await heapOf(worker, quarter);
          };
          await heapAt(first, 1);
          await untilHalted(client, signal);
          await heapOf(first, 2);
          await first.kill();
          const killedMs = systemClock.monotonicMs();
          await endHalt(client);
          const atKill = await progressOf(client);
          report(`killed at ${atKill.done} of ${size}`);
          const second = await start();
          await untilProgress(client, signal, ({ done }) => done > atKill.done);
          const resumedMs = systemClock.monotonicMs();
          await heapAt(second, 3);
          await heapAt(second, 4);
          await untilProgress(client, signal, ({ over }) => over);
          const endedMs = systemClock.monotonicMs();
          const end = await progressOf(client);

          report('looking at every timeline');
          const viewers = Array.from({ length: size }, (_, index) => viewerAt(index));
          const held = await countHolders(redis, { keys, tenant: TENANT, postId: POST, viewers });
          const members = size * (ENTRIES + 2);
          if (held.holders !== size || held.members !== members || end.delivered !== size) {
            throw new Error(`not every follower has the post once: ${JSON.stringify({ held, end })}`);
          }
          const bytes = heaps.map(({ heapBytes }) => heapBytes);
          const runningSeconds = (killedMs - startedMs + endedMs - resumedMs) / 1_000;
          const rate = size / runningSeconds;
          return {
            name: 'million',
            unit: 'deliveries/s',
            ours: { name: 'whole service', median: rate, lowest: rate, highest: rate },
            against: {},
            figures: {
              'heap spread': {
                value: (Math.max(...bytes) - Math.min(...bytes)) / BYTES_PER_MB,
                unit: 'MB between quarters, after collection',
                max: HEAP_SPREAD_MB_MAX,
              },
              heap: { value: Math.max(...bytes) / BYTES_PER_MB, unit: 'MB at most' },
              'resident set': {
                value: Math.max(...heaps.map((heap) => heap.rssBytes)) / BYTES_PER_MB,
                unit: 'MB at most',
              },
              'killed at': { value: atKill.done, unit: 'followers' },
              'resumed after': { value: (resumedMs - killedMs) / 1_000, unit: 's' },
              running: { value: runningSeconds, unit: 's' },
            },
            conditions: [
              `${size.toLocaleString('en-US')} followers, all resident, timelines of ${ENTRIES} entries; one process for relay and worker, killed with SIGKILL half-way;`,
              `afterwards every timeline has the post once and nothing else that is new; the lease of the dead worker is ${config.fanout.leaseMs / 1_000} s, and is waited for.`,
            ],
          };
        } finally {
          await Promise.all(workers.map((worker) => worker.kill()));
          await cache.close();
          redis.disconnect();
          await client.end();
        }
      },
      { cacheMemory: MEMORY_MAX },
    ),
};

async function publish(client: pg.Client): Promise<void> {
  await client.query({
    ...PUBLISH,
    values: [
      ...publishValues({
        tenant: TENANT,
        author: AUTHOR,
        postId: POST,
        text: 'A post for everybody.',
        media: [],
        plainRepost: false,
        visibility: 'public',
      }),
    ],
  });
}

interface Progress {
  /** Followers that were looked at, by the last checkpoint. */
  readonly done: number;
  readonly delivered: number;
  readonly over: boolean;
}

async function progressOf(client: pg.Client): Promise<Progress> {
  const { rows } = await client.query<Progress>(
    `SELECT (delivered + skipped)::int AS done, delivered::int, done_at IS NOT NULL AS over
    FROM fanout_jobs WHERE tenant_id = $1 AND post_id = $2`,
    [TENANT, POST],
  );
  const [row] = rows;
  if (!row) throw new Error('the job is gone');
  return row;
}

async function untilProgress(
  client: pg.Client,
  signal: AbortSignal,
  enough: (progress: Progress) => boolean,
): Promise<void> {
  while (!enough(await progressOf(client))) await pause(signal, LOOK_EVERY_MS);
}

/** Has the first checkpoint beyond so many deliveries wait, so that the worker is killed there however fast it is. */
async function haltAt(client: pg.Client, deliveries: number): Promise<void> {
  await client.query(`SELECT pg_advisory_lock(${HALT_LOCK})`);
  await client.query(`
    CREATE FUNCTION bench_halt() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock_shared(${HALT_LOCK}); RETURN NEW; END $$;
    CREATE TRIGGER bench_halt BEFORE UPDATE ON fanout_jobs FOR EACH ROW
    WHEN (OLD.delivered < ${Math.floor(deliveries)} AND NEW.delivered >= ${Math.floor(deliveries)}) EXECUTE FUNCTION bench_halt();`);
}

const HALTED = `FROM pg_locks WHERE locktype = 'advisory' AND objid = ${HALT_LOCK} AND NOT granted`;

async function untilHalted(client: pg.Client, signal: AbortSignal): Promise<void> {
  for (;;) {
    const { rowCount } = await client.query(`SELECT 1 ${HALTED}`);
    if (rowCount !== 0) return;
    await pause(signal, LOOK_EVERY_MS);
  }
}

/** What the dead worker asked for last is not carried out after its death. */
async function endHalt(client: pg.Client): Promise<void> {
  await client.query(`SELECT pg_terminate_backend(pid, 5000) ${HALTED}`);
  await client.query(`DROP TRIGGER bench_halt ON fanout_jobs`);
  await client.query(`SELECT pg_advisory_unlock(${HALT_LOCK})`);
}

interface Worker {
  heap(): Promise<HeapReport>;
  /** SIGKILL; resolves when the process is gone. */
  kill(): Promise<void>;
}

async function startWorker(environment: Readonly<Record<string, string>>): Promise<Worker> {
  const child: ChildProcess = fork(path.join(import.meta.dirname, 'million-worker.ts'), {
    env: { ...process.env, ...environment },
    execArgv: ['--expose-gc'],
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  const exited = once(child, 'exit');
  exited.catch(() => undefined);
  const answer = async (): Promise<unknown> => {
    const [message] = await Promise.race([
      once(child, 'message', { signal: AbortSignal.timeout(CALL_MS) }),
      exited.then(() => Promise.reject(new Error('the worker ended by itself'))),
    ]);
    return message;
  };
  await answer();
  return {
    async heap() {
      child.send('heap');
      return (await answer()) as HeapReport;
    },
    async kill() {
      if (child.exitCode === null && child.signalCode === null) child.kill('SIGKILL');
      await exited;
    },
  };
}

function megabytes(bytes: number): string {
  return (bytes / BYTES_PER_MB).toFixed(1);
}
