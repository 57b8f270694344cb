/** Owns what happens to bad cursors and limits: refused with a reason before any store is touched, and never somebody else's data. */
import { ConnectError } from '@connectrpc/connect';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { BadRequestSchema } from '../../src/gen/google/rpc/error_details_pb.ts';
import { createPageTokens, type Position } from '../../src/read/page-token.ts';
import { parseTenantId, type TenantId } from '../../src/timeline/ids.ts';
import { type Clients, PROTOCOLS, refusalFrom, refusalOf } from '../harness/clients.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import { postIdOf, startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';

let database: TestDatabase;
let proxy: FaultProxy;
let service: TestService;
let tenant: TestTenant;
let stranger: TestTenant;

beforeAll(async () => {
  database = await createTestDatabase();
  proxy = await startFaultProxy({ port: Number(new URL(database.url).port) });
  // An API role alone: no background rounds whose statements would be counted with those of calls.
  service = await startTestService({
    database,
    databaseUrl: proxy.through(database.url),
    env: { TRIBUTARY_ROLE: 'api', API_KEY_CACHE_MS: '600000' },
  });
  tenant = await service.tenant();
  stranger = await service.tenant();
  for (const each of [tenant, stranger]) {
    await each
      .cast()
      .play(
        'rita follows ada, ben, cyd; sam follows ada, ben, cyd; tom follows ada; uma follows ada; ada posts 5 times; ben posts 5 times',
      );
  }
});
afterAll(async () => {
  await service.stop();
  await proxy.stop();
  await database.drop();
});

/** Every list, read by a token: what it answers, and which lists its own tokens come from. */
const LISTS = {
  'older home': {
    read: (clients: Clients, pageToken: string) =>
      clients.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 1, pageToken }),
  },
  'author page': {
    read: (clients: Clients, pageToken: string) =>
      clients.posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ada', pageSize: 1, pageToken }),
  },
  followers: {
    read: (clients: Clients, pageToken: string) =>
      clients.graph.listFollowers({ userId: 'ada', pageSize: 1, pageToken }),
  },
  following: {
    read: (clients: Clients, pageToken: string) =>
      clients.graph.listFollowing({ userId: 'rita', pageSize: 1, pageToken }),
  },
  head: {
    read: (clients: Clients, sinceToken: string) => clients.timeline.getHomeHead({ viewerId: 'rita', sinceToken }),
  },
} as const;
type ListName = keyof typeof LISTS;
const LIST_NAMES = Object.keys(LISTS) as ListName[];

async function goodTokens(of: TestTenant): Promise<Readonly<Record<ListName, string>>> {
  const home = await of.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 1 });
  return {
    'older home': home.nextPageToken,
    'author page': (await of.posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ada', pageSize: 1 })).nextPageToken,
    followers: (await of.graph.listFollowers({ userId: 'ada', pageSize: 1 })).nextPageToken,
    following: (await of.graph.listFollowing({ userId: 'rita', pageSize: 1 })).nextPageToken,
    head: home.headToken,
  };
}

const TOKENS_OF_NO_FORM = [
  '!!!',
  ' ',
  '=',
  'null',
  'undefined',
  '0',
  '-1',
  '1.5',
  '9223372036854775808',
  '[object Object]',
  "' OR 1=1 --",
  '%00',
  'ä',
  '../../etc/passwd',
  Buffer.from('{"after":1}').toString('base64url'),
  Buffer.from('1').toString('base64'),
  Buffer.alloc(18, 0).toString('base64url'),
  Buffer.alloc(40, 255).toString('base64url'),
  'A'.repeat(2_048),
  'A'.repeat(10_240),
];

/** A good token in all the ways that clients and proxies damage one. */
function damaged(token: string): readonly string[] {
  const bytes = Buffer.from(token, 'base64url');
  const flipped = Array.from(bytes.keys(), (at) => {
    const copy = Buffer.from(bytes);
    copy[at] = (copy[at] ?? 0) ^ 1;
    return copy.toString('base64url');
  });
  return [
    ...flipped,
    `${token}!`,
    `${token}A`,
    `${token}=`,
    ` ${token}`,
    `${token}\n`,
    token.slice(0, -1),
    token.slice(1),
    token.toLowerCase(),
    token + token,
    Buffer.concat([bytes, Buffer.alloc(1)]).toString('base64url'),
    bytes.subarray(0, bytes.length - 1).toString('base64url'),
    // Stray bits in the last character decode to the same bytes.
    ...[...'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_']
      .map((last) => token.slice(0, -1) + last)
      .filter((other) => other !== token),
  ];
}

async function expectRefused(call: Promise<unknown>, what: string): Promise<void> {
  const refusal = await refusalOf(call).catch((error: unknown) => {
    throw new Error(`not refused as it should be: ${what}`, { cause: error });
  });
  expect(refusal, what).toMatchObject({ code: 'INVALID_ARGUMENT', reason: 'INVALID_PAGE_TOKEN' });
}

describe.each(LIST_NAMES)('a token for %s', (name) => {
  it('is named by its field where it is refused', async () => {
    const fault = await LISTS[name].read(tenant, 'x').catch(ConnectError.from);
    const [request] = (fault as ConnectError).findDetails(BadRequestSchema);
    expect(request?.fieldViolations.map(({ field }) => field)).toEqual([
      name === 'head' ? 'since_token' : 'page_token',
    ]);
  });

  const { read } = LISTS[name];

  it.each(PROTOCOLS)('is refused when it is no token of ours at all, by %s', async (protocol) => {
    for (const token of TOKENS_OF_NO_FORM)
      await expectRefused(read(tenant.by[protocol], token), JSON.stringify(token.slice(0, 60)));
  });

  it('is refused when it was damaged in any way', async () => {
    for (const token of damaged((await goodTokens(tenant))[name])) await expectRefused(read(tenant, token), token);
  });

  it('is refused when it belongs to another list, though a head token reads home', async () => {
    const tokens = await goodTokens(tenant);
    const taken = new Set<ListName>(name === 'older home' ? ['older home', 'head'] : [name]);
    for (const other of LIST_NAMES) {
      if (taken.has(other)) await read(tenant, tokens[other]);
      else await expectRefused(read(tenant, tokens[other]), `${other} as ${name}`);
    }
  });

  it('is refused when it belongs to another user or another tenant', async () => {
    const token = (await goodTokens(tenant))[name];
    await expectRefused(read(stranger, token), 'another tenant');
    const others: Readonly<Record<ListName, readonly (() => Promise<unknown>)[]>> = {
      'older home': [() => tenant.timeline.getHomeTimeline({ viewerId: 'sam', pageToken: token })],
      'author page': [
        () => tenant.posts.listAuthorPosts({ viewerId: 'sam', authorId: 'ada', pageToken: token }),
        () => tenant.posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ben', pageToken: token }),
      ],
      followers: [() => tenant.graph.listFollowers({ userId: 'ben', pageToken: token })],
      following: [() => tenant.graph.listFollowing({ userId: 'sam', pageToken: token })],
      head: [() => tenant.timeline.getHomeHead({ viewerId: 'sam', sinceToken: token })],
    };
    for (const call of others[name]) await expectRefused(call(), 'another user');
  });

  it('that is good works with every page size, and an empty one starts at the top', async () => {
    const token = (await goodTokens(tenant))[name];
    for (const pageSize of [0, 1, 100, 101, 1_000_000_000]) {
      if (name === 'older home')
        await tenant.timeline.getHomeTimeline({ viewerId: 'rita', pageSize, pageToken: token });
      if (name === 'author page')
        await tenant.posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ada', pageSize, pageToken: token });
    }
    await read(tenant, '');
  });
});

describe('a refused token', () => {
  it('costs no statement on any list', async () => {
    // The key is known by now; after this no call below has a reason to speak to the database.
    const tokens = await goodTokens(tenant);
    const bytesBefore = proxy.bytesUp;
    let refused = 0;
    for (const name of LIST_NAMES) {
      for (const token of [
        ...TOKENS_OF_NO_FORM,
        `${tokens[name]}!`,
        tokens[name === 'followers' ? 'following' : 'followers'],
      ]) {
        await expectRefused(LISTS[name].read(tenant, token), name);
        refused += 1;
      }
    }
    expect(refused).toBeGreaterThan(100);
    // One statement is some 40 bytes at least. What remains is the probe behind readiness and the lease of the ID generator.
    expect(proxy.bytesUp - bytesBefore).toBeLessThan(refused * 10);
  });

  it('is counted by its reason', async () => {
    const metrics = await (await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`)).text();
    const counted = metrics.split('\n').filter((line) => line.startsWith('tributary_rejected_tokens_total{'));
    for (const reason of ['too_long', 'malformed', 'kind', 'seal'])
      expect(
        counted.some((line) => line.includes(`"${reason}"`)),
        reason,
      ).toBe(true);
  });
});

describe('a limit', () => {
  const sizes = (pageSize: number): readonly Promise<unknown>[] => [
    tenant.timeline.getHomeTimeline({ viewerId: 'rita', pageSize }),
    tenant.posts.listAuthorPosts({ viewerId: 'rita', authorId: 'ada', pageSize }),
    tenant.graph.listFollowers({ userId: 'ada', pageSize }),
    tenant.graph.listFollowing({ userId: 'rita', pageSize }),
  ];

  it.each([-1, -2_147_483_648])('of %d is INVALID_ARGUMENT on every list', async (pageSize) => {
    for (const refusal of await Promise.all(sizes(pageSize).map(refusalOf)))
      expect(refusal).toMatchObject({ code: 'INVALID_ARGUMENT', reason: 'INVALID_FIELD' });
  });

  it.each([0, 1, 100, 101, 1_000_000_000, 2_147_483_647])('of %d is answered on every list', async (pageSize) => {
    await Promise.all(sizes(pageSize));
  });

  it('that is absent means 50, and no limit gives more than 100', async () => {
    const busy = await service.tenant();
    await Promise.all(Array.from({ length: 120 }, () => busy.posts.publishPost({ authorId: 'ada', text: 'hi' })));
    const lengths = await Promise.all(
      [undefined, 0, 49, 50, 100, 101, 1_000_000_000].map(async (pageSize) => {
        const size = pageSize === undefined ? {} : { pageSize };
        const { entries } = await busy.timeline.getHomeTimeline({ viewerId: 'ada', ...size });
        return entries.length;
      }),
    );
    expect(lengths).toEqual([50, 50, 49, 50, 100, 100, 100]);
  });

  it.each(['"abc"', '1.5', '2147483648', '-2147483649', '1e30', 'true', '{}', '[]', '"NaN"'])(
    'spelled %s in JSON is INVALID_ARGUMENT',
    async (spelled) => {
      const response = await rawJson('TimelineService/GetHomeTimeline', `{"viewerId":"rita","pageSize":${spelled}}`);
      expect([response.status, response.body.code]).toEqual([400, 'invalid_argument']);
    },
  );
});

describe('an ID', () => {
  it.each(['', ' ', 'a b', 'x'.repeat(65), 'ä', 'a/b', "'; DROP TABLE posts; --", 'a\u0000'])(
    'of a user spelled %j is INVALID_ARGUMENT in every field',
    async (id) => {
      const calls = [
        tenant.timeline.getHomeTimeline({ viewerId: id }),
        tenant.timeline.getHomeHead({ viewerId: id }),
        tenant.posts.listAuthorPosts({ viewerId: id, authorId: 'ada' }),
        tenant.posts.listAuthorPosts({ viewerId: 'rita', authorId: id }),
        tenant.posts.getPost({ viewerId: id, postId: '1' }),
        tenant.posts.publishPost({ authorId: id, text: 'hi' }),
        tenant.graph.follow({ followerId: id, followeeId: 'ada' }),
        tenant.graph.follow({ followerId: 'ada', followeeId: id }),
        tenant.graph.listFollowers({ userId: id }),
        tenant.graph.getRelationship({ viewerId: id, otherId: 'ada' }),
      ];
      for (const refusal of await Promise.all(calls.map(refusalOf))) expect(refusal.code).toBe('INVALID_ARGUMENT');
    },
  );

  it.each([
    '',
    '0',
    '-1',
    '1.5',
    '01',
    '+1',
    '0x10',
    '1e3',
    'abc',
    '9007199254740992',
    '9223372036854775808',
    '18446744073709551616',
    ' 1',
    '1'.repeat(500),
  ])('of a post spelled %j is INVALID_ARGUMENT in every field that needs one', async (id) => {
    const calls = [
      tenant.posts.getPost({ viewerId: 'rita', postId: id }),
      tenant.posts.batchGetPosts({ viewerId: 'rita', postIds: ['1', id] }),
      tenant.posts.deletePost({ authorId: 'ada', postId: id }),
      tenant.posts.updatePost({ authorId: 'ada', postId: id, text: 'hi' }),
      ...(id === '' ? [] : [tenant.posts.publishPost({ authorId: 'ada', text: 'hi', replyToPostId: id })]),
    ];
    for (const refusal of await Promise.all(calls.map(refusalOf))) expect(refusal.code).toBe('INVALID_ARGUMENT');
  });

  it('of a post that is a number in JSON is INVALID_ARGUMENT: a number would lose digits', async () => {
    const response = await rawJson('PostService/GetPost', '{"viewerId":"rita","postId":9007199254740991}');
    expect([response.status, response.body.code]).toEqual([400, 'invalid_argument']);
  });
});

describe('sealed positions', () => {
  const owner = { tenant: parseTenantId('acme') as TenantId, viewer: userId('rita') };
  const keys = [1, 2, 3].map((fill) => Buffer.alloc(32, fill)) as [Buffer, Buffer, Buffer];
  const tokensOf = (...used: readonly Buffer[]) => createPageTokens({ keys: used, rejected: () => undefined });
  const max = postIdOf('9007199254740991');
  const shown = Array.from({ length: 100 }, (_, at) => postIdOf(String(max - 99 * 2 ** 40 + at * 2 ** 40)));

  it.each<Position>([
    { kind: 'home_older', from: max },
    { kind: 'home_older', from: 0 },
    { kind: 'author', from: 1_009_651_914_519_660 },
    { kind: 'home_newer', after: max, high: max, low: max - 99 * 2 ** 40 - 1, shown },
    { kind: 'home_newer', after: 0, high: 0, low: 0, shown: [] },
    { kind: 'followers', after: userId('x'.repeat(64)) },
    { kind: 'following', after: userId('a.b_c~d-9') },
  ])('open as they were sealed, every digit: %j', (position) => {
    const tokens = tokensOf(keys[0]);
    const token = tokens.seal(owner, position);
    expect(token.length).toBeLessThanOrEqual(2_048);
    expect(token).toMatch(/^[A-Za-z0-9_-]+$/);
    expect(tokens.open(owner, [position.kind], token)).toEqual(position);
  });

  it('open under an older key while the keys change, and not under a key that is gone', () => {
    const position: Position = { kind: 'home_older', from: 7 };
    const token = tokensOf(keys[0]).seal(owner, position);
    expect(tokensOf(keys[1], keys[0]).open(owner, ['home_older'], token)).toEqual(position);
    expect(() => tokensOf(keys[1], keys[2]).open(owner, ['home_older'], token)).toThrow();
  });

  it('do not open where tenant and viewer were cut apart at another place', () => {
    const tokens = tokensOf(keys[0]);
    const token = tokens.seal(
      { tenant: parseTenantId('ab') as TenantId, viewer: userId('c') },
      { kind: 'home_older', from: 7 },
    );
    expect(() =>
      tokens.open({ tenant: parseTenantId('a') as TenantId, viewer: userId('bc') }, ['home_older'], token),
    ).toThrow();
  });
});

async function rawJson(
  method: string,
  body: string,
): Promise<{ readonly status: number; readonly body: { readonly code?: string } }> {
  const response = await fetch(`http://127.0.0.1:${service.service.httpPort}/tributary.v1.${method}`, {
    method: 'POST',
    headers: { 'content-type': 'application/json', authorization: `Bearer ${tenant.key}` },
    body,
  });
  return { status: response.status, body: (await response.json()) as { code?: string } };
}

it('names a refusal by its code and reason', async () => {
  const fault = await tenant.timeline
    .getHomeTimeline({ viewerId: 'rita', pageToken: '!' })
    .catch((error: unknown) => error);
  expect(refusalFrom(fault)).toMatchObject({ code: 'INVALID_ARGUMENT', reason: 'INVALID_PAGE_TOKEN' });
});
