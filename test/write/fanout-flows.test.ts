/** Owns what followers see of the asynchronous way from a commit to their timelines, through the whole service: nothing skipped, nothing doubled, nothing that was taken back. */
import { randomUUID } from 'node:crypto';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { PUBLISH, publishValues } from '../../src/store/postgres/publish.ts';
import { composePostId } from '../../src/timeline/ids.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { createTestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import { type Cast, labels } from '../harness/play.ts';
import { storeFollowers } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

let service: TestService;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  service = await startTestService({ env: { FANOUT_FOLLOWER_PAGE: '2', FANOUT_SMALL_CONCURRENCY: '8' } });
});
afterAll(() => service.stop());
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
});
afterEach(() => cached.close());

const newestFirst = (...names: readonly string[]) => [...cast.ids(...names)].sort((a, b) => Number(b) - Number(a));

describe('transactions that commit out of order', () => {
  it('reach the followers’ timelines all the same, the one with the smaller ID last, and a gap holds nothing up', async () => {
    await cast.play('rita follows ada, ben, cyd');
    await service.settle();
    expect(await wholeHome(tenant, 'rita')).toEqual([]);
    const publishIn = async (author: string, sequence: number) => {
      const session = await service.database.session();
      await session.query('BEGIN');
      const postId = composePostId({ ms: Date.now() - 1_000, generator: 103, sequence });
      const post = { tenant: tenant.id, author: userId(author), postId, text: author, media: [] };
      await session.query(PUBLISH.text, [...publishValues({ ...post, plainRepost: false, visibility: 'public' })]);
      return { session, postId: String(postId) };
    };
    const first = await publishIn('ada', 1);
    const gap = await publishIn('cyd', 2);
    const second = await publishIn('ben', 3);
    await second.session.query('COMMIT');
    await eventually(async () => expect(await cached.entries('rita')).toEqual([second.postId]));
    await gap.session.query('ROLLBACK');
    await first.session.query('COMMIT');
    await service.settle();
    expect(await cached.entries('rita')).toEqual([second.postId, first.postId]);
    expect(await wholeHome(tenant, 'rita')).toEqual([second.postId, first.postId]);
  });
});

describe('fan-out that stands still and goes on', () => {
  it('leaves no hole: five posts before, five after, all ten in order', async () => {
    const database = await createTestDatabase();
    // The same queue for both.
    const env = { QUEUE_PREFIX: `still-${randomUUID()}` };
    const front = await startTestService({ database, env: { ...env, TRIBUTARY_ROLE: 'api' } });
    const of = await front.tenant();
    const play = of.cast();
    await play.play('rita follows ada');
    expect(await wholeHome(of, 'rita')).toEqual([]);
    await play.play('ada posts 5 times as a');
    const back = await startTestService({ database, env: { ...env, TRIBUTARY_ROLE: 'worker' } });
    const relay = await startTestService({ database, env: { ...env, TRIBUTARY_ROLE: 'relay' } });
    await play.play('ada posts 5 times as b');
    await back.settle();
    const looks = openCached(of.id);
    const expected = [...play.ids(...labels('a', 5), ...labels('b', 5))].reverse();
    expect(await looks.entries('rita')).toEqual(expected);
    expect(await wholeHome(of, 'rita')).toEqual(expected);
    looks.close();
    await Promise.all([front.stop(), back.stop(), relay.stop()]);
    await database.drop();
  });
});

describe('jobs and events that are run again', () => {
  it('all at once, in any order, change nothing', async () => {
    await cast.play('rita follows ada; ruth follows ada');
    await wholeHome(tenant, 'rita');
    await wholeHome(tenant, 'ruth');
    await cast.play(
      'ada posts 10 times as a; ada deletes a3; rita unfollows ada; rita follows ada; ruth unfollows ada',
    );
    await service.settle();
    // The deleted post may have been pushed before it was deleted; the first reader takes it off the timeline.
    expect(await wholeHome(tenant, 'rita')).toHaveLength(9);
    await eventually(async () => expect(await cached.entries('rita')).toHaveLength(9));
    const before = [await cached.entries('rita'), await wholeHome(tenant, 'rita'), await wholeHome(tenant, 'ruth')];
    for (let round = 0; round < 3; round += 1) {
      await service.database.sql(
        `UPDATE fanout_jobs SET done_at = NULL, lease_until = NULL, follower_cursor = '', hinted_at = '-infinity' WHERE tenant_id = $1`,
        [tenant.id],
      );
      await service.database.sql('UPDATE outbox SET done_at = NULL, lease_until = NULL WHERE tenant_id = $1', [
        tenant.id,
      ]);
      await service.settle();
    }
    const after = [await cached.entries('rita'), await wholeHome(tenant, 'rita'), await wholeHome(tenant, 'ruth')];
    expect(after).toEqual(before);
    expect(after[1]).toEqual((await tenant.oracle('rita')).home);
  });
});

describe('a post that is deleted while it is fanned out', () => {
  it('is shown to nobody from the answer on, and is on no timeline that was read after the drain', async () => {
    const readers = Array.from({ length: 40 }, (_, at) => `reader-${String(at).padStart(2, '0')}`);
    await storeFollowers(service.database, tenant.id, { followee: 'ada', followers: readers });
    await Promise.all(readers.map((reader) => wholeHome(tenant, reader)));
    for (let round = 0; round < 3; round += 1) {
      await cast.play(`ada posts "ghost" as ghost${round}`);
      const { postId } = cast.post(`ghost${round}`);
      // Some have it already, the others not yet.
      await eventually(async () => {
        const [row] = await service.database.sql<{ delivered: number; done: boolean }>(
          'SELECT delivered, done_at IS NOT NULL AS done FROM fanout_jobs WHERE tenant_id = $1 AND post_id = $2',
          [tenant.id, postId],
        );
        expect(row?.done || (row?.delivered ?? 0) > 1).toBe(true);
      });
      await tenant.posts.deletePost({ authorId: 'ada', postId });
      const shown = await Promise.all(readers.map((reader) => wholeHome(tenant, reader)));
      expect(shown.flat()).not.toContain(postId);
      await service.settle();
      await Promise.all(readers.map((reader) => wholeHome(tenant, reader)));
      await eventually(async () => {
        for (const reader of readers) expect(await cached.entries(reader)).not.toContain(postId);
      });
    }
  });
});

describe('50 toggles of a follow with eight workers', () => {
  const toggle = async (times: number): Promise<void> => {
    for (let round = 0; round < times; round += 1) await cast.play('rita unfollows ada; rita follows ada');
  };

  it('that end unfollowed leave nothing on home, and a new post does not come', async () => {
    await cast.play('rita follows ada; ada posts 10 times as a; rita posts "own" as own');
    await wholeHome(tenant, 'rita');
    await toggle(24);
    await cast.play('rita unfollows ada; ada posts "after" as after');
    expect(await wholeHome(tenant, 'rita')).toEqual(cast.ids('own'));
    await service.settle();
    expect(await wholeHome(tenant, 'rita')).toEqual(cast.ids('own'));
    // Nothing is left over either.
    expect(await cached.entries('rita')).toEqual(cast.ids('own'));
  });

  it('that end followed give each recent post once', async () => {
    await cast.play('rita follows ada; ada posts 10 times as a');
    await wholeHome(tenant, 'rita');
    await cast.play('rita unfollows ada');
    await toggle(24);
    await cast.play('rita follows ada; ada posts "after" as after');
    await service.settle();
    const expected = newestFirst(...labels('a', 10), 'after');
    expect(await wholeHome(tenant, 'rita')).toEqual(expected);
    expect(await cached.entries('rita')).toEqual(expected);
  });

  it('by many at once end in one state, whatever it is', async () => {
    await cast.play('rita follows ada; ada posts 10 times as a');
    await wholeHome(tenant, 'rita');
    const pair = { followerId: 'rita', followeeId: 'ada' };
    await Promise.all(
      Array.from({ length: 50 }, (_, at) => (at % 2 === 0 ? tenant.graph.unfollow(pair) : tenant.graph.follow(pair))),
    );
    await service.settle();
    expect(await wholeHome(tenant, 'rita')).toEqual((await tenant.oracle('rita')).home);
  });
});
