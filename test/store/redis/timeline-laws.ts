/**
 * Owns the laws of timelines in Redis, as a suite that runs on one server and on a cluster. The model is a set of IDs and a floor; whatever the order of verbs, the
 * list is that model.
 */
import fc from 'fast-check';
import { beforeAll, describe, expect, it } from 'vitest';
import { createReadHomeEntries } from '../../../src/store/redis/home-entries.ts';
import type { TimelineOf } from '../../../src/store/redis/timelines.ts';
import { type PostId, postIdFrom } from '../../../src/timeline/ids.ts';
import { eventually } from '../../harness/eventually.ts';
import { type CacheUnderTest, ids, newTenant, newToken, soon, user } from './cache-under-test.ts';

const ID_MAX = Number.MAX_SAFE_INTEGER;
const ALL = { direction: 'older', position: ID_MAX, count: 10_000 } as const;
const CAP = 4;
const STRIDE = 3;
/** What a timeline of small cap holds between cuts that succeed. */
const ENTRIES_MAX = CAP + STRIDE + 1;

export function timelineLaws(open: () => CacheUnderTest): void {
  let under: CacheUnderTest;
  beforeAll(() => {
    under = open();
  });

  let made = 0;
  function nobody(): TimelineOf {
    made += 1;
    return { tenant: newTenant(), viewer: user(`viewer-${made}`) };
  }

  const small = (options: { readonly rebuildLeaseMs?: number } = {}) =>
    under.timelines({ cap: CAP, stride: STRIDE, ...options });

  /** A viewer with a timeline that is complete above `floor` and holds nothing. */
  async function resident(floor = 0): Promise<TimelineOf> {
    const of = nobody();
    const token = newToken();
    expect(await small().begin(soon(), { ...of, token })).toBe('won');
    expect(await small().commit(soon(), { ...of, token, floor })).toBe(true);
    return of;
  }

  async function push(of: TimelineOf, postId: PostId, timelines = small()): Promise<unknown> {
    const [outcome] = await timelines.push(soon(), { tenant: of.tenant, postId, viewers: [of.viewer] });
    return outcome;
  }

  async function held(
    of: TimelineOf,
  ): Promise<{ readonly state: string; readonly floor: number; readonly ids: readonly number[] }> {
    const page = await small().page(soon(), { ...of, ...ALL });
    if (page.state === 'absent') throw new Error('the timeline is absent');
    return page;
  }

  const postId = fc.oneof(
    { weight: 4, arbitrary: fc.integer({ min: 1, max: 30 }) },
    { weight: 1, arbitrary: fc.integer({ min: 1_009_651_914_519_500, max: 1_009_651_914_519_530 }) },
    { weight: 1, arbitrary: fc.integer({ min: ID_MAX - 12, max: ID_MAX }) },
  );

  describe('a timeline that is not there', () => {
    it('is not created by a push, by older posts, by a raised floor or by a clean-up', async () => {
      const of = nobody();
      expect(await push(of, postIdFrom(7))).toBe('absent');
      expect(await small().addOlder(soon(), { ...of, postIds: ids(7) })).toBe(false);
      await small().raiseFloor(soon(), { ...of, floor: 5 });
      expect(await small().cleanAuthor(soon(), { ...of, author: user('a'), postIds: ids(7) })).toBeUndefined();
      expect(await small().commit(soon(), { ...of, token: newToken(), floor: 0 })).toBe(false);
      expect(await small().page(soon(), { ...of, ...ALL })).toEqual({ state: 'absent' });
      expect(await under.raw.exists(under.keys.timeline(of.tenant, of.viewer))).toBe(0);
    });

    it('is told from one that is empty', async () => {
      expect(await held(await resident())).toEqual({ state: 'ready', floor: 0, ids: [] });
    });

    it('is what a dropped one becomes', async () => {
      const of = await resident();
      await small().drop(soon(), of);
      expect(await small().page(soon(), { ...of, ...ALL })).toEqual({ state: 'absent' });
    });
  });

  describe('pushes', () => {
    it('hold the post once, however often it comes', async () => {
      const of = await resident();
      expect([await push(of, postIdFrom(9)), await push(of, postIdFrom(9))]).toEqual(['added', 'present']);
      expect((await held(of)).ids).toEqual([9]);
    });

    it('reach many viewers, and say of each what became of it', async () => {
      const of = await resident(5);
      const viewers = Array.from({ length: 300 }, (_, index) => user(index === 170 ? of.viewer : `nobody-${index}`));
      const outcomes = await small().push(soon(), { tenant: of.tenant, postId: postIdFrom(9), viewers });
      expect(outcomes.map((outcome, index) => [index, outcome]).filter(([, outcome]) => outcome !== 'absent')).toEqual([
        [170, 'added'],
      ]);
      expect(await push(of, postIdFrom(5))).toBe('below_floor');
    });

    it('in any order keep what is above the floor, and that is the newest of all that was pushed', async () => {
      await fc.assert(
        fc.asyncProperty(fc.array(postId, { maxLength: 60 }), async (pushed) => {
          const of = await resident();
          for (const id of pushed) await push(of, postIdFrom(id));
          const { floor, ids: kept } = await held(of);
          expect(kept).toEqual(newestFirst(pushed.filter((id) => id > floor)));
          expect(kept.length).toBeLessThanOrEqual(ENTRIES_MAX);
          // The floor rises only to make room: what is kept is never less than the cap or all there is.
          expect(kept.length).toBeGreaterThanOrEqual(Math.min(CAP, new Set(pushed).size));
          expect(floor === 0 || pushed.includes(floor)).toBe(true);
        }),
        { numRuns: 60 },
      );
    });
  });

  describe('any order of all verbs', () => {
    type Act =
      | { readonly act: 'push' | 'raise' | 'remove'; readonly id: number }
      | { readonly act: 'older'; readonly ids: readonly number[]; readonly owned: boolean }
      | { readonly act: 'begin' | 'commit'; readonly id: number };

    const acts: fc.Arbitrary<Act> = fc.oneof(
      { weight: 6, arbitrary: fc.record({ act: fc.constant('push' as const), id: postId }) },
      { weight: 1, arbitrary: fc.record({ act: fc.constantFrom('raise' as const, 'remove' as const), id: postId }) },
      {
        weight: 2,
        arbitrary: fc.record({
          act: fc.constant('older' as const),
          ids: fc.array(postId, { maxLength: 12 }),
          owned: fc.boolean(),
        }),
      },
      { weight: 2, arbitrary: fc.record({ act: fc.constantFrom('begin' as const, 'commit' as const), id: postId }) },
    );

    it('leaves what was added above the floor and not removed: the list claims nothing that it does not hold', async () => {
      await fc.assert(
        fc.asyncProperty(fc.array(acts, { maxLength: 50 }), async (script) => {
          const of = nobody();
          const token = newToken();
          const timelines = small();
          let state: 'absent' | 'building' | 'ready' = 'absent';
          let floorMin = 0;
          const added = new Set<number>();
          for (const each of script) {
            switch (each.act) {
              case 'push':
                if ((await push(of, postIdFrom(each.id))) === 'absent') expect(state).toBe('absent');
                else added.add(each.id);
                break;
              case 'older': {
                const taken = await timelines.addOlder(soon(), {
                  ...of,
                  ...(each.owned && { token }),
                  postIds: each.ids.map(postIdFrom),
                });
                if (each.ids.length > 0) expect(taken).toBe(each.owned ? state === 'building' : state !== 'absent');
                if (taken) for (const id of each.ids) added.add(id);
                break;
              }
              case 'remove':
                await timelines.removeEntries(soon(), { ...of, postIds: ids(each.id) });
                added.delete(each.id);
                break;
              case 'raise':
                await timelines.raiseFloor(soon(), { ...of, floor: each.id });
                if (state !== 'absent') floorMin = Math.max(floorMin, each.id);
                break;
              case 'begin':
                expect(await timelines.begin(soon(), { ...of, token })).toBe(state === 'ready' ? 'ready' : 'won');
                if (state === 'absent') state = 'building';
                break;
              case 'commit':
                expect(await timelines.commit(soon(), { ...of, token, floor: each.id })).toBe(state === 'building');
                if (state === 'building') {
                  state = 'ready';
                  floorMin = Math.max(floorMin, each.id);
                }
                break;
              default:
                throw new Error(`unknown act: ${JSON.stringify(each satisfies never)}`);
            }
          }
          const page = await timelines.page(soon(), { ...of, ...ALL });
          expect(page.state).toBe(state);
          if (page.state === 'absent') return;
          expect(page.floor).toBeGreaterThanOrEqual(floorMin);
          expect(page.ids).toEqual(newestFirst([...added].filter((id) => id > page.floor)));
          expect(page.ids.length).toBeLessThanOrEqual(ENTRIES_MAX);
        }),
        { numRuns: 80 },
      );
    });
  });

  describe('pages', () => {
    async function filled(numbers: readonly number[]): Promise<TimelineOf> {
      const of = nobody();
      const token = newToken();
      const large = under.timelines({});
      await large.begin(soon(), { ...of, token });
      await large.addOlder(soon(), { ...of, token, postIds: numbers.map(postIdFrom) });
      await large.commit(soon(), { ...of, token, floor: 0 });
      return of;
    }

    async function walk(of: TimelineOf, direction: 'older' | 'newer', count: number): Promise<readonly number[]> {
      const seen: number[] = [];
      let position = direction === 'older' ? ID_MAX : 0;
      for (;;) {
        const page = await small().page(soon(), { ...of, direction, position, count });
        if (page.state === 'absent') throw new Error('the timeline is absent');
        seen.push(...page.ids);
        const last = page.ids.at(-1);
        if (last === undefined) return seen;
        position = direction === 'older' ? last - 1 : last;
      }
    }

    it('are what a filter and a sort of the IDs give, from any position, both ways', async () => {
      await fc.assert(
        fc.asyncProperty(
          fc.uniqueArray(postId, { minLength: 1, maxLength: 30 }),
          fc.array(
            fc.record({
              position: fc.oneof(postId, fc.constantFrom(0, ID_MAX)),
              count: fc.integer({ min: 1, max: 8 }),
            }),
            {
              minLength: 1,
              maxLength: 6,
            },
          ),
          async (numbers, questions) => {
            const of = await filled(numbers);
            for (const { position, count } of questions) {
              const older = await small().page(soon(), { ...of, direction: 'older', position, count });
              const newer = await small().page(soon(), { ...of, direction: 'newer', position, count });
              expect(older).toEqual({
                state: 'ready',
                floor: 0,
                ids: newestFirst(numbers.filter((id) => id <= position)).slice(0, count),
              });
              expect(newer).toEqual({
                state: 'ready',
                floor: 0,
                ids: newestFirst(numbers.filter((id) => id > position))
                  .reverse()
                  .slice(0, count),
              });
            }
          },
        ),
        { numRuns: 40 },
      );
    });

    it.each([
      {
        what: 'neighbours of 16 digits',
        numbers: [1_009_651_914_519_511, 1_009_651_914_519_512, 1_009_651_914_519_544],
      },
      { what: 'the largest there are', numbers: [ID_MAX - 2, ID_MAX - 1, ID_MAX] },
      { what: 'round ones', numbers: [7_000_000_000_000_000, 7_000_000_000_000_001, 8_000_000_000_000_000] },
      {
        what: 'of any number of digits',
        numbers: [1, 9, 10, 99, 100, 4_096, 999_999_999_999_999, 1_000_000_000_000_000, ID_MAX],
      },
      { what: 'twenty in a row', numbers: Array.from({ length: 20 }, (_, index) => 4_503_599_627_370_497 + index) },
    ])('give every ID once and in order, page by page: $what', async ({ numbers }) => {
      const of = await filled(numbers);
      for (const count of [1, 5]) {
        expect(await walk(of, 'older', count)).toEqual(newestFirst(numbers));
        expect(await walk(of, 'newer', count)).toEqual(newestFirst(numbers).reverse());
      }
      const [gone, ...others] = newestFirst(numbers);
      await small().removeEntries(soon(), { ...of, postIds: ids(gone as number) });
      expect(await walk(of, 'older', 1)).toEqual(others);
    });

    it('answer every floor to the last digit', async () => {
      for (const floor of [1, 999_999_999_999_999, 7_000_000_000_000_000, ID_MAX - 1, ID_MAX]) {
        const of = await resident(floor);
        await small().raiseFloor(soon(), { ...of, floor: floor - 1 });
        expect((await held(of)).floor).toBe(floor);
      }
    });

    it('lengthen the life of a timeline that is read, pushes do not', async () => {
      const of = await resident();
      const key = under.keys.timeline(of.tenant, of.viewer);
      await under.raw.pexpire(key, 30_000);
      await push(of, postIdFrom(7));
      expect(await under.raw.pttl(key)).toBeLessThanOrEqual(30_000);
      await held(of);
      expect(await under.raw.pttl(key)).toBeGreaterThan(50_000);
    });

    it.each([
      { what: 'a member that is no ID', member: 'garbage', score: -5 },
      { what: 'no state', member: undefined, score: 0 },
      { what: 'a state of somebody else', member: 'x', score: 9 },
    ])('drop a list with $what: absent, and then rebuilt', async ({ member, score }) => {
      const of = await filled([3, 4, 5]);
      const key = under.keys.timeline(of.tenant, of.viewer);
      if (member === undefined) await under.raw.zrem(key, 'r');
      else await under.raw.zadd(key, score, member);
      expect(await small().page(soon(), { ...of, ...ALL })).toEqual({ state: 'absent' });
      expect(await small().begin(soon(), { ...of, token: newToken() })).toBe('won');
    });
  });

  describe('a rebuild', () => {
    it('keeps others out, takes pushes, and is complete above the highest floor', async () => {
      const of = nobody();
      const token = newToken();
      expect(await small().begin(soon(), { ...of, token })).toBe('won');
      expect(await small().begin(soon(), { ...of, token: newToken() })).toBe('busy');
      expect(await push(of, postIdFrom(50))).toBe('added');
      expect(await small().page(soon(), { ...of, ...ALL })).toEqual({ state: 'building', floor: 0, ids: [50] });
      expect(await small().addOlder(soon(), { ...of, token, postIds: ids(40, 30, 20) })).toBe(true);
      expect(await small().commit(soon(), { ...of, token, floor: 25 })).toBe(true);
      expect(await held(of)).toEqual({ state: 'ready', floor: 25, ids: [50, 40, 30] });
      expect(await small().begin(soon(), { ...of, token: newToken() })).toBe('ready');
    });

    it('carries the floor of what was trimmed meanwhile into its end', async () => {
      const of = nobody();
      const token = newToken();
      await small().begin(soon(), { ...of, token });
      for (let id = 1; id <= CAP + STRIDE + 1; id += 1) await push(of, postIdFrom(id));
      const { floor } = await held(of);
      expect(floor).toBe(STRIDE);
      expect(await small().addOlder(soon(), { ...of, token, postIds: ids(1, 2) })).toBe(true);
      expect(await small().commit(soon(), { ...of, token, floor: 0 })).toBe(true);
      expect(await held(of)).toEqual({ state: 'ready', floor: STRIDE, ids: [8, 7, 6, 5, 4] });
    });

    it('is taken over once its lease is over, with what was pushed; the one before then stores nothing', async () => {
      const of = nobody();
      const [first, second] = [newToken(), newToken()];
      const hasty = small({ rebuildLeaseMs: 60 });
      expect(await hasty.begin(soon(), { ...of, token: first })).toBe('won');
      await push(of, postIdFrom(50));
      await eventually(async () => expect(await hasty.begin(soon(), { ...of, token: second })).toBe('won'));
      expect(await hasty.addOlder(soon(), { ...of, token: first, postIds: ids(40) })).toBe(false);
      expect(await hasty.commit(soon(), { ...of, token: first, floor: 0 })).toBe(false);
      expect((await held(of)).state).toBe('building');
      expect(await hasty.commit(soon(), { ...of, token: second, floor: 10 })).toBe(true);
      expect(await held(of)).toEqual({ state: 'ready', floor: 10, ids: [50] });
    });

    it('that is taken over keeps the floor of what was trimmed', async () => {
      const of = nobody();
      const hasty = small({ rebuildLeaseMs: 60 });
      await hasty.begin(soon(), { ...of, token: newToken() });
      for (let id = 1; id <= CAP + STRIDE + 1; id += 1) await push(of, postIdFrom(id));
      const second = newToken();
      await eventually(async () => expect(await hasty.begin(soon(), { ...of, token: second })).toBe('won'));
      expect(await held(of)).toEqual({ state: 'building', floor: STRIDE, ids: [8, 7, 6, 5, 4] });
      expect(await hasty.commit(soon(), { ...of, token: second, floor: 0 })).toBe(true);
      expect((await held(of)).floor).toBe(STRIDE);
    });

    it('that is asked for again by its own token has not lost it: the first answer may never have arrived', async () => {
      const of = nobody();
      const token = newToken();
      await small().begin(soon(), { ...of, token });
      expect(await small().begin(soon(), { ...of, token })).toBe('won');
    });

    it('stores nothing after the key was lost, not even when another one runs', async () => {
      const of = nobody();
      const [first, second] = [newToken(), newToken()];
      await small().begin(soon(), { ...of, token: first });
      await under.raw.del(under.keys.timeline(of.tenant, of.viewer));
      expect(await small().addOlder(soon(), { ...of, token: first, postIds: ids(40) })).toBe(false);
      expect(await small().commit(soon(), { ...of, token: first, floor: 0 })).toBe(false);
      await small().begin(soon(), { ...of, token: second });
      expect(await small().commit(soon(), { ...of, token: first, floor: 0 })).toBe(false);
      expect((await held(of)).ids).toEqual([]);
    });

    it('takes no token that would spoil the compact form of the list', async () => {
      await expect(small().begin(soon(), { ...nobody(), token: 'x'.repeat(41) })).rejects.toThrow('token');
      await expect(small().begin(soon(), { ...nobody(), token: 'a:1' })).rejects.toThrow('token');
    });

    it('that nobody ends goes away by itself', async () => {
      const of = nobody();
      await small({ rebuildLeaseMs: 1_000 }).begin(soon(), { ...of, token: newToken() });
      const life = await under.raw.pttl(under.keys.timeline(of.tenant, of.viewer));
      expect(life).toBeGreaterThan(1_000);
      expect(life).toBeLessThanOrEqual(10_000);
    });
  });

  describe('a timeline in parts', () => {
    /** Of whom 20 posts came one after another: older parts, and a newest one. */
    async function inParts(): Promise<TimelineOf> {
      const of = await resident();
      const roomy = under.timelines({ cap: 40 });
      for (let id = 1; id <= 40; id += 1) await push(of, postIdFrom(2 * id), roomy);
      return of;
    }
    const roomy = () => under.timelines({ cap: 40 });
    const all = (of: TimelineOf) => roomy().page(soon(), { ...of, ...ALL });
    const numbered = (of: TimelineOf) => under.keys.timelineRing(of.tenant, of.viewer);
    const countOf = (key: string) => under.raw.zcard(key);
    const evens = Array.from({ length: 40 }, (_, index) => 80 - 2 * index);

    it('has the pages that a filter and a sort of the IDs give, from any position, both ways', async () => {
      const of = await inParts();
      for (const direction of ['older', 'newer'] as const) {
        const inOrder = direction === 'older' ? evens : evens.toReversed();
        for (const count of [1, 3, 9, 20, 100]) {
          for (let position = 0; position <= 81; position += 1) {
            const page = await roomy().page(soon(), { ...of, direction, position, count });
            const beyond = inOrder.filter((id) => (direction === 'older' ? id <= position : id > position));
            if (page.state !== 'ready') throw new Error(`the timeline is ${page.state}`);
            expect(page.ids).toEqual(beyond.slice(0, count));
            // What it says of itself goes as far as the page.
            if (page.ids.length < count) expect(page.floor).toBeLessThanOrEqual(direction === 'older' ? 0 : position);
            else expect(page.floor).toBeLessThan(Math.min(...page.ids));
          }
        }
        const position = direction === 'older' ? ID_MAX : 0;
        expect((await roomy().page(soon(), { ...of, direction, position, count: 7 })).state).toBe('ready');
      }
    });

    it('gives homes the same pages, with who is pulled', async () => {
      const of = await inParts();
      const readHome = createReadHomeEntries(under.cache, under.keys, { cap: 40, lifeMs: 60_000, tokenLifeMs: 5_000 });
      for (const direction of ['older', 'newer'] as const) {
        for (const count of [1, 9, 20, 100]) {
          for (const position of [0, 1, 2, 40, 41, 79, 80, 81, ID_MAX]) {
            const token = newToken();
            const page = await roomy().page(soon(), { ...of, direction, position, count });
            await under.raw.del(under.keys.pulledAuthors(of.tenant, of.viewer));
            expect(await readHome(soon(), { ...of, direction, position, count, token })).toEqual({
              page,
              pulled: { kind: 'miss' },
            });
          }
        }
      }
    });

    it('says its whole floor to those who ask for floors alone', async () => {
      const [of, other] = [await inParts(), await inParts()];
      await roomy().raiseFloor(soon(), { ...other, floor: 21 });
      const floorOf = async ({ tenant, viewer }: TimelineOf) =>
        (await roomy().floors(soon(), { tenant, viewers: [viewer] }))[0];
      expect([await floorOf(of), await floorOf(other)]).toEqual([0, 21]);
      expect(await all(other)).toEqual({ state: 'ready', floor: 21, ids: evens.filter((id) => id > 21) });
    });

    it('keeps its life when a raised floor or clean-ups leave a part empty', async () => {
      const of = await inParts();
      await roomy().removeEntries(soon(), { ...of, postIds: evens.map((id) => postIdFrom(id)) });
      await roomy().raiseFloor(soon(), { ...of, floor: 90 });
      // A read would give it a new one.
      expect(await under.raw.pttl(under.keys.timeline(of.tenant, of.viewer))).toBeGreaterThan(50_000);
      expect(await all(of)).toEqual({ state: 'ready', floor: 90, ids: [] });
    });

    it('is left as it is by a rebuild that was overtaken', async () => {
      const of = await inParts();
      expect(await roomy().addOlder(soon(), { ...of, token: newToken(), postIds: ids(1, 3) })).toBe(false);
      expect(await all(of)).toEqual({ state: 'ready', floor: 0, ids: evens });
    });

    it('tells each of many viewers what became of a late post', async () => {
      const tenant = newTenant();
      const viewers = Array.from({ length: 40 }, (_, index) => user(`many-${index}`));
      const there = viewers.filter((_, index) => index % 3 !== 0);
      for (const viewer of there) {
        const token = newToken();
        await roomy().begin(soon(), { tenant, viewer, token });
        await roomy().commit(soon(), { tenant, viewer, token, floor: 0 });
      }
      for (let id = 1; id <= 40; id += 1) await roomy().push(soon(), { tenant, postId: postIdFrom(2 * id), viewers });
      for (const viewer of viewers.filter((_, index) => index % 3 === 1))
        await roomy().raiseFloor(soon(), { tenant, viewer, floor: 50 });
      const outcomes = viewers.map((_, index) => ['absent', 'below_floor', 'added'][index % 3]);
      expect(await roomy().push(soon(), { tenant, postId: postIdFrom(33), viewers })).toEqual(outcomes);
      const again = outcomes.map((outcome) => (outcome === 'added' ? 'present' : outcome));
      expect(await roomy().push(soon(), { tenant, postId: postIdFrom(33), viewers })).toEqual(again);
    });

    it('is cut by one of those who find it full at the same moment', async () => {
      const of = await resident();
      const cuts: string[] = [];
      const counted = under.timelines({
        cap: 40,
        events: { timelineCut: (outcome) => cuts.push(outcome), timelineDropped: () => undefined },
      });
      for (let id = 1; id <= 19; id += 1) await push(of, postIdFrom(id), counted);
      await Promise.all(Array.from({ length: 8 }, (_, index) => push(of, postIdFrom(20 + index), counted)));
      expect(cuts).toEqual(['done']);
      expect((await held(of)).ids).toHaveLength(27);
    });

    it('is not cut for somebody who is waited for, and takes the post all the same', async () => {
      const of = await resident();
      const viewers = [of.viewer];
      for (let id = 1; id <= 30; id += 1) {
        const [outcome] = await roomy().push(soon(), { ...of, postId: postIdFrom(id), viewers, cutLater: true });
        expect(outcome).toBe('added');
      }
      expect(await countOf(under.keys.timeline(of.tenant, of.viewer))).toBe(31);
      await push(of, postIdFrom(31), roomy());
      expect(await countOf(under.keys.timeline(of.tenant, of.viewer))).toBeLessThan(31);
      expect((await held(of)).ids).toHaveLength(31);
    });

    it('is several keys, of which the newest one is the shortest to look through', async () => {
      const of = await inParts();
      const lengths = await Promise.all([under.keys.timeline(of.tenant, of.viewer), ...numbered(of)].map(countOf));
      expect(lengths.filter((length) => length > 0).length).toBeGreaterThan(2);
      expect(Math.max(...lengths)).toBeLessThanOrEqual(21);
      expect(await all(of)).toEqual({ state: 'ready', floor: 0, ids: evens });
    });

    it('takes a post that others have overtaken, however old it is, where it belongs', async () => {
      const of = await inParts();
      const late = [3, 21, 39, 57, 75, 79];
      for (const id of late) expect(await push(of, postIdFrom(id), roomy())).toBe('added');
      for (const id of late) expect(await push(of, postIdFrom(id), roomy())).toBe('present');
      expect(await all(of)).toEqual({ state: 'ready', floor: 0, ids: newestFirst([...evens, ...late]) });
      await roomy().raiseFloor(soon(), { ...of, floor: 10 });
      for (const id of [1, 10]) expect(await push(of, postIdFrom(id), roomy())).toBe('below_floor');
      expect(await all(of)).toEqual({
        state: 'ready',
        floor: 10,
        ids: newestFirst([...evens, ...late]).filter((id) => id > 10),
      });
    });

    it('whose part was evicted is complete above it, and lets what is below go', async () => {
      for (const lost of [0, 1, 2, 3]) {
        const of = await inParts();
        const parts: string[] = [];
        for (const key of numbered(of)) if ((await countOf(key)) > 0) parts.push(key);
        const gone = parts[lost % parts.length] as string;
        const held = (await under.raw.zrange(gone, '0', '-1')).map(Number).filter((id) => id > 0);
        await under.raw.del(gone);
        const page = await all(of);
        if (page.state === 'absent') throw new Error('the timeline is absent');
        expect(page.floor).toBeGreaterThanOrEqual(Math.max(...held));
        expect(page.ids).toEqual(evens.filter((id) => id > page.floor));
        // Those who ask for the floor alone learn of it too, and what came too late for the lost part is not taken.
        expect(await roomy().floors(soon(), { ...of, viewers: [of.viewer] })).toEqual([page.floor]);
        expect(await push(of, postIdFrom(1), roomy())).toBe('below_floor');
        // What comes now is no reason to claim the lost ones.
        for (let id = 100; id < 130; id += 1) await push(of, postIdFrom(id), roomy());
        const later = await all(of);
        if (later.state === 'absent') throw new Error('the timeline is absent');
        expect(later.floor).toBeGreaterThanOrEqual(page.floor);
        const since = Array.from({ length: 30 }, (_, index) => 100 + index);
        expect(later.ids).toEqual(newestFirst([...evens, ...since]).filter((id) => id > later.floor));
      }
    });

    it('whose head was evicted is absent, and nothing of it comes back', async () => {
      const of = await inParts();
      await under.raw.del(under.keys.timeline(of.tenant, of.viewer));
      expect(await all(of)).toEqual({ state: 'absent' });
      const token = newToken();
      await roomy().begin(soon(), { ...of, token });
      await roomy().commit(soon(), { ...of, token, floor: 90 });
      for (let id = 91; id < 100; id += 1) await push(of, postIdFrom(id), roomy());
      expect(await all(of)).toEqual({ state: 'ready', floor: 90, ids: [99, 98, 97, 96, 95, 94, 93, 92, 91] });
      for (let id = 100; id < 300; id += 1) await push(of, postIdFrom(id), roomy());
      const page = await all(of);
      if (page.state === 'absent') throw new Error('the timeline is absent');
      expect(page.ids).toEqual(Array.from({ length: page.ids.length }, (_, index) => 299 - index));
      expect(page.ids.length).toBeGreaterThanOrEqual(40);
    });

    it('that was dropped leaves no key behind', async () => {
      const of = await inParts();
      await roomy().drop(soon(), of);
      for (const key of [under.keys.timeline(of.tenant, of.viewer), ...numbered(of)])
        expect(await under.raw.exists(key)).toBe(0);
    });

    it('has its parts renewed when they are read, and every part has an end', async () => {
      const of = await inParts();
      const keys = [under.keys.timeline(of.tenant, of.viewer), ...numbered(of)];
      const lives = async () =>
        (await Promise.all(keys.map((key) => under.raw.pttl(key)))).filter((life) => life !== -2);
      for (const life of await lives()) expect(life).toBeGreaterThan(50_000);
      for (const key of keys) await under.raw.pexpire(key, 30_000);
      await all(of);
      for (const life of await lives()) expect(life).toBeGreaterThan(50_000);
    });

    it('loses entries and an author from every part alike', async () => {
      const of = await inParts();
      await roomy().removeEntries(soon(), { ...of, postIds: ids(80, 42, 2) });
      await under.raw.hset(under.keys.relations(of.tenant, of.viewer), 'ada', 'v0000');
      const gone = await roomy().cleanAuthor(soon(), { ...of, author: user('ada'), postIds: ids(78, 40, 4, 5) });
      expect(gone).toBe(3);
      expect(await all(of)).toEqual({
        state: 'ready',
        floor: 0,
        ids: evens.filter((id) => ![80, 42, 2, 78, 40, 4].includes(id)),
      });
    });

    it('that cannot be cut takes pushes all the same, and is trimmed as a whole', async () => {
      const of = await inParts();
      // As if every cut had failed.
      const head = under.keys.timeline(of.tenant, of.viewer);
      for (let id = 1_000; id < 1_200; id += 1) await under.cache.run(soon(), 'push', [head], [id, 40, STRIDE, 0]);
      const page = await all(of);
      if (page.state === 'absent') throw new Error('the timeline is absent');
      expect(page.ids).toEqual(Array.from({ length: page.ids.length }, (_, index) => 1_199 - index));
      expect(page.floor).toBe(1_199 - page.ids.length);
    });

    it('whose ring is full gives its oldest part up', async () => {
      const of = await inParts();
      // Parts that were emptied by clean-ups take a place each, whatever the cap says.
      for (let id = 100; id < 700; id += 1) {
        await push(of, postIdFrom(id), roomy());
        if (id % 25 !== 0) await roomy().removeEntries(soon(), { ...of, postIds: ids(id) });
      }
      for (let id = 700; id < 1_000; id += 1) {
        await push(of, postIdFrom(id), roomy());
        if (id % 10 < 8 && id < 960) await roomy().removeEntries(soon(), { ...of, postIds: ids(id - 15) });
      }
      const page = await all(of);
      if (page.state === 'absent') throw new Error('the timeline is absent');
      const left = [
        ...evens,
        ...Array.from({ length: 900 }, (_, index) => 100 + index).filter(
          (id) => (id >= 700 || id % 25 === 0) && !((id + 15) % 10 < 8 && id + 15 >= 700 && id + 15 < 960),
        ),
      ];
      expect(page.ids).toEqual(newestFirst(left).filter((id) => id > page.floor));
    });
  });

  it('stays compact at a cap of 800, after thousands of pushes and trims', async () => {
    const of = await resident();
    const large = under.timelines({});
    const first = 1_009_651_914_519_000;
    for (let from = 0; from < 5_000; from += 100) {
      await Promise.all(Array.from({ length: 100 }, (_, index) => push(of, postIdFrom(first + from + index), large)));
    }
    for (const key of [under.keys.timeline(of.tenant, of.viewer), ...under.keys.timelineRing(of.tenant, of.viewer)])
      expect([null, 'listpack']).toContain(await under.raw.object('ENCODING', key));
    const { floor, ids: kept } = await held(of);
    expect(kept.length).toBeGreaterThanOrEqual(800);
    // What came in the same moment as a cut is on top.
    expect(kept.length).toBeLessThanOrEqual(800 + 100 + 100);
    expect(kept).toEqual(Array.from({ length: kept.length }, (_, index) => first + 4_999 - index));
    expect(floor).toBe((kept.at(-1) as number) - 1);
  });
}

function newestFirst(numbers: readonly number[]): number[] {
  return [...new Set(numbers)].sort((a, b) => b - a);
}
