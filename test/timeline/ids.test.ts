/** Owns the laws of identifiers: what is one, that it keeps its digits, and that order is time. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  composePostId,
  GENERATOR_COUNT,
  ID_EPOCH_MS,
  ID_MAX_MS,
  IMPORT_GENERATOR_MIN,
  importPostId,
  POST_ID_MAX,
  parsePostId,
  parseTenantId,
  parseUserId,
  positionBeforeMs,
  postIdFrom,
  postIdMs,
  SEQUENCE_COUNT,
} from '../../src/timeline/ids.ts';

const parts = fc.record({
  ms: fc.integer({ min: ID_EPOCH_MS + 1, max: ID_MAX_MS }),
  generator: fc.integer({ min: 0, max: GENERATOR_COUNT - 1 }),
  sequence: fc.integer({ min: 0, max: SEQUENCE_COUNT - 1 }),
});

describe('a post ID as text', () => {
  it('keeps every digit of every ID, the largest included', () => {
    fc.assert(
      fc.property(
        fc.maxSafeInteger().filter((value) => value >= 1),
        (value) => parsePostId(String(value)) === value,
      ),
    );
    expect(String(parsePostId('9007199254740991'))).toBe('9007199254740991');
    expect(String(parsePostId('1009651914519660'))).toBe('1009651914519660');
  });

  it.each([
    '',
    '0',
    '-1',
    '01',
    '+1',
    '1.0',
    '1e3',
    ' 1',
    '1 ',
    '0x10',
    '9007199254740992',
    '9223372036854775808',
    '12345678901234567',
    '١',
    'NaN',
  ])('refuses %j', (text) => expect(parsePostId(text)).toBeUndefined());
});

describe('a post ID from our own stores', () => {
  it.each([0, -1, 1.5, Number.NaN, 2 ** 53])('refuses %d', (value) =>
    expect(() => postIdFrom(value)).toThrow(RangeError),
  );

  it('takes the largest ID', () => expect(postIdFrom(2 ** 53 - 1)).toBe(POST_ID_MAX));
});

describe('a composed post ID', () => {
  it('is exact, and gives its millisecond back', () => {
    fc.assert(
      fc.property(parts, (given) => {
        const id = composePostId(given);
        return Number.isSafeInteger(id) && postIdMs(id) === given.ms && id % SEQUENCE_COUNT === given.sequence;
      }),
    );
  });

  it('orders by millisecond, then generator, then sequence, and no two are equal', () => {
    fc.assert(
      fc.property(parts, parts, (a, b) => {
        const byParts = a.ms - b.ms || a.generator - b.generator || a.sequence - b.sequence;
        return Math.sign(composePostId(a) - composePostId(b)) === Math.sign(byParts);
      }),
    );
  });

  it('fills the 53 bits exactly', () => {
    expect(composePostId({ ms: ID_MAX_MS, generator: GENERATOR_COUNT - 1, sequence: SEQUENCE_COUNT - 1 })).toBe(
      2 ** 53 - 1,
    );
  });

  it.each([
    { ms: ID_EPOCH_MS - 1, generator: 0, sequence: 0 },
    { ms: ID_MAX_MS + 1, generator: 0, sequence: 0 },
    { ms: ID_EPOCH_MS + 1, generator: GENERATOR_COUNT, sequence: 0 },
    { ms: ID_EPOCH_MS + 1, generator: -1, sequence: 0 },
    { ms: ID_EPOCH_MS + 1, generator: 0, sequence: SEQUENCE_COUNT },
    { ms: ID_EPOCH_MS + 1.5, generator: 0, sequence: 0 },
  ])('refuses parts out of their bounds: %j', (given) => expect(() => composePostId(given)).toThrow(RangeError));
});

describe('the ID of an imported post', () => {
  const ms = Date.UTC(2021, 5, 1);

  it('bears the date of the post and a generator that is never leased', () => {
    const id = importPostId(ms, 0);
    expect(postIdMs(id)).toBe(ms);
    expect(Math.floor(id / SEQUENCE_COUNT) % GENERATOR_COUNT).toBeGreaterThanOrEqual(IMPORT_GENERATOR_MIN);
  });

  it('is another one with every attempt, and moves on by a millisecond after 256', () => {
    const ids = Array.from({ length: 600 }, (_, attempt) => importPostId(ms, attempt));
    expect(new Set(ids).size).toBe(600);
    expect(ids.map((id) => postIdMs(id) - ms)).toEqual(
      Array.from({ length: 600 }, (_, attempt) => Math.floor(attempt / 256)),
    );
  });
});

describe('the position before a millisecond', () => {
  it('lies below every ID of that millisecond and not below any earlier one', () => {
    fc.assert(
      fc.property(parts, (given) => {
        const first = composePostId({ ms: given.ms, generator: 0, sequence: 0 });
        const position = positionBeforeMs(given.ms);
        return position < first && position >= first - 1;
      }),
    );
  });

  it('is 0 before the zero of IDs', () => expect(positionBeforeMs(0)).toBe(0));
});

describe('a user or tenant ID', () => {
  it.each(['a', 'A.b_c~d-9', 'x'.repeat(64)])('takes %j', (text) => {
    expect(parseUserId(text)).toBe(text);
    expect(parseTenantId(text)).toBe(text);
  });

  it.each(['', 'x'.repeat(65), 'a b', 'a:b', 'ä', 'a\n', 'a/b', '{a}'])('refuses %j', (text) => {
    expect(parseUserId(text)).toBeUndefined();
    expect(parseTenantId(text)).toBeUndefined();
  });
});
