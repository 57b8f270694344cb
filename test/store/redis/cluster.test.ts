/** Owns the proof that everything said to Redis holds on a cluster of three masters: no script leaves its slot, and a slot on the move stops nobody. */
import type { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { encodeBody } from '../../../src/store/encode-bodies.ts';
import { createAuthorProfiles, createPostBodies } from '../../../src/store/redis/bodies.ts';
import { readMarks } from '../../../src/store/redis/cache-marks.ts';
import { checkCache } from '../../../src/store/redis/checks.ts';
import { isCacheUnreached } from '../../../src/store/redis/client.ts';
import { createPostFacts } from '../../../src/store/redis/facts.ts';
import { slotOf } from '../../../src/store/redis/keys.ts';
import { POST_ID_MAX, postIdFrom } from '../../../src/timeline/ids.ts';
import { eventually } from '../../harness/eventually.ts';
import { type RedisCluster, startRedisCluster } from '../../harness/redis-cluster.ts';
import { beginSlotMove } from '../../harness/redis-slot-move.ts';
import { type CacheUnderTest, ids, newTenant, newToken, openCache, soon, user } from './cache-under-test.ts';
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
      expect(count).toBeGreaterThanOrEqual(2_800);
      expect(count).toBeLessThanOrEqual(3_900);
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

    const keys = viewers.map((viewer) => under.keys.timeline(tenant, viewer));
    const move = await beginSlotMove(cluster, slot);
    await move.keys(...keys.slice(0, 7));

    const push = (id: number) => timelines.push(soon(), { tenant, postId: postIdFrom(id), viewers });
    await expect(move.source.client.mget(keys)).rejects.toThrow('TRYAGAIN');
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

    await move.end();
    expect(new Set(await push(5))).toEqual(new Set(['present']));
    expect(new Set(await push(6))).toEqual(new Set(['added']));
    await under.cache.remove(soon(), keys);
    expect(new Set(await push(7))).toEqual(new Set(['absent']));
  });

  it('a timeline in parts is read as it was while its slot moves, from any position, both ways; one that cannot take an old post is dropped', async () => {
    const [tenant, viewer] = [newTenant(), user('reader')];
    const of = { tenant, viewer };
    const dropped: string[] = [];
    const timelines = under.timelines({
      cap: 40,
      stride: 4,
      events: { timelineCut: () => undefined, timelineDropped: () => dropped.push('timeline') },
    });
    const fill = async (): Promise<void> => {
      const token = newToken();
      await timelines.begin(soon(), { ...of, token });
      await timelines.commit(soon(), { ...of, token, floor: 0 });
      for (let id = 10; id <= 600; id += 10)
        await timelines.push(soon(), { tenant, postId: postIdFrom(id), viewers: [viewer] });
    };
    const pages = () =>
      Promise.all(
        [0, 215, 300, 425, 555, 600, POST_ID_MAX].flatMap((position) =>
          (['older', 'newer'] as const).flatMap((direction) =>
            [1, 7, 25, 100].map((count) => timelines.page(soon(), { ...of, position, direction, count })),
          ),
        ),
      );
    await fill();
    const before = await pages();
    const parts = [under.keys.timeline(tenant, viewer), ...under.keys.timelineRing(tenant, viewer)];
    const slot = slotOf(parts[0] as string);
    const there = async (client: Redis) =>
      ((await client.cluster('GETKEYSINSLOT', slot, 10_000)) as string[]).filter((key) => parts.includes(key));
    const move = await beginSlotMove(cluster, slot);
    const held = parts.filter((_, index) => index % 2 === 1);
    expect(await pages()).toEqual(before);
    await move.keys(...held);
    expect((await there(move.source.client)).length).toBeGreaterThan(1);
    expect((await there(move.target.client)).length).toBeGreaterThan(1);
    expect(await pages()).toEqual(before);

    const push = (id: number) => timelines.push(soon(), { tenant, postId: postIdFrom(id), viewers: [viewer] });
    expect(await push(605)).toEqual(['added']);
    expect(await push(385)).toEqual(['absent']);
    expect(await timelines.page(soon(), { ...of, direction: 'newer', position: 0, count: 1 })).toEqual({
      state: 'absent',
    });
    await fill();
    expect(await timelines.addOlder(soon(), { ...of, postIds: ids(385) })).toBe(false);
    expect(dropped).toEqual(['timeline', 'timeline']);
    // What is rebuilt while the slot moves is one part, and works.
    await fill();
    await move.end();
    expect(await timelines.page(soon(), { ...of, direction: 'older', position: POST_ID_MAX, count: 3 })).toMatchObject({
      state: 'ready',
      ids: [600, 590, 580],
    });
  });

  it('nodes that call the cluster down are away, whatever they answer to a ping; a batch that they refuse is not asked again key by key', async () => {
    let sent = 0;
    const counted = await openCache(
      { urls: cluster.urls, cluster: true },
      {
        guard: (send) => {
          sent += 1;
          return send();
        },
      },
    );
    const tenant = newTenant();
    const names = Array.from({ length: 5_000 }, (_, index) => counted.keys.timeline(tenant, user(`v${index}`)));
    const slot = slotOf(names[0] as string);
    const some = names.filter((name) => slotOf(name) === slot).slice(0, 8);
    const owner = cluster.ownerOf(slot);
    const node = counted.cache.nodeOf(some[0] as string) as string;
    await counted.cache.pingNode(soon(), node);
    await counted.cache.ping(soon());
    for (const { client } of cluster.nodes) {
      await client.config('SET', 'cluster-require-full-coverage', 'yes');
      await client.call('CLUSTER', 'DELSLOTS', slot);
    }
    try {
      await eventually(() => expect(counted.cache.pingNode(soon(), node)).rejects.toThrow());
      await eventually(() => expect(counted.cache.ping(soon())).rejects.toThrow());
      sent = 0;
      const results = await counted.cache.runEach(soon(), 'push', some, [1, 800, 64]);
      expect(results.map((result) => 'error' in result && isCacheUnreached(result.error.cause))).toEqual(
        some.map(() => true),
      );
      expect(sent).toBe(1);
    } finally {
      await owner.client.call('CLUSTER', 'ADDSLOTS', slot);
      for (const { client } of cluster.nodes) await client.config('SET', 'cluster-require-full-coverage', 'no');
      await cluster.whole();
    }
    await counted.cache.pingNode(soon(), node);
    await counted.cache.ping(soon());
    await counted.close();
  });

  it('a node that goes silent when it is asked for a key that has moved fails that command, and nothing else', async () => {
    const hasty = await openCache({ urls: cluster.urls, cluster: true }, { commandTimeoutMs: 300 });
    const [tenant, viewer] = [newTenant(), user('reader')];
    const timelines = hasty.timelines({});
    const page = () => timelines.page(soon(), { tenant, viewer, direction: 'older', position: POST_ID_MAX, count: 5 });
    await eventually(() => timelines.begin(soon(), { tenant, viewer, token: 'token' }));
    const key = hasty.keys.timeline(tenant, viewer);
    const move = await beginSlotMove(cluster, slotOf(key));
    await move.keys(key);
    await eventually(async () => expect(await page()).toMatchObject({ state: 'building' }));
    // Whoever does not listen to the answer to ASKING is ended by a rejection that nobody handles, which fails this run.
    move.target.freeze();
    try {
      // Each lasts as long as the ASKING of the one before may.
      for (let time = 1; time <= 3; time += 1)
        await expect(page()).rejects.toMatchObject({ reason: 'CACHE_UNAVAILABLE' });
    } finally {
      move.target.thaw();
    }
    await eventually(async () => expect(await page()).toMatchObject({ state: 'building' }));
    await move.end();
    await hasty.close();
  });
});
