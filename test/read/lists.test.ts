/**
 * Owns the promise that every list we page gives each row once, whatever the rows' times are: rows a tenth of a millisecond apart, a
 * thousand users of one statement, page sizes 1 and 100, and both directions where there are two.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { composePostId } from '../../src/timeline/ids.ts';
import { storeFollowees, storeFollowers, storePosts } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { authorPages, homePages, walkNewer, walkOlder } from '../harness/walk.ts';

const USERS_COUNT = 1_000;
const POSTS_COUNT = 300;
const USERS = Array.from({ length: USERS_COUNT }, (_, at) => `user-${at}`);
/** Order of bytes: digits, then capitals, then small letters, whatever the server's locale. */
const ODD_USERS = [
  'a',
  'A',
  'B',
  'b',
  '0',
  '9',
  '-',
  '.',
  '_',
  '~',
  'a.b',
  'a-b',
  'a_b',
  'ab',
  'Ab',
  'aB',
  'user-10',
  'user-9',
  'z'.repeat(64),
];

let service: TestService;
let tenant: TestTenant;
let postIds: readonly string[];
let emptyHeadToken: string;

beforeAll(async () => {
  service = await startTestService();
  tenant = await service.tenant();
  await storeFollowers(service.database, tenant.id, { followee: 'star', followers: USERS });
  await storeFollowees(service.database, tenant.id, { follower: 'fan', followees: USERS });
  await storeFollowers(service.database, tenant.id, { followee: 'odd', followers: ODD_USERS });
  await tenant.cast().play('reader follows poster');
  emptyHeadToken = (await tenant.timeline.getHomeTimeline({ viewerId: 'reader' })).headToken;
  const first = composePostId({ ms: service.clock.nowMs() - 1_000, generator: 100, sequence: 0 });
  const rows = Array.from({ length: POSTS_COUNT }, (_, at) => first + at);
  postIds = [...rows].reverse().map(String);
  await storePosts(
    service.database,
    tenant.id,
    rows.map((postId) => ({ author: 'poster', postId })),
    { fanOut: true },
  );
  await service.settle();
  // Times that differ by less than JavaScript can tell apart, and times that are all the same.
  await service.database.sql(
    `UPDATE follows SET started_at = '2026-01-01T00:00:00.1231Z'::timestamptz + (right(md5(follower_id || followee_id), 1) < '8')::int * interval '100 microseconds'
     WHERE tenant_id = $1`,
    [tenant.id],
  );
});
afterAll(() => service.stop());

describe.each([1, 100])('by %i', { timeout: 120_000 }, (pageSize) => {
  it('home gives every post once, walking to older and to newer entries', async () => {
    expect((await walkOlder(homePages(tenant, 'reader', pageSize), { pageSize })).ids).toEqual(postIds);
    const up = await walkNewer(emptyHeadToken, homePages(tenant, 'reader', pageSize), { pageSize });
    expect(up.ids).toEqual([...postIds].reverse());
  });

  it('an author’s list gives every post once', async () => {
    const walk = await walkOlder(authorPages(tenant, 'reader', 'poster', pageSize), { pageSize });
    expect(walk.ids).toEqual(postIds);
  });

  it('followers and following give every user once, in the order of their bytes', async () => {
    const followers = await walkUsers(
      (pageToken) => tenant.graph.listFollowers({ userId: 'star', pageSize, pageToken }),
      pageSize,
    );
    expect(followers).toEqual([...USERS].sort(byBytes));
    const following = await walkUsers(
      (pageToken) => tenant.by.json.graph.listFollowing({ userId: 'fan', pageSize, pageToken }),
      pageSize,
    );
    expect(following).toEqual([...USERS].sort(byBytes));
    const odd = await walkUsers(
      (pageToken) => tenant.graph.listFollowers({ userId: 'odd', pageSize, pageToken }),
      pageSize,
    );
    expect(odd).toEqual([...ODD_USERS].sort(byBytes));
  });
});

it('a list of users goes on when the one its token names has gone, and leaves out who unfollowed', async () => {
  const cast = tenant.cast();
  await cast.play('ann follows idol; bea follows idol; cat follows idol; dot follows idol');
  const first = await tenant.graph.listFollowers({ userId: 'idol', pageSize: 2 });
  expect(first.userIds).toEqual(['ann', 'bea']);
  await cast.play('bea unfollows idol; idol removes follower cat');
  const second = await tenant.graph.listFollowers({ userId: 'idol', pageSize: 2, pageToken: first.nextPageToken });
  expect([second.userIds, second.nextPageToken]).toEqual([['dot'], '']);
});

it('a list of exactly one page, and an empty one, end without a token', async () => {
  await tenant.cast().play('ann follows pair; bea follows pair');
  expect(await tenant.graph.listFollowers({ userId: 'pair', pageSize: 2 })).toMatchObject({
    userIds: ['ann', 'bea'],
    nextPageToken: '',
  });
  expect(await tenant.graph.listFollowing({ userId: 'pair' })).toMatchObject({ userIds: [], nextPageToken: '' });
});

function byBytes(a: string, b: string): number {
  return Buffer.compare(Buffer.from(a), Buffer.from(b));
}

async function walkUsers(
  read: (pageToken: string) => Promise<{ readonly userIds: readonly string[]; readonly nextPageToken: string }>,
  pageSize: number,
): Promise<readonly string[]> {
  const users: string[] = [];
  let token = '';
  for (let pages = 0; pages <= USERS_COUNT + 1; pages += 1) {
    const page = await read(token);
    expect(page.userIds.length).toBeLessThanOrEqual(pageSize);
    users.push(...page.userIds);
    token = page.nextPageToken;
    if (token === '') return users;
  }
  throw new Error('the walk did not end');
}
