/** Owns where the keys of the queue lie: those of one lane in one slot, so that its scripts run on a server of a cluster; the lanes in slots far apart, so that they need not share one. */
import { Redis } from 'ioredis';
import { expect, it } from 'vitest';
import { queueNames } from '../../src/queue/fanout-queue.ts';
import { slotOf } from '../../src/store/redis/keys.ts';
import { LANES } from '../../src/timeline/lanes.ts';
import { eventually } from '../harness/eventually.ts';
import { startOwnRedis } from '../store/redis/own-redis.ts';
import { hint, openQueueStage, soon } from './queue-stage.ts';

const MASTERS = 3;
const SLOTS = 16_384;

it('a lane works on a server of a cluster, which refuses whatever names two slots, and keeps all its keys in one', async () => {
  const own = await startOwnRedis(
    '--cluster-enabled',
    'yes',
    '--cluster-port',
    '0',
    '--maxmemory-policy',
    'noeviction',
  );
  const redis = new Redis(own.server.url);
  try {
    await redis.call('CLUSTER', 'ADDSLOTSRANGE', 0, SLOTS - 1);
    await eventually(async () => expect(await redis.cluster('INFO')).toContain('cluster_state:ok'));
    await expect(redis.mget('{a}', '{b}')).rejects.toThrow('CROSSSLOT');
    const stage = await openQueueStage(own.server.url);
    try {
      const worked: string[] = [];
      expect(await stage.queue.add(soon(), [hint(1), hint(2), hint(3)])).toEqual([]);
      expect(await stage.queue.look(soon())).toMatchObject({ waiting: 3 });
      stage.worker(async (_, { postId }) => void worked.push(String(postId)));
      await eventually(() => expect(worked.sort()).toEqual(['1', '2', '3']));
      await stage.queue.add(soon(), [hint(4)]);
      await eventually(() => expect(worked).toContain('4'));
      const keys = await redis.keys('*');
      expect(keys.length).toBeGreaterThan(1);
      expect(new Set(keys.map(slotOf)).size).toBe(1);
      expect(stage.faults).toEqual([]);
    } finally {
      await stage.close();
    }
  } finally {
    redis.disconnect();
    await own.stop();
  }
});

it('each lane lies on another master of three', () => {
  const masters = LANES.map((lane) => Math.floor((slotOf(queueNames('tributary', lane).prefix) * MASTERS) / SLOTS));
  expect(new Set(masters).size).toBe(MASTERS);
});
