/** Owns the round trip of what is immutable: bodies and profiles come back as they went, or are told to be damaged. */
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest';
import { encodeBody, encodeProfile } from '../../../src/store/encode-bodies.ts';
import { createAuthorProfiles, createPostBodies, type PostBodies } from '../../../src/store/redis/bodies.ts';
import { postIdFrom } from '../../../src/timeline/ids.ts';
import { type AuthorProfile, NO_BODY, type PostBody } from '../../../src/timeline/post.ts';
import { type CacheUnderTest, newTenant, openCache, soon, user } from './cache-under-test.ts';

let under: CacheUnderTest;
let bodies: PostBodies;
beforeAll(async () => {
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
  bodies = createPostBodies(under.cache, under.keys, { lifeMs: 60_000 });
});
afterAll(() => under.close());

/** Any bytes: what they mean is nothing to the store. */
const bodyValues = fc.uint8Array({ maxLength: 400 }).map((bytes) => bytes as PostBody);
const HELLO = encodeBody({ text: 'hello', media: [] });

describe('bodies', () => {
  it('come back as they went', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(bodyValues, { minLength: 1, maxLength: 10 }), async (values) => {
        const tenant = newTenant();
        const entries = values.map((value, index) => ({
          id: postIdFrom(Number.MAX_SAFE_INTEGER - index),
          version: index + 1,
          value,
        }));
        await bodies.store(soon(), tenant, entries);
        expect(await bodies.read(soon(), tenant, entries)).toEqual(values.map((value) => ({ kind: 'hit', value })));
      }),
      { numRuns: 50 },
    );
  });

  it('of another version, post or tenant are missing', async () => {
    const tenant = newTenant();
    const [id, other] = [postIdFrom(1), postIdFrom(2)];
    await bodies.store(soon(), tenant, [{ id, version: 1, value: HELLO }]);
    const wanted = [
      { id, version: 2 },
      { id: other, version: 1 },
      { id, version: 1 },
    ];
    expect((await bodies.read(soon(), tenant, wanted)).map(({ kind }) => kind)).toEqual(['miss', 'miss', 'hit']);
    expect((await bodies.read(soon(), newTenant(), wanted)).map(({ kind }) => kind)).toEqual(['miss', 'miss', 'miss']);
  });

  it('that were damaged in any place are told to be, and leave the others of the batch alone', async () => {
    const tenant = newTenant();
    const whole = { id: postIdFrom(1), version: 1, value: HELLO };
    const value = encodeBody({ text: 'a text', media: [], editedAtMs: 1_700_000_000_000 });
    await bodies.store(soon(), tenant, [whole, { id: postIdFrom(2), version: 1, value }]);
    const key = under.keys.postBody(tenant, postIdFrom(2), 1);
    const bytes = (await under.raw.getBuffer(key)) as Buffer;
    const damaged = [
      Buffer.alloc(0),
      Buffer.from('x'),
      ...Array.from(bytes, (_, index) => bytes.subarray(0, index)),
      ...Array.from(bytes, (byte, index) =>
        Buffer.concat([bytes.subarray(0, index), Buffer.of(byte ^ 0x10), bytes.subarray(index + 1)]),
      ),
    ];
    for (const each of damaged) {
      await under.raw.set(key, each);
      const [first, second] = await bodies.read(soon(), tenant, [whole, { id: postIdFrom(2), version: 1 }]);
      expect(first).toEqual({ kind: 'hit', value: whole.value });
      expect(second).toEqual({ kind: 'corrupt' });
    }
  });

  it('keep nothing but themselves: not the packet that they came in', async () => {
    const tenant = newTenant();
    const entries = [1, 2, 3].map((id) => ({ id: postIdFrom(id), version: 1, value: HELLO }));
    await bodies.store(soon(), tenant, entries);
    for (const found of await bodies.read(soon(), tenant, entries)) {
      expect(found.kind === 'hit' && found.value.buffer.byteLength).toBe(HELLO.length);
    }
    expect(HELLO.buffer.byteLength).toBe(HELLO.length);
  });

  it('have an end', async () => {
    const tenant = newTenant();
    await bodies.store(soon(), tenant, [{ id: postIdFrom(1), version: 1, value: NO_BODY }]);
    const life = await under.raw.pttl(under.keys.postBody(tenant, postIdFrom(1), 1));
    expect(life).toBeGreaterThan(0);
    expect(life).toBeLessThanOrEqual(60_000);
  });
});

describe('profiles', () => {
  it('come back as they went', async () => {
    const profiles = createAuthorProfiles(under.cache, under.keys, { lifeMs: 60_000 });
    const shown = { displayName: 'Überall 🌊', avatarAddress: 'sha256:ab', bio: '', protected: true };
    const value: AuthorProfile = encodeProfile({ author: user('alice'), ...shown, profileVersion: 7 });
    const tenant = newTenant();
    const wanted = { id: user('alice'), version: 7 };
    await profiles.store(soon(), tenant, [{ ...wanted, value }]);
    expect(await profiles.read(soon(), tenant, [wanted])).toEqual([{ kind: 'hit', value }]);
    expect(await profiles.read(soon(), tenant, [{ ...wanted, version: 8 }])).toEqual([{ kind: 'miss' }]);
  });
});
