/** Owns what callers notice when the cache Redis is flushed, restarted or deaf for a while: every answer is right, or there is none; and all is well afterwards without an operator. */
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import { storeClass, storeFollowers } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { homePages, walkOlder, wholeHome } from '../harness/walk.ts';
import { type OwnRedis, startOwnRedis } from '../store/redis/own-redis.ts';

let own: OwnRedis;
let proxy: FaultProxy;
let service: TestService;
let redis: Redis;
beforeAll(async () => {
  own = await startOwnRedis();
  proxy = await startFaultProxy({ port: own.server.port });
  service = await startTestService({
    env: { REDIS_CACHE_URL: proxy.through(own.server.url), CACHE_COMMAND_TIMEOUT_MS: '1000' },
  });
  redis = new Redis(own.server.url);
  redis.on('error', () => undefined);
});
afterAll(async () => {
  redis.disconnect();
  await service.stop();
  await proxy.stop();
  await own.stop();
});

const VIEWERS = Array.from({ length: 100 }, (_, at) => `viewer-${at}`);
/** As many rebuilds at once as may be, eight of them, take their time on a busy machine. */
const PATIENT = { timeoutMs: 20_000 };

/** All viewers, 20 at a time: more at once are refused, since too many statements would wait. */
async function everybody<Result>(act: (viewer: string) => Promise<Result>): Promise<readonly Result[]> {
  const results: Result[] = [];
  for (let from = 0; from < VIEWERS.length; from += 20)
    results.push(...(await Promise.all(VIEWERS.slice(from, from + 20).map(act))));
  return results;
}
const expectHome = async (tenant: TestTenant, viewer: string): Promise<void> =>
  expect(await wholeHome(tenant, viewer)).toEqual((await tenant.oracle(viewer)).home);

it('a flush under 100 active viewers costs nobody an entry: every first page is full, complete and right', async () => {
  const tenant = await service.tenant();
  const cast = tenant.cast();
  await storeFollowers(service.database, tenant.id, { followee: 'ada', followers: VIEWERS });
  await cast.play('ada posts 30 times as a');
  await service.settle();
  await everybody((viewer) => homePages(tenant, viewer, 20)(''));
  await redis.flushall();
  await cast.play('ada posts "after the flush" as b');
  const { home } = await tenant.oracle('viewer-0');
  const call = () => tenant.call();
  const read = (viewer: string) =>
    service.service.flows.home.page(call(), { viewer: userId(viewer), pageSize: 20, pageToken: '' });
  const pages = await everybody(read);
  for (const page of pages) expect(page.views.map((view) => String(view.post.meta.postId))).toEqual(home.slice(0, 20));
  await service.settle();
  // Those who were told that the page was partial are not told so again.
  await eventually(async () => {
    for (const page of await everybody(read)) {
      expect(page.completeness).toBe('complete');
      expect(page.views).toHaveLength(20);
    }
  }, PATIENT);
});

describe('a restart of the cache', () => {
  it.each(['in order', 'by a crash'])('%s is over for the next calls, without a restart of ours', async (how) => {
    const tenant = await service.tenant();
    const cast = tenant.cast();
    await cast.play('rita follows ada; ada posts 10 times as a');
    await service.settle();
    await expectHome(tenant, 'rita');
    if (how === 'by a crash') await own.server.kill();
    await own.server.restart();
    // From the first moment on: from Postgres until the connection is back.
    await expectHome(tenant, 'rita');
    await eventually(async () => {
      await cast.play('ada posts "b" ');
      await cast.play('rita mutes cyd');
    });
    await service.settle();
    await expectHome(tenant, 'rita');
    await eventually(async () => {
      const page = await tenant.by.json.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 5 });
      expect(page.entries).toHaveLength(5);
      expect(await redis.keys(`tl:*:${tenant.id}:rita`)).toHaveLength(1);
    });
  });

  it('while posts are written loses none of them', async () => {
    const tenant = await service.tenant();
    const cast = tenant.cast();
    await cast.play('rita follows ada; ada posts 5 times as a');
    await service.settle();
    await expectHome(tenant, 'rita');
    const writing = cast.play('ada posts 40 times as b');
    await own.server.restart();
    await writing;
    await service.settle();
    expect(await wholeHome(tenant, 'rita')).toHaveLength(45);
    await expectHome(tenant, 'rita');
  });
});

describe('a cache that drops everything for 600 ms', () => {
  it('is no empty cache: reads are right or UNAVAILABLE, nothing untrue is stored, and no event is handled again', async () => {
    const tenant = await service.tenant();
    const cast = tenant.cast();
    await cast.play('rita follows ada, mia; rita mutes mia; ada posts 20 times as a; mia posts 5 times as m');
    await service.settle();
    await expectHome(tenant, 'rita');
    const handled = () =>
      service.database.sql(
        'SELECT event_id, attempts FROM outbox WHERE tenant_id = $1 AND done_at IS NOT NULL ORDER BY event_id',
        [tenant.id],
      );
    const before = await handled();
    const { home } = await tenant.oracle('rita');

    proxy.blackhole();
    const over = new Promise<void>((resolve) => setTimeout(resolve, 600));
    let deaf = true;
    void over.then(() => {
      deaf = false;
    });
    while (deaf) {
      const reads = await Promise.allSettled(
        ['rita', 'rita', 'ruth'].map((viewer) => walkOlder(homePages(tenant, viewer, 20), { pageSize: 20 })),
      );
      for (const [at, read] of reads.entries()) {
        if (read.status === 'fulfilled') expect(read.value.ids).toEqual(at < 2 ? home : []);
        else expect(read.reason).toMatchObject({ code: expect.anything() });
      }
    }
    await proxy.restore();
    await eventually(() => expectHome(tenant, 'rita'));
    expect(await handled()).toEqual(before);
    await cast.play('mia posts "m" as late; ada posts "a" as last');
    await service.settle();
    expect((await homePages(tenant, 'rita', 20)('')).ids[0]).toBe(cast.post('last').postId);
    await expectHome(tenant, 'rita');
  });
});

describe('pulled authors while the cache is away', () => {
  it('come from Postgres like everybody else, and the page says that it is partial', async () => {
    const tenant = await service.tenant();
    await tenant.cast().play('rita follows ada, ben; ada posts 10 times as a; ben posts 10 times as b');
    await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass: 'pull' });
    await service.settle();
    await expectHome(tenant, 'rita');
    const read = () =>
      service.service.flows.home.page(tenant.call(), { viewer: userId('rita'), pageSize: 50, pageToken: '' });
    const { home } = await tenant.oracle('rita');
    await proxy.refuse();
    const page = await read();
    expect(page.completeness).toBe('partial');
    expect(page.views.map((view) => String(view.post.meta.postId))).toEqual(home);
    await proxy.restore();
    await eventually(async () => expect((await read()).completeness).toBe('complete'));
    await expectHome(tenant, 'rita');
  });
});

describe('a call that hides something while the cache is away', () => {
  it('is not answered OK before it holds; its retry is, and nothing hidden was shown after that', async () => {
    const tenant = await service.tenant();
    const cast = tenant.cast();
    await cast.play('rita follows ada; ada posts 2 times as a');
    await service.settle();
    await expectHome(tenant, 'rita');
    await proxy.refuse();
    const deleting = { authorId: 'ada', postId: cast.post('a1').postId };
    await expect(tenant.posts.deletePost(deleting)).rejects.toThrow();
    await proxy.restore();
    await eventually(() => tenant.posts.deletePost(deleting));
    expect(await wholeHome(tenant, 'rita')).toEqual(cast.ids('a2'));
    await service.settle();
  });

  it('holds by itself soon after, where nobody retries', async () => {
    const tenant = await service.tenant();
    const cast = tenant.cast();
    await cast.play('rita follows ada; ada posts 2 times as a');
    await service.settle();
    await expectHome(tenant, 'rita');
    await proxy.refuse();
    await expect(tenant.graph.block({ blockerId: 'ada', blockedId: 'rita' })).rejects.toThrow();
    await proxy.restore();
    await service.settle();
    expect(await wholeHome(tenant, 'rita')).toEqual([]);
  });
});
