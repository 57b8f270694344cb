/**
 * Owns the laws of what Redis holds for pulled authors, as a suite that runs on one server and on a cluster: the lists, and the one call that reads a timeline with who is pulled.
 */
import fc from 'fast-check';
import { beforeAll, describe, expect, it } from 'vitest';
import { TributaryError } from '../../../src/errors.ts';
import { createPulledFacts, type PulledFacts } from '../../../src/store/redis/facts.ts';
import { createReadHomeEntries, type ReadHomeEntries } from '../../../src/store/redis/home-entries.ts';
import { slotOf } from '../../../src/store/redis/keys.ts';
import { createPulledLists, type PulledListOf, type PulledLists } from '../../../src/store/redis/pulled-lists.ts';
import { postIdFrom, type TenantId } from '../../../src/timeline/ids.ts';
import { mergeNewer, mergeOlder } from '../../../src/timeline/merge.ts';
import { type CacheUnderTest, ids, newTenant, newToken, soon, user } from './cache-under-test.ts';

const ID_MAX = Number.MAX_SAFE_INTEGER;
const VIEWER = user('viewer');
const OPTIONS = { cap: 4, stride: 3, lifeMs: 60_000, rebuildLeaseMs: 5_000 };

export function pulledLaws(open: () => CacheUnderTest): void {
  let under: CacheUnderTest;
  let lists: PulledLists;
  let large: PulledLists;
  beforeAll(() => {
    under = open();
    lists = createPulledLists(under.cache, under.keys, OPTIONS);
    large = createPulledLists(under.cache, under.keys, { ...OPTIONS, cap: 800, stride: 64 });
  });

  async function make(of: PulledListOf, numbers: readonly number[], floor = 0): Promise<void> {
    const token = newToken();
    expect(await large.begin(soon(), { ...of, token })).toBe('won');
    await large.addOlder(soon(), { ...of, token, postIds: numbers.map(postIdFrom) });
    expect(await large.commit(soon(), { ...of, token, floor })).toBe(true);
  }

  const authorsOf = (count: number) => Array.from({ length: count }, (_, at) => ({ author: user(`a${at}`), epoch: 1 }));
  const read = (tenant: TenantId, count: number, number = 1_000) =>
    lists.pages(soon(), { tenant, lists: authorsOf(count), direction: 'older', position: ID_MAX, count: number });

  describe('a list', () => {
    it('is not created by a push, and holds the post once where it is there', async () => {
      const of = { tenant: newTenant(), author: user('a0'), epoch: 1 };
      expect(await lists.push(soon(), { ...of, postId: postIdFrom(9) })).toBe('absent');
      expect(await under.raw.exists(under.keys.pulledList(of.tenant, of.author, of.epoch))).toBe(0);
      await make(of, [5], 3);
      expect(await lists.push(soon(), { ...of, postId: postIdFrom(9) })).toBe('added');
      expect(await lists.push(soon(), { ...of, postId: postIdFrom(9) })).toBe('present');
      expect(await lists.push(soon(), { ...of, postId: postIdFrom(3) })).toBe('below_floor');
      expect(await read(of.tenant, 1)).toEqual([{ state: 'ready', floor: 3, ids: [9, 5] }]);
    });

    it('of another epoch or another author is another list', async () => {
      const of = { tenant: newTenant(), author: user('a0'), epoch: 1 };
      await make(of, [5]);
      expect(await lists.push(soon(), { ...of, epoch: 2, postId: postIdFrom(9) })).toBe('absent');
      expect(await lists.push(soon(), { ...of, author: user('b'), postId: postIdFrom(9) })).toBe('absent');
      expect(await read(of.tenant, 1)).toEqual([{ state: 'ready', floor: 0, ids: [5] }]);
    });

    it('is trimmed to its cap, and its floor rises', async () => {
      const of = { tenant: newTenant(), author: user('a0'), epoch: 1 };
      await make(of, []);
      for (let id = 1; id <= 8; id += 1) await lists.push(soon(), { ...of, postId: postIdFrom(id) });
      expect(await read(of.tenant, 1)).toEqual([{ state: 'ready', floor: 3, ids: [8, 7, 6, 5, 4] }]);
    });

    it('that cannot take a push says so: the post is nowhere taken for delivered', async () => {
      const of = { tenant: newTenant(), author: user('a0'), epoch: 1 };
      await under.raw.set(under.keys.pulledList(of.tenant, of.author, of.epoch), 'x');
      await expect(lists.push(soon(), { ...of, postId: postIdFrom(9) })).rejects.toMatchObject({
        reason: 'CACHE_UNAVAILABLE',
      });
    });
  });

  describe('pages of many lists', () => {
    const scene = fc.record({
      truths: fc.array(fc.uniqueArray(fc.integer({ min: 1, max: 400 }), { maxLength: 60 }), {
        minLength: 1,
        maxLength: 12,
      }),
      floors: fc.array(fc.integer({ min: 0, max: 200 }), { minLength: 12, maxLength: 12 }),
      position: fc.oneof(fc.integer({ min: 0, max: 400 }), fc.constantFrom(0, ID_MAX)),
      count: fc.integer({ min: 1, max: 40 }),
      direction: fc.constantFrom('older' as const, 'newer' as const),
    });

    it('merge to what whole lists merge to, from any position, both ways', async () => {
      await fc.assert(
        fc.asyncProperty(scene, async ({ truths, floors, position, count, direction }) => {
          const tenant = newTenant();
          // A post has one author: the list is the last digit of a larger number.
          const posts = truths.map((truth, at) => truth.map((id) => id * 16 + at));
          const authors = authorsOf(truths.length);
          for (const [at, list] of authors.entries())
            await make({ tenant, ...list }, posts[at] as number[], (floors[at] as number) * 16);
          const from = position === ID_MAX ? ID_MAX : position * 16;
          const pages = await lists.pages(soon(), { tenant, lists: authors, direction, position: from, count });
          const sources = pages.map((page) => {
            if (page instanceof TributaryError || page.state === 'absent') throw new Error('a list is not there');
            return page;
          });
          const whole = posts.map((list, at) => {
            const floor = (floors[at] as number) * 16;
            const held = list.filter((id) => id > floor && (direction === 'older' ? id <= from : id > from));
            return { floor, ids: ids(...held) };
          });
          const merge = direction === 'older' ? mergeOlder : mergeNewer;
          expect(merge(sources, count)).toEqual(merge(whole, count));
          // Each is complete as far as it goes.
          sources.forEach((page, at) => {
            const sorted = [...(whole[at]?.ids ?? [])].sort((a, b) => (direction === 'older' ? b - a : a - b));
            expect(page.ids).toEqual(sorted.slice(0, page.ids.length));
            expect(page.ids.length).toBeLessThanOrEqual(count);
          });
        }),
        { numRuns: 60 },
      );
    });

    it('answer little more than was asked for, however many lists of one call are full', async () => {
      const tenant = newTenant();
      // On a cluster, those of one slot are one call.
      const slot = slotOf(under.keys.pulledList(tenant, user('a0'), 1));
      const authors = authorsOf(20_000)
        .filter(({ author }) => slotOf(under.keys.pulledList(tenant, author, 1)) === slot)
        .slice(0, 40);
      expect(authors).toHaveLength(40);
      // The first lists hold the newest posts: the worst case for taking a few of each.
      for (const [at, list] of authors.entries())
        await make(
          { tenant, ...list },
          Array.from({ length: 300 }, (_, n) => (40 - at) * 1_000 + n),
        );
      const pages = await lists.pages(soon(), {
        tenant,
        lists: authors,
        direction: 'older',
        position: ID_MAX,
        count: 100,
      });
      const answered = pages.flatMap((page) =>
        page instanceof TributaryError || page.state === 'absent' ? [] : page.ids,
      );
      expect(answered.length).toBeLessThan(1_500);
      expect(answered.sort((a, b) => b - a).slice(0, 100)).toEqual(Array.from({ length: 100 }, (_, n) => 40_299 - n));
    });

    it('are told apart: ready, being built, absent, of another type, spoiled', async () => {
      const tenant = newTenant();
      const of = authorsOf(200).map((list) => ({ tenant, ...list }));
      const key = (at: number) => under.keys.pulledList(tenant, user(`a${at}`), 1);
      await make(of[0] as PulledListOf, [7]);
      await lists.begin(soon(), { ...(of[1] as PulledListOf), token: newToken() });
      await lists.push(soon(), { ...(of[1] as PulledListOf), postId: postIdFrom(8) });
      await under.raw.set(key(3), 'x');
      await make(of[4] as PulledListOf, [9]);
      await under.raw.zadd(key(4), 9e15, 'stranger');
      await make(of[199] as PulledListOf, [6]);
      const pages = await read(tenant, 200, 2);
      expect(pages.map((page) => (page instanceof TributaryError ? 'error' : page.state)).slice(0, 5)).toEqual([
        'ready',
        'building',
        'absent',
        'absent',
        'absent',
      ]);
      expect([pages[0], pages[199]]).toEqual([
        { state: 'ready', floor: 0, ids: [7] },
        { state: 'ready', floor: 0, ids: [6] },
      ]);
      // What was somebody else's is gone, and can be rebuilt.
      for (const at of [3, 4])
        expect(await lists.begin(soon(), { ...(of[at] as PulledListOf), token: newToken() })).toBe('won');
    });

    it('give no place to what is not READY: its entries are newer and leave out none of the others', async () => {
      const tenant = newTenant();
      // Of one call on a cluster too.
      const slot = slotOf(under.keys.pulledList(tenant, user('a0'), 1));
      const [building, ready] = authorsOf(5_000).filter(
        ({ author }) => slotOf(under.keys.pulledList(tenant, author, 1)) === slot,
      );
      if (building === undefined || ready === undefined) throw new Error('no two authors of one slot');
      const token = newToken();
      await large.begin(soon(), { tenant, ...building, token });
      await large.addOlder(soon(), { tenant, ...building, token, postIds: ids(...numbersFrom(100, 30)) });
      await make({ tenant, ...ready }, numbersFrom(1, 30));
      const query = { tenant, lists: [building, ready], direction: 'older', position: ID_MAX, count: 20 } as const;
      const [, page] = await lists.pages(soon(), query);
      expect(page).toEqual({ state: 'ready', floor: 0, ids: numbersFrom(11, 20).reverse() });
    });

    it('lengthen the lives of lists that are read', async () => {
      const tenant = newTenant();
      const of = { tenant, author: user('a0'), epoch: 1 };
      await make(of, [7]);
      const key = under.keys.pulledList(tenant, of.author, 1);
      await under.raw.pexpire(key, 30_000);
      await lists.push(soon(), { ...of, postId: postIdFrom(8) });
      expect(await under.raw.pttl(key)).toBeLessThanOrEqual(30_000);
      await read(tenant, 1);
      expect(await under.raw.pttl(key)).toBeGreaterThan(50_000);
    });
  });

  describe('a timeline and who is pulled, in one call', () => {
    let facts: PulledFacts;
    let readHome: ReadHomeEntries;
    beforeAll(() => {
      facts = createPulledFacts(under.cache, under.keys, { lifeMs: 60_000, tokenLifeMs: 20_000, random: () => 0.5 });
      readHome = createReadHomeEntries(under.cache, under.keys, {
        cap: OPTIONS.cap,
        lifeMs: 60_000,
        tokenLifeMs: 20_000,
      });
    });
    const PULLED = { authors: [{ author: user('ada'), epoch: 3 }], tooMany: false };
    const look = (tenant: TenantId, token?: string) =>
      readHome(soon(), {
        tenant,
        viewer: VIEWER,
        direction: 'older',
        position: ID_MAX,
        count: 9,
        ...(token !== undefined && { token }),
      });

    it('come as they are: absent and missed, then ready and known', async () => {
      const tenant = newTenant();
      const token = newToken();
      expect(await look(tenant, token)).toEqual({ page: { state: 'absent' }, pulled: { kind: 'miss' } });
      expect((await look(tenant, newToken())).pulled.kind).toBe('loading');
      expect(await facts.fill(soon(), tenant, token, [[VIEWER, PULLED]])).toEqual(['won']);
      const timelines = under.timelines({});
      await timelines.begin(soon(), { tenant, viewer: VIEWER, token });
      await timelines.addOlder(soon(), { tenant, viewer: VIEWER, token, postIds: ids(3, 5) });
      await timelines.commit(soon(), { tenant, viewer: VIEWER, token, floor: 2 });
      expect(await look(tenant)).toEqual({
        page: { state: 'ready', floor: 2, ids: [5, 3] },
        pulled: { kind: 'hit', value: PULLED },
      });
    });

    it('tell a viewer without pulled authors from one of whom nothing is known', async () => {
      const tenant = newTenant();
      const none = { authors: [], tooMany: false };
      const token = newToken();
      await look(tenant, token);
      await facts.fill(soon(), tenant, token, [[VIEWER, none]]);
      expect((await look(tenant, newToken())).pulled).toEqual({ kind: 'hit', value: none });
    });

    it('leave no token where none was given: the next reader may store', async () => {
      const tenant = newTenant();
      expect((await look(tenant)).pulled.kind).toBe('miss');
      expect((await look(tenant, newToken())).pulled.kind).toBe('miss');
    });

    it('do not store what was loaded before a follow changed', async () => {
      const tenant = newTenant();
      const token = newToken();
      await look(tenant, token);
      await facts.forget(soon(), tenant, [VIEWER]);
      expect(await facts.fill(soon(), tenant, token, [[VIEWER, PULLED]])).toEqual(['voided']);
      expect((await look(tenant, newToken())).pulled.kind).toBe('miss');
    });

    it('end no later than they were stored for, however often they are read', async () => {
      const tenant = newTenant();
      const token = newToken();
      await look(tenant, token);
      await facts.fill(soon(), tenant, token, [[VIEWER, PULLED]]);
      const key = under.keys.pulledAuthors(tenant, VIEWER);
      expect(await under.raw.pttl(key)).toBeLessThanOrEqual(57_000);
      await under.raw.pexpire(key, 5_000);
      await look(tenant, newToken());
      expect(await under.raw.pttl(key)).toBeLessThanOrEqual(5_000);
    });

    it.each(['v', 'v[]', 'v[0,"ada"]', 'v[0,"ada",1.5]', 'v[0,"no one",1]', 'v{}', 'v[2]', 'nonsense'])(
      'take %s for nothing, and the next reader loads it',
      async (text) => {
        const tenant = newTenant();
        await under.raw.set(under.keys.pulledAuthors(tenant, VIEWER), text);
        // Whoever finds it may not store; it is gone for the next one. What is not even a fact is a miss at once.
        const first = await look(tenant, newToken());
        expect(first.pulled.kind).toBe(text.startsWith('v') ? 'loading' : 'miss');
        if (first.pulled.kind === 'miss') await facts.forget(soon(), tenant, [VIEWER]);
        const next = newToken();
        expect((await look(tenant, next)).pulled.kind).toBe('miss');
        expect(await facts.fill(soon(), tenant, next, [[VIEWER, PULLED]])).toEqual(['won']);
      },
    );

    it('are both made anew where one is of another type', async () => {
      const tenant = newTenant();
      await under.raw.lpush(under.keys.pulledAuthors(tenant, VIEWER), 'x');
      expect(await look(tenant, newToken())).toEqual({ page: { state: 'absent' }, pulled: { kind: 'loading' } });
      expect((await look(tenant, newToken())).pulled.kind).toBe('miss');
    });
  });
}

function numbersFrom(first: number, count: number): number[] {
  return Array.from({ length: count }, (_, at) => first + at);
}
