/** Owns that a page which is read part by part is one that the timeline had: whatever is pushed, cut and trimmed meanwhile, nothing that was there is missing, nothing is there twice; and what is damaged is said to be. */
import { afterAll, beforeAll, expect, inject, it } from 'vitest';
import { pageArgs, type TimelinePage } from '../../../src/store/redis/entry-sets.ts';
import { readPartByPart } from '../../../src/store/redis/part-by-part.ts';
import type { TimelineOf } from '../../../src/store/redis/timelines.ts';
import { POST_ID_MAX, postIdFrom } from '../../../src/timeline/ids.ts';
import { type CacheUnderTest, newTenant, newToken, openCache, soon, user } from './cache-under-test.ts';

let under: CacheUnderTest;
beforeAll(async () => {
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
});
afterAll(() => under.close());

const partsOf = ({ tenant, viewer }: TimelineOf) => [
  under.keys.timeline(tenant, viewer),
  ...under.keys.timelineRing(tenant, viewer),
];
function read(
  of: TimelineOf,
  direction: 'older' | 'newer',
  position: number,
  count: number,
  cache = under.cache,
): Promise<TimelinePage | 'corrupt'> {
  const range = { direction, position, count };
  return readPartByPart(cache, soon(), partsOf(of), range, pageArgs(range, { lifeMs: 60_000 }));
}
const nobody = (): TimelineOf => ({ tenant: newTenant(), viewer: user('reader') });

it.each([
  ['newer', 40],
  ['older', 40],
] as const)(
  'a page of %s entries, %s of them, has all that was there before it was asked for',
  async (direction, count) => {
    const of = nobody();
    const timelines = under.timelines({ cap: 40, stride: 4 });
    const token = newToken();
    await timelines.begin(soon(), { ...of, token });
    await timelines.commit(soon(), { ...of, token, floor: 0 });
    const pushed: number[] = [];
    let over = false;
    const push = async (id: number): Promise<void> => {
      await timelines.push(soon(), { tenant: of.tenant, postId: postIdFrom(id), viewers: [of.viewer] });
      pushed.push(id);
    };
    async function write(): Promise<void> {
      for (let id = 10; id <= 5_000; id += 10) {
        await push(id);
        // One that was overtaken.
        if (id > 300 && id % 70 === 0) await push(id - 215);
      }
      over = true;
    }
    const writing = write();
    let pages = 0;
    while (!over) {
      const before = [...pushed];
      const newest = Math.max(0, ...before);
      const position = direction === 'older' ? POST_ID_MAX : Math.max(0, newest - 150);
      const page = await read(of, direction, position, count).catch(() => undefined);
      // Changed in every reading.
      if (page === undefined) continue;
      if (page === 'corrupt' || page.state !== 'ready') throw new Error('the timeline is not there');
      pages += 1;
      const { ids, floor } = page;
      const sorted = [...new Set(ids)].sort((a, b) => (direction === 'older' ? b - a : a - b));
      expect(ids).toEqual(sorted);
      const last = ids.length === count ? (ids.at(-1) as number) : direction === 'older' ? 0 : POST_ID_MAX;
      const within = (id: number) => (direction === 'older' ? id >= last : id > position && id <= last);
      const due = before.filter((id) => id > floor && within(id));
      expect(due.filter((id) => !ids.includes(postIdFrom(id)))).toEqual([]);
    }
    await writing;
    expect(pages).toBeGreaterThan(20);
  },
);

it('a timeline that is made anew between two looks is read again: its parts are not those of the one before', async () => {
  const of = nobody();
  const [head = '', first = ''] = partsOf(of);
  await under.raw.zadd(head, -60, '60', 50, 'r1:10');
  await under.raw.zadd(first, -40, '40', 10, 'r');
  let looks = 0;
  const cache: typeof under.cache = {
    ...under.cache,
    async run(...asked) {
      const answer = await under.cache.run(...asked);
      looks += 1;
      if (looks === 1) {
        await under.raw.del(head, first);
        await under.raw.zadd(head, -60, '60', -50, '50', -40, '40', 30, 'r1:0');
        await under.raw.zadd(first, -20, '20', 0, 'r');
      }
      return answer;
    },
  };
  expect(await read(of, 'older', POST_ID_MAX, 10, cache)).toEqual({ state: 'ready', floor: 0, ids: [60, 50, 40, 20] });
});

it.each([
  ['whose newest part is complete above everything', 'r1:0', 'inf', 'corrupt'],
  ['whose newest part is complete below nothing', 'r1:0', -5, 'corrupt'],
  ['whose parts name a place that is none', 'r99:0', 50, { state: 'ready', floor: 50, ids: [60] }],
] as const)('a timeline %s is read as far as it can be trusted', async (_what, member, floor, expected) => {
  const of = nobody();
  const [head = '', first = ''] = partsOf(of);
  await under.raw.zadd(head, -60, '60', floor, member);
  await under.raw.zadd(first, -40, '40', 10, 'r2:0');
  expect(await read(of, 'older', POST_ID_MAX, 10)).toEqual(expected);
});

it('parts that name one another, one of them complete above everything, end the page and not the reader', async () => {
  const of = nobody();
  const [head = '', first = '', second = ''] = partsOf(of);
  await under.raw.zadd(head, -60, '60', 50, 'r1:0');
  await under.raw.zadd(first, -40, '40', 'inf', 'r2:0');
  await under.raw.zadd(second, -20, '20', 10, 'r1:0');
  expect(await read(of, 'older', POST_ID_MAX, 10)).toEqual({ state: 'ready', floor: 50, ids: [60] });
});
