/** Owns read-your-own-write where it is hardest: while a timeline is being built, right after that, and after a cache that was away for the write. */
import { afterEach, beforeEach, expect, inject, it } from 'vitest';
import type { Timelines } from '../../src/store/redis/timelines.ts';
import { type PostId, parsePostId } from '../../src/timeline/ids.ts';
import { completenessOf, idsOf, type OutageStage, openOutageStage } from '../degradation/outage-stage.ts';
import { eventually } from '../harness/eventually.ts';
import { type CacheUnderTest, newToken, openCache, soon, user } from '../store/redis/cache-under-test.ts';

let stage: OutageStage;
let under: CacheUnderTest;
let timelines: Timelines;
beforeEach(async () => {
  // Nobody fans out, so that no job can heal what is looked at here.
  stage = await openOutageStage({ TRIBUTARY_ROLE: 'api', REBUILD_LEASE_MS: '60000', REBUILD_WAIT_MS: '0' });
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
  timelines = under.timelines({ rebuildLeaseMs: 60_000 });
});
afterEach(async () => {
  await under.close();
  await stage.close();
});

async function publish(): Promise<{ readonly postId: string; readonly pending: boolean }> {
  const { post, ownTimelinePending } = await stage.tenant.posts.publishPost({ authorId: 'ada', text: 'mine' });
  return { postId: post?.postId ?? '', pending: ownTimelinePending };
}

it('holds while another process builds the timeline, and when it is done with what it loaded before', async () => {
  const first = await publish();
  await stage.cached.evict('tl');
  const ada = { tenant: stage.tenant.id, viewer: user('ada'), token: newToken() };
  expect(await timelines.begin(soon(), ada)).toBe('won');
  // The snapshot is taken here.
  const second = await publish();
  expect(second.pending).toBe(false);
  const building = await stage.home('ada');
  expect([completenessOf(building), idsOf(building)]).toEqual(['PARTIAL', [second.postId, first.postId]]);
  await timelines.addOlder(soon(), { ...ada, postIds: [parsePostId(first.postId) as PostId] });
  expect(await timelines.commit(soon(), { ...ada, floor: 0 })).toBe(true);
  const built = await stage.home('ada');
  expect([completenessOf(built), idsOf(built)]).toEqual(['COMPLETE', [second.postId, first.postId]]);
  const third = await publish();
  expect(idsOf(await stage.home('ada'))).toEqual([third.postId, second.postId, first.postId]);
});

it.each(['refuse', 'blackhole'] as const)(
  'holds while the cache is away (%s), and on the cached timeline as soon as it is back',
  async (fault) => {
    const first = await publish();
    await eventually(async () => expect(completenessOf(await stage.home('ada'))).toBe('COMPLETE'));
    await stage.redis[fault]();
    const second = await publish();
    expect(second.pending).toBe(true);
    expect(idsOf(await stage.home('ada'))).toEqual([second.postId, first.postId]);
    await eventually(async () => {
      await stage.home('ada');
      expect(await stage.scraped('tributary_breaker_state{dependency="cache"}')).toBeGreaterThan(0);
    });
    const third = await publish();
    expect(idsOf(await stage.home('ada'))).toEqual([third.postId, second.postId, first.postId]);
    expect(await stage.cached.entries('ada')).toEqual([first.postId]);
    await stage.redis.restore();
    await eventually(async () =>
      expect(await stage.cached.entries('ada')).toEqual([third.postId, second.postId, first.postId]),
    );
    await eventually(async () => {
      const page = await stage.home('ada');
      expect([completenessOf(page), idsOf(page)]).toEqual(['COMPLETE', [third.postId, second.postId, first.postId]]);
    });
    await eventually(async () => expect(await stage.scraped('tributary_own_posts_owed')).toBe(0));
  },
);
