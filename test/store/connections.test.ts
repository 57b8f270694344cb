/**
 * Owns what happens when Postgres drops connections, is busy or is gone: calls that need it fail as UNAVAILABLE within their time, pages that the cache holds
 * are served without it, the process lives on, the next calls work, and nothing goes on for callers who have left.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Completeness } from '../../src/gen/tributary/v1/author_pb.ts';
import { openCached } from '../harness/cached.ts';
import { connectClients, refusalFrom, refusalOf } from '../harness/clients.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually, within } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';

/** Sessions of the product; the test's own bear another name. */
const OURS = "datname = current_database() AND application_name LIKE 'tributary-%'";
/** Those of calls: the relay and the workers have theirs, and are never done. */
const CALLS = "datname = current_database() AND application_name = 'tributary-requests'";

/** Who asks is read from Postgres too, through the same connections: known for as long as the tests take. */
const KEY_KNOWN = { API_KEY_CACHE_MS: '600000' };

let database: TestDatabase;
let service: TestService;
let tenant: TestTenant;

async function start(env: Readonly<Record<string, string>>): Promise<void> {
  database = await createTestDatabase();
  service = await startTestService({ database, env: { ...KEY_KNOWN, ...env } });
  tenant = await service.tenant();
  await warm();
}

/** A page that is cached with all its facts, and nothing left to do in the background. */
async function warm(): Promise<void> {
  await tenant.cast().play('rita follows ada; ada posts 3 times');
  await service.settle();
  // The first page is a rebuild, which may take longer than the deadlines of these tests.
  await eventually(async () => expect((await home()).entries).toHaveLength(3));
}

async function end(): Promise<void> {
  await service.stop();
  await database.drop();
}

const home = () => tenant.timeline.getHomeTimeline({ viewerId: 'rita' });
/** A read that only Postgres can answer, by one statement. */
const followed = (options: { readonly signal?: AbortSignal; readonly timeoutMs?: number } = {}) =>
  tenant.graph.listFollowing({ userId: 'rita' }, options);
const publish = () => tenant.posts.publishPost({ authorId: 'ada', text: 'hi' });

async function count(condition: string, among = CALLS): Promise<number> {
  const [row] = await database.sql<{ sessions: number }>(
    `SELECT count(*) AS sessions FROM pg_stat_activity WHERE ${among} AND ${condition}`,
  );
  return row?.sessions ?? 0;
}

/** Makes every read of the graph wait, as a slow query does, until the function that is answered is called. */
async function holdGraph(): Promise<() => Promise<void>> {
  const session = await database.session();
  await session.query('BEGIN');
  await session.query('LOCK TABLE follows IN ACCESS EXCLUSIVE MODE');
  return async () => {
    await session.query('ROLLBACK');
    await session.end();
  };
}

describe('sessions that Postgres ends', () => {
  beforeAll(() => start({ FANOUT_LEASE_MS: '2000' }));
  afterAll(end);

  it('while idle cost at most the call that meets them', { timeout: 90_000 }, async () => {
    for (let round = 0; round < 5; round += 1) {
      await Promise.all(Array.from({ length: 10 }, () => followed()));
      await database.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ${OURS} AND state = 'idle'`);
      const outcomes = await Promise.allSettled([home(), publish(), followed(), publish()]);
      for (const outcome of outcomes)
        if (outcome.status === 'rejected') expect(refusalFrom(outcome.reason).code).toBe('UNAVAILABLE');
      await eventually(async () => {
        await followed();
        await publish();
      });
    }
    // The relay and the workers got over it too.
    const { post } = await publish();
    // What a session that ended held is free when its lease is over.
    await eventually(() => service.settle(), { timeoutMs: 50_000 });
    expect((await home()).entries[0]?.post?.postId).toBe(post?.postId);
  });

  it('while busy fail the calls on them as UNAVAILABLE, and no other', async () => {
    const release = await holdGraph();
    const waiting = Array.from({ length: 5 }, () => refusalOf(followed()));
    await eventually(async () => expect(await count("wait_event_type = 'Lock'")).toBe(5));
    await database.sql(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ${CALLS} AND wait_event_type = 'Lock'`,
    );
    for (const refusal of await within(Promise.all(waiting), 20_000))
      expect(refusal).toMatchObject({ code: 'UNAVAILABLE', reason: 'DATABASE_UNAVAILABLE' });
    expect((await home()).entries).not.toEqual([]);
    await release();
    await followed();
    await publish();
  });

  it('inside a transaction leave nothing half done', async () => {
    const session = await database.session();
    await session.query('BEGIN');
    await session.query('LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE');
    const following = refusalOf(tenant.graph.follow({ followerId: 'sam', followeeId: 'ada' }));
    await eventually(async () => expect(await count("wait_event_type = 'Lock'")).toBe(1));
    await database.sql(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ${CALLS} AND wait_event_type = 'Lock'`,
    );
    expect((await following).code).toBe('UNAVAILABLE');
    await session.query('ROLLBACK');
    expect((await tenant.graph.getRelationship({ viewerId: 'sam', otherId: 'ada' })).following).toBe(false);
    await tenant.graph.follow({ followerId: 'sam', followeeId: 'ada' });
  });
});

describe('pools of two connections', () => {
  beforeAll(() => start({ DATABASE_POOL_REQUESTS: '2', DATABASE_POOL_WORKERS: '2', DATABASE_POOL_RELAY: '2' }));
  afterAll(end);

  it('never lock themselves up: 20 publishes and 20 follows at once are all done, and so is what follows from them', async () => {
    const calls = Array.from({ length: 20 }, (_, at) => [
      tenant.posts.publishPost({ authorId: `author-${at}`, text: 'hi' }),
      tenant.graph.follow({ followerId: `fan-${at}`, followeeId: 'ada' }),
    ]).flat();
    await within(Promise.all(calls), 20_000);
    await service.settle();
    for (const pool of ['requests', 'workers', 'relay'])
      expect(await count(`application_name = 'tributary-${pool}'`, OURS)).toBeLessThanOrEqual(2);
  });
});

describe('a pool of two connections', () => {
  beforeAll(() =>
    start({
      DATABASE_POOL_REQUESTS: '2',
      DATABASE_ACQUIRE_TIMEOUT_MS: '2000',
      DATABASE_LOCK_TIMEOUT_MS: '5000',
      DATABASE_WAITERS_MAX: '100',
    }),
  );
  afterAll(end);

  it('that is held refuses within the acquire time-out, never hangs, and leaves no sessions behind', async () => {
    const release = await holdGraph();
    const holders = [followed(), followed()];
    await eventually(async () => expect(await count("wait_event_type = 'Lock'")).toBe(2));
    const before = performance.now();
    const refusals = await within(Promise.all(Array.from({ length: 20 }, () => refusalOf(followed()))), 20_000);
    const tookMs = performance.now() - before;
    for (const refusal of refusals) expect(refusal).toMatchObject({ code: 'UNAVAILABLE', reason: 'OVERLOADED' });
    // Not at once; and not at their deadline, which has another reason.
    expect(tookMs).toBeGreaterThan(1_900);
    await release();
    await Promise.all(holders);
    // What waited so long counts as load for a moment.
    await eventually(() => followed());
    expect(await count("application_name = 'tributary-requests'")).toBeLessThanOrEqual(2);
    // Every pool at its most, two connections for keys and one for probes, with the two connections of each that cancel.
    const { poolRequests, poolWorkers, poolRelay } = service.config.database;
    expect(await count('true', OURS)).toBeLessThanOrEqual(poolRequests + poolWorkers + poolRelay + 3 + 2 * 5);
  });

  it('refuses at once what would wait behind too many', async () => {
    const release = await holdGraph();
    const holders = [followed(), followed()];
    await eventually(async () => expect(await count("wait_event_type = 'Lock'")).toBe(2));
    const refusals = await Promise.all(Array.from({ length: 150 }, () => refusalOf(followed())));
    expect(new Set(refusals.map((refusal) => refusal.reason))).toEqual(new Set(['OVERLOADED']));
    const waited = refusals.filter(({ message }) => message.includes('became free in time')).length;
    // Those that come late, on a slow machine, may wait in the place of one that has waited.
    expect(waited).toBeGreaterThanOrEqual(service.config.database.waitersMax);
    expect(waited).toBeLessThan(refusals.length);
    await release();
    await Promise.all(holders);
  });
});

describe('a fan-out that holds every connection of the workers', () => {
  beforeAll(() =>
    start({ DATABASE_POOL_WORKERS: '1', DATABASE_ACQUIRE_TIMEOUT_MS: '10000', DATABASE_LOCK_TIMEOUT_MS: '20000' }),
  );
  afterAll(end);

  it('leaves the process ready, and is done once it can be', async () => {
    const release = await holdGraph();
    const { post } = await publish();
    await eventually(async () =>
      expect(await count("application_name = 'tributary-workers' AND wait_event_type = 'Lock'", OURS)).toBe(1),
    );
    // Long enough for two probes that time out and the pause between them.
    for (const until = performance.now() + 5_000; performance.now() < until; await pause(100)) {
      expect((await fetch(`http://127.0.0.1:${service.service.httpPort}/readyz`)).status).toBe(200);
    }
    await release();
    await service.settle();
    expect((await home()).entries[0]?.post?.postId).toBe(post?.postId);
  });
});

describe('a caller that leaves', () => {
  beforeAll(() =>
    start({
      READ_DEADLINE_DEFAULT_MS: '1000',
      READ_DEADLINE_MAX_MS: '3000',
      WRITE_DEADLINE_DEFAULT_MS: '1000',
      DATABASE_LOCK_TIMEOUT_MS: '30000',
      DATABASE_STATEMENT_TIMEOUT_MS: '30000',
    }),
  );
  afterAll(end);

  let release: () => Promise<void>;
  beforeEach(async () => {
    await eventually(() => followed());
    release = await holdGraph();
  });
  afterEach(async () => {
    await release();
    await eventually(() => followed());
  });

  const nothingRuns = () =>
    eventually(
      async () => {
        expect(await count("state = 'active'")).toBe(0);
        const metrics = await (await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`)).text();
        expect(metrics).toMatch(/^tributary_[a-z_]*in_flight[a-z_]* 0$/m);
      },
      // Well before the lock would end it.
      { timeoutMs: 15_000 },
    );

  it('by its deadline is answered at that, and neither handler nor query goes on: 100 calls behind a slow query', async () => {
    const before = performance.now();
    const calls = Array.from({ length: 100 }, () => refusalOf(followed({ timeoutMs: 200 })));
    const refusals = await within(Promise.all(calls), 15_000);
    const tookMs = performance.now() - before;
    expect(new Set(refusals.map((refusal) => refusal.code))).toEqual(new Set(['DEADLINE_EXCEEDED']));
    expect(tookMs).toBeGreaterThan(150);
    // The lock is still held: what is not running was stopped.
    await nothingRuns();
  });

  it('without a deadline gets the server’s own, for reads and writes', async () => {
    const before = performance.now();
    const refusals = await Promise.all([
      refusalOf(followed()),
      refusalOf(tenant.graph.follow({ followerId: 'sam', followeeId: 'ada' })),
    ]);
    expect(performance.now() - before).toBeLessThan(2_900);
    for (const refusal of refusals)
      expect(refusal).toMatchObject({ code: 'DEADLINE_EXCEEDED', reason: 'DEADLINE_EXCEEDED' });
    await nothingRuns();
  });

  it('with a deadline beyond the ceiling is held to the ceiling', async () => {
    const before = performance.now();
    const refusal = await within(refusalOf(followed({ timeoutMs: 3_600_000 })), 15_000);
    expect(refusal.code).toBe('DEADLINE_EXCEEDED');
    const tookMs = performance.now() - before;
    expect(tookMs).toBeGreaterThan(2_900);
    await nothingRuns();
  });

  it('by hanging up stops its query', async () => {
    const controller = new AbortController();
    const call = followed({ signal: controller.signal });
    await eventually(async () => expect(await count("wait_event_type = 'Lock'")).toBe(1));
    controller.abort();
    expect(refusalFrom(await call.catch((error: unknown) => error)).code).toMatch(/^CANCEL+ED$/);
    await nothingRuns();
  });
});

describe('callers with keys that nobody has', () => {
  const held = '20000';
  beforeAll(() =>
    start({ API_KEY_CACHE_MS: '600000', DATABASE_LOCK_TIMEOUT_MS: held, DATABASE_STATEMENT_TIMEOUT_MS: held }),
  );
  afterAll(end);

  it('do not stand in the way of others, even where their look-up hangs', async () => {
    await home();
    const session = await database.session();
    await session.query('BEGIN');
    await session.query('LOCK TABLE api_keys IN ACCESS EXCLUSIVE MODE');
    const { grpcPort, httpPort } = service.service;
    const strangers = Array.from({ length: 40 }, (_, at) =>
      connectClients({ protocol: 'json', grpcPort, httpPort, key: `tk_${String(at).padStart(43, 'x')}` }),
    );
    const tries = strangers.map(({ timeline }) => refusalOf(timeline.getHomeTimeline({ viewerId: 'rita' })));
    await eventually(async () => expect(await count("wait_event_type = 'Lock'", OURS)).toBeGreaterThan(0));
    await within(Promise.all(Array.from({ length: 20 }, () => home())), 15_000);
    await session.query('ROLLBACK');
    await Promise.all(tries);
    for (const stranger of strangers) stranger.close();
  });
});

describe('a network between', () => {
  let proxy: FaultProxy;
  beforeAll(async () => {
    database = await createTestDatabase();
    proxy = await startFaultProxy({ port: Number(new URL(database.url).port) });
    service = await startTestService({
      database,
      databaseUrl: proxy.through(database.url),
      env: {
        // What happens in the background would take some of the faults.
        TRIBUTARY_ROLE: 'api',
        ...KEY_KNOWN,
        DATABASE_ACQUIRE_TIMEOUT_MS: '600',
        READ_DEADLINE_DEFAULT_MS: '1500',
        WRITE_DEADLINE_DEFAULT_MS: '1500',
      },
    });
    tenant = await service.tenant();
    await tenant.cast().play('rita follows ada; ada posts 3 times');
    await home();
  });
  afterAll(async () => {
    await proxy.restore();
    await service.stop();
    await proxy.stop();
    await database.drop();
  });

  it('that resets connections costs the calls on them, and the next ones work', async () => {
    for (let round = 0; round < 5; round += 1) {
      const calls = Array.from({ length: 10 }, (_, at) => (at % 2 === 0 ? followed() : publish()));
      proxy.reset();
      for (const outcome of await Promise.allSettled(calls)) {
        if (outcome.status === 'rejected')
          expect(refusalFrom(outcome.reason).code).toMatch(/^(UNAVAILABLE|DEADLINE_EXCEEDED)$/);
      }
      await eventually(async () => {
        await followed();
        await publish();
      });
    }
  });

  it.each(['refuses', 'drops everything in silence'])(
    'that %s fails each call within its deadline, and all is well after it',
    async (fault) => {
      await followed();
      const whole = (await home()).entries.map((view) => view.post?.postId);
      if (fault === 'refuses') await proxy.refuse();
      else proxy.blackhole();
      const refusals = await within(
        Promise.all(Array.from({ length: 20 }, (_, at) => refusalOf(at % 2 === 0 ? followed() : publish()))),
        20_000,
      );
      for (const refusal of refusals) expect(refusal.code).toMatch(/^(UNAVAILABLE|DEADLINE_EXCEEDED)$/);
      // The page that the cache holds lacks nothing but what is not cached: its counters, once they are too old.
      const cached = openCached(tenant.id);
      await cached.evict('pc');
      cached.close();
      await eventually(async () => {
        const page = await home();
        expect(page.entries.map((view) => view.post?.postId)).toEqual(whole);
        expect(page.completeness).toBe(Completeness.REDUCED);
      });
      await proxy.restore();
      await eventually(
        async () => {
          await followed();
          await publish();
        },
        { timeoutMs: 30_000 },
      );
    },
  );

  it('that forgets connections leaves none waiting for an answer that never comes', async () => {
    const fullPool = (): Promise<unknown> => Promise.all(Array.from({ length: 10 }, () => followed()));
    // What the fault before has left of the pool is one connection, perhaps, and a breaker that may open once more: it is full when so many calls at once have all been answered.
    await eventually(fullPool);
    proxy.forget();
    // New connections work, so every cancellation is answered, and none ends anything.
    const outcomes = await Promise.allSettled(Array.from({ length: 10 }, () => followed()));
    expect(outcomes.some(({ status }) => status === 'rejected')).toBe(true);
    await eventually(fullPool, { timeoutMs: 30_000 });
  });

  it('that cuts an answer in its middle fails the call, and shows no half of it', async () => {
    const list = () => tenant.posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ada' });
    const whole = (await eventually(() => list())).entries.map((view) => view.post?.postId);
    let cut = false;
    // A cut may meet the answer to a probe instead, or to a connection that is being opened: then all calls are whole, and it is tried again.
    for (let attempt = 0; attempt < 20 && !cut; attempt += 1) {
      proxy.cutAfter(200);
      const outcomes = await Promise.allSettled(Array.from({ length: 4 }, () => list()));
      for (const outcome of outcomes) {
        if (outcome.status === 'fulfilled')
          expect(outcome.value.entries.map((view) => view.post?.postId)).toEqual(whole);
        else {
          const { code, reason } = refusalFrom(outcome.reason);
          expect(code).toBe('UNAVAILABLE');
          // What waited long before counts as load for a moment, and load refuses calls as well.
          cut ||= reason === 'DATABASE_UNAVAILABLE';
        }
      }
    }
    expect(cut).toBe(true);
    await proxy.restore();
    await eventually(() => list());
  });
});
