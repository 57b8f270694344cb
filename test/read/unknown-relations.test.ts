/** Owns what is shown while nobody can say how a viewer stands to an author: nothing of that author, on any surface. Not to know of a block is not to know that there is none. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { PostView } from '../../src/gen/tributary/v1/post_pb.ts';
import { openCached } from '../harness/cached.ts';
import { type Clients, PROTOCOLS, refusalFrom } from '../harness/clients.ts';
import { labels } from '../harness/play.ts';
import { storeClass } from '../harness/rows.ts';
import { startTestService, type TestService } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

let service: TestService;
beforeAll(async () => {
  service = await startTestService({ env: { DATABASE_LOCK_TIMEOUT_MS: '100' } });
});
afterAll(() => service.stop());

const VIEWER = { viewerId: 'rita' } as const;

/** Every way to see posts. A refusal must be one that a retry can mend, and counts as nothing shown. */
function surfacesOf(clients: Clients, postIds: readonly string[]): readonly (() => Promise<readonly PostView[]>)[] {
  const { timeline, posts } = clients;
  return [
    async () => (await timeline.getHomeTimeline(VIEWER)).entries,
    async () => (await posts.batchGetPosts({ ...VIEWER, postIds: [...postIds] })).views,
    ...['mia', 'nat', 'lou'].map(
      (authorId) => async () => (await posts.listAuthorPosts({ ...VIEWER, authorId })).entries,
    ),
    ...postIds.map((postId) => async () => {
      const { view } = await posts.getPost({ ...VIEWER, postId });
      return view ? [view] : [];
    }),
  ];
}

it('nobody who may be blocked or muted is shown, be they pushed or pulled, and all is well once it is known', async () => {
  const tenant = await service.tenant();
  const cast = tenant.cast();
  await storeClass(service.database, tenant.id, { authors: ['lou'], fanoutClass: 'pull' });
  await cast.play(`rita follows mia, nat, lou, ada; mia posts "m" as m1; nat posts "n" as n1; lou posts "l" as l1
    ada posts 2 times as a; ada quotes m1 "see" as a3; ada replies to l1 "yes" as a4`);
  await service.settle();
  await cast.play('rita mutes mia, lou; nat blocks rita');
  expect(await wholeHome(tenant, 'rita')).toEqual([...cast.ids(...labels('a', 2))].reverse());
  await service.settle();

  const hidden = cast.ids('m1', 'n1', 'l1', 'a3', 'a4');
  const cached = openCached(tenant.id);
  await cached.evict('rel');
  const holder = await service.database.session();
  await holder.query('BEGIN');
  await holder.query('LOCK TABLE mutes, blocks IN ACCESS EXCLUSIVE MODE');
  for (const protocol of PROTOCOLS) {
    for (const read of surfacesOf(tenant.by[protocol], hidden)) {
      const views = await read().catch((fault: unknown) => {
        expect(refusalFrom(fault)).toMatchObject({ code: expect.stringMatching(/^(UNAVAILABLE|DEADLINE_EXCEEDED)$/) });
        return [];
      });
      const shown = views.flatMap((view) => [view.post, view.replyTo, view.repostOf].map((post) => post?.postId));
      expect(hidden.filter((postId) => shown.includes(postId))).toEqual([]);
    }
  }
  await holder.query('ROLLBACK');

  // Nor was anything untrue stored meanwhile.
  for (const cold of [false, true]) {
    if (cold) await cached.evictAll();
    expect(await wholeHome(tenant, 'rita')).toEqual((await tenant.oracle('rita')).home);
  }
  cached.close();
});
