/**
 * Owns what happens when Postgres drops connections, is busy or is gone: calls fail as UNAVAILABLE within their time, the process lives on,
 * the next calls work, and nothing goes on for callers who have left.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { connectClients, refusalFrom, refusalOf } from '../harness/clients.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually, within } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';

/** Sessions of the product; the test's own bear another name. */
const OURS = "datname = current_database() AND application_name LIKE 'tributary-%'";

let database: TestDatabase;
let service: TestService;
let tenant: TestTenant;

async function start(env: Readonly<Record<string, string>>, databaseUrl?: string): Promise<void> {
  database = await createTestDatabase();
  service = await startTestService({ database, env, ...(databaseUrl === undefined ? {} : { databaseUrl }) });
  tenant = await service.tenant();
  await tenant.cast().play('rita follows ada; ada posts 3 times');
}

async function end(): Promise<void> {
  await service.stop();
  await database.drop();
}

const home = (signal?: AbortSignal) =>
  tenant.timeline.getHomeTimeline({ viewerId: 'rita' }, signal === undefined ? {} : { signal });
const publish = () => tenant.posts.publishPost({ authorId: 'ada', text: 'hi' });

async function count(condition: string): Promise<number> {
  const [row] = await database.sql<{ sessions: number }>(
    `SELECT count(*) AS sessions FROM pg_stat_activity WHERE ${OURS} AND ${condition}`,
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
  beforeAll(() => start({}));
  afterAll(end);

  it('while idle cost at most the call that meets them', async () => {
    for (let round = 0; round < 5; round += 1) {
      await Promise.all(Array.from({ length: 10 }, home));
      await database.sql(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ${OURS} AND state = 'idle'`);
      const outcomes = await Promise.allSettled([home(), publish(), home(), publish()]);
      for (const outcome of outcomes)
        if (outcome.status === 'rejected') expect(refusalFrom(outcome.reason).code).toBe('UNAVAILABLE');
      await eventually(async () => {
        await home();
        await publish();
      });
    }
  });

  it('while busy fail the calls on them as UNAVAILABLE, and no other', async () => {
    const release = await holdGraph();
    const waiting = Array.from({ length: 5 }, () => refusalOf(home()));
    await eventually(async () => expect(await count("wait_event_type = 'Lock'")).toBe(5));
    await database.sql(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ${OURS} AND wait_event_type = 'Lock'`,
    );
    for (const refusal of await within(Promise.all(waiting), 5_000))
      expect(refusal).toMatchObject({ code: 'UNAVAILABLE', reason: 'DATABASE_UNAVAILABLE' });
    await release();
    await home();
    await publish();
  });

  it('inside a transaction leave nothing half done', async () => {
    const session = await database.session();
    await session.query('BEGIN');
    await session.query('LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE');
    const following = refusalOf(tenant.graph.follow({ followerId: 'sam', followeeId: 'ada' }));
    await eventually(async () => expect(await count("wait_event_type = 'Lock'")).toBe(1));
    await database.sql(
      `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE ${OURS} AND wait_event_type = 'Lock'`,
    );
    expect((await following).code).toBe('UNAVAILABLE');
    await session.query('ROLLBACK');
    expect((await tenant.graph.getRelationship({ viewerId: 'sam', otherId: 'ada' })).following).toBe(false);
    await tenant.graph.follow({ followerId: 'sam', followeeId: 'ada' });
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

  it('never locks itself up: 20 publishes and 20 follows at once are done within five seconds', async () => {
    const calls = Array.from({ length: 20 }, (_, at) => [
      tenant.posts.publishPost({ authorId: `author-${at}`, text: 'hi' }),
      tenant.graph.follow({ followerId: `fan-${at}`, followeeId: 'ada' }),
    ]).flat();
    await within(Promise.all(calls), 5_000);
    expect(await count("application_name = 'tributary-requests'")).toBeLessThanOrEqual(2);
  });

  it('that is held refuses within the acquire time-out, never hangs, and leaves no sessions behind', async () => {
    const release = await holdGraph();
    const holders = [home(), home()];
    await eventually(async () => expect(await count("wait_event_type = 'Lock'")).toBe(2));
    const before = performance.now();
    const refusals = await within(Promise.all(Array.from({ length: 20 }, () => refusalOf(home()))), 5_000);
    const tookMs = performance.now() - before;
    for (const refusal of refusals) expect(refusal).toMatchObject({ code: 'UNAVAILABLE', reason: 'OVERLOADED' });
    expect(tookMs).toBeGreaterThan(1_900);
    expect(tookMs).toBeLessThan(4_000);
    await release();
    await Promise.all(holders);
    await home();
    expect(await count("application_name = 'tributary-requests'")).toBeLessThanOrEqual(2);
    // Every pool at its most, that of keys included, with the two connections of each that cancel.
    const { poolRequests, poolWorkers } = service.config.database;
    expect(await count('true')).toBeLessThanOrEqual(poolRequests + poolWorkers + 2 + 6);
  });

  it('refuses at once what would wait behind too many', async () => {
    const release = await holdGraph();
    const holders = [home(), home()];
    await eventually(async () => expect(await count("wait_event_type = 'Lock'")).toBe(2));
    const before = performance.now();
    const refusals = await Promise.all(
      Array.from({ length: 150 }, async () => ({
        reason: (await refusalOf(home())).reason,
        waited: performance.now() - before > 1_900,
      })),
    );
    expect(new Set(refusals.map((refusal) => refusal.reason))).toEqual(new Set(['OVERLOADED']));
    expect(refusals.filter((refusal) => refusal.waited)).toHaveLength(service.config.database.waitersMax);
    await release();
    await Promise.all(holders);
  });
});

describe('a caller that leaves', () => {
  beforeAll(() =>
    start({
      READ_DEADLINE_DEFAULT_MS: '300',
      READ_DEADLINE_MAX_MS: '2000',
      WRITE_DEADLINE_DEFAULT_MS: '300',
      DATABASE_LOCK_TIMEOUT_MS: '10000',
    }),
  );
  afterAll(end);

  let release: () => Promise<void>;
  beforeEach(async () => {
    await home();
    release = await holdGraph();
  });
  afterEach(async () => {
    await release();
    const before = performance.now();
    await home();
    expect(performance.now() - before).toBeLessThan(1_000);
  });

  const nothingRuns = () =>
    eventually(
      async () => {
        expect(await count("state = 'active'")).toBe(0);
        const metrics = await (await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`)).text();
        expect(metrics).toMatch(/^tributary_[a-z_]*in_flight[a-z_]* 0$/m);
      },
      { timeoutMs: 1_500 },
    );

  it('by its deadline is answered at that, and neither handler nor query goes on: 100 calls behind a slow query', async () => {
    const before = performance.now();
    const refusals = await Promise.all(
      Array.from({ length: 100 }, () =>
        refusalOf(tenant.timeline.getHomeTimeline({ viewerId: 'rita' }, { timeoutMs: 200 })),
      ),
    );
    const tookMs = performance.now() - before;
    expect(new Set(refusals.map((refusal) => refusal.code))).toEqual(new Set(['DEADLINE_EXCEEDED']));
    expect(tookMs).toBeGreaterThan(150);
    expect(tookMs).toBeLessThan(1_000);
    // The lock is still held: what is not running was stopped.
    await nothingRuns();
  });

  it('without a deadline gets the server’s own, for reads and writes', async () => {
    const before = performance.now();
    const refusals = await Promise.all([
      refusalOf(home()),
      refusalOf(tenant.graph.follow({ followerId: 'sam', followeeId: 'ada' })),
    ]);
    expect(performance.now() - before).toBeLessThan(1_500);
    for (const refusal of refusals)
      expect(refusal).toMatchObject({ code: 'DEADLINE_EXCEEDED', reason: 'DEADLINE_EXCEEDED' });
    await nothingRuns();
  });

  it('with a deadline beyond the ceiling is held to the ceiling', async () => {
    const before = performance.now();
    const refusal = await refusalOf(tenant.timeline.getHomeTimeline({ viewerId: 'rita' }, { timeoutMs: 3_600_000 }));
    expect(refusal.code).toBe('DEADLINE_EXCEEDED');
    const tookMs = performance.now() - before;
    expect(tookMs).toBeGreaterThan(1_900);
    expect(tookMs).toBeLessThan(3_500);
    await nothingRuns();
  });

  it('by hanging up stops its query', async () => {
    const controller = new AbortController();
    const call = home(controller.signal);
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
    await eventually(async () => expect(await count("wait_event_type = 'Lock'")).toBeGreaterThan(0));
    await within(Promise.all(Array.from({ length: 20 }, () => home())), 4_000);
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
      env: { DATABASE_ACQUIRE_TIMEOUT_MS: '300', READ_DEADLINE_DEFAULT_MS: '700', WRITE_DEADLINE_DEFAULT_MS: '700' },
    });
    tenant = await service.tenant();
    await tenant.cast().play('rita follows ada; ada posts 3 times');
  });
  afterAll(async () => {
    await proxy.restore();
    await service.stop();
    await proxy.stop();
    await database.drop();
  });

  it('that resets connections costs the calls on them, and the next ones work', async () => {
    for (let round = 0; round < 5; round += 1) {
      const calls = Array.from({ length: 10 }, (_, at) => (at % 2 === 0 ? home() : publish()));
      proxy.reset();
      for (const outcome of await Promise.allSettled(calls)) {
        if (outcome.status === 'rejected')
          expect(refusalFrom(outcome.reason).code).toMatch(/^(UNAVAILABLE|DEADLINE_EXCEEDED)$/);
      }
      await eventually(async () => {
        await home();
        await publish();
      });
    }
  });

  it.each(['refuses', 'drops everything in silence'])(
    'that %s fails each call within its deadline, and all is well after it',
    async (fault) => {
      await home();
      if (fault === 'refuses') await proxy.refuse();
      else proxy.blackhole();
      const before = performance.now();
      const refusals = await within(
        Promise.all(Array.from({ length: 20 }, (_, at) => refusalOf(at % 2 === 0 ? home() : publish()))),
        5_000,
      );
      for (const refusal of refusals) expect(refusal.code).toMatch(/^(UNAVAILABLE|DEADLINE_EXCEEDED)$/);
      expect(performance.now() - before).toBeLessThan(2_000);
      await proxy.restore();
      await eventually(
        async () => {
          await home();
          await publish();
        },
        { timeoutMs: 10_000 },
      );
    },
  );

  it('that forgets connections leaves none waiting for an answer that never comes', async () => {
    const fullPool = (): Promise<unknown> => Promise.all(Array.from({ length: 10 }, () => home()));
    await fullPool();
    proxy.forget();
    // New connections work, so every cancellation is answered, and none ends anything.
    const outcomes = await Promise.allSettled(Array.from({ length: 10 }, () => home()));
    expect(outcomes.some(({ status }) => status === 'rejected')).toBe(true);
    await eventually(fullPool, { timeoutMs: 10_000 });
  });

  it('that cuts an answer in its middle fails the call, and shows no half of it', async () => {
    const whole = (await home()).entries.map((view) => view.post?.postId);
    proxy.cutAfter(200);
    const outcomes = await Promise.allSettled(Array.from({ length: 4 }, () => home()));
    for (const outcome of outcomes) {
      if (outcome.status === 'rejected') expect(refusalFrom(outcome.reason).code).toBe('UNAVAILABLE');
      else expect(outcome.value.entries.map((view) => view.post?.postId)).toEqual(whole);
    }
    expect(outcomes.some((outcome) => outcome.status === 'rejected')).toBe(true);
    await proxy.restore();
    await eventually(() => home());
  });
});
