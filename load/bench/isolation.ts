/**
 * Owns the question whether a small author waits for a large one: post-to-timeline of small authors' posts while nothing else goes on, and during back-to-back fan-outs to 200,000 followers, by turns,
 * in the whole service (publishing, relay, queue, worker) in one process.
 *
 * Invariant: both phases publish as many posts at the same pace, and every post counts, by Postgres' clock from its publishing to the end of its job, which comes after its delivery. A phase begins
 * when nothing of the one before is open, and in a busy one a large fan-out is open from before the first small post until after the last.
 */
import { Redis } from 'ioredis';
import pg from 'pg';
import { type Service, startService } from '../../src/main.ts';
import { pause, systemClock, systemRuntime } from '../../src/runtime.ts';
import { createSeeded } from '../../src/sample/seeded.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { createCache } from '../../src/store/redis/client.ts';
import { createKeys } from '../../src/store/redis/keys.ts';
import { createTimelines } from '../../src/store/redis/timelines.ts';
import type { PostId, TenantId, UserId } from '../../src/timeline/ids.ts';
import { type Bench, type BenchOptions, benchConfig, PATIENT, PUSHED, withServers } from './bench.ts';
import { countHolders, phasesOf, seedFollowers, seedTimelines, viewerAt } from './crowd.ts';
import { runRounds } from './rounds.ts';

const POSTS = 2_000;
/** 200,000 for the usual run. */
const LARGE_FOLLOWERS_PER_POST = 100;
const SMALL_AUTHORS = 20;
const SMALL_FOLLOWERS = 10;
/** Small posts a second, and how many of them may be open: on a machine that cannot keep the pace it is slower, so that what is measured is a wait and not a queue of small posts. */
const PACE_PER_SECOND = 50;
const OPEN_MAX = 10;
/** Before the first phase: connections, compiled code. */
const WARM_UP_POSTS = 100;
const CAP = 800;
const MEMORY_MAX = '12gb';
const IDLE_RATIO_MAX = 2;
const P99_MS_MAX = 50;
const CALL_MS = 30_000;
/** Between two looks at a job. */
const LOOK_EVERY_MS = 20;
/** A fan-out to 200,000 takes some ten seconds where the machine is busy. */
const OPEN_MAX_MS = 300_000;
const TENANT = 'bench' as TenantId;
const LARGE = 'large' as UserId;

export const bench: Bench = {
  size: { of: 'posts of each phase', preset: POSTS, min: 20, max: 20_000 },
  run: (options) =>
    withServers(
      async (servers) => {
        const { size = POSTS, report, signal, rounds } = options;
        const config = benchConfig(servers, { ...PATIENT, ...PUSHED });
        await migrate(servers.postgres.url);
        const client = new pg.Client({ connectionString: servers.postgres.url });
        const redis = new Redis(servers.cache.url);
        const cache = createCache({ ...config.cache, clientFailed: (error) => report(error.message) });
        const keys = createKeys(config.timeline.shards);
        let service: Service | undefined;
        try {
          await client.connect();
          await cache.ready(AbortSignal.timeout(CALL_MS));
          const large = size * LARGE_FOLLOWERS_PER_POST;
          report(`making a large author with ${large} followers`);
          await seedFollowers(client, signal, { tenant: TENANT, author: LARGE, from: 0, count: large });
          for (let index = 0; index < SMALL_AUTHORS; index += 1) {
            const from = large + index * SMALL_FOLLOWERS;
            await seedFollowers(client, signal, {
              tenant: TENANT,
              author: smallAt(index),
              from,
              count: SMALL_FOLLOWERS,
            });
          }
          await client.query('VACUUM (ANALYZE) follows, authors');
          const timelines = createTimelines(cache, keys, { ...config.timeline, rebuildLeaseMs: CALL_MS });
          const count = large + SMALL_AUTHORS * SMALL_FOLLOWERS;
          await seedTimelines(signal, {
            redis,
            timelines,
            keys,
            tenant: TENANT,
            count,
            entries: CAP,
            phases: phasesOf(CAP),
          });

          service = await startService(config, systemRuntime('warn'));
          const run: Run = { service, client, options, size };
          await publishSmall(run, Math.min(size, WARM_UP_POSTS));
          await untilNothingIsOpen(run);
          let fanouts = 0;
          let last: PostId | undefined;
          const measured = await runRounds({
            contenders: [
              {
                name: 'during fan-outs',
                async round() {
                  const busy = await withLargeFanouts(run, () => publishSmall(run, size));
                  fanouts += busy.fanouts;
                  last = busy.last;
                  return p99SinceMs(run, busy.since);
                },
              },
              { name: 'idle', round: async () => p99SinceMs(run, await publishSmall(run, size)) },
            ],
            rounds,
            warmUps: 0,
            report,
          });
          const [ours, idle] = measured;
          if (!ours || !idle || last === undefined) throw new Error('a phase was not measured');
          const viewers = Array.from({ length: large }, (_, index) => viewerAt(index));
          const { holders } = await countHolders(redis, { keys, tenant: TENANT, postId: last, viewers });
          if (holders !== large) throw new Error(`${holders} of ${large} timelines hold the last large post`);
          return {
            name: 'isolation',
            unit: 'ms, p99',
            ours,
            against: { idle },
            oursMax: Math.max(IDLE_RATIO_MAX * idle.median, P99_MS_MAX),
            figures: {
              'large fan-outs': { value: fanouts, unit: `to ${large.toLocaleString('en-US')} followers each` },
            },
            conditions: [
              `${rounds} alternations of ${size.toLocaleString('en-US')} small posts to ${SMALL_FOLLOWERS} followers, ${PACE_PER_SECOND} a second at most and ${OPEN_MAX} open; one process for publishing, relay and worker;`,
              `at most ${IDLE_RATIO_MAX} times idle or ${P99_MS_MAX} ms is asked, whichever is more; Postgres' clock, from the publish statement to the end of the job.`,
            ],
          };
        } finally {
          await service?.stop();
          await cache.close();
          redis.disconnect();
          await client.end();
        }
      },
      { cacheMemory: MEMORY_MAX },
    ),
};

interface Run {
  readonly service: Service;
  readonly client: pg.Client;
  readonly options: BenchOptions;
  readonly size: number;
}

function smallAt(index: number): UserId {
  return `small-${index % SMALL_AUTHORS}` as UserId;
}

async function publish({ service, options: { signal } }: Run, author: UserId): Promise<PostId> {
  const call = { tenant: TENANT, signal: AbortSignal.any([signal, AbortSignal.timeout(CALL_MS)]) };
  const { post } = await service.flows.publish(call, { author, text: 'A post.', media: [], visibility: 'public' });
  return post.meta.postId;
}

/** Publishes at the pace; answers the moment before the first, by Postgres' clock. */
async function publishSmall(run: Run, count: number): Promise<string> {
  const since = await databaseNow(run);
  const random = createSeeded(1);
  const publishing: Promise<unknown>[] = [];
  let dueMs = systemClock.monotonicMs();
  let open = 0;
  for (let index = 0; index < count; index += 1) {
    // Unevenly, so that posts keep no step with the rounds of the service.
    dueMs += (2 * random.fraction() * 1_000) / PACE_PER_SECOND;
    await pause(run.options.signal, Math.max(0, dueMs - systemClock.monotonicMs()));
    while (open >= OPEN_MAX) {
      await pause(run.options.signal, LOOK_EVERY_MS);
      open = await countOpenSmall(run);
      // What could not be published in time is not made up for by a burst.
      dueMs = systemClock.monotonicMs();
    }
    const published = publish(run, smallAt(index));
    published.catch(() => undefined);
    publishing.push(published);
    open += 1;
  }
  await Promise.all(publishing);
  return since;
}

async function countOpenSmall({ client }: Run): Promise<number> {
  const { rows } = await client.query<{ readonly open: number }>(
    'SELECT count(*)::int AS open FROM fanout_jobs WHERE done_at IS NULL AND author_id <> $1',
    [LARGE],
  );
  return rows[0]?.open ?? 0;
}

/** Runs `work` while the large author's posts are delivered one after the other. */
async function withLargeFanouts(
  run: Run,
  work: () => Promise<string>,
): Promise<{ readonly since: string; readonly fanouts: number; readonly last: PostId }> {
  let over = false;
  let fanouts = 0;
  let last = await publish(run, LARGE);
  const large = (async () => {
    for (;;) {
      await untilNothingIsOpen(run, LARGE);
      fanouts += 1;
      if (over) return;
      last = await publish(run, LARGE);
    }
  })();
  large.catch(() => undefined);
  try {
    const since = await work();
    over = true;
    await large;
    return { since, fanouts, last };
  } finally {
    over = true;
  }
}

/** Waits until the jobs of the author, or of all, are done. */
async function untilNothingIsOpen({ client, options: { signal } }: Run, author?: UserId): Promise<void> {
  const deadline = AbortSignal.any([signal, AbortSignal.timeout(OPEN_MAX_MS)]);
  for (;;) {
    const { rows } = await client.query<{ readonly open: boolean }>(
      'SELECT EXISTS (SELECT 1 FROM fanout_jobs WHERE done_at IS NULL AND ($1::text IS NULL OR author_id = $1)) AS open',
      [author ?? null],
    );
    if (!rows[0]?.open) return;
    await pause(deadline, LOOK_EVERY_MS);
  }
}

async function databaseNow({ client }: Run): Promise<string> {
  const { rows } = await client.query<{ readonly now: string }>('SELECT clock_timestamp()::text AS now');
  return rows[0]?.now ?? '';
}

/** p99 of post-to-timeline of all small posts since then, once all are done, in milliseconds. */
async function p99SinceMs(run: Run, since: string): Promise<number> {
  await untilNothingIsOpen(run);
  const { rows } = await run.client.query<{ readonly p99: number; readonly posts: number; readonly whole: number }>(
    `SELECT percentile_cont(0.99) WITHIN GROUP (ORDER BY extract(epoch FROM done_at - created_at) * 1000)::float8 AS p99,
      count(*)::int AS posts, count(*) FILTER (WHERE delivered = $2)::int AS whole
    FROM fanout_jobs WHERE created_at >= $1 AND author_id <> $3`,
    [since, SMALL_FOLLOWERS, LARGE],
  );
  const [row] = rows;
  if (row?.posts !== run.size || row.whole !== run.size) {
    throw new Error(`${row?.whole} of ${run.size} small posts were delivered to all, of ${row?.posts} published`);
  }
  return row.p99;
}
