/** Owns what the queue does while its Redis cannot be reached: whoever adds hints is told at once, and a worker hears again soon after, in the same process. */
import { rmSync } from 'node:fs';
import path from 'node:path';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { startRedis } from '../../src/embedded/redis.ts';
import type { EmbeddedServer } from '../../src/embedded/server.ts';
import { pause } from '../../src/runtime.ts';
import { createSeeded } from '../../src/sample/seeded.ts';
import { eventually, within } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import { createTestClock } from '../harness/test-clock.ts';
import { hint, openQueueStage, type QueueStage, soon } from './queue-stage.ts';

/** Longest time from the recovery to the start of a job that was added after it. */
const HEARS_WITHIN_MS = 15_000;

let dataDir: string;
let server: EmbeddedServer;
let proxy: FaultProxy;
let stage: QueueStage;
beforeAll(async () => {
  // A name by which the next run finds and removes what a killed one left behind.
  dataDir = path.join(import.meta.dirname, `../../.data/test-${process.pid}-outage`);
  server = await startRedis({ role: 'queue', dataDir: path.join(dataDir, 'queue') });
});
afterAll(async () => {
  await server.stop();
  rmSync(dataDir, { recursive: true, force: true });
});
beforeEach(async () => {
  proxy = await startFaultProxy({ port: Number(new URL(server.url).port) });
});
afterEach(async () => {
  await proxy.restore();
  await stage.close();
  await proxy.stop();
});

interface Before {
  readonly connections: number;
  readonly faults: number;
}

/** Whether the worker has met the outage: attempts to connect that failed, a silent connection that was given up for a new one, or both connections made anew. */
function feltBy(fault: 'refuse' | 'blackhole' | 'reset', before: Before): boolean {
  const reconnected = proxy.connectionsTaken - before.connections;
  switch (fault) {
    case 'refuse':
      return stage.faults.length >= before.faults + 10;
    case 'blackhole':
      // The first to be given up is the one that reads: a second takes some three times as long.
      return reconnected >= 1;
    case 'reset':
      return reconnected >= 2;
  }
}

describe.each(['refuse', 'blackhole', 'reset'] as const)('an outage by %s', (fault) => {
  it('during the blocking read is over for the worker soon after it is over', { timeout: 60_000 }, async () => {
    stage = await openQueueStage(server.url, { workerUrl: proxy.through(server.url) });
    const taken: number[] = [];
    const worker = stage.worker(async (_signal, { postId }) => {
      taken.push(postId);
    });
    await stage.queue.add(soon(), [hint(1)]);
    await eventually(() => expect(taken).toEqual([1]));
    // In the blocking read: two connections, and nothing more comes from the worker.
    await eventually(() => expect(proxy.connectionsOpen).toBeGreaterThanOrEqual(2));

    const before = { connections: proxy.connectionsTaken, faults: stage.faults.length };
    await proxy[fault]();
    await eventually(() => expect(feltBy(fault, before)).toBe(true), { timeoutMs: 20_000 });
    await proxy.restore();
    await stage.queue.add(soon(), [hint(2)]);
    await eventually(() => expect(taken).toEqual([1, 2]), { timeoutMs: HEARS_WITHIN_MS });
    expect(worker.progress().running).toBe(0);
  });

  it('makes whoever adds hints no longer wait than about a second, and is forgotten afterwards', async () => {
    stage = await openQueueStage(proxy.through(server.url));
    await proxy[fault]();
    const hints = Array.from({ length: 50 }, (_, index) => hint(index + 1));
    const failed = await within(stage.queue.add(soon(), hints), 10_000);
    if (fault !== 'reset') expect(failed).toEqual(hints);
    await proxy.restore();
    await eventually(async () => expect(await stage.queue.add(soon(), hints)).toEqual([]), { timeoutMs: 10_000 });
    expect(await stage.queue.countWaiting(soon())).toBe(50);
  });
});

it('ten short outages at any moment, refused or silent, are each over for the worker soon after', {
  timeout: 180_000,
}, async () => {
  stage = await openQueueStage(server.url, { workerUrl: proxy.through(server.url) });
  const taken = new Set<number>();
  const worker = stage.worker(async (_signal, { postId }) => {
    taken.add(postId);
  });
  const random = createSeeded(20);
  const whole = soon(180_000);
  for (let outage = 1; outage <= 10; outage += 1) {
    // Some of them are under way when the outage begins, and the blocking read is at any point of its five seconds.
    await stage.queue.add(soon(), [hint(1_000 + outage), hint(2_000 + outage)]);
    await pause(whole, random.below(400));
    await proxy[outage % 2 === 0 ? 'refuse' : 'blackhole']();
    await pause(whole, random.below(1_500));
    await proxy.restore();
    await stage.queue.add(soon(), [hint(outage)]);
    await eventually(() => expect(taken.has(outage)).toBe(true), { timeoutMs: HEARS_WITHIN_MS });
  }
  await eventually(() => expect(worker.progress().running).toBe(0));
});

it('a worker whose connections went silent for good is replaced, and its successor hears at once', async () => {
  stage = await openQueueStage(server.url, { workerUrl: proxy.through(server.url) });
  const clock = createTestClock();
  const taken: number[] = [];
  const worker = stage.worker(
    async (_signal, { postId }) => {
      taken.push(postId);
    },
    { clock },
  );
  await stage.queue.add(soon(), [hint(1)]);
  await eventually(() => expect(taken).toEqual([1]));
  proxy.forget();
  await stage.queue.add(soon(), [hint(2)]);
  expect(worker.noticeWaiting(1)).toBe(false);
  clock.advance(10_000);
  expect(worker.noticeWaiting(1)).toBe(true);
  await eventually(() => expect(taken).toEqual([1, 2]));
});

it('a queue opened while Redis is away works once it is back', async () => {
  await proxy.refuse();
  stage = await openQueueStage(proxy.through(server.url), { connected: false });
  const taken: number[] = [];
  const url = proxy.through(server.url);
  stage.worker(
    async (_signal, { postId }) => {
      taken.push(postId);
    },
    { url },
  );
  expect(await within(stage.queue.add(soon(), [hint(1)]), 10_000)).toEqual([hint(1)]);
  await proxy.restore();
  await eventually(async () => expect(await stage.queue.add(soon(), [hint(1)])).toEqual([]), { timeoutMs: 10_000 });
  await eventually(() => expect(taken).toEqual([1]), { timeoutMs: HEARS_WITHIN_MS });
});

it('a server that was killed and comes back is heard again', async () => {
  stage = await openQueueStage(server.url);
  await stage.queue.add(soon(), [hint(1)]);
  const taken: number[] = [];
  const worker = stage.worker(async (_signal, { postId }) => {
    taken.push(postId);
  });
  await eventually(() => expect(taken).toEqual([1]));
  await eventually(() => expect(worker.progress().running).toBe(0));
  await server.kill();
  expect(await within(stage.queue.add(soon(), [hint(2)]), 10_000)).toEqual([hint(2)]);
  await server.restart();
  await eventually(async () => expect(await stage.queue.add(soon(), [hint(3)])).toEqual([]), { timeoutMs: 10_000 });
  await eventually(() => expect(taken).toContain(3), { timeoutMs: HEARS_WITHIN_MS });
});

it('closing while Redis is away ends within its bound', async () => {
  stage = await openQueueStage(server.url, { workerUrl: proxy.through(server.url) });
  const worker = stage.worker(async () => undefined);
  await eventually(() => expect(proxy.connectionsOpen).toBeGreaterThanOrEqual(2));
  proxy.blackhole();
  await within(worker.close(500), 10_000);
});

it('a server that may evict jobs is told of', async () => {
  const evicting = await startRedis({ role: 'cache', dataDir: path.join(dataDir, 'cache') });
  try {
    stage = await openQueueStage(evicting.url);
    await eventually(() => expect(stage.faults).toContain('eviction allkeys-lru'));
    await stage.close();
  } finally {
    await evicting.stop();
  }
});
