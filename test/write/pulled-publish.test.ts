/** Owns what followers of a pulled author see of a publish, through the whole service: the post is there with its answer, before any job has run; without Redis the publish is answered all the same, and the job heals. */
import { randomUUID } from 'node:crypto';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, expect, inject, it } from 'vitest';
import { type Cached, openCached } from '../harness/cached.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import type { Cast } from '../harness/play.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

let database: TestDatabase;
let proxy: FaultProxy;
let front: TestService;
let redis: Redis;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
const env = { QUEUE_PREFIX: `pulled-${randomUUID()}` };

beforeAll(async () => {
  database = await createTestDatabase();
  const { cacheUrl } = inject('servers');
  proxy = await startFaultProxy({ port: Number(new URL(cacheUrl).port) });
  // No worker and no relay: what is seen was done by the publish itself.
  const through = { ...env, TRIBUTARY_ROLE: 'api', REDIS_CACHE_URL: proxy.through(cacheUrl) };
  front = await startTestService({ database, env: through });
  redis = new Redis(cacheUrl);
});
afterAll(async () => {
  redis.disconnect();
  await front.stop();
  await proxy.stop();
  await database.drop();
});
beforeEach(async () => {
  tenant = await front.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
  await cast.play('rita follows ada; ruth follows ada; ada posts "old" as old');
  await become('pull');
});
afterEach(() => cached.close());

async function become(fanoutClass: 'push' | 'both' | 'pull'): Promise<void> {
  await database.sql(
    `INSERT INTO authors (tenant_id, author_id, fanout_class, class_target, class_epoch) VALUES ($1, 'ada', $2, 'pull', 1)
    ON CONFLICT (tenant_id, author_id) DO UPDATE SET fanout_class = $2, class_target = 'pull', class_epoch = 1`,
    [tenant.id, fanoutClass],
  );
}

const home = async (viewer: string) => (await wholeHome(tenant, viewer)).map(cast.labelOf);

it.each(['pull', 'both'] as const)('is in every follower’s home with the answer: class %s', async (fanoutClass) => {
  await become(fanoutClass);
  expect(await home('rita')).toEqual(['old']);
  await cast.play('ada posts "new" as new');
  expect(await home('rita')).toEqual(['new', 'old']);
  expect(await home('ruth')).toEqual(['new', 'old']);
});

it('brings what readers need of it into the cache, before anybody has read it', async () => {
  await home('rita');
  await cached.evict('pm', 'pb', 'am');
  await cast.play('ada posts "new" as new');
  await eventually(async () => {
    for (const pattern of [`pm:{*}:${tenant.id}:${cast.post('new').postId}`, `am:{*}:${tenant.id}:ada`]) {
      const [key = ''] = await redis.keys(pattern);
      expect((await redis.get(key))?.slice(0, 1)).toBe('v');
    }
    expect(await redis.keys(`pb:{*}:${tenant.id}:${cast.post('new').postId}:1`)).toHaveLength(1);
  });
});

it('that is private is in nobody’s home but the author’s', async () => {
  expect(await home('rita')).toEqual(['old']);
  await cast.play('ada posts "mine" to nobody as mine');
  expect(await home('rita')).toEqual(['old']);
  expect(await home('ada')).toEqual(['mine', 'old']);
});

it('with its request ID again brings the post to the list again', async () => {
  expect(await home('rita')).toEqual(['old']);
  const request = { authorId: 'ada', text: 'once', requestId: randomUUID() };
  const { post } = await tenant.posts.publishPost(request);
  await cached.evict('al');
  await home('rita');
  const [key = ''] = await redis.keys(`al:{*}:${tenant.id}:ada:1`);
  await redis.zrem(key, post?.postId ?? '');
  await tenant.posts.publishPost(request);
  expect(await redis.zscore(key, post?.postId ?? '')).not.toBeNull();
});

it('while Redis is away is answered, says that the own timeline is pending, and is healed by its job', async () => {
  expect(await home('rita')).toEqual(['old']);
  await proxy.refuse();
  const answer = await tenant.posts.publishPost({ authorId: 'ada', text: 'away' });
  expect(answer.ownTimelinePending).toBe(true);
  const postId = answer.post?.postId ?? '';
  expect((await wholeHome(tenant, 'rita'))[0]).toBe(postId);
  await proxy.restore();
  const [key = ''] = await redis.keys(`al:{*}:${tenant.id}:ada:1`);
  expect(await redis.zscore(key, postId)).toBeNull();
  const back = await startTestService({ database, env: { ...env, AUTHOR_CLASS_EVERY_MS: '600000' } });
  await back.settle();
  expect(await redis.zscore(key, postId)).not.toBeNull();
  await eventually(async () => expect(await wholeHome(tenant, 'rita')).toEqual([postId, ...cast.ids('old')]));
  const { body } = await front.service.metrics.exposition();
  expect(body).toMatch(/tributary_pulled_list_pending_total [1-9]/);
  await back.stop();
});
