/** Owns the promise that a tenant sees nothing of another, by any call or token, even where both use the same users and the same post IDs. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { composePostId } from '../../src/timeline/ids.ts';
import { PROTOCOLS, refusalOf } from '../harness/clients.ts';
import { storePosts } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { wholeAuthorList, wholeHome } from '../harness/walk.ts';

let service: TestService;
let here: TestTenant;
let there: TestTenant;
/** The same IDs in both tenants. */
let shared: readonly string[];
/** An ID that only the other tenant has. */
let foreign: string;

beforeAll(async () => {
  service = await startTestService();
  here = await service.tenant();
  there = await service.tenant();
  const first = composePostId({ ms: service.clock.nowMs() - 5_000, generator: 100, sequence: 0 });
  const ids = Array.from({ length: 10 }, (_, at) => first + at);
  shared = ids.map(String);
  await storePosts(
    service.database,
    here.id,
    ids.map((postId) => ({ author: 'ada', postId, text: `here ${postId}` })),
  );
  await storePosts(
    service.database,
    there.id,
    ids.map((postId) => ({ author: 'ada', postId, text: `there ${postId}` })),
  );
  await here.cast().play('rita follows ada; ada is open');
  await there.cast().play('rita follows ada, ben; sam follows ada; rita blocks cyd; rita mutes dan');
  foreign = (await there.posts.publishPost({ authorId: 'ben', text: 'there alone' })).post?.postId ?? '';
});
afterAll(() => service.stop());

describe.each(PROTOCOLS)('by %s', (protocol) => {
  it('every read gives a tenant its own posts under the same IDs', async () => {
    for (const [tenant, word] of [
      [here, 'here'],
      [there, 'there'],
    ] as const) {
      const { posts, timeline } = tenant.by[protocol];
      const { entries } = await timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 100 });
      const list = await posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ada' });
      const batch = await posts.batchGetPosts({ viewerId: 'rita', postIds: [...shared] });
      const single = await posts.getPost({ viewerId: 'rita', postId: shared[0] ?? '' });
      const texts = [...entries, ...list.entries, ...batch.views, single.view].map((view) => view?.post?.text ?? '');
      expect(texts.length).toBeGreaterThanOrEqual(31);
      for (const text of texts) expect(text.startsWith(word)).toBe(true);
    }
  });

  it('no read finds what only the other tenant has', async () => {
    const { posts, timeline, graph } = here.by[protocol];
    expect((await refusalOf(posts.getPost({ viewerId: 'ben', postId: foreign }))).reason).toBe('POST_NOT_FOUND');
    expect((await posts.batchGetPosts({ viewerId: 'ben', postIds: [foreign] })).views).toEqual([]);
    expect((await posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ben' })).entries).toEqual([]);
    expect((await timeline.getHomeTimeline({ viewerId: 'ben' })).entries).toEqual([]);
    expect((await timeline.getHomeHead({ viewerId: 'rita' })).newestPostId).toBe(shared.at(-1));
    expect((await graph.listFollowers({ userId: 'ada' })).userIds).toEqual(['rita']);
    expect((await graph.listFollowing({ userId: 'sam' })).userIds).toEqual([]);
    expect(await graph.getRelationship({ viewerId: 'rita', otherId: 'cyd' })).toMatchObject({ blocking: false });
    expect(await graph.getRelationship({ viewerId: 'rita', otherId: 'dan' })).toMatchObject({ muting: false });
  });

  it('no write touches what only the other tenant has', async () => {
    const { posts } = here.by[protocol];
    for (const call of [
      () => posts.updatePost({ authorId: 'ben', postId: foreign, text: 'changed' }),
      () => posts.deletePost({ authorId: 'ben', postId: foreign }),
    ]) {
      expect((await refusalOf(call())).reason).toBe('POST_NOT_FOUND');
    }
    for (const call of [
      () => posts.publishPost({ authorId: 'rita', text: 'hm', replyToPostId: foreign }),
      () => posts.publishPost({ authorId: 'rita', repostOfPostId: foreign }),
    ]) {
      expect((await refusalOf(call())).reason).toBe('TARGET_NOT_FOUND');
    }
    expect((await there.posts.getPost({ viewerId: 'ben', postId: foreign })).view?.post?.text).toBe('there alone');
  });

  it('no token of the other tenant opens', async () => {
    const theirs = await there.by[protocol].timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 1 });
    const list = await there.by[protocol].posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ada', pageSize: 1 });
    const followers = await there.by[protocol].graph.listFollowers({ userId: 'ada', pageSize: 1 });
    const following = await there.by[protocol].graph.listFollowing({ userId: 'rita', pageSize: 1 });
    for (const token of [
      theirs.nextPageToken,
      list.nextPageToken,
      followers.nextPageToken,
      following.nextPageToken,
      theirs.headToken,
    ])
      expect(token).not.toBe('');
    const { posts, timeline, graph } = here.by[protocol];
    for (const call of [
      () => timeline.getHomeTimeline({ viewerId: 'rita', pageToken: theirs.nextPageToken }),
      () => timeline.getHomeTimeline({ viewerId: 'rita', pageToken: theirs.headToken }),
      () => timeline.getHomeHead({ viewerId: 'rita', sinceToken: theirs.headToken }),
      () => posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ada', pageToken: list.nextPageToken }),
      () => graph.listFollowers({ userId: 'ada', pageToken: followers.nextPageToken }),
      () => graph.listFollowing({ userId: 'rita', pageToken: following.nextPageToken }),
    ]) {
      expect((await refusalOf(call())).reason).toBe('INVALID_PAGE_TOKEN');
    }
  });
});

it('what happens in one tenant changes nothing in the other', async () => {
  const before = { home: await wholeHome(here, 'rita'), list: await wholeAuthorList(here, 'rita', 'ada') };
  expect(before.home).toHaveLength(10);
  const cast = there.cast();
  await cast.play('rita blocks ada; ada is protected');
  for (const postId of shared.slice(0, 5)) await there.posts.deletePost({ authorId: 'ada', postId });
  await cast.play('ada is suspended');
  expect({ home: await wholeHome(here, 'rita'), list: await wholeAuthorList(here, 'rita', 'ada') }).toEqual(before);
  expect(await here.graph.getRelationship({ viewerId: 'rita', otherId: 'ada' })).toMatchObject({
    following: true,
    blocking: false,
  });
});

it('a key that is unknown, revoked or spelled wrongly opens nothing', async () => {
  const key = await service.service.administer.createKey(AbortSignal.timeout(5_000), {
    tenant: here.id,
    role: 'service',
  });
  const ask = async (authorization: string | undefined): Promise<number> => {
    const response = await fetch(
      `http://127.0.0.1:${service.service.httpPort}/tributary.v1.TimelineService/GetHomeTimeline`,
      {
        method: 'POST',
        headers: { 'content-type': 'application/json', ...(authorization === undefined ? {} : { authorization }) },
        body: '{"viewerId":"rita"}',
      },
    );
    await response.arrayBuffer();
    return response.status;
  };
  for (const authorization of [
    undefined,
    '',
    'Bearer',
    'Bearer ',
    `Basic ${key}`,
    key,
    `Bearer ${key}x`,
    `Bearer ${key.slice(0, -1)}`,
    'Bearer tk_',
  ]) {
    expect(await ask(authorization), String(authorization)).toBe(401);
  }
  expect(await service.service.administer.revokeKey(AbortSignal.timeout(5_000), key)).toBe(true);
  expect(await ask(`Bearer ${key}`)).toBe(401);
});
