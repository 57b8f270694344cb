/** Owns what a post is worth when a process dies or falls asleep on its way, wherever that is: every resident follower has it, once, and nobody else has it. */
import { afterEach, beforeEach, describe, expect, inject, it } from 'vitest';
import { connectClients } from '../harness/clients.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import { openResidents, type Residents } from '../harness/residents.ts';
import { startRole } from '../harness/role-process.ts';
import { holdUpdates } from '../harness/row-barrier.ts';
import { storeManyFollowers } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

/** Short leases, so that the living soon take over; long waits for locks, since tests hold them. */
const ENV = { FANOUT_LEASE_MS: '2000', DATABASE_LOCK_TIMEOUT_MS: '30000', CACHE_COMMAND_TIMEOUT_MS: '2000' };
const NOBODY_LISTENS = 'redis://127.0.0.1:1';
const PATIENT = { timeoutMs: 40_000, everyMs: 50 };
/** Processes start and thousands of timelines are made and looked at, beside whatever else the machine does. */
const TEST_TIMEOUT_MS = 90_000;

let database: TestDatabase;
let front: TestService;
let tenant: TestTenant;
let residents: Residents;
let ends: (() => Promise<unknown>)[];
beforeEach(async () => {
  database = await createTestDatabase();
  // Its nudges go nowhere: what is delivered was found by a relay.
  front = await start('api', { REDIS_QUEUE_URL: NOBODY_LISTENS });
  tenant = await front.tenant();
  residents = await openResidents(tenant.id);
  ends = [() => residents.close(), () => front.stop()];
});
afterEach(async () => {
  await Promise.all(ends.map((end) => end()));
  await database.drop();
});

function start(role: string, env: Readonly<Record<string, string>> = {}): Promise<TestService> {
  return startTestService({ database, env: { ...ENV, TRIBUTARY_ROLE: role, ...env } });
}

async function run(role: string, env?: Readonly<Record<string, string>>): Promise<TestService> {
  const service = await start(role, env);
  ends.push(() => service.stop());
  return service;
}

async function proxyOf(url: string): Promise<FaultProxy> {
  const proxy = await startFaultProxy({ port: Number(new URL(url).port) });
  ends.push(() => proxy.stop());
  return proxy;
}

interface Job {
  readonly done: boolean;
  readonly attempts: number;
  readonly delivered: number;
  readonly skipped: number;
  readonly follower_cursor: string;
  readonly hinted: boolean;
}

async function job(postId: string): Promise<Job> {
  const [row] = await database.sql<Job & Record<string, unknown>>(
    `SELECT done_at IS NOT NULL AS done, attempts, delivered, skipped, follower_cursor, hinted_at > '-infinity' AS hinted
     FROM fanout_jobs WHERE tenant_id = $1 AND post_id = $2`,
    [tenant.id, postId],
  );
  if (row === undefined) throw new Error('no such job');
  return row;
}

/** Lets the time pass for which a hint is trusted, again and again, until the job is done. */
function untilDone(postId: string): Promise<Job> {
  return eventually(async () => {
    await database.sql("UPDATE fanout_jobs SET hinted_at = hinted_at - interval '11 s' WHERE done_at IS NULL");
    const row = await job(postId);
    expect(row.done).toBe(true);
    return row;
  }, PATIENT);
}

async function publish(requestId?: string): Promise<string> {
  const { post } = await tenant.posts.publishPost({ authorId: 'ada', text: 'news', ...(requestId && { requestId }) });
  if (post === undefined) throw new Error('a publish was answered without its post');
  return post.postId;
}

/** About what pushing to these viewers takes on the wire: their keys, each as Redis writes it. */
function bytesOf(viewers: readonly string[]): number {
  return viewers.reduce((sum, viewer) => sum + residents.keys.timeline(tenant.id, userId(viewer)).length + 8, 0);
}

async function holdersOf(postId: string, viewers: readonly string[]): Promise<number> {
  return (await residents.entries(viewers)).filter((entries) => entries?.includes(postId)).length;
}

/** `count` followers of ada, two of three resident; and a stranger who is. */
async function arrange(count: number): Promise<{ readonly all: readonly string[]; readonly resident: Set<string> }> {
  const all = await storeManyFollowers(database, tenant.id, { followee: 'ada', count });
  const resident = all.filter((_, index) => index % 3 !== 0);
  await residents.make([...resident, 'stranger']);
  return { all, resident: new Set(resident) };
}

async function expectEachOnce(
  postId: string,
  { all, resident }: { readonly all: readonly string[]; readonly resident: ReadonlySet<string> },
): Promise<void> {
  const entries = await residents.entries([...all, 'stranger']);
  expect(entries.at(-1)).toEqual([]);
  const wrong = all.filter((viewer, index) =>
    resident.has(viewer) ? entries[index]?.join() !== postId : entries[index] !== undefined,
  );
  expect(wrong).toEqual([]);
}

describe('a worker', { timeout: TEST_TIMEOUT_MS }, () => {
  it.each([
    { followers: 10_000, page: 1_000, pagesBefore: 3, partOfPage: 0.7 },
    { followers: 5_000, page: 5_000, pagesBefore: 0, partOfPage: 0.5 },
  ])(
    'killed after $pagesBefore pages and $partOfPage of the next, of $followers followers, leaves the rest to another',
    async ({ followers, page, pagesBefore, partOfPage }) => {
      const graph = await arrange(followers);
      await run('relay');
      const cache = await proxyOf(inject('servers').cacheUrl);
      const env = { ...ENV, FANOUT_FOLLOWER_PAGE: String(page) };
      const dying = await startRole('worker', database, {
        ...env,
        REDIS_CACHE_URL: cache.through(inject('servers').cacheUrl),
      });
      const checkpoint = graph.all[pagesBefore * page - 1] ?? '';
      const barrier = await holdUpdates(database, {
        table: 'fanout_jobs',
        when:
          checkpoint === ''
            ? 'OLD.lease_token IS NULL AND NEW.lease_token IS NOT NULL'
            : `NEW.follower_cursor = '${checkpoint}'`,
      });
      const postId = await publish();
      await barrier.reached();
      const next = graph.all.slice(pagesBefore * page, (pagesBefore + 1) * page);
      const held = cache.holdAfter(Math.floor(bytesOf(next) * partOfPage));
      await barrier.open();
      await held;
      await dying.kill();

      expect(await job(postId)).toMatchObject({ done: false, follower_cursor: checkpoint });
      const holders = await holdersOf(postId, graph.all);
      expect(holders).toBeGreaterThan((pagesBefore * page * 2) / 3);
      expect(holders).toBeLessThan(((pagesBefore + 1) * page * 2) / 3);

      await run('worker', { FANOUT_FOLLOWER_PAGE: String(page) });
      const after = await untilDone(postId);
      await expectEachOnce(postId, graph);
      expect(after).toMatchObject({
        delivered: graph.resident.size,
        skipped: followers - graph.resident.size + 1,
      });
    },
  );

  it('that slept beyond lock and lease in the middle of the last page, while another did its work, adds nothing when it wakes up', async () => {
    const graph = await arrange(500);
    const cache = await proxyOf(inject('servers').cacheUrl);
    const env = { ...ENV, FANOUT_FOLLOWER_PAGE: '200' };
    const sleeper = await startRole('worker', database, {
      ...env,
      REDIS_CACHE_URL: cache.through(inject('servers').cacheUrl),
    });
    const barrier = await holdUpdates(database, {
      table: 'fanout_jobs',
      when: `NEW.follower_cursor = '${graph.all[399]}'`,
    });
    await run('relay');
    const postId = await publish();
    await barrier.reached();
    const held = cache.holdAfter(Math.floor(bytesOf(graph.all.slice(400)) / 2));
    await barrier.open();
    await held;
    sleeper.freeze();

    await run('worker', { FANOUT_FOLLOWER_PAGE: '200' });
    const done = await untilDone(postId);
    expect(done).toMatchObject({ delivered: graph.resident.size });
    await expectEachOnce(postId, graph);

    sleeper.thaw();
    // What it had sent arrives now, and it goes on where it stood.
    await cache.restore();
    await eventually(async () => {
      const metrics = await (await fetch(`http://127.0.0.1:${sleeper.httpPort}/metrics`)).text();
      expect(metrics).toMatch(/tributary_fanout_runs_total\{lane="small",outcome="lost"\} 1/);
    }, PATIENT);
    expect(await job(postId)).toEqual(done);
    await expectEachOnce(postId, graph);
    expect(await sleeper.stop()).toBe(0);
  });
});

describe('a relay', { timeout: TEST_TIMEOUT_MS }, () => {
  it('killed between its mark on the row and the hint loses none', async () => {
    const graph = await arrange(30);
    await run('worker');
    const queue = await proxyOf(inject('servers').queueUrl);
    const dying = await startRole('relay', database, {
      ...ENV,
      REDIS_QUEUE_URL: queue.through(inject('servers').queueUrl),
    });
    const first = await publish();
    await eventually(async () => expect(await job(first)).toMatchObject({ done: true }), PATIENT);

    const held = queue.holdAfter(0);
    const postId = await publish();
    await held;
    // The look at the rows, and not some command in between.
    await eventually(async () => expect(await job(postId)).toMatchObject({ hinted: true, attempts: 0 }), PATIENT);
    await dying.kill();

    await run('relay');
    await untilDone(postId);
    const entries = await residents.entries(graph.all);
    const once = [first, postId].join();
    const wrong = graph.all.filter(
      (viewer, index) => entries[index]?.join() !== (graph.resident.has(viewer) ? once : undefined),
    );
    expect(wrong).toEqual([]);
  });

  it('killed after it handled an event and before it said so has it handled again, which changes nothing', async () => {
    await tenant.cast().play('ada posts 5 times as a; rita posts "own" as own');
    expect(await wholeHome(tenant, 'rita')).toHaveLength(1);
    const barrier = await holdUpdates(database, { table: 'outbox', when: 'NEW.done_at IS NOT NULL' });
    const dying = await startRole('relay', database, ENV);
    await tenant.graph.follow({ followerId: 'rita', followeeId: 'ada' });
    await barrier.reached();
    await dying.kill();
    await barrier.cut();
    await barrier.open();
    const [open] = await database.sql<{ count: number }>('SELECT count(*) AS count FROM outbox WHERE done_at IS NULL');
    expect(open?.count).toBeGreaterThan(0);

    const living = await run('all');
    // The lease of the dead.
    await database.sql("UPDATE outbox SET lease_until = lease_until - interval '30 s'");
    await living.settle();
    expect(await wholeHome(tenant, 'rita')).toEqual((await tenant.oracle('rita')).home);
    expect(await residents.entries(['rita'])).toEqual([[...(await tenant.oracle('rita')).home].reverse()]);
  });
});

describe('a publisher', { timeout: TEST_TIMEOUT_MS }, () => {
  it('killed right after its commit has published: the retry gets that post, the author sees it at once, each follower once', async () => {
    const graph = await arrange(30);
    // Resident before, so that nobody rebuilds what was not pushed.
    await residents.make(['ada']);
    const rows = await proxyOf(database.url);
    const dying = await startRole('api', { ...database, url: rows.through(database.url) }, ENV);
    const clients = connectClients({ protocol: 'grpc', ...dying, key: tenant.key });
    ends.push(async () => clients.close());
    // Its key is known and a number to mint with is leased, before answers are kept back.
    await clients.posts.publishPost({ authorId: 'zoe', text: 'before' });
    rows.holdAnswers();
    const lost = clients.posts.publishPost({ authorId: 'ada', text: 'news', requestId: 'once' });
    lost.catch(() => undefined);
    const posts = () =>
      database.sql<{ post_id: number }>("SELECT post_id FROM posts WHERE tenant_id = $1 AND author_id = 'ada'", [
        tenant.id,
      ]);
    const [committed] = await eventually(async () => {
      const found = await posts();
      expect(found).toHaveLength(1);
      return found;
    }, PATIENT);
    await dying.kill();
    await expect(lost).rejects.toMatchObject({ code: expect.anything() });

    const postId = await publish('once');
    expect(postId).toBe(String(committed?.post_id));
    expect(await wholeHome(tenant, 'ada')).toEqual([postId]);
    expect(await posts()).toHaveLength(1);
    await Promise.all([run('relay'), run('worker')]);
    await untilDone(postId);
    await expectEachOnce(postId, graph);
    expect(await residents.entries(['ada'])).toEqual([[postId]]);
  });
});
