/** Owns the law of the merge: whatever the sources and their floors, a page is the sort of the union above the line, and together with the truth below it nothing is missing and nothing comes twice. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type PostId, postIdFrom } from '../../src/timeline/ids.ts';
import { lineOf, mergeNewer, mergeOlder, type Source } from '../../src/timeline/merge.ts';

/** Few IDs, so that sources share some; a source holds all of its own above its floor, and some below by accident. */
const world = fc.record({
  sources: fc.array(
    fc.record({
      truth: fc.uniqueArray(fc.integer({ min: 1, max: 40 }), { maxLength: 25 }),
      floor: fc.integer({ min: 0, max: 40 }),
    }),
    { minLength: 1, maxLength: 5 },
  ),
  position: fc.integer({ min: 0, max: 41 }),
  limit: fc.integer({ min: 1, max: 12 }),
});

const union = (lists: readonly (readonly number[])[]): number[] => [...new Set(lists.flat())].sort((a, b) => b - a);
const ids = (numbers: readonly number[]): PostId[] => numbers.map(postIdFrom);

/** What a source answers: at most `limit` of what it holds above its floor, in the page's order. */
function pageOf(
  of: { truth: readonly number[]; floor: number },
  direction: 'older' | 'newer',
  at: number,
  limit: number,
): Source {
  const held = union([of.truth.filter((id) => id > of.floor)]);
  const beyond = direction === 'older' ? held.filter((id) => id <= at) : held.filter((id) => id > at).reverse();
  return { floor: of.floor, ids: ids(beyond.slice(0, limit)) };
}

describe('older entries', () => {
  it('are the newest of the union above the line, and with the truth below the line the whole page', () => {
    fc.assert(
      fc.property(world, ({ sources, position, limit }) => {
        const pages = sources.map((source) => pageOf(source, 'older', position, limit));
        const line = lineOf(pages);
        const truth = union(sources.map(({ truth: all }) => all)).filter((id) => id <= position);
        const above = mergeOlder(pages, limit);
        expect(above).toEqual(truth.filter((id) => id > line).slice(0, limit));
        const below = truth.filter((id) => id <= Math.min(position, line)).slice(0, limit - above.length);
        expect([...above, ...below]).toEqual(truth.slice(0, limit));
      }),
    );
  });

  it('walk down once each, whatever the order and number of the sources', () => {
    fc.assert(
      fc.property(world, fc.infiniteStream(fc.nat()), ({ sources, limit }, shuffle) => {
        const walk = (of: typeof sources): number[] => {
          const seen: number[] = [];
          let position = 41;
          for (;;) {
            const pages = of.map((source) => pageOf(source, 'older', position, limit));
            const line = lineOf(pages);
            const page = mergeOlder(pages, limit);
            seen.push(...page);
            if (page.length < limit) {
              const rest = union(of.map(({ truth }) => truth)).filter((id) => id <= Math.min(position, line));
              return [...seen, ...rest.filter((id) => id < (page.at(-1) ?? 42))];
            }
            position = (page.at(-1) as number) - 1;
          }
        };
        const mixed = [...sources].sort(() => (shuffle.next().value % 2 === 0 ? 1 : -1));
        expect(walk(sources)).toEqual(union(sources.map(({ truth }) => truth)));
        expect(walk(mixed)).toEqual(walk(sources));
      }),
    );
  });
});

describe('newer entries', () => {
  it('are the oldest of the union, from any position that is not below the line', () => {
    fc.assert(
      fc.property(world, ({ sources, position, limit }) => {
        const line = lineOf(sources.map(({ floor }) => ({ floor, ids: [] })));
        const from = Math.max(position, line);
        const pages = sources.map((source) => pageOf(source, 'newer', from, limit));
        const truth = union(sources.map(({ truth: all }) => all)).filter((id) => id > from);
        expect(mergeNewer(pages, limit)).toEqual(truth.reverse().slice(0, limit));
      }),
    );
  });
});

it('a source without a floor lowers no line, and none at all is complete', () => {
  expect(
    lineOf([
      { floor: 0, ids: [] },
      { floor: 7, ids: [] },
    ]),
  ).toBe(7);
  expect(lineOf([])).toBe(0);
});
