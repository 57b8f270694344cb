/** Owns the reconciler: what it counts as drift and mends, and what it leaves alone because something is under way or explains it. */
import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, inject, it } from 'vitest';
import { assembleCache, openCache } from '../../src/cache-assembly.ts';
import { createMetrics, type Metrics } from '../../src/metrics/metrics.ts';
import { assembleReconcile } from '../../src/reconcile-assembly.ts';
import { systemRandom } from '../../src/runtime.ts';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import { claimNextViewers } from '../../src/store/postgres/reconcile.ts';
import type { Cache } from '../../src/store/redis/client.ts';
import { createKeys } from '../../src/store/redis/keys.ts';
import { composePostId } from '../../src/timeline/ids.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import type { Cast } from '../harness/play.ts';
import { storeClass, storePosts } from '../harness/rows.ts';
import { createTestLog, startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { createTestClock } from '../harness/test-clock.ts';
import { wholeHome } from '../harness/walk.ts';

const HOUR_MS = 3_600_000;

let database: TestDatabase;
let service: TestService;
let product: Database;
let cache: Cache;
let redis: Redis;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  database = await createTestDatabase();
  service = await startTestService({ database });
  product = createDatabase({
    ...service.config.database,
    url: database.url,
    pool: 'reconciler',
    connectionsMax: 4,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
  cache = openCache(service.config, runtime(), createMetrics());
  await cache.ready(AbortSignal.timeout(10_000));
  redis = new Redis(inject('servers').cacheUrl);
});
afterAll(async () => {
  redis.disconnect();
  await cache.close();
  await product.close();
  await service.stop();
  await database.drop();
});
beforeEach(async () => {
  // The walk of each test has its own viewers alone.
  await database.sql('TRUNCATE follows, fanout_jobs, outbox');
  await database.sql("UPDATE reconcile_walk SET tenant_id = '', viewer_id = ''");
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
  return () => cached.close();
});

function runtime(laterMs = 0) {
  return { clock: createTestClock({ offsetMs: laterMs }), random: systemRandom, log: createTestLog([]) };
}

/** One round over all viewers; answers what it counted. */
async function reconcile({
  settleMs = 0,
  perMinute = 6_000,
  laterMs = 0,
} = {}): Promise<Readonly<Record<string, number>>> {
  const metrics = createMetrics();
  const config = { ...service.config, reconcile: { perMinute } };
  const parts = { config, runtime: runtime(laterMs), metrics, database: product, cache };
  const round = assembleReconcile({ ...parts, cached: assembleCache(parts), settleMs });
  await round(AbortSignal.timeout(20_000));
  return countsOf(metrics);
}

async function countsOf(metrics: Metrics): Promise<Readonly<Record<string, number>>> {
  const { body } = await metrics.exposition();
  const lines = body.matchAll(
    /^tributary_(?:reconciled_timelines|drift_entries|drift_repairs)_total\{\w+="(\w+)"\} (\d+)$/gm,
  );
  // Some begin at zero, so that alerts see them rise.
  return Object.fromEntries([...lines].flatMap(([, label, count]) => (count === '0' ? [] : [[label, Number(count)]])));
}

/** Rita follows ada and bob, who have posted, and is resident. */
async function resident(): Promise<readonly string[]> {
  await cast.play('rita follows ada; rita follows bob; ada posts 3 times as a; bob posts 3 times as b');
  await service.settle();
  await wholeHome(tenant, 'rita');
  return [...cast.ids('b3', 'b2', 'b1', 'a3', 'a2', 'a1')];
}

describe('a timeline that has drifted', { timeout: 60_000 }, () => {
  it('is found, counted and mended: an entry that is missing, one of nobody, one of an author whom the viewer never followed', async () => {
    const home = await resident();
    await cast.play('zoe posts "elsewhere" as z');
    await service.settle();
    await cached.corrupt('rita', { without: cast.post('a2').postId, with: cast.post('z').postId });
    await cached.corrupt('rita', { with: String(Number(cast.post('a2').postId) + 1) });
    expect(await reconcile()).toEqual({ drifted: 1, missing: 1, foreign: 2, added: 1, removed: 1 });
    expect(await cached.entries('rita')).toEqual(home);
    expect(await reconcile()).toEqual({ true: 1 });
  });

  it('is rebuilt where it claims far more than it holds', async () => {
    const nowMs = service.clock.nowMs();
    const posts = Array.from({ length: 130 }, (_, n) => ({
      author: 'ada',
      postId: composePostId({ ms: nowMs - HOUR_MS - n * 1_000, generator: 0, sequence: 0 }),
    }));
    await storePosts(database, tenant.id, posts);
    await cast.play('rita follows ada');
    await service.settle();
    await wholeHome(tenant, 'rita');
    for (const { postId } of posts.slice(20, 125)) await cached.corrupt('rita', { without: String(postId) });
    expect(await reconcile()).toEqual({ drifted: 1, missing: 105, rebuilt: 1 });
    expect(await cached.entries('rita')).toEqual(posts.map(({ postId }) => String(postId)));
  });

  it('is found and mended by a worker', async () => {
    const home = await resident();
    await database.sql("UPDATE follows SET started_at = started_at - interval '1 hour'");
    await cached.corrupt('rita', { without: cast.post('a2').postId });
    const worker = await startTestService({
      database,
      // To whom all posts are old.
      clock: createTestClock({ offsetMs: 60_000 }),
      env: { TRIBUTARY_ROLE: 'worker', RECONCILE_PER_MINUTE: '60' },
    });
    try {
      await eventually(async () => expect(await cached.entries('rita')).toEqual(home), { timeoutMs: 10_000 });
      await eventually(async () =>
        expect(await countsOf(worker.service.metrics)).toMatchObject({ missing: 1, added: 1 }),
      );
      expect(worker.logLines.some((line) => line.includes('a timeline has drifted'))).toBe(true);
    } finally {
      await worker.stop();
    }
  });
});

describe('what is under way or explained', { timeout: 60_000 }, () => {
  it.each([
    { what: 'a post whose fan-out is not done', make: "UPDATE fanout_jobs SET done_at = NULL, hinted_at = 'infinity'" },
    { what: 'an author between the classes', fanoutClass: 'both' as const },
    { what: 'an author who is pulled', fanoutClass: 'pull' as const },
    {
      what: 'a follow whose event waits',
      make: `INSERT INTO outbox (tenant_id, kind, payload, lease_until) VALUES ($1, 'follows_changed', '{"followerId": "rita"}', now() + interval '1 hour')`,
    },
    {
      what: 'a post that was deleted meanwhile',
      make: "UPDATE posts SET deleted_at = now() WHERE tenant_id = $1 AND author_id = 'ada'",
    },
  ])('is no drift where an entry is missing: $what', async ({ make, fanoutClass }) => {
    await resident();
    await cached.corrupt('rita', { without: cast.post('a2').postId });
    if (fanoutClass) await storeClass(database, tenant.id, { authors: ['ada'], fanoutClass });
    if (make) await database.sql(make, make.includes('$1') ? [tenant.id] : []);
    expect(await reconcile()).toEqual({ true: 1 });
    expect(await cached.entries('rita')).not.toContain(cast.post('a2').postId);
  });

  it('is no drift where post or follow are younger than the freshness objective', async () => {
    await resident();
    await cached.corrupt('rita', { without: cast.post('a2').postId });
    expect(await reconcile({ settleMs: 30_000 })).toEqual({ true: 1 });
    expect(await reconcile({ settleMs: 30_000, laterMs: 60_000 })).toEqual({ true: 1 });
    await database.sql("UPDATE follows SET started_at = started_at - interval '1 hour'");
    expect(await reconcile({ settleMs: 30_000 })).toEqual({ true: 1 });
    expect(await reconcile({ settleMs: 30_000, laterMs: 60_000 })).toMatchObject({ drifted: 1, missing: 1 });
  });

  it.each([
    { what: 'private', make: "UPDATE posts SET visibility = 'private' WHERE tenant_id = $1 AND author_id = 'ada'" },
    { what: 'deleted', make: "UPDATE posts SET deleted_at = now() WHERE tenant_id = $1 AND author_id = 'ada'" },
    {
      what: 'of a follow that ended a moment ago',
      make: "UPDATE follows SET ended_at = now() WHERE tenant_id = $1 AND followee_id = 'ada'",
    },
  ])('is no drift where an entry is left over that no page shows: $what', async ({ make }) => {
    const home = await resident();
    await database.sql(make, [tenant.id]);
    expect(await reconcile()).toEqual({ true: 1 });
    expect(await cached.entries('rita')).toEqual(home);
  });

  it('ends with the second clean-up of a follow: what is left over after that is foreign', async () => {
    await resident();
    await cached.evict('rel');
    await database.sql(
      "UPDATE follows SET ended_at = now(), cleaned_at = now() WHERE tenant_id = $1 AND followee_id = 'ada'",
      [tenant.id],
    );
    expect(await reconcile()).toEqual({ drifted: 1, foreign: 3, removed: 1 });
    expect(await cached.entries('rita')).toEqual([...cast.ids('b3', 'b2', 'b1')]);
  });

  it('is all there is while posts, follows, deletions and rebuilds run beside: nothing is counted', async () => {
    await resident();
    const counted: Record<string, number>[] = [];
    let running = true;
    async function others(): Promise<void> {
      for (let n = 0; n < 12; n += 1) {
        await cast.play(
          `ada posts 2 times as p${n}x; bob posts "x" as q${n}; rita unfollows ada; ada posts "meanwhile" as r${n}; rita follows ada; ada deletes p${n}x1; rita posts "mine" as s${n}`,
        );
        if (n % 4 === 3) await cached.evict('tl');
        await wholeHome(tenant, 'rita');
      }
      running = false;
    }
    async function reconciler(): Promise<void> {
      while (running) counted.push(await reconcile());
    }
    await Promise.all([others(), reconciler()]);
    await service.settle();
    counted.push(await reconcile());
    expect(counted.length).toBeGreaterThan(3);
    for (const counts of counted)
      expect(Object.keys(counts).filter((label) => !['true', 'unsettled'].includes(label))).toEqual([]);
    expect(counted.at(-1)).toEqual({ true: 1 });
  });
});

describe('the walk of the reconciler', { timeout: 60_000 }, () => {
  it('comes to every viewer who follows anybody once, shared by two workers, and begins anew', async () => {
    await database.sql(
      `INSERT INTO follows (tenant_id, follower_id, followee_id)
       SELECT 't' || t, 'v' || v, 'a' || a FROM generate_series(1, 3) t, generate_series(1, 20) v, generate_series(1, 4) a`,
    );
    const signal = () => AbortSignal.timeout(10_000);
    const seen: string[] = [];
    let last = -1;
    while (last !== 0) {
      // One of the two may find the row locked, and answers none.
      const both = await Promise.all([claimNextViewers(product, signal(), 7), claimNextViewers(product, signal(), 7)]);
      seen.push(...both.flat().map(({ tenant: of, viewer }) => `${of}/${viewer}`));
      last = seen.length >= 60 ? 0 : 1;
    }
    // Whoever met the end was the last of the two, and the other has begun anew.
    expect(new Set(seen).size).toBe(60);
    expect(seen.length).toBeLessThanOrEqual(60 + 7);
    const [walk] = await database.sql<{ viewer_id: string }>('SELECT viewer_id FROM reconcile_walk');
    if (walk?.viewer_id !== '') await claimNextViewers(product, signal(), 100);
    expect((await claimNextViewers(product, signal(), 7))[0]).toEqual({ tenant: 't1', viewer: 'v1' });
  });

  it('compares no more timelines than it may, and lengthens no life', async () => {
    await resident();
    await cast.play('ruth follows ada; rosa follows ada');
    await service.settle();
    for (const viewer of ['ruth', 'rosa']) await wholeHome(tenant, viewer);
    expect(await reconcile({ perMinute: 6 })).toEqual({ true: 1 });
    const key = createKeys(service.config.timeline.shards).timeline(tenant.id, userId('rita'));
    await redis.pexpire(key, 60_000);
    expect(await reconcile()).toEqual({ true: 3 });
    expect(await redis.pttl(key)).toBeLessThanOrEqual(60_000);
  });
});
