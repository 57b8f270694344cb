/** Owns the proof that everything said to Redis holds on a cluster of three masters: no script leaves its slot, and a slot on the move stops nobody. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { encodeBody } from '../../../src/store/encode-bodies.ts';
import { createAuthorProfiles, createPostBodies } from '../../../src/store/redis/bodies.ts';
import { readMarks } from '../../../src/store/redis/cache-marks.ts';
import { checkCache } from '../../../src/store/redis/checks.ts';
import { createPostFacts } from '../../../src/store/redis/facts.ts';
import { slotOf } from '../../../src/store/redis/keys.ts';
import { postIdFrom } from '../../../src/timeline/ids.ts';
import { type RedisCluster, startRedisCluster } from '../../harness/redis-cluster.ts';
import { type CacheUnderTest, newTenant, newToken, openCache, soon, user } from './cache-under-test.ts';
import { factLaws } from './fact-laws.ts';
import { pulledLaws } from './pulled-laws.ts';
import { timelineLaws } from './timeline-laws.ts';

let cluster: RedisCluster;
let under: CacheUnderTest;
beforeAll(async () => {
  cluster = await startRedisCluster();
  under = await openCache({ urls: cluster.urls, cluster: true });
});
afterAll(async () => {
  await under?.close();
  await cluster?.stop();
});

describe('on a cluster, timelines', () => timelineLaws(() => under));
describe('on a cluster, facts', () => factLaws(() => under));
describe('on a cluster, pulled authors', () => pulledLaws(() => under));

describe('on a cluster', () => {
  it('the checks of the start look at every master', async () => {
    expect(await checkCache(under.cache, { cap: 800, stride: 64 }, soon())).toEqual([]);
    const [, second] = cluster.nodes;
    await second?.client.config('SET', 'zset-max-listpack-entries', 128);
    try {
      const warnings = await checkCache(under.cache, { cap: 800, stride: 64 }, soon());
      expect(warnings).toEqual([expect.stringMatching(/128.*865/)]);
    } finally {
      await second?.client.config('SET', 'zset-max-listpack-entries', 2_165);
    }
    await second?.client.config('SET', 'cluster-require-full-coverage', 'yes');
    try {
      const warnings = await checkCache(under.cache, { cap: 800, stride: 64 }, soon());
      expect(warnings).toEqual([expect.stringContaining('cluster-require-full-coverage')]);
    } finally {
      await second?.client.config('SET', 'cluster-require-full-coverage', 'no');
    }
  });

  it('a master that comes back empty shows by its marks, and the others by theirs that they did not', async () => {
    const { cache, keys } = under;
    const before = await readMarks(cache, keys, soon(), 'first');
    expect(before.size).toBe(keys.marks.length);
    expect([...(await readMarks(cache, keys, soon(), 'second'))]).toEqual([...before]);
    const [lost] = cluster.nodes;
    await lost?.client.flushall();
    const after = await readMarks(cache, keys, soon(), 'third');
    const changed = keys.marks.filter((name) => after.get(name) !== before.get(name));
    expect(changed).toEqual(keys.marks.filter((name) => cluster.ownerOf(slotOf(name)) === lost));
    expect(changed.length).toBeGreaterThan(15);
  });

  it('a script over two slots would be refused: that none was is no accident', async () => {
    const tenant = newTenant();
    const [first, ...others] = Array.from({ length: 50 }, (_, index) => under.keys.timeline(tenant, user(`v${index}`)));
    const elsewhere = others.find((key) => slotOf(key) !== slotOf(first as string));
    const across = under.cache.run(soon(), 'push', [first as string, elsewhere as string], [1, 800, 64]);
    await expect(across).rejects.toMatchObject({ cause: { message: expect.stringContaining('CROSSSLOT') } });
  });

  it('a server taken for a single one is still answered for key by key', async () => {
    const [first, second] = cluster.nodes;
    const single = await openCache({ urls: [(first ?? second)?.url ?? ''], cluster: false });
    const tenant = newTenant();
    const keys = Array.from({ length: 60 }, (_, index) => under.keys.timeline(tenant, user(`v${index}`)));
    const results = await single.cache.runEach(soon(), 'push', keys, [1, 800, 64]);
    const owned = keys.map((key) => cluster.ownerOf(slotOf(key)) === first);
    expect(results.map((result) => 'value' in result)).toEqual(owned);
    await single.close();
  });

  it('bodies and profiles are stored and read', async () => {
    const tenant = newTenant();
    const bodies = createPostBodies(under.cache, under.keys, { lifeMs: 60_000 });
    const values = Array.from({ length: 200 }, (_, index) => ({
      id: postIdFrom(1_000 + index),
      version: 1,
      value: encodeBody({ text: `text ${index}`, media: [] }),
    }));
    await bodies.store(soon(), tenant, values);
    expect(await bodies.read(soon(), tenant, values)).toEqual(values.map(({ value }) => ({ kind: 'hit', value })));
    const profiles = createAuthorProfiles(under.cache, under.keys, { lifeMs: 60_000 });
    expect(await profiles.read(soon(), tenant, [{ id: user('a'), version: 1 }])).toEqual([{ kind: 'miss' }]);
  });

  it('10,000 timelines lie evenly on the masters', async () => {
    const tenant = newTenant();
    const viewers = Array.from({ length: 10_000 }, (_, index) => user(`viewer-${index}`));
    const timelines = under.timelines({});
    for (let from = 0; from < viewers.length; from += 500) {
      await Promise.all(
        viewers.slice(from, from + 500).map((viewer) => timelines.begin(soon(), { tenant, viewer, token: newToken() })),
      );
    }
    const outcomes = await timelines.push(soon(), { tenant, postId: postIdFrom(5), viewers });
    expect(outcomes.every((outcome) => outcome === 'added')).toBe(true);
    const counts = await Promise.all(
      cluster.nodes.map(async ({ client }) => (await client.keys(`tl:*:${tenant}:*`)).length),
    );
    expect(counts.reduce((sum, count) => sum + count)).toBe(10_000);
    for (const count of counts) {
      expect(count).toBeGreaterThanOrEqual(2_500);
      expect(count).toBeLessThanOrEqual(4_200);
    }
  });

  it('a batch over a slot that is being moved is answered for every key, and again when it has moved', async () => {
    const tenant = newTenant();
    const timelines = under.timelines({});
    const key = (index: number) => under.keys.timeline(tenant, user(`mover-${index}`));
    const slot = slotOf(key(0));
    const movers = Array.from({ length: 20_000 }, (_, index) => index).filter((index) => slotOf(key(index)) === slot);
    const viewers = movers.map((index) => user(`mover-${index}`));
    expect(viewers.length).toBeGreaterThan(20);
    for (const viewer of viewers) await timelines.begin(soon(), { tenant, viewer, token: newToken() });

    const source = cluster.ownerOf(slot);
    const target = cluster.nodes.find((node) => node !== source);
    if (target === undefined) throw new Error('a cluster of one');
    await target.client.cluster('SETSLOT', slot, 'IMPORTING', source.id);
    await source.client.cluster('SETSLOT', slot, 'MIGRATING', target.id);
    const keys = viewers.map((viewer) => under.keys.timeline(tenant, viewer));
    const move = (some: readonly string[]) =>
      source.client.migrate('127.0.0.1', target.port, '', 0, 5_000, 'KEYS', ...some);
    await move(keys.slice(0, 7));

    const push = (id: number) => timelines.push(soon(), { tenant, postId: postIdFrom(id), viewers });
    await expect(source.client.mget(keys)).rejects.toThrow('TRYAGAIN');
    expect(new Set(await push(5))).toEqual(new Set(['added']));
    const facts = createPostFacts(under.cache, under.keys, {
      lifeMs: 60_000,
      tokenLifeMs: 20_000,
      random: Math.random,
    });
    expect(
      (await facts.lookUp(soon(), tenant, [postIdFrom(1), postIdFrom(2)], newToken())).map(({ kind }) => kind),
    ).toEqual(['miss', 'miss']);
    expect(
      (
        await under.cache.read(
          soon(),
          keys.map((each) => each.replace('tl:', 'pb:')),
        )
      ).every((result) => 'value' in result),
    ).toBe(true);

    // What else the slot holds goes with them: a node does not give a slot away while it has keys of it.
    await move((await source.client.cluster('GETKEYSINSLOT', slot, 10_000)) as string[]);
    for (const node of [target, source, ...cluster.nodes])
      await node.client.cluster('SETSLOT', slot, 'NODE', target.id);
    expect(new Set(await push(5))).toEqual(new Set(['present']));
    expect(new Set(await push(6))).toEqual(new Set(['added']));
    await under.cache.remove(soon(), keys);
    expect(new Set(await push(7))).toEqual(new Set(['absent']));
  });
});
