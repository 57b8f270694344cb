/** Owns what the queue promises about hints: one ID queues once, is free again when its job has ended, whatever the end; and a worker that closes lets its jobs end. */
import { Queue } from 'bullmq';
import { Redis } from 'ioredis';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, inject, it } from 'vitest';
import { eventually, within } from '../harness/eventually.ts';
import { createTestClock } from '../harness/test-clock.ts';
import { hint, openQueueStage, type QueueStage, soon } from './queue-stage.ts';

let raw: Redis;
let stage: QueueStage;
beforeAll(() => {
  raw = new Redis(inject('servers').queueUrl);
});
afterAll(() => raw.disconnect());
beforeEach(async () => {
  stage = await openQueueStage(inject('servers').queueUrl);
});
afterEach(() => stage.close());

async function jobKeys(): Promise<readonly string[]> {
  const keys = await raw.keys(`${stage.prefix}:*`);
  return keys.filter((key) => key.includes('acme'));
}

describe('a hint', () => {
  it('whose job has ended, well or badly, is taken again under the same ID', async () => {
    const taken: number[] = [];
    stage.worker(async (_signal, { postId }) => {
      taken.push(postId);
      if (postId === 2) throw new Error('on purpose');
    });
    for (let time = 1; time <= 3; time += 1) {
      expect(await stage.queue.add(soon(), [hint(1), hint(2)])).toEqual([]);
      await eventually(async () => {
        expect([...taken].sort()).toEqual([...Array(time).fill(1), ...Array(time).fill(2)]);
        expect(await jobKeys()).toEqual([]);
      });
    }
    await eventually(() => expect(stage.faults.filter((fault) => fault === 'hint failed')).toHaveLength(3));
  });

  it('that waits already is not queued again, however often it is given; another generation is', async () => {
    const many = Array.from({ length: 100 }, () => hint(1));
    expect(await stage.queue.add(soon(), [...many, hint(1, 2)])).toEqual([]);
    expect(await stage.queue.countWaiting(soon())).toBe(2);
    const taken: number[] = [];
    stage.worker(async (_signal, { generation }) => {
      taken.push(generation);
    });
    await eventually(async () => {
      expect([...taken].sort()).toEqual([1, 2]);
      expect(await jobKeys()).toEqual([]);
    });
  });

  it('lives under keys of one slot, and thousands of them leave nothing behind', async () => {
    let taken = 0;
    stage.worker(
      async () => {
        taken += 1;
      },
      { concurrency: 50 },
    );
    for (let batch = 0; batch < 5; batch += 1) {
      await stage.queue.add(
        soon(),
        Array.from({ length: 200 }, (_, index) => hint(batch * 200 + index + 1)),
      );
    }
    await eventually(() => expect(taken).toBe(1_000));
    await eventually(async () => expect(await jobKeys()).toEqual([]));
    const keys = await raw.keys(`${stage.prefix}:*`);
    for (const key of keys) expect(key.startsWith(`${stage.prefix}:{fanout-small}:`)).toBe(true);
    expect(await raw.xlen(keys.find((key) => key.endsWith(':events')) ?? '')).toBeLessThan(400);
  });

  it('that no version of ours wrote is dropped, and the next is taken', async () => {
    const foreign = new Queue('fanout-small', { connection: raw, prefix: `${stage.prefix}:{fanout-small}` });
    await foreign.add('fan-out', { v: 9 }, { removeOnComplete: true });
    await stage.queue.add(soon(), [hint(7)]);
    const taken: number[] = [];
    stage.worker(async (_signal, { postId }) => {
      taken.push(postId);
    });
    await eventually(() => expect(taken).toEqual([7]));
    expect(stage.faults).toContain('hint unreadable');
    await foreign.close();
  });
});

it('the queue tells what waits, since when, and what is at work', async () => {
  expect(await stage.queue.look(soon())).toEqual({ waiting: 0, active: 0 });
  const before = Date.now();
  await stage.queue.add(soon(), [hint(1)]);
  const { oldestAddedMs = 0 } = await stage.queue.look(soon());
  expect(oldestAddedMs).toBeGreaterThanOrEqual(before);
  await stage.queue.add(soon(), [hint(2)]);
  expect(await stage.queue.look(soon())).toEqual({ waiting: 2, active: 0, oldestAddedMs });
  const finish = Promise.withResolvers<void>();
  stage.worker(() => finish.promise, { concurrency: 1 });
  await eventually(async () => expect(await stage.queue.look(soon())).toMatchObject({ waiting: 1, active: 1 }));
  finish.resolve();
});

it('the queue tells how much of its bound the server has filled, as the server itself would refuse', async () => {
  const before = await stage.queue.lookAtMemory(soon());
  const [, maxmemory] = (await raw.config('GET', 'maxmemory')) as string[];
  expect(before.limitBytes).toBe(Number(maxmemory));
  expect(before.limitBytes).toBeGreaterThan(0);
  const info = await raw.info('memory');
  expect(before.usedBytes).toBeGreaterThan(0);
  expect(before.usedBytes).toBeLessThan(Number(/^used_memory_peak:(\d+)/m.exec(info)?.[1]) + 1);
  const filler = `${stage.prefix}:filler`;
  await raw.setrange(filler, 8_000_000, 'x');
  const after = await stage.queue.lookAtMemory(soon());
  await raw.del(filler);
  expect(after.usedBytes - before.usedBytes).toBeGreaterThan(6_000_000);
});

describe('a worker', () => {
  it('that closes waits for what runs, and takes nothing more', async () => {
    const begun = Promise.withResolvers<void>();
    const finish = Promise.withResolvers<void>();
    let ended = 0;
    const worker = stage.worker(
      async () => {
        begun.resolve();
        await finish.promise;
        ended += 1;
      },
      { concurrency: 1 },
    );
    await stage.queue.add(soon(), [hint(1), hint(2)]);
    await begun.promise;
    let closed = false;
    const closing = worker.close(20_000).then(() => {
      closed = true;
    });
    await raw.ping();
    expect(closed).toBe(false);
    finish.resolve();
    await within(closing, 10_000);
    expect(ended).toBe(1);
    expect(await stage.queue.countWaiting(soon())).toBe(1);
  });

  it('that closes tells what takes longer than the bound to stop, and ends', async () => {
    const begun = Promise.withResolvers<void>();
    let stopped = false;
    const worker = stage.worker((signal) => {
      begun.resolve();
      return new Promise((_resolve, reject) => {
        signal.addEventListener('abort', () => {
          stopped = true;
          reject(signal.reason);
        });
      });
    });
    await stage.queue.add(soon(), [hint(1)]);
    await begun.promise;
    await within(worker.close(100), 10_000);
    expect(stopped).toBe(true);
  });

  it('that closes early lets a long job end, whose further hint is taken by the queue', async () => {
    const begun = Promise.withResolvers<void>();
    const finish = Promise.withResolvers<void>();
    const worker = stage.worker(async (_signal, _hint, turn) => {
      begun.resolve();
      await finish.promise;
      turn.takeAnother();
    });
    await stage.queue.add(soon(), [hint(1)]);
    await begun.promise;
    const closing = worker.close(20_000);
    expect(worker.isEnding()).toBe(true);
    expect(await stage.queue.look(soon())).toMatchObject({ waiting: 0, active: 1 });
    finish.resolve();
    await within(closing, 10_000);
    expect(await stage.queue.look(soon())).toMatchObject({ waiting: 1, active: 0 });
  });

  it('that gives way takes those that wait first, then the same hint again, once for each turn', async () => {
    const taken: number[] = [];
    await stage.queue.add(soon(), [hint(1), hint(2), hint(3)]);
    stage.worker(
      async (_signal, { postId }, turn) => {
        taken.push(postId);
        // A hint that comes while its job is at work is refused: the further turn must not depend on it, nor come twice through it.
        await stage.queue.add(soon(), [hint(postId)]);
        if (postId === 1 && taken.length < 6) turn.takeAnother();
      },
      { concurrency: 1 },
    );
    await eventually(async () => {
      expect(taken).toEqual([1, 2, 3, 1, 1, 1]);
      expect(await jobKeys()).toEqual([]);
    });
  });

  it('knows when it last took a hint', async () => {
    const worker = stage.worker(async () => undefined);
    expect(worker.progress()).toEqual({ running: 0 });
    await stage.queue.add(soon(), [hint(1)]);
    await eventually(() => expect(worker.progress().lastTakenMs).toBeGreaterThan(0));
  });

  it('that leaves hints waiting beside free hands is replaced, and not before', async () => {
    const clock = createTestClock();
    const worker = stage.worker(async () => undefined, { clock });
    expect(worker.noticeWaiting(1)).toBe(false);
    clock.advance(9_000);
    expect(worker.noticeWaiting(1)).toBe(false);
    expect(worker.noticeWaiting(0)).toBe(false);
    clock.advance(9_000);
    expect(worker.noticeWaiting(1)).toBe(false);
    clock.advance(4_000);
    expect(worker.progress().deafForMs).toBeGreaterThanOrEqual(4_000);
    clock.advance(6_000);
    expect(worker.noticeWaiting(1)).toBe(true);
    expect(worker.progress()).toEqual({ running: 0 });
    expect(stage.faults).toContain('worker replaced');
    await stage.queue.add(soon(), [hint(1)]);
    await eventually(() => expect(worker.progress().lastTakenMs).toBeGreaterThan(0));
  });
});
