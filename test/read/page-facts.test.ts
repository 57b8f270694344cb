/** Owns that a request which begins to load its facts early never waits for itself, and asks for nothing twice. */
import { afterAll, beforeAll, beforeEach, expect, inject, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { createLeaseFill } from '../../src/read/lease-fill.ts';
import { createNamedPeople } from '../../src/read/named-people.ts';
import { createOpenPageFacts, type PageFacts } from '../../src/read/page-facts.ts';
import { systemClock } from '../../src/runtime.ts';
import { createPostFacts } from '../../src/store/redis/facts.ts';
import type { PostId, TenantId, UserId } from '../../src/timeline/ids.ts';
import { NO_RELATION, type PostMeta, type Relation, UNKNOWN_AUTHOR } from '../../src/timeline/post.ts';
import { hiddenAsTarget, hiddenFromHome } from '../../src/timeline/visibility.ts';
import { postMeta } from '../harness/post-meta.ts';
import {
  type CacheUnderTest,
  ids,
  newTenant,
  newToken,
  openCache,
  soon,
  user,
} from '../store/redis/cache-under-test.ts';

const ADA = user('ada');

let under: CacheUnderTest;
beforeAll(async () => {
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
});
afterAll(() => under.close());

let facts: PageFacts;
/** IDs that Postgres was asked for, statement by statement. */
let asked: (readonly PostId[])[];
/** What look-ups found. */
let found: string[];
let answer: Promise<unknown>;
beforeEach(() => {
  asked = [];
  found = [];
  answer = Promise.resolve();
  const tenant = newTenant();
  const fill = createLeaseFill<TenantId, PostId, PostMeta>({
    facts: createPostFacts(under.cache, under.keys, { lifeMs: 60_000, tokenLifeMs: 60_000, random: () => 0 }),
    newToken,
    events: { lookedUp: (kind) => found.push(kind), filled: () => undefined },
  });
  facts = createOpenPageFacts({
    clock: systemClock,
    named: createNamedPeople(),
    posts: {
      loadMetas: (call, postIds) =>
        fill(call, call.tenant, postIds, async (missing) => {
          asked.push(missing);
          await answer;
          return new Map(missing.map((postId) => [postId, metaOf(postId)]));
        }),
    },
    people: {
      loadRelations: async (_call, _viewer, authors) => new Map(authors.map((author) => [author, NO_RELATION])),
      loadStates: async (_call, authors) =>
        new Map(authors.map((author) => [author, { state: UNKNOWN_AUTHOR, profileVersion: 0 }])),
    },
  })({ tenant, signal: soon() }, user('rita'));
});

const metaOf = (postId: PostId): PostMeta => postMeta({ postId, author: ADA });

it('what is begun twice is asked for once, also while the first load is under way', async () => {
  const held = Promise.withResolvers<void>();
  answer = held.promise;
  facts.begin(ids(1, 2));
  await expect.poll(() => asked).toEqual([ids(1, 2)]);
  facts.begin(ids(1, 2, 3));
  await expect.poll(() => asked).toHaveLength(2);
  held.resolve();
  await facts.gather({ ids: ids(1, 2, 3) });
  expect(asked).toEqual([ids(1, 2), ids(3)]);
  expect(found).toEqual(['miss', 'miss']);
  expect(ids(1, 2, 3).map((id) => facts.meta(id)?.postId)).toEqual(ids(1, 2, 3));
});

it('a load that was begun early and failed fails the page, and is not tried again behind its own token', async () => {
  answer = Promise.reject(new TributaryError('DATABASE_UNAVAILABLE', { message: 'away' }));
  answer.catch(() => undefined);
  facts.begin(ids(1, 2));
  await expect(facts.gather({ ids: ids(1, 2) })).rejects.toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
  expect(asked).toEqual([ids(1, 2)]);
});

it('nor does it fail a page that turns out to do without it', async () => {
  answer = Promise.reject(new TributaryError('DATABASE_UNAVAILABLE', { message: 'away' }));
  answer.catch(() => undefined);
  facts.begin(ids(1, 2));
  await expect.poll(() => asked).toHaveLength(1);
  answer = Promise.resolve();
  await facts.gather({ ids: ids(3) });
  expect(facts.meta(ids(3)[0] as PostId)?.author).toBe(ADA);
});

it('what the process remembers of whom posts name decides nothing: all facts are read for every page, and of those whom the posts name', async () => {
  const tenant = newTenant();
  const named = createNamedPeople();
  const [first, target, past] = ids(1, 2, 3) as [PostId, PostId, PostId];
  const [ben, cyd, eve, fay] = ['ben', 'cyd', 'eve', 'fay'].map(user) as [UserId, UserId, UserId, UserId];
  const truth = new Map<PostId, PostMeta>([
    [first, { ...metaOf(first), replyTo: { postId: target, author: ben } }],
    [target, { ...metaOf(target), author: ben, repostOf: { postId: past, author: cyd } }],
  ]);
  named.learn(tenant, { ...metaOf(first), author: eve, repostOf: { postId: past, author: fay, names: [eve] } });
  named.learn(newTenant(), { ...metaOf(first), replyTo: { postId: target, author: cyd } });
  const read: string[] = [];
  let relation: Relation = { ...NO_RELATION, follows: true };
  const open = createOpenPageFacts({
    clock: systemClock,
    named,
    posts: {
      async loadMetas(_call, postIds) {
        read.push(...postIds.map((id) => `post ${id}`));
        return new Map(
          postIds.flatMap((id): (readonly [PostId, PostMeta])[] => {
            const meta = truth.get(id);
            return meta ? [[id, meta]] : [];
          }),
        );
      },
    },
    people: {
      async loadRelations(_call, _viewer, authors) {
        read.push(...authors.map((author) => `relation ${author}`));
        return new Map(
          authors.map((author) => [author, author === cyd ? relation : { ...NO_RELATION, follows: true }]),
        );
      },
      async loadStates(_call, authors) {
        read.push(...authors.map((author) => `state ${author}`));
        return new Map(authors.map((author) => [author, { state: UNKNOWN_AUTHOR, profileVersion: 0 }]));
      },
    },
  });
  const judge = async () => {
    const page = open({ tenant, signal: soon() }, user('rita'));
    read.length = 0;
    await page.gather({ ids: [first] });
    expect(read).toEqual(
      expect.arrayContaining([
        'post 1',
        'post 2',
        'relation ada',
        'relation ben',
        'relation cyd',
        'state ada',
        'state ben',
      ]),
    );
    return [hiddenFromHome(page.meta(first) as PostMeta, page), hiddenAsTarget(page.target(target) as PostMeta, page)];
  };
  expect(await judge()).toEqual([undefined, undefined]);
  relation = { ...relation, blockedBy: true };
  expect(await judge()).toEqual([undefined, 'target_author']);
});
