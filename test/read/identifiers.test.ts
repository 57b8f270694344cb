/** Owns the promise that the largest post ID and others of 16 digits keep every digit on the whole way, by every protocol, in cursors, rows and the log. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PROTOCOLS } from '../harness/clients.ts';
import { storePosts } from '../harness/rows.ts';
import { createTestLog, startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { authorPages, homePages, walkNewer, walkOlder } from '../harness/walk.ts';

/** The greatest, its neighbours, neighbours of 16 digits that a double beyond 2^53 would merge, and IDs of fewer digits. */
const IDS = [
  '9007199254740991',
  '9007199254740990',
  '9007199254740989',
  '1009651914519692',
  '1009651914519661',
  '1009651914519660',
  '999999999999999',
  '4097',
  '4096',
  '10',
  '9',
  '1',
];

let service: TestService;
let tenant: TestTenant;
let emptyHeadToken: string;

beforeAll(async () => {
  service = await startTestService();
  tenant = await service.tenant();
  await tenant.cast().play('rita follows ada');
  emptyHeadToken = (await tenant.timeline.getHomeTimeline({ viewerId: 'rita' })).headToken;
  await storePosts(
    service.database,
    tenant.id,
    IDS.map((postId) => ({ author: 'ada', postId: Number(postId) })),
    { fanOut: true },
  );
  await service.settle();
  const target = { postId: Number(IDS[0]), author: 'ada' };
  await storePosts(service.database, tenant.id, [
    { author: 'ben', postId: 2_000, replyTo: target },
    { author: 'ben', postId: 2_001, repostOf: target, text: '' },
  ]);
});
afterAll(() => service.stop());

describe.each(PROTOCOLS)('by %s', (protocol) => {
  it.each([1, 5, 50])(
    'home and author pages by %i give all digits in strict order, walking both ways',
    async (pageSize) => {
      const clients = tenant.by[protocol];
      expect((await walkOlder(homePages(clients, 'rita', pageSize), { pageSize })).ids).toEqual(IDS);
      expect((await walkOlder(authorPages(clients, 'rita', 'ada', pageSize), { pageSize })).ids).toEqual(IDS);
      expect((await walkNewer(emptyHeadToken, homePages(clients, 'rita', pageSize), { pageSize })).ids).toEqual(
        [...IDS].reverse(),
      );
    },
  );

  it('single posts, batches, targets and heads give all digits', async () => {
    const { posts, timeline } = tenant.by[protocol];
    for (const postId of IDS)
      expect((await posts.getPost({ viewerId: 'rita', postId })).view?.post?.postId).toBe(postId);
    const { views } = await posts.batchGetPosts({ viewerId: 'rita', postIds: IDS });
    expect(views.map((view) => view.post?.postId)).toEqual(IDS);
    const { entries } = await posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ben' });
    expect(entries.map((view) => view.post?.repostOf?.postId ?? view.post?.replyTo?.postId)).toEqual([IDS[0], IDS[0]]);
    expect(entries.map((view) => view.repostOf?.postId ?? view.replyTo?.postId)).toEqual([IDS[0], IDS[0]]);
    expect((await timeline.getHomeHead({ viewerId: 'rita' })).newestPostId).toBe(IDS[0]);
  });

  it('a post can be answered, changed and deleted by its largest ID', async () => {
    const other = await service.tenant();
    const max = IDS[0] ?? '';
    await storePosts(service.database, other.id, [{ author: 'ada', postId: Number(max) }]);
    const { posts } = other.by[protocol];
    const reply = await posts.publishPost({ authorId: 'ben', text: 'yes', replyToPostId: max });
    expect(reply.post?.replyTo?.postId).toBe(max);
    expect((await posts.updatePost({ authorId: 'ada', postId: max, text: 'new' })).post?.postId).toBe(max);
    await posts.deletePost({ authorId: 'ada', postId: max });
    expect((await posts.batchGetPosts({ viewerId: 'ben', postIds: [max] })).views).toEqual([]);
    const events = await service.database.sql<{ id: string }>(
      "SELECT payload->>'postId' AS id FROM outbox WHERE tenant_id = $1 ORDER BY event_id",
      [other.id],
    );
    expect(events.map((event) => event.id)).toEqual([reply.post?.postId, max, max]);
  });

  it('a head token of the largest ID opens, and reads nothing newer', async () => {
    const page = await homePages(tenant.by[protocol], 'rita', 1)('');
    expect(page.ids).toEqual([IDS[0]]);
    expect((await walkNewer(page.headToken, homePages(tenant.by[protocol], 'rita', 1), { pageSize: 1 })).ids).toEqual(
      [],
    );
  });
});

it('users whose IDs are names of an object’s own parts follow, mute, post and are shown like any other', async () => {
  const odd = await service.tenant();
  const cast = odd.cast();
  await cast.play(`__proto__ follows constructor, toString; constructor posts "c" as c1; toString posts "t" as t1; __proto__ posts "p" as p1
    constructor is open; __proto__ is open; __proto__ mutes hasOwnProperty; constructor quotes p1 "see" as c2`);
  await service.settle();
  for (const protocol of PROTOCOLS) {
    const read = () => odd.by[protocol].timeline.getHomeTimeline({ viewerId: '__proto__' });
    const { entries, authors } = await read();
    expect(entries.map((view) => view.post?.postId)).toEqual(cast.ids('c2', 'p1', 't1', 'c1'));
    expect(Object.keys(authors).sort()).toEqual(['__proto__', 'constructor']);
    await cast.play('__proto__ mutes constructor');
    expect((await read()).entries.map((view) => view.post?.postId)).toEqual(cast.ids('p1', 't1'));
    await cast.play('__proto__ unmutes constructor');
  }
});

it('JSON spells IDs as strings', async () => {
  const response = await fetch(`http://127.0.0.1:${service.service.httpPort}/tributary.v1.PostService/GetPost`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${tenant.key}` },
    body: JSON.stringify({ viewerId: 'rita', postId: IDS[0] }),
  });
  expect(await response.text()).toContain('"postId":"9007199254740991"');
});

it('an outbox event, a fan-out job and the log spell an ID as it was answered', async () => {
  const { post } = await tenant.posts.publishPost({ authorId: 'ada', text: 'hi' });
  const postId = post?.postId ?? '';
  const [event] = await service.database.sql<{ id: string }>(
    "SELECT payload->>'postId' AS id FROM outbox WHERE tenant_id = $1 ORDER BY event_id DESC LIMIT 1",
    [tenant.id],
  );
  const [job] = await service.database.sql<{ id: string }>(
    'SELECT post_id::text AS id FROM fanout_jobs WHERE tenant_id = $1 AND post_id = $2',
    [tenant.id, postId],
  );
  expect([event?.id, job?.id]).toEqual([postId, postId]);
  const lines: string[] = [];
  createTestLog(lines).info({ postId: Number(IDS[0]), versions: { big: 7 } }, 'a post');
  expect(lines[0]).toContain('"postId":9007199254740991');
});
