/**
 * Owns the promise that who may see a post does not depend on where they look: every state of post, author and relation, on every surface,
 * by both protocols, gives one verdict, which is the expected one and the oracle's. A change holds for the request that follows its answer.
 *
 * Three times: with timelines that are rebuilt by the first look, with timelines that were there before the scene, so that fan-out brought it, and with an author who is pulled, so that
 * the timeline does not hold the post and the list of the author does.
 */
import { Code, ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { PostView } from '../../src/gen/tributary/v1/post_pb.ts';
import { openCached } from '../harness/cached.ts';
import { type Clients, PROTOCOLS } from '../harness/clients.ts';
import type { OracleView } from '../harness/oracle.ts';
import type { Cast } from '../harness/play.ts';
import { storeClass } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';

let service: TestService;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(() => service.stop());

/** Ada's post, and what ben, who stands well with everybody, made of it. Rita follows both. */
const SCENE = `
  rita follows ada, ben; ben follows ada
  ada posts "the post" as post
  ben replies to post "yes" as reply
  ben reposts post as repost
  ben quotes post "look" as quote
  ada posts "never for anybody" to nobody as secret
  ada posts "for followers" to followers as narrow`;

/** What rita is shown. `target`: a post that is shown without the post it names. */
interface Expected {
  readonly post: 'shown' | 'hidden';
  readonly home: 'shown' | 'hidden';
  readonly repost: 'shown' | 'hidden';
  /** Reply and quote: with their target, without it, or not at all. */
  readonly quote: 'whole' | 'bare' | 'hidden';
  readonly narrow: 'shown' | 'hidden';
}

const ALL: Expected = { post: 'shown', home: 'shown', repost: 'shown', quote: 'whole', narrow: 'shown' };
const NOTHING: Expected = { post: 'hidden', home: 'hidden', repost: 'hidden', quote: 'hidden', narrow: 'hidden' };
/** The target alone is hidden, not its author. */
const TARGET_GONE: Expected = { post: 'hidden', home: 'hidden', repost: 'hidden', quote: 'bare', narrow: 'shown' };
const AUTHOR_GONE: Expected = { ...TARGET_GONE, narrow: 'hidden' };

const STATES: readonly {
  readonly state: string;
  readonly script: string;
  readonly expected: Expected;
  readonly waitMs?: number;
}[] = [
  { state: 'nothing stands between them', script: '', expected: ALL },
  { state: 'the viewer blocks the author', script: 'rita blocks ada', expected: NOTHING },
  { state: 'the author blocks the viewer', script: 'ada blocks rita', expected: NOTHING },
  { state: 'the viewer mutes the author', script: 'rita mutes ada', expected: NOTHING },
  { state: 'the viewer mutes the author for a while', script: 'rita mutes ada for 2 minutes', expected: NOTHING },
  { state: 'a mute has ended by time', script: 'rita mutes ada for 1 second', expected: ALL, waitMs: 1_001 },
  { state: 'a mute was ended', script: 'rita mutes ada; rita unmutes ada', expected: ALL },
  { state: 'the author mutes the viewer', script: 'ada mutes rita', expected: ALL },
  {
    state: 'a block was ended and the follow renewed',
    script: 'ada blocks rita; ada unblocks rita; rita follows ada',
    expected: ALL,
  },
  {
    state: 'a block was ended and the follow not renewed',
    script: 'ada blocks rita; ada unblocks rita',
    expected: { ...ALL, home: 'hidden', narrow: 'hidden' },
  },
  {
    state: 'the viewer follows no more',
    script: 'rita unfollows ada',
    expected: { ...ALL, home: 'hidden', narrow: 'hidden' },
  },
  { state: 'the author is protected and followed', script: 'ada is protected', expected: ALL },
  {
    state: 'the author is protected and removed the follower',
    script: 'ada is protected; ada removes follower rita',
    expected: AUTHOR_GONE,
  },
  {
    state: 'the author was protected',
    script: 'ada is protected; ada removes follower rita; ada is open',
    expected: { ...ALL, home: 'hidden', narrow: 'hidden' },
  },
  { state: 'the author is suspended', script: 'ada is suspended', expected: AUTHOR_GONE },
  { state: 'the author was suspended', script: 'ada is suspended; ada is restored', expected: ALL },
  { state: 'the post is deleted', script: 'ada deletes post', expected: TARGET_GONE },
  { state: 'the post is hidden by moderation', script: 'moderation hides post', expected: TARGET_GONE },
  { state: 'the post is marked by moderation', script: 'moderation marks post', expected: ALL },
  { state: 'moderation changed its mind', script: 'moderation hides post; moderation clears post', expected: ALL },
  { state: 'the post is for followers and the viewer is one', script: 'ada shows post to followers', expected: ALL },
  {
    state: 'the post is for followers and the viewer is none',
    script: 'ada shows post to followers; rita unfollows ada',
    expected: AUTHOR_GONE,
  },
  {
    state: 'the post went from public to followers to private',
    script: 'ada shows post to followers; ada shows post to nobody',
    expected: TARGET_GONE,
  },
  {
    state: 'the post went private and back',
    script: 'ada shows post to nobody; ada shows post to everybody',
    expected: ALL,
  },
  {
    state: 'the one who passed it on is muted',
    script: 'rita mutes ben',
    expected: { ...ALL, repost: 'hidden', quote: 'hidden' },
  },
  { state: 'the one who passed it on is followed no more', script: 'rita unfollows ben', expected: ALL },
];

const LABELS = ['post', 'reply', 'repost', 'quote', 'secret', 'narrow'] as const;
const VIEWERS = ['rita', 'ada', 'ben', 'zoe'] as const;

const CASES = STATES.flatMap((state) => [
  { ...state, timelines: 'rebuilt' },
  { ...state, timelines: 'pushed' },
  { ...state, timelines: 'without ada, who is pulled' },
]);

describe.each(CASES)(
  'when $state, with timelines that are $timelines',
  ({ script, expected, timelines, waitMs = 0 }) => {
    it('every surface gives one verdict', async () => {
      const tenant = await service.tenant();
      const cast = tenant.cast();
      if (timelines === 'pushed') {
        await cast.play('rita follows ada, ben; ben follows ada');
        for (const viewerId of VIEWERS) await tenant.timeline.getHomeTimeline({ viewerId });
      }
      await cast.play(SCENE);
      if (timelines === 'pushed') {
        await service.settle();
        // Facts as they stand before the change are cached.
        for (const viewerId of VIEWERS) await tenant.timeline.getHomeTimeline({ viewerId });
      }
      if (timelines === 'without ada, who is pulled') {
        await service.settle();
        await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass: 'pull' });
        for (const viewerId of VIEWERS) await tenant.timeline.getHomeTimeline({ viewerId });
        const cached = openCached(tenant.id);
        expect(await cached.entries('rita')).not.toContain(cast.post('post').postId);
        cached.close();
      }
      await cast.play(script);
      service.clock.advance(waitMs);
      try {
        // What became hidden is hidden now; what may be seen again may take as long as fan-out takes.
        for (const viewerId of VIEWERS) {
          const { home } = await tenant.oracle(viewerId);
          const { entries } = await tenant.timeline.getHomeTimeline({ viewerId, pageSize: 100 });
          expect(home).toEqual(expect.arrayContaining(entries.map((view) => view.post?.postId)));
        }
        await service.settle();
        for (const viewer of VIEWERS) {
          const oracle = await tenant.oracle(viewer);
          for (const protocol of PROTOCOLS) await expectOneVerdict(tenant.by[protocol], cast, viewer, oracle);
        }
        expectAsExpected(cast, await tenant.oracle('rita'), expected);
      } finally {
        service.clock.step(-waitMs);
      }
    });
  },
);

describe('between a viewer and the author of a target', () => {
  it.each(['rita blocks cyd', 'cyd blocks rita', 'rita mutes cyd'])(
    '"%s" hides reposts, replies and quotes by others',
    async (script) => {
      const tenant: TestTenant = await service.tenant();
      const cast = tenant.cast();
      await cast.play(`rita follows ben, dan, eve; cyd posts "mine" as post; ben reposts post as repost; dan replies to post "yes" as reply; eve quotes post "look" as quote
      ben posts "nothing to do with it" as secret; dan posts "nor this" as narrow; ${script}`);
      for (const protocol of PROTOCOLS)
        await expectOneVerdict(tenant.by[protocol], cast, 'rita', await tenant.oracle('rita'));
      const { home } = await tenant.oracle('rita');
      expect(home).toEqual(cast.ids('narrow', 'secret'));
    },
  );
});

/** What each surface shows of each label: the ID of the post and of what is shown inside it. */
async function expectOneVerdict(clients: Clients, cast: Cast, viewerId: string, oracle: OracleView): Promise<void> {
  const verdict = (postId: string) => {
    const entry = oracle.entry(postId);
    return entry && { postId, replyTo: entry.replyTo, repostOf: entry.repostOf };
  };
  const ids = cast.ids(...LABELS);
  const expected = ids.map(verdict);

  const singles = await Promise.all(ids.map((postId) => single(clients, viewerId, postId)));
  expect(singles, `single posts for ${viewerId}`).toEqual(expected);

  const batch = await clients.posts.batchGetPosts({ viewerId, postIds: [...ids] });
  expect(batch.views.map(shownOf), `batch for ${viewerId}`).toEqual(expected.filter((entry) => entry !== undefined));

  const home = await clients.timeline.getHomeTimeline({ viewerId, pageSize: 100 });
  expect(home.entries.map(shownOf), `home of ${viewerId}`).toEqual(oracle.home.map(verdict));

  for (const authorId of ['ada', 'ben', 'cyd', 'dan', 'eve']) {
    const list = await clients.posts.listAuthorPosts({ viewerId, authorId, pageSize: 100 });
    expect(list.entries.map(shownOf), `posts of ${authorId} for ${viewerId}`).toEqual(
      oracle.byAuthor(authorId).map(verdict),
    );
  }
}

async function single(clients: Clients, viewerId: string, postId: string) {
  try {
    const { view } = await clients.posts.getPost({ viewerId, postId });
    return view && shownOf(view);
  } catch (error) {
    if (error instanceof ConnectError && error.code === Code.NotFound) return undefined;
    throw error;
  }
}

function shownOf(view: PostView) {
  return { postId: view.post?.postId, replyTo: view.replyTo?.postId, repostOf: view.repostOf?.postId };
}

function expectAsExpected(cast: Cast, oracle: OracleView, expected: Expected): void {
  const entry = (label: string) => oracle.entry(cast.post(label).postId);
  const shown = (label: string) => (entry(label) ? 'shown' : 'hidden');
  const inner = (label: 'reply' | 'quote') => {
    const found = entry(label);
    if (!found) return 'hidden';
    return (label === 'reply' ? found.replyTo : found.repostOf) === undefined ? 'bare' : 'whole';
  };
  expect({
    post: shown('post'),
    home: oracle.home.includes(cast.post('post').postId) ? 'shown' : 'hidden',
    repost: shown('repost'),
    quote: inner('quote'),
    reply: inner('reply'),
    narrow: shown('narrow'),
    secret: shown('secret'),
  }).toEqual({ ...expected, reply: expected.quote, secret: 'hidden' });
}
