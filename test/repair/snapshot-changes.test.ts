/** Owns what happens between the two statements of a snapshot, which see two moments: whatever changes there, the timeline that is rebuilt from them gives the pages that it should. */
import { afterAll, beforeAll, expect, inject, it } from 'vitest';
import { Completeness } from '../../src/gen/tributary/v1/author_pb.ts';
import { createRebuild } from '../../src/repair/rebuild.ts';
import { systemClock, systemRandom } from '../../src/runtime.ts';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import { loadSnapshot } from '../../src/store/postgres/home-snapshot.ts';
import { composePostId, type UserId } from '../../src/timeline/ids.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { type StoredPost, storeClass, storeFollowees, storePosts } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';
import { type CacheUnderTest, newToken, openCache } from '../store/redis/cache-under-test.ts';

/** More than the follows of which newest posts are walked by time first, so that both statements find something. */
const CROWD = Array.from({ length: 520 }, (_, at) => `silent-${at}`);
/** Posts of strangers that fill the window of the first statement, all but a few places. */
const STRANGE = 480;
const HOUR_MS = 3_600_000;

let service: TestService;
let tenant: TestTenant;
let cached: Cached;
let under: CacheUnderTest;
let product: Database;
beforeAll(async () => {
  service = await startTestService();
  tenant = await service.tenant();
  cached = openCached(tenant.id);
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
  product = createDatabase({
    url: service.database.url,
    pool: 'elsewhere',
    connectionsMax: 2,
    acquireTimeoutMs: 10_000,
    statementTimeoutMs: 20_000,
    lockTimeoutMs: 10_000,
    waitersMax: 10,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
  const nowMs = service.clock.nowMs();
  let sequence = 0;
  const at = (author: string, hoursAgo: number): StoredPost => {
    sequence += 1;
    return {
      author,
      postId: composePostId({ ms: nowMs - hoursAgo * HOUR_MS + sequence, generator: 121, sequence: 0 }),
    };
  };
  // Everybody who plays a part has posts that the first statement finds and posts that only the second does.
  const players = ['ada', 'ben', 'cyd', 'pam'];
  await storePosts(service.database, tenant.id, [
    ...players.flatMap((author) => [at(author, 30), at(author, 29), at(author, 2), at(author, 1)]),
    ...CROWD.slice(0, 30).map((author) => at(author, 28)),
    ...Array.from({ length: STRANGE }, () => at('stranger', 3)),
  ]);
});
afterAll(async () => {
  cached.close();
  await product.close();
  await under.close();
  await service.stop();
});

/** Rebuilds the viewer's timeline as another process would, with `change` between the statements. */
async function rebuildAround(viewer: UserId, change: () => Promise<unknown>): Promise<readonly string[]> {
  const statements: string[] = [];
  const stopped: Database = {
    ...product,
    async query(signal, statement, values) {
      if (statement.name === 'home-snapshot-by-author') await change();
      statements.push(statement.name);
      return product.query(signal, statement, values);
    },
  };
  const { cap, stride } = service.config.timeline;
  const rebuild = createRebuild<{ readonly viewer: UserId }>({
    clock: systemClock,
    sets: under.timelines({ cap, stride, rebuildLeaseMs: 60_000 }),
    nameOf: (of) => of.viewer,
    newToken,
    random: systemRandom,
    leaseMs: 60_000,
    concurrencyMax: 1,
    loadSnapshot: async (signal, of) => {
      const snapshot = await loadSnapshot(stopped, signal, { ...of, cap });
      expect(statements).toEqual(['home-snapshot-by-time', 'home-snapshot-by-author']);
      return snapshot;
    },
    events: { rebuilt: () => undefined, joined: () => undefined, failed: () => undefined },
  });
  expect(await rebuild(tenant.call(60_000), { viewer }, 'absent')).toBe('rebuilt');
  return (await cached.entries(viewer)) ?? [];
}

const play = (text: string) => async (): Promise<void> => {
  await tenant.cast().play(text);
  await service.settle();
};
const classOf = (author: string, fanoutClass: 'push' | 'both' | 'pull', epoch: number) =>
  storeClass(service.database, tenant.id, { authors: [author], fanoutClass, epoch });

it.each([
  { what: 'a post', viewer: 'at-a-post', change: play('ada posts "between"') },
  { what: 'a follow', viewer: 'at-a-follow', change: play('at-a-follow follows ben'), isNew: 'ben' },
  { what: 'an unfollow', viewer: 'at-an-unfollow', change: play('at-an-unfollow unfollows cyd') },
  {
    what: 'an unfollow and a follow again',
    viewer: 'at-both',
    change: play('at-both unfollows cyd; at-both follows cyd; cyd posts "back"'),
  },
  {
    what: 'an author on the way from being pulled to being pushed',
    viewer: 'at-a-way-down',
    before: () => classOf('pam', 'pull', 1),
    change: async () => {
      await classOf('pam', 'both', 1);
      await play('pam posts "pushed again, and pulled still"')();
    },
  },
  {
    what: 'an author on the way to being pulled',
    viewer: 'at-a-way-up',
    before: () => classOf('pam', 'push', 1),
    change: async () => {
      await classOf('pam', 'both', 2);
      await play('pam posts "pushed, and pulled already"')();
    },
  },
])('$what', async ({ viewer, before, change, isNew }) => {
  await before?.();
  const followed = ['ada', 'ben', 'cyd', 'pam'].filter((author) => author !== isNew);
  await storeFollowees(service.database, tenant.id, { follower: viewer, followees: [...CROWD, ...followed] });
  expect((await rebuildAround(userId(viewer), change)).length).toBeGreaterThan(30);
  const { home } = await tenant.oracle(viewer);
  expect(await wholeHome(tenant, viewer, 20)).toEqual(home);
  const page = await tenant.timeline.getHomeTimeline({ viewerId: viewer });
  expect(page.completeness).toBe(Completeness.COMPLETE);
  // From the timeline that was rebuilt, and not from another.
  expect((await cached.entries(viewer))?.length).toBeGreaterThan(30);
});
