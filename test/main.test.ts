/** Owns what starting and stopping the whole service promises: nothing it has begun is left behind, and a stop is no fault to be logged. */
import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, beforeAll, expect, inject, it } from 'vitest';
import { createTestDatabase, type TestDatabase } from './harness/database.ts';
import { eventually, within } from './harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from './harness/fault-proxy.ts';
import { launchRole, startRole } from './harness/role-process.ts';
import { startTestService } from './harness/service.ts';
import { startOwnRedis } from './store/redis/own-redis.ts';

/** Levels of the log from warnings on. */
const WARN = 40;
/** Longer than any pause of the background in these tests. */
const QUIET_MS = 300;

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
});
afterAll(() => database.drop());

it('a stop amid reads, rebuilds, publishes and fan-out is quick, logs no fault, and closes every session', async () => {
  for (let round = 0; round < 3; round += 1) {
    // Whatever is under way has the time to end, on any machine: only then is there nothing to be logged.
    const service = await startTestService({ database, env: { DRAIN_TIMEOUT_MS: '20000' } });
    const tenant = await service.tenant();
    await tenant.cast().play('rita follows ada; sam follows ada; ada posts 30 times');
    const calls = Array.from({ length: 60 }, (_, at) =>
      at % 3 === 0
        ? tenant.posts.publishPost({ authorId: 'ada', text: `late ${at}` })
        : tenant.timeline.getHomeTimeline({ viewerId: at % 3 === 1 ? 'rita' : `reader-${at}` }),
    ).map((call) =>
      call.then(
        () => 'ok',
        () => 'refused',
      ),
    );
    // From calls not yet arrived to all of them answered.
    await Promise.race([Promise.all(calls), pause(round * 20)]);
    await within(service.stop(), 30_000);
    await Promise.all(calls);

    const faults = service.logLines.map((line) => JSON.parse(line)).filter(({ level }) => level >= WARN);
    expect(faults).toEqual([]);
    await eventually(async () =>
      expect(
        await database.sql(
          "SELECT application_name FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE 'tributary-%'",
        ),
      ).toEqual([]),
    );
    const before = service.logLines.length;
    await pause(QUIET_MS);
    expect(service.logLines.slice(before)).toEqual([]);
  }
});

it('a cache that keeps its past is not started on: the process ends, and says what to set', async () => {
  const own = await startOwnRedis('--save', '60 1');
  try {
    await expect(startRole('all', database, { REDIS_CACHE_URL: own.server.url })).rejects.toThrow(
      /ended with 1:[\s\S]*it would show what was hidden since\. Set save ""/,
    );
  } finally {
    await own.stop();
  }
});

it('a cache that keeps its past is not gone on with where it was away at the start: the process ends as soon as it can tell, and says what to set', async () => {
  const own = await startOwnRedis('--save', '60 1');
  const proxy = await startFaultProxy({ port: Number(new URL(own.server.url).port) });
  try {
    await proxy.refuse();
    const started = await startRole('all', database, { REDIS_CACHE_URL: proxy.through(own.server.url) });
    expect(started.lines.join()).toContain('its settings are checked once it does');
    await proxy.restore();
    expect(await within(started.ended, 20_000)).toBe(1);
    expect(started.lines.join()).toMatch(/it would show what was hidden since\. Set save ""/);
  } finally {
    await own.stop();
    await proxy.stop();
  }
});

it('a cache that was away at the start gets its warnings when it is back, once', async () => {
  const own = await startOwnRedis('--zset-max-listpack-entries', '128');
  const proxy = await startFaultProxy({ port: Number(new URL(own.server.url).port) });
  await proxy.refuse();
  const service = await startTestService({ database, env: { REDIS_CACHE_URL: proxy.through(own.server.url) } });
  try {
    const warnings = (): number => service.logLines.filter((line) => line.includes('timelines need')).length;
    expect(warnings()).toBe(0);
    await proxy.restore();
    await eventually(async () => expect(warnings()).toBe(1), { timeoutMs: 15_000 });
  } finally {
    await service.stop();
    await own.stop();
    await proxy.stop();
  }
});

it('a stop while neither Postgres nor Redis answers any more, amid calls and fan-out, closes everything all the same', async () => {
  const { cacheUrl, queueUrl } = inject('servers');
  const urls = [database.url, cacheUrl, queueUrl] as const;
  const proxies = await Promise.all(urls.map((url) => startFaultProxy({ port: Number(new URL(url).port) })));
  const [postgres, cache, queue] = proxies as [FaultProxy, FaultProxy, FaultProxy];
  const service = await startTestService({
    database,
    databaseUrl: postgres.through(database.url),
    env: {
      REDIS_CACHE_URL: cache.through(cacheUrl),
      REDIS_QUEUE_URL: queue.through(queueUrl),
      DATABASE_ACQUIRE_TIMEOUT_MS: '1000',
    },
  });
  const tenant = await service.tenant();
  await tenant.cast().play('rita follows ada; ada posts 3 times');
  const calls = Promise.allSettled(
    Array.from({ length: 20 }, (_, at) =>
      at % 2 === 0
        ? tenant.posts.publishPost({ authorId: 'ada', text: `late ${at}` })
        : tenant.timeline.getHomeTimeline({ viewerId: `reader-${at}` }),
    ),
  );
  for (const proxy of proxies) proxy.blackhole();
  // It rejects where a stage was given up, or a part of it failed.
  await within(service.service.stop(), 40_000);
  await within(calls, 10_000);
  await service.stop();
  await Promise.all(proxies.map((proxy) => proxy.stop()));
});

it('a process that is told to stop while it waits for Postgres to start with ends by itself, with 0', async () => {
  const proxy = await startFaultProxy({ port: Number(new URL(database.url).port) });
  proxy.blackhole();
  const starting = launchRole('all', { url: proxy.through(database.url), name: database.name });
  const ended = expect(starting.serving).rejects.toThrow('ended with 0');
  await eventually(() => expect(proxy.connectionsTaken).toBeGreaterThan(0), { timeoutMs: 40_000 });
  expect(await starting.stop()).toBe(0);
  await ended;
  await proxy.stop();
});
