/** Owns the stage for tests of the queue: a producer and a worker of one lane under names of their own, on a server that the test may take away. */
import { randomUUID } from 'node:crypto';
import { createFanoutQueue, type FanoutQueue } from '../../src/queue/fanout-queue.ts';
import { type FanoutWorker, type FanoutWorkerOptions, startFanoutWorker } from '../../src/queue/fanout-worker.ts';
import type { FanoutHint } from '../../src/queue/payload.ts';
import { systemClock } from '../../src/runtime.ts';
import { parseTenantId, postIdFrom, type TenantId } from '../../src/timeline/ids.ts';
import { eventually } from '../harness/eventually.ts';

export interface QueueStage {
  readonly prefix: string;
  readonly queue: FanoutQueue;
  /** What befell: names of events, in order. */
  readonly faults: string[];
  worker(process: FanoutWorkerOptions['process'], options?: Partial<FanoutWorkerOptions>): FanoutWorker;
  close(): Promise<void>;
}

/** Resolves once the producer is connected. */
export async function openQueueStage(
  url: string,
  { workerUrl = url, connected = true }: { readonly workerUrl?: string; readonly connected?: boolean } = {},
): Promise<QueueStage> {
  const prefix = `test-${randomUUID()}`;
  const faults: string[] = [];
  const workers: FanoutWorker[] = [];
  const queue = createFanoutQueue({
    url,
    lane: 'small',
    prefix,
    events: {
      connectionFailed: () => faults.push('connection'),
      addFailed: (_error, count) => faults.push(`add failed ${count}`),
      memoryFull: () => faults.push('memory full'),
      evictionPossible: (policy) => faults.push(`eviction ${policy}`),
    },
  });
  if (connected) await eventually(() => queue.countWaiting(soon()));
  return {
    prefix,
    queue,
    faults,
    worker(process, options = {}) {
      const worker = startFanoutWorker({
        url: workerUrl,
        lane: 'small',
        prefix,
        concurrency: 4,
        lockMs: 15_000,
        process,
        async hintAgain(again) {
          await queue.add(soon(), [again]);
        },
        clock: systemClock,
        events: {
          connectionFailed: () => faults.push('worker connection'),
          hintFailed: () => faults.push('hint failed'),
          hintUnreadable: () => faults.push('hint unreadable'),
          workerReplaced: () => faults.push('worker replaced'),
        },
        ...options,
      });
      workers.push(worker);
      return worker;
    },
    async close() {
      await Promise.all(workers.map((worker) => worker.close(5_000)));
      await queue.close();
    },
  };
}

export function soon(ms = 20_000): AbortSignal {
  return AbortSignal.timeout(ms);
}

export function hint(post: number, generation = 1): FanoutHint {
  return { tenant: parseTenantId('acme') as TenantId, postId: postIdFrom(post), generation };
}
