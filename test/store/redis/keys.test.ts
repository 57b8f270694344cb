/** Owns the names of keys: tags in their part of the slots, one slot for what a script touches together, batches cut without loss. */
import fc from 'fast-check';
import { Redis } from 'ioredis';
import { describe, expect, it } from 'vitest';
import { createKeys, groupKeys, KEYS_PER_CALL_MAX, slotOf } from '../../../src/store/redis/keys.ts';
import { postIdFrom } from '../../../src/timeline/ids.ts';
import { tenant, user } from './cache-under-test.ts';
import { startOwnRedis } from './own-redis.ts';

const T = tenant('acme');
const SLOTS = 16_384;

function tagsOf(shards: number, samples: number): ReadonlySet<string> {
  const keys = createKeys(shards);
  const tags = Array.from(
    { length: samples },
    (_, index) => /\{.*\}/.exec(keys.timeline(T, user(`v${index}`)))?.[0] ?? '',
  );
  return new Set(tags);
}

describe('shard tags', () => {
  it.each([1, 2, 3, 100, 256, 1_000])('of %d shards lie one in each equal part of the slots', (shards) => {
    const slots = [...tagsOf(shards, shards * 20)].map(slotOf).sort((a, b) => a - b);
    expect(slots).toHaveLength(shards);
    slots.forEach((slot, shard) => {
      expect(slot).toBeGreaterThanOrEqual(Math.floor((shard * SLOTS) / shards));
      expect(slot).toBeLessThan(Math.floor(((shard + 1) * SLOTS) / shards));
    });
  });

  it.each([3, 5, 12])('spread 10,000 timelines over %d masters, each of which has about its share', (masters) => {
    const keys = createKeys(256);
    const held = new Array<number>(masters).fill(0);
    for (let index = 0; index < 10_000; index += 1) {
      const master = Math.floor((slotOf(keys.timeline(T, user(`viewer-${index}`))) * masters) / SLOTS);
      held[master] = (held[master] ?? 0) + 1;
    }
    // Of three masters 28 to 39 % each.
    for (const count of held) expect(Math.abs((count * masters) / 10_000 - 1)).toBeLessThan(0.16);
  });

  it('are found quickly even where every slot is a shard', () => {
    const started = performance.now();
    expect(new Set([...tagsOf(SLOTS, 2_000)].map(slotOf)).size).toBeGreaterThan(1_500);
    expect(performance.now() - started).toBeLessThan(5_000);
  });

  it('stay what they are: other ones would be a cold cache', () => {
    const keys = createKeys(256);
    expect([
      keys.timeline(T, user('alice')),
      keys.postMeta(T, postIdFrom(Number.MAX_SAFE_INTEGER)),
    ]).toMatchInlineSnapshot(`
      [
        "tl:{s106}:acme:alice",
        "pm:{s331}:acme:9007199254740991",
      ]
    `);
  });

  it.each([0, 1.5, SLOTS + 1])('are not made for %d shards', (shards) => {
    expect(() => createKeys(shards)).toThrow(RangeError);
  });
});

describe('keys', () => {
  const keys = createKeys(256);
  it('of one viewer, of one post and of one author share a slot', () => {
    const [viewer, postId] = [user('alice'), postIdFrom(77)];
    expect(slotOf(keys.timeline(T, viewer))).toBe(slotOf(keys.relations(T, viewer)));
    expect(slotOf(keys.timeline(T, viewer))).toBe(slotOf(keys.pulledAuthors(T, viewer)));
    expect(slotOf(keys.postMeta(T, postId))).toBe(slotOf(keys.postBody(T, postId, 3)));
    expect(slotOf(keys.authorState(T, viewer))).toBe(slotOf(keys.authorProfile(T, viewer, 3)));
  });

  it('differ wherever tenant, kind, ID or version differ', () => {
    const a = user('a');
    const all = [
      keys.timeline(T, a),
      keys.relations(T, a),
      keys.pulledAuthors(T, a),
      keys.pulledList(T, a, 1),
      keys.pulledList(T, a, 11),
      keys.pulledList(tenant('other'), a, 1),
      keys.authorState(T, a),
      keys.authorProfile(T, a, 1),
      keys.authorProfile(T, a, 2),
      keys.timeline(tenant('other'), a),
      keys.postMeta(T, postIdFrom(1)),
      keys.postBody(T, postIdFrom(1), 1),
      keys.postBody(T, postIdFrom(11), 1),
      keys.postBody(T, postIdFrom(1), 11),
    ];
    expect(new Set(all).size).toBe(all.length);
  });

  it('have the slot that Redis gives them', async () => {
    const own = await startOwnRedis('--cluster-enabled', 'yes', '--cluster-port', '0');
    const redis = new Redis(own.server.url);
    try {
      const odd = ['', 'a', '{}', '{}a', '{a}b', 'x{a}b{c}', 'a{b', 'a}b{c}', '{{a}}', '123456789'];
      const ours = Array.from({ length: 200 }, (_, index) => keys.postMeta(T, postIdFrom(index * 7_919 + 1)));
      for (const key of [...odd, ...ours])
        expect([key, slotOf(key)]).toEqual([key, await redis.cluster('KEYSLOT', key)]);
    } finally {
      redis.disconnect();
      await own.stop();
    }
  });
});

describe('a batch', () => {
  it('is cut into calls of bounded size, of one slot each on a cluster, with every key in one of them', () => {
    const names = fc.array(
      fc.integer({ min: 0, max: 9 }).map((tag) => `k:{${tag}}`),
      { maxLength: 700 },
    );
    fc.assert(
      fc.property(names, fc.boolean(), (batch, cluster) => {
        const groups = groupKeys(batch, { cluster });
        expect(groups.flat().sort((a, b) => a - b)).toEqual(batch.map((_, index) => index));
        for (const group of groups) {
          expect(group.length).toBeGreaterThan(0);
          expect(group.length).toBeLessThanOrEqual(KEYS_PER_CALL_MAX);
          if (cluster) expect(new Set(group.map((index) => slotOf(batch[index] as string))).size).toBe(1);
        }
        if (!cluster) expect(groups.length).toBe(Math.ceil(batch.length / KEYS_PER_CALL_MAX));
      }),
    );
  });
});
