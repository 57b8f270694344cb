import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { encodeHint, type FanoutHint, hintJobId, PAYLOAD_BYTES_MAX, parseHint } from '../../src/queue/payload.ts';
import { parseTenantId, postIdFrom, type TenantId } from '../../src/timeline/ids.ts';

const hints: fc.Arbitrary<FanoutHint> = fc.record({
  tenant: fc.stringMatching(/^[A-Za-z0-9_.~-]{1,64}$/).map((text) => parseTenantId(text) as TenantId),
  postId: fc.integer({ min: 1, max: Number.MAX_SAFE_INTEGER }).map(postIdFrom),
  generation: fc.integer({ min: 1, max: 2 ** 31 - 1 }),
});
const good = { v: 1, tenant: 'acme', post: '9007199254740991', generation: 1 };

describe('a hint', () => {
  it('comes back as it went, through JSON, in well under a kilobyte', () => {
    fc.assert(
      fc.property(hints, (hint) => {
        const json = JSON.stringify(encodeHint(hint));
        expect(Buffer.byteLength(json)).toBeLessThan(PAYLOAD_BYTES_MAX / 4);
        expect(parseHint(JSON.parse(json))).toEqual(hint);
      }),
    );
  });

  it('has an ID of its own, which BullMQ takes', () => {
    fc.assert(
      fc.property(hints, hints, (one, other) => {
        expect(hintJobId(one)).not.toContain(':');
        expect(hintJobId(one)).not.toMatch(/^-?\d+$/);
        const same = one.tenant === other.tenant && one.postId === other.postId && one.generation === other.generation;
        expect(hintJobId(one) === hintJobId(other)).toBe(same);
      }),
    );
  });

  it('keeps its ID apart from those that only look like it', () => {
    const [a, b] = [parseTenantId('2.acme'), parseTenantId('acme')] as [TenantId, TenantId];
    const postId = postIdFrom(1);
    expect(hintJobId({ tenant: a, postId, generation: 1 })).not.toBe(hintJobId({ tenant: b, postId, generation: 12 }));
  });
});

describe('no hint', () => {
  const others = [
    undefined,
    null,
    'text',
    7,
    [],
    [good],
    {},
    { ...good, v: 2 },
    { ...good, v: '1' },
    { ...good, more: 1 },
    { v: 1, tenant: 'acme', post: '1' },
    { ...good, tenant: '' },
    { ...good, tenant: 'a:b' },
    { ...good, tenant: 5 },
    { ...good, post: 1 },
    { ...good, post: '01' },
    { ...good, post: '-1' },
    { ...good, post: '9007199254740992' },
    { ...good, generation: 0 },
    { ...good, generation: 1.5 },
    { ...good, generation: '1' },
    { ...good, generation: 2 ** 31 },
  ];
  it.each(others.map((payload) => ({ payload })))('is $payload', ({ payload }) =>
    expect(parseHint(payload)).toBeUndefined(),
  );

  it('is anything else', () => {
    fc.assert(fc.property(fc.anything(), (payload) => parseHint(payload) === undefined));
  });
});
