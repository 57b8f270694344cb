/** Owns what holds of home although its timeline is a copy that may be lost, in part or as a whole, at any moment: nothing is missing, nothing comes back, nothing is shown that is hidden. */
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, inject, it } from 'vitest';
import { createKeys } from '../../src/store/redis/keys.ts';
import { composePostId } from '../../src/timeline/ids.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { eventually } from '../harness/eventually.ts';
import { type Cast, labels } from '../harness/play.ts';
import { storeFollowers, storePosts } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { homePages, walkNewer, walkOlder, wholeHome } from '../harness/walk.ts';

let service: TestService;
let redis: Redis;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  // What Redis holds is damaged behind the service's back here: copies of the process would hide that.
  service = await startTestService({ env: { PROCESS_BODY_BYTES: '0', PROCESS_PROFILE_BYTES: '0' } });
  redis = new Redis(inject('servers').cacheUrl);
});
afterAll(async () => {
  redis.disconnect();
  await service.stop();
});
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
});
afterEach(() => cached.close());

const older = async (viewer: string, pageSize: number) =>
  (await walkOlder(homePages(tenant, viewer, pageSize), { pageSize })).ids;
const oracleHome = async (viewer: string) => (await tenant.oracle(viewer)).home;

async function expectHome(viewer: string, pageSize = 50): Promise<void> {
  expect(await older(viewer, pageSize)).toEqual(await oracleHome(viewer));
}

describe('a timeline that was evicted', () => {
  it('and then pushed to is not taken for the whole: the next walk gives all 41', async () => {
    await cast.play('rita follows ada; ada posts 40 times as a');
    await service.settle();
    await expectHome('rita');
    await cached.evict('tl');
    await cast.play('ada posts "late" as late');
    await service.settle();
    expect(await cached.entries('rita')).toBeUndefined();
    expect(await older('rita', 50)).toHaveLength(41);
    await expectHome('rita');
  });

  it('because its viewer was away has no hole when they return', async () => {
    await cast.play('rita follows ada, ben; ada posts 25 times as a; ben posts 25 times as b');
    await service.settle();
    expect(await older('rita', 20)).toHaveLength(50);
    await cached.evict('tl');
    await cast.play('ada posts 30 times as away');
    await service.settle();
    const first = await tenant.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 20 });
    await cast.play('ben posts 5 times as back');
    await service.settle();
    expect(first.entries).toHaveLength(20);
    expect(await older('rita', 20)).toHaveLength(85);
    await expectHome('rita', 20);
    expect(await cached.entries('rita')).toHaveLength(85);
  });

  it('between two pages costs no entry and repeats none: the next page is strictly older', async () => {
    await cast.play('rita follows ada; ada posts 30 times as a');
    await service.settle();
    const walk = await walkOlder(homePages(tenant, 'rita', 7), { pageSize: 7, between: () => cached.evict('tl') });
    expect(walk.ids).toEqual(await oracleHome('rita'));
  });
});

describe('a walk beyond what a timeline holds', () => {
  it('goes on in Postgres without a gap or a repeat at the seam: 2,000 posts, of which 800 are kept', async () => {
    const start = Date.now() - 3_600_000;
    const posts = Array.from({ length: 2_000 }, (_, at) => ({
      author: at % 2 === 0 ? 'ada' : 'ben',
      postId: composePostId({ ms: start + at, generator: 101, sequence: at % 32 }),
    }));
    await storePosts(service.database, tenant.id, posts);
    await storeFollowers(service.database, tenant.id, { followee: 'ada', followers: ['rita'] });
    await storeFollowers(service.database, tenant.id, { followee: 'ben', followers: ['rita'] });
    const ids = await older('rita', 100);
    expect(new Set(ids).size).toBe(2_000);
    expect(ids).toEqual(await oracleHome('rita'));
    expect(await cached.entries('rita')).toHaveLength(800);
    // Pushes move the seam: more than cap and stride are trimmed to the cap.
    await cast.play('ada posts 70 times as more');
    await service.settle();
    const held = (await cached.entries('rita')) ?? [];
    expect(held.length).toBeGreaterThanOrEqual(800);
    expect(held.length).toBeLessThan(870);
    await expectHome('rita', 100);
  });
});

describe('relations that went cold', () => {
  it('are not taken for none: who is muted or blocked stays unseen on the very first read', async () => {
    await cast.play('rita follows mia, nat, ada; mia posts "m" as m1; nat posts "n" as n1; ada posts "a" as a1');
    await service.settle();
    await cast.play('rita mutes mia; rita blocks nat');
    expect(await older('rita', 50)).toEqual(cast.ids('a1'));
    await cached.evict('rel');
    await cast.play('mia posts "m" as m2; nat posts "n" as n2');
    expect(await older('rita', 50)).toEqual(cast.ids('a1'));
    await service.settle();
    expect(await older('rita', 50)).toEqual(cast.ids('a1'));
    await cached.evictAll();
    await cast.play('mia posts "m" as m3; nat posts "n" as n3');
    expect(await older('rita', 50)).toEqual(cast.ids('a1'));
    await service.settle();
    await expectHome('rita');
  });
});

describe('what was hidden after its fan-out', () => {
  it('by suspension is gone at once and back at once, without a second fan-out', async () => {
    await cast.play('rita follows ada, ben; ada posts 3 times as a; ben posts 3 times as b');
    await service.settle();
    await expectHome('rita');
    const entries = await cached.entries('rita');
    const jobs = () =>
      service.database.sql(
        'SELECT post_id, generation, attempts FROM fanout_jobs WHERE tenant_id = $1 ORDER BY post_id, generation',
        [tenant.id],
      );
    const before = await jobs();
    await cast.play('ada is suspended');
    expect(await older('rita', 50)).toEqual([...cast.ids(...labels('b', 3))].reverse());
    await service.settle();
    await cast.play('ada is restored');
    await expectHome('rita');
    expect(await older('rita', 50)).toHaveLength(6);
    await service.settle();
    expect(await jobs()).toEqual(before);
    expect(await cached.entries('rita')).toEqual(entries);
  });

  it('by a mute, and shown again, is as before', async () => {
    await cast.play('rita follows ada, ben; ada posts 3 times as a; ben posts 3 times as b');
    await service.settle();
    const before = await older('rita', 2);
    await cast.play('rita mutes ada');
    expect(await older('rita', 2)).toEqual([...cast.ids(...labels('b', 3))].reverse());
    await cast.play('rita unmutes ada');
    expect(await older('rita', 2)).toEqual(before);
    // A timed mute ends with nothing running for it, though the fact that tells of it is cached.
    await cast.play('rita mutes ada for 10 minutes');
    expect(await older('rita', 2)).toHaveLength(3);
    service.clock.step(600_001);
    try {
      expect(await older('rita', 2)).toEqual(before);
    } finally {
      service.clock.step(-600_001);
    }
  });
});

describe('a cached part that is damaged or missing', () => {
  const keys = createKeys(256);

  it('a body that does not read is loaded anew and counted', async () => {
    await cast.play('rita follows ada; ada posts "whole" as a1; ada posts "also whole" as a2');
    await service.settle();
    await expectHome('rita');
    const key = keys.postBody(tenant.id, Number(cast.post('a1').postId) as never, 1);
    expect(await redis.exists(key)).toBe(1);
    await redis.set(key, 'not what was stored');
    const page = await tenant.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 10 });
    expect(page.entries.map((view) => view.post?.text)).toEqual(['also whole', 'whole']);
    const metrics = await (await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`)).text();
    expect(metrics).toMatch(/^tributary_cache_reads_total\{.*layer="body".*result="corrupt".*\} [1-9]/m);
    expect((await redis.getBuffer(key))?.toString()).not.toBe('not what was stored');
  });

  it.each(['damaged', 'of another type'])('a timeline that is %s is not shown, and nothing is missing', async (how) => {
    await cast.play('rita follows ada; ada posts 4 times as a');
    await service.settle();
    await expectHome('rita');
    const key = keys.timeline(tenant.id, userId('rita'));
    if (how === 'damaged') await redis.zadd(key, 9e15, 'stranger');
    else await redis.set(key, 'stranger');
    await expectHome('rita');
  });

  it('a post or a repost of which the cache has the facts and nobody has the rest any more is nothing, on every surface, and is counted', async () => {
    await cast.play(
      'cyd posts "target" as c1; rita follows ada; ada quotes c1 "look" as q1; ada reposts c1 as p1; ada posts "gone" as a1; ada posts "here" as a2',
    );
    await service.settle();
    await expectHome('rita');
    await service.database.sql('DELETE FROM posts WHERE tenant_id = $1 AND post_id = ANY ($2)', [
      tenant.id,
      cast.ids('c1', 'a1'),
    ]);
    await cached.evict('pb');
    const missing = async (surface: string): Promise<number> => {
      const text = await (await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`)).text();
      const line = text.split('\n').find((one) => one.includes(`missing_entries_total{surface="${surface}"}`));
      return Number(line?.split(' ').at(-1) ?? 0);
    };
    const before = [await missing('home'), await missing('batch')];
    const home = await tenant.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 2 });
    expect(home.entries.map((view) => view.post?.postId)).toEqual(cast.ids('a2', 'q1'));
    const { views } = await tenant.posts.batchGetPosts({ viewerId: 'rita', postIds: [...cast.ids('p1', 'q1', 'a1')] });
    expect(views.map((view) => [view.post?.postId, view.repostOf])).toEqual([[cast.post('q1').postId, undefined]]);
    await expect(tenant.posts.getPost({ viewerId: 'rita', postId: cast.post('p1').postId })).rejects.toThrow(
      /no such post/,
    );
    expect([await missing('home'), await missing('batch')]).toEqual(before.map((count) => count + 2));
  });

  it('a repost whose target is gone, and an author without a profile, leave the rest of the page alone', async () => {
    await cast.play(
      'cyd posts "target" as c1; rita follows ada, ben; ada quotes c1 "look" as q1; ada reposts c1 as p1; ben posts "b" as b1',
    );
    await tenant.graph.putAuthor({ authorId: 'ben', displayName: 'Ben' });
    await service.settle();
    await expectHome('rita');
    await service.database.sql('DELETE FROM posts WHERE tenant_id = $1 AND post_id = ANY ($2)', [
      tenant.id,
      cast.ids('c1'),
    ]);
    await service.database.sql('DELETE FROM authors WHERE tenant_id = $1 AND author_id = $2', [tenant.id, 'ben']);
    await cached.evict('pm', 'pb', 'am', 'ap');
    const page = await tenant.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 10 });
    expect(page.entries.map((view) => view.post?.postId)).toEqual(await oracleHome('rita'));
    expect(page.entries.map((view) => view.repostOf?.postId)).toEqual([undefined, undefined]);
  });
});

describe('consecutive IDs of 16 digits', () => {
  it('come in strict order, once each, forward and back, also around one that is removed', async () => {
    const first = composePostId({ ms: Date.now() - 60_000, generator: 102, sequence: 0 });
    const posts = Array.from({ length: 12 }, (_, at) => ({ author: 'ada', postId: first + at }));
    await storePosts(service.database, tenant.id, posts);
    await storeFollowers(service.database, tenant.id, { followee: 'ada', followers: ['rita'] });
    const expected = posts.map(({ postId }) => String(postId)).reverse();
    const walk = await walkOlder(homePages(tenant, 'rita', 1), { pageSize: 1 });
    expect(walk.ids).toEqual(expected);
    expect(await cached.entries('rita')).toEqual(expected);
    await tenant.posts.deletePost({ authorId: 'ada', postId: expected[5] ?? '' });
    const left = expected.filter((_, at) => at !== 5);
    expect(await older('rita', 1)).toEqual(left);
    await eventually(async () => expect(await cached.entries('rita')).toEqual(left));
    const empty = await homePages(tenant, 'ruth', 1)('');
    await storeFollowers(service.database, tenant.id, { followee: 'ada', followers: ['ruth'] });
    await cached.evict('tl', 'rel');
    const upwards = await walkNewer(empty.headToken, homePages(tenant, 'ruth', 1), { pageSize: 1 });
    expect(upwards.ids).toEqual([...left].reverse());
  });
});

describe('a small timeline', () => {
  let small: TestService;
  beforeAll(async () => {
    small = await startTestService({
      env: { TIMELINE_CAP: '5', TIMELINE_TRIM_STRIDE: '2', FANOUT_FOLLOWER_PAGE: '2' },
    });
  });
  afterAll(() => small.stop());

  it('of which the entry that a token names is trimmed, deleted or lost goes on strictly below it', async () => {
    const of = await small.tenant();
    const play = of.cast();
    await play.play('rita follows ada; ada posts 12 times as a');
    await small.settle();
    const read = homePages(of, 'rita', 3);
    const first = await read('');
    expect(first.ids).toEqual([...play.ids('a10', 'a11', 'a12')].reverse());
    // Trimmed: newer posts push the named entry out.
    await play.play('ada posts 9 times as b');
    await small.settle();
    const second = await read(first.nextPageToken);
    expect(second.ids).toEqual([...play.ids('a7', 'a8', 'a9')].reverse());
    await play.play('ada deletes a7');
    expect((await read(second.nextPageToken)).ids).toEqual([...play.ids('a4', 'a5', 'a6')].reverse());
    const looks = openCached(of.id);
    await looks.evictAll();
    looks.close();
    expect((await read(second.nextPageToken)).ids).toEqual([...play.ids('a4', 'a5', 'a6')].reverse());
    expect(await wholeHome(of, 'rita', 3)).toEqual((await of.oracle('rita')).home);
  });

  it('is complete beyond its floor after a follow brings in more than it may hold', async () => {
    const of = await small.tenant();
    const play = of.cast();
    await play.play('rita follows ben; ben posts 3 times as b; ada posts 20 times as a');
    await small.settle();
    expect(await wholeHome(of, 'rita', 2)).toHaveLength(3);
    await play.play('rita follows ada');
    expect(await wholeHome(of, 'rita', 2)).toEqual((await of.oracle('rita')).home);
    await small.settle();
    await play.play('ben posts 4 times as c');
    await small.settle();
    for (const pageSize of [1, 2, 50])
      expect(await wholeHome(of, 'rita', pageSize)).toEqual((await of.oracle('rita')).home);
    await play.play('rita unfollows ada; rita follows ada');
    await small.settle();
    for (const pageSize of [1, 2, 50])
      expect(await wholeHome(of, 'rita', pageSize)).toEqual((await of.oracle('rita')).home);
  });
});
