/**
 * Owns the laws of timelines in Redis, as a suite that runs on one server and on a cluster. The model is a set of IDs and a floor; whatever the order of verbs, the
 * list is that model.
 */
import fc from 'fast-check';
import { beforeAll, describe, expect, it } from 'vitest';
import type { TimelineOf } from '../../../src/store/redis/timelines.ts';
import { type PostId, postIdFrom } from '../../../src/timeline/ids.ts';
import { eventually } from '../../harness/eventually.ts';
import { type CacheUnderTest, ids, newTenant, newToken, soon, user } from './cache-under-test.ts';

const ID_MAX = Number.MAX_SAFE_INTEGER;
const ALL = { direction: 'older', position: ID_MAX, count: 10_000 } as const;
const CAP = 4;
const STRIDE = 3;

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
          expect(kept.length).toBeLessThanOrEqual(CAP + STRIDE);
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
          expect(page.ids.length).toBeLessThanOrEqual(CAP + STRIDE);
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

  it('stays compact at a cap of 800, after thousands of pushes and trims', async () => {
    const of = await resident();
    const key = under.keys.timeline(of.tenant, of.viewer);
    const large = under.timelines({});
    const first = 1_009_651_914_519_000;
    for (let from = 0; from < 5_000; from += 100) {
      await Promise.all(Array.from({ length: 100 }, (_, index) => push(of, postIdFrom(first + from + index), large)));
    }
    expect(await under.raw.object('ENCODING', key)).toBe('listpack');
    const { floor, ids: kept } = await held(of);
    expect(kept.length).toBeGreaterThanOrEqual(800);
    expect(kept.length).toBeLessThanOrEqual(864);
    expect(kept).toEqual(Array.from({ length: kept.length }, (_, index) => first + 4_999 - index));
    expect(floor).toBe((kept.at(-1) as number) - 1);
  });
}

function newestFirst(numbers: readonly number[]): number[] {
  return [...new Set(numbers)].sort((a, b) => b - a);
}
