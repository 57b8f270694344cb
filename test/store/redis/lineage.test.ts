/** Owns telling who holds the data: a server that took over shows as one that did, whatever the connection had led to before. */
import { afterEach, expect, it } from 'vitest';
import { readLineages } from '../../../src/store/redis/lineage.ts';
import { eventually } from '../../harness/eventually.ts';
import { type RedisCluster, startRedisCluster } from '../../harness/redis-cluster.ts';
import { type RedisPair, startRedisPair } from '../../harness/redis-pair.ts';
import { type CacheUnderTest, openCache, soon } from './cache-under-test.ts';

const TIMEOUT = { timeout: 60_000 };

let under: CacheUnderTest | undefined;
let servers: RedisPair | RedisCluster | undefined;
afterEach(async () => {
  await under?.close();
  await servers?.stop();
});

it(
  'a replica that took over is found by a connection that led to the old primary, with a new ID; its own replica later is no news',
  TIMEOUT,
  async () => {
    const pair = await startRedisPair('cache');
    servers = pair;
    under = await openCache({ urls: [pair.url], cluster: false });
    const { cache } = under;
    const [before, ...none] = await readLineages(cache, soon());
    expect(none).toEqual([]);
    expect(before).toEqual({ replicationId: expect.stringMatching(/^[0-9a-f]{40}$/), promoted: false });
    await pair.failOver();
    // The old connection is open and answers reads; nobody but the look itself finds out.
    const after = await eventually(
      async () => {
        const lineages = await readLineages(cache, soon());
        expect(lineages).toHaveLength(1);
        return lineages[0];
      },
      { timeoutMs: 10_000 },
    );
    expect(after).toMatchObject({ promoted: true, before: before?.replicationId });
    expect(after?.replicationId).not.toBe(before?.replicationId);
    expect(await readLineages(cache, soon())).toEqual([after]);
  },
);

it('each master of a cluster has one, also while another does not answer', TIMEOUT, async () => {
  const cluster = await startRedisCluster();
  servers = cluster;
  under = await openCache({ urls: cluster.urls, cluster: true }, { commandTimeoutMs: 500 });
  const { cache } = under;
  const all = await readLineages(cache, soon());
  expect(new Set(all.map(({ replicationId }) => replicationId)).size).toBe(3);
  expect(all.every(({ promoted }) => !promoted)).toBe(true);
  cluster.nodes[1]?.freeze();
  try {
    expect(await readLineages(cache, soon())).toHaveLength(2);
  } finally {
    cluster.nodes[1]?.thaw();
  }
});
