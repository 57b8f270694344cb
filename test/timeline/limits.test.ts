/** Owns the one documented treatment of page sizes. */
import { describe, expect, it } from 'vitest';
import { pageSizeFrom } from '../../src/timeline/limits.ts';

describe('the number of entries on a page', () => {
  it.each([
    { asked: 0, given: 50 },
    { asked: 1, given: 1 },
    { asked: 50, given: 50 },
    { asked: 100, given: 100 },
    { asked: 101, given: 100 },
    { asked: 1_000_000_000, given: 100 },
    { asked: -1, given: undefined },
    { asked: -2_147_483_648, given: undefined },
    { asked: 1.5, given: undefined },
    { asked: Number.NaN, given: undefined },
  ])('is $given where $asked was asked for', ({ asked, given }) => expect(pageSizeFrom(asked)).toBe(given));
});
