/**
 * Owns the bounds on what one page asks for, counted on the wire: batches of Redis and of Postgres, one after the other. The process's own copies are off, which makes it the worst case. Answers are
 * delayed, so that what goes out together is seen together.
 */
import { randomUUID } from 'node:crypto';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { type Cached, openCached } from '../harness/cached.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import type { Cast } from '../harness/play.ts';
import { openRedisMonitor, type RedisMonitor } from '../harness/redis-monitor.ts';
import { storeClass } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { type OwnRedis, startOwnRedis } from '../store/redis/own-redis.ts';

let own: OwnRedis;
let database: TestDatabase;
let toRedis: FaultProxy;
let toPostgres: FaultProxy;
/** Writes and fans out, with nothing in between. */
let back: TestService;
/** Reads, by way of the proxies. */
let front: TestService;
let monitor: RedisMonitor;
let marker: Redis;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;

/** More than commands of one batch lie apart, each way, in milliseconds; of Redis more than statements that go out together lie apart when they are answered. */
const REDIS_DELAY_MS = 150;
const POSTGRES_DELAY_MS = 30;

beforeAll(async () => {
  [own, database] = await Promise.all([startOwnRedis(), createTestDatabase()]);
  toRedis = await startFaultProxy({ port: own.server.port });
  // The service looks at Postgres again and again, whatever it is asked.
  toPostgres = await startFaultProxy({ port: Number(new URL(database.url).port), uncounted: 'probe' });
  back = await startTestService({ database, env: { REDIS_CACHE_URL: own.server.url } });
  front = await startTestService({
    database,
    databaseUrl: toPostgres.through(database.url),
    env: {
      TRIBUTARY_ROLE: 'api',
      REDIS_CACHE_URL: toRedis.through(own.server.url),
      CACHE_COMMAND_TIMEOUT_MS: '10000',
      PROCESS_BODY_BYTES: '0',
      PROCESS_PROFILE_BYTES: '0',
      PROCESS_LIST_MS: '0',
    },
  });
  monitor = await openRedisMonitor(own.server.url);
  marker = new Redis(own.server.url);
});
afterAll(async () => {
  monitor.close();
  marker.disconnect();
  await front.stop();
  await back.stop();
  await toRedis.stop();
  await toPostgres.stop();
  await Promise.all([own.stop(), database.drop()]);
});
beforeEach(async () => {
  tenant = await back.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id, own.server.url);
  return () => cached.close();
});

const readHome = (viewer: string, pageSize = 20) =>
  front.service.flows.home.page(tenant.call(), { viewer: userId(viewer), pageSize, pageToken: '' });
const readHead = (viewer: string) =>
  front.service.flows.home.head(tenant.call(), { viewer: userId(viewer), sinceToken: '' });

/** Connections to Postgres are there already: opening one is no batch. */
async function warm(viewer: string): Promise<void> {
  await Promise.all(Array.from({ length: 6 }, () => readHome(viewer)));
  await readHome(viewer);
}

interface Counted<Result> {
  readonly result: Result;
  readonly redis: number;
  readonly postgres: number;
  /** Keys that were read or stored, by kind. */
  keys(kind: string): readonly string[];
}

/** The monitor tells of a command some time after its answer: waits until it has told of all so far. */
async function monitored(): Promise<void> {
  const mark = randomUUID();
  await marker.echo(mark);
  await eventually(() => expect(monitor.commands.slice(-100).flat()).toContain(mark));
}

async function counting<Result>(read: () => Promise<Result>): Promise<Counted<Result>> {
  await monitored();
  toRedis.delay(REDIS_DELAY_MS);
  toPostgres.delay(POSTGRES_DELAY_MS);
  const before = { redis: toRedis.turnsUp, postgres: toPostgres.turnsUp, commands: monitor.commands.length };
  const result = await read();
  const [redis, postgres] = [toRedis.turnsUp - before.redis, toPostgres.turnsUp - before.postgres];
  await Promise.all([toRedis.restore(), toPostgres.restore()]);
  await monitored();
  const named = monitor.commands.slice(before.commands).flat();
  const keys = (kind: string) => named.filter((word) => word.startsWith(`${kind}:{`) && word.includes(tenant.id));
  return { result, redis, postgres, keys };
}

/** What the service counted itself of reads of a surface so far. */
async function counted(what: 'redis' | 'postgres', surface: string): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${front.service.httpPort}/metrics`)).text();
  const line = text
    .split('\n')
    .find((each) => each.startsWith(`tributary_read_${what}_batches_sum{surface="${surface}"`));
  return Number(line?.split(' ').at(-1) ?? 0);
}

async function ordinary(): Promise<void> {
  await cast.play(
    'rita follows ada, ben, cyd; ada posts 12 times as a; ben posts 12 times as b; cyd posts 12 times as c',
  );
  for (const author of ['ada', 'ben', 'cyd']) await tenant.graph.putAuthor({ authorId: author, displayName: author });
  await back.settle();
}

describe('a page', () => {
  it('of which all is cached asks Redis three times, one after the other, where the process has met the posts, and Postgres never; the service counts the same', async () => {
    await ordinary();
    await warm('rita');
    const before = [await counted('redis', 'home'), await counted('postgres', 'home')];
    const page = await counting(() => readHome('rita'));
    expect(page.result.views).toHaveLength(20);
    expect(page.result.authors.size).toBe(2);
    expect({ redis: page.redis, postgres: page.postgres }).toEqual({ redis: 3, postgres: 0 });
    expect([
      (await counted('redis', 'home')) - (before[0] ?? 0),
      (await counted('postgres', 'home')) - (before[1] ?? 0),
    ]).toEqual([3, 0]);
  });

  it('of which posts answer, quote and repost others, who name others in turn, asks no more', async () => {
    await cast.play(`rita follows ada, ben; dan posts "d" as d1; eve replies to d1 "e" as e1; eve quotes d1 "e" as e2
      ada replies to e1 "a" as a1; ada quotes e2 "a" as a2; ben reposts e1 as b1; ben posts 5 times as c; ben quotes a1 "b" as b2`);
    await back.settle();
    await warm('rita');
    const page = await counting(() => readHome('rita'));
    expect(page.result.views.filter(({ replyTo, repostOf }) => replyTo ?? repostOf)).toHaveLength(4);
    expect(page.redis).toBeLessThanOrEqual(4);
    expect(page.postgres).toBe(0);
  });

  it('with pulled authors whose lists have to be read asks no more', async () => {
    await ordinary();
    await storeClass(database, tenant.id, { authors: ['ada', 'ben'], fanoutClass: 'pull' });
    await cached.evict('tl', 'pull');
    await warm('rita');
    const page = await counting(() => readHome('rita'));
    expect(page.keys('al').length).toBeGreaterThan(0);
    expect(page.result.views.map(({ post }) => String(post.meta.postId))).toEqual(
      (await tenant.oracle('rita')).home.slice(0, 20),
    );
    expect(page.redis).toBeLessThanOrEqual(4);
    expect(page.postgres).toBe(0);
  });

  it('of which no fact is cached asks Redis four times and Postgres twice, and the next one is warm', async () => {
    await ordinary();
    await cast.play('dan posts "d" as d1; ada quotes d1 "q" as q1');
    await back.settle();
    await warm('rita');
    await cached.evict('pm', 'pb', 'am', 'ap', 'rel', 'pc');
    const before = await counted('postgres', 'home');
    const cold = await counting(() => readHome('rita'));
    expect(cold.result.views).toHaveLength(20);
    expect(cold.redis).toBeLessThanOrEqual(4);
    expect(cold.postgres).toBeLessThanOrEqual(2);
    // By the service's own count: on the wire, one batch behind a connection that is being closed is no turn.
    expect((await counted('postgres', 'home')) - before).toBeGreaterThan(0);
    // What was loaded of targets has been stored too.
    const next = await counting(() => readHome('rita'));
    expect(next.redis).toBeLessThanOrEqual(4);
    expect(next.postgres).toBe(0);
    expect(next.result).toMatchObject({ views: cold.result.views, completeness: 'complete' });
  });

  it('of which most is hidden takes three rounds of four, and reads no body, no profile and no counter of what is hidden', async () => {
    await cast.play('rita follows ada, ben; ben posts 30 times as b; rita mutes ada');
    await tenant.graph.putAuthor({ authorId: 'ada', displayName: 'ada' });
    await cast.play('ada posts 300 times as a');
    await back.settle();
    await warm('rita');
    const page = await counting(() => readHome('rita'));
    expect(page.result.views).toHaveLength(20);
    expect(page.redis).toBeLessThanOrEqual(12);
    expect(page.postgres).toBe(0);
    const shown = new Set(page.result.views.map(({ post }) => String(post.meta.postId)));
    for (const kind of ['pb', 'pc']) {
      expect(page.keys(kind).length).toBe(20);
      for (const key of page.keys(kind)) expect(shown).toContain(key.split(':')[3]);
    }
    expect(page.keys('ap')).toEqual([]);
  });
});

describe('a head', () => {
  it('comes from the timeline, meta and facts: no body, no profile, no counter', async () => {
    await ordinary();
    await warm('rita');
    await readHead('rita');
    // Goes behind what the first one left to be stored.
    await readHead('rita');
    const head = await counting(() => readHead('rita'));
    expect(head.result.newCount).toBe(36);
    expect(head.redis).toBeLessThanOrEqual(3);
    expect(head.postgres).toBe(0);
    for (const kind of ['pb', 'ap', 'pc']) expect(head.keys(kind)).toEqual([]);
    expect(head.keys('pm')).toHaveLength(36);
  });
});
