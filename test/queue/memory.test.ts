/** Owns what the queue takes of its Redis' memory: next to nothing for what has ended, a bounded share for what waits, and a server that is full all the same is empty again by itself. */
import { rmSync } from 'node:fs';
import path from 'node:path';
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startRedis } from '../../src/embedded/redis.ts';
import type { EmbeddedServer } from '../../src/embedded/server.ts';
import { createTestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import { storePosts } from '../harness/rows.ts';
import { startTestService } from '../harness/service.ts';
import { hint, openQueueStage, soon } from './queue-stage.ts';

let dataDir: string;
let server: EmbeddedServer;
let raw: Redis;
beforeAll(async () => {
  // A name by which the next run finds and removes what a killed one left behind.
  dataDir = path.join(import.meta.dirname, `../../.data/test-${process.pid}-memory`);
  server = await startRedis({ role: 'queue', dataDir: path.join(dataDir, 'queue') });
  raw = new Redis(server.url);
});
afterAll(async () => {
  raw.disconnect();
  await server.stop();
  rmSync(dataDir, { recursive: true, force: true });
});

async function usedBytes(): Promise<number> {
  return Number(/^used_memory:(\d+)/m.exec(await raw.info('memory'))?.[1]);
}

/** What all keys take, without what belongs to connections and the allocator. */
async function keyBytes(): Promise<{ readonly keys: number; readonly bytes: number }> {
  const keys = await raw.keys('*');
  const sizes = await Promise.all(keys.map((key) => raw.memory('USAGE', key, 'SAMPLES', 0)));
  return { keys: keys.length, bytes: sizes.reduce<number>((sum, size) => sum + Number(size ?? 0), 0) };
}

describe('10,000 jobs', { timeout: 120_000 }, () => {
  it('that ended, half of them badly, leave a handful of keys and some kilobytes', async () => {
    const stage = await openQueueStage(server.url);
    let ended = 0;
    stage.worker(
      async (_signal, { postId }) => {
        ended += 1;
        if (postId % 2 === 0) throw new Error('on purpose');
      },
      { concurrency: 50 },
    );
    for (let batch = 0; batch < 50; batch += 1) {
      const hints = Array.from({ length: 200 }, (_, index) => hint(batch * 200 + index + 1));
      expect(await stage.queue.add(soon(), hints)).toEqual([]);
    }
    await eventually(() => expect(ended).toBe(10_000), { timeoutMs: 60_000 });
    await eventually(async () => expect(await stage.queue.look(soon())).toEqual({ waiting: 0, active: 0 }));
    const left = await keyBytes();
    expect(left.keys).toBeLessThanOrEqual(8);
    expect(left.bytes).toBeLessThan(100_000);
    await stage.close();
  });

  it('that wait take some hundred bytes each', async () => {
    await raw.flushall();
    const stage = await openQueueStage(server.url);
    const before = await keyBytes();
    for (let batch = 0; batch < 10; batch += 1) {
      const hints = Array.from({ length: 200 }, (_, index) => hint(batch * 200 + index + 1));
      expect(await stage.queue.add(soon(), hints)).toEqual([]);
    }
    expect(((await keyBytes()).bytes - before.bytes) / 2_000).toBeLessThan(1_000);
    await stage.close();
  });
});

it('a queue Redis that is full stops no publishing, and is emptied by the workers alone', {
  timeout: 180_000,
}, async () => {
  await raw.flushall();
  const database = await createTestDatabase();
  const env = { REDIS_QUEUE_URL: server.url, FANOUT_SMALL_CONCURRENCY: '16' };
  const front = await startTestService({ database, env: { ...env, TRIBUTARY_ROLE: 'api' } });
  const relay = await startTestService({ database, env: { ...env, TRIBUTARY_ROLE: 'relay' } });
  try {
    const tenant = await front.tenant();
    const cast = tenant.cast();
    await cast.play('rita follows ada');
    await raw.config('SET', 'maxmemory', (await usedBytes()) + 350_000);
    const posts = Array.from({ length: 1_200 }, (_, index) => ({ author: 'ada', postId: 1_000 + index }));
    await storePosts(database, tenant.id, posts, { fanOut: true });
    const isFull = async (): Promise<void> =>
      expect((await relay.service.metrics.exposition()).body).toMatch(
        /tributary_queue_faults_total\{fault="memory_full"\} \d/,
      );
    await eventually(isFull, { timeoutMs: 30_000 });
    await cast.play('ada posts "meanwhile" as meanwhile');

    const worker = await startTestService({ database, env: { ...env, TRIBUTARY_ROLE: 'worker' } });
    const open = 'SELECT 1 FROM fanout_jobs WHERE done_at IS NULL';
    await eventually(async () => expect(await database.sql(open)).toEqual([]), { timeoutMs: 120_000 });
    await worker.stop();
    expect(await usedBytes()).toBeLessThan(Number(((await raw.config('GET', 'maxmemory')) as string[])[1]));
  } finally {
    await raw.config('SET', 'maxmemory', 0);
    await Promise.all([front.stop(), relay.stop()]);
    await database.drop();
  }
});
