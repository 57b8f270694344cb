/**
 * Owns one lane of fan-out as a BullMQ queue: the side that adds hints. A hint's job has the ID of its fan-out job and is removed when it ends, well or badly, so that hinting twice
 * queues once and the same job can be hinted again afterwards. A hint is tried once: whether to try again is the relay's to say, from the row.
 *
 * Each lane is an instance of its own. Names carry a hash tag, so that each queue has one slot of a cluster, and queues are spread over its nodes.
 */
import { Queue } from 'bullmq';
import { throwIfAborted, untilAborted } from '../runtime.ts';
import type { Lane } from '../timeline/lanes.ts';
import { openProducerConnection } from './connections.ts';
import { encodeHint, type FanoutHint, type HintPayload, hintJobId, PAYLOAD_BYTES_MAX } from './payload.ts';

export interface FanoutQueue {
  /**
   * Adds hints and answers those that did not get there. Within about a second, at once while Redis is away; never rejects but for the abort, after which some may be there.
   */
  add<Hint extends FanoutHint>(signal: AbortSignal, hints: readonly Hint[]): Promise<readonly Hint[]>;
  /** Hints that no worker has taken yet. Rejects where Redis does not answer. */
  countWaiting(signal: AbortSignal): Promise<number>;
  /** What waits and what is being worked on. Rejects where Redis does not answer. */
  look(signal: AbortSignal): Promise<QueueDepth>;
  /** What the server's memory holds and may hold. Rejects where Redis does not answer. */
  lookAtMemory(signal: AbortSignal): Promise<QueueMemory>;
  /** Throws away what waits: the rows are hinted again. Never rejects. */
  dropWaiting(): Promise<void>;
  close(): Promise<void>;
}

export interface QueueDepth {
  readonly waiting: number;
  readonly active: number;
  /** When the hint that is next was added, by the clock of whoever added it; absent where none waits. */
  readonly oldestAddedMs?: number;
}

export interface QueueMemory {
  /** What counts against the bound: buffers of replicas and of the append-only file do not. */
  readonly usedBytes: number;
  /** 0 where the server has no bound. */
  readonly limitBytes: number;
}

export interface FanoutQueueOptions {
  readonly url: string;
  readonly lane: Lane;
  /** Before the names of all keys; services that share a server take different ones. */
  readonly prefix: string;
  readonly events: FanoutQueueEvents;
}

export interface FanoutQueueEvents {
  connectionFailed(error: Error): void;
  /** Some hints of a batch did not get there; the error of the last. */
  addFailed(error: unknown, count: number): void;
  /** The server has no memory for another hint. BullMQ's worker cannot take any then either: room has to be made, by dropping what waits. */
  memoryFull(): void;
  /** The server may evict jobs. Told whenever it is met. */
  evictionPossible(policy: string): void;
}

/** Entries of BullMQ's own log of events, which nobody reads. */
const EVENTS_KEPT = 100;
const JOB_NAME = 'fan-out';

/** The names under which producer and worker of a lane meet. */
export function queueNames(prefix: string, lane: Lane): { readonly name: string; readonly prefix: string } {
  return { name: `fanout-${lane}`, prefix: `${prefix}:{fanout-${lane}}` };
}

export function createFanoutQueue(options: FanoutQueueOptions): FanoutQueue {
  const { events } = options;
  const names = queueNames(options.prefix, options.lane);
  const client = openProducerConnection(options.url, (error) => events.connectionFailed(error));
  const queue = new Queue<HintPayload>(names.name, {
    connection: client,
    prefix: names.prefix,
    // Without these a queue that was opened while Redis was away would be unusable for ever.
    skipWaitingForReady: true,
    skipVersionCheck: true,
    skipMetasUpdate: true,
    defaultJobOptions: { attempts: 1, removeOnComplete: true, removeOnFail: true, sizeLimit: PAYLOAD_BYTES_MAX },
  });
  queue.on('error', (error) => events.connectionFailed(error));
  client.on('ready', () => void greetServer());

  /** Another server may stand behind the address with every connection. */
  async function greetServer(): Promise<void> {
    try {
      // BullMQ would set this once, when the queue is opened, if Redis happened to be there then.
      await client.hset(queue.toKey('meta'), 'opts.maxLenEvents', EVENTS_KEPT);
      const policy = /^maxmemory_policy:(\S+)/m.exec(await client.info('memory'))?.[1];
      if (policy !== undefined && policy !== 'noeviction') events.evictionPossible(policy);
    } catch (error) {
      events.connectionFailed(error as Error);
    }
  }

  return {
    async add(signal, hints) {
      throwIfAborted(signal);
      if (hints.length === 0) return [];
      // In one go. What got there although the whole was refused is added again under the same ID, which changes nothing.
      const jobs = hints.map((hint) => ({
        name: JOB_NAME,
        data: encodeHint(hint),
        opts: { jobId: hintJobId(hint) },
      }));
      try {
        await untilAborted(queue.addBulk(jobs), signal);
        return [];
      } catch (error) {
        throwIfAborted(signal);
        events.addFailed(error, hints.length);
        if (isMemoryFull(error)) events.memoryFull();
        return hints;
      }
    },

    countWaiting: (signal) => untilAborted(queue.getWaitingCount(), signal),

    async look(signal) {
      const [counts, [oldest]] = await untilAborted(
        Promise.all([queue.getJobCounts('waiting', 'active'), queue.getJobs(['waiting'], 0, 0, true)]),
        signal,
      );
      const depth = { waiting: counts['waiting'] ?? 0, active: counts['active'] ?? 0 };
      return { ...depth, ...(oldest && { oldestAddedMs: oldest.timestamp }) };
    },

    async lookAtMemory(signal) {
      const info = await untilAborted(client.info('memory'), signal);
      const figure = (name: string): number => Number(new RegExp(`^${name}:(\\d+)`, 'm').exec(info)?.[1] ?? 0);
      const usedBytes = figure('used_memory') - figure('mem_not_counted_for_evict');
      return { usedBytes: Math.max(0, usedBytes), limitBytes: figure('maxmemory') };
    },

    async dropWaiting() {
      try {
        await queue.drain();
      } catch (error) {
        events.connectionFailed(error as Error);
      }
    },

    async close() {
      // The connection is ours: BullMQ leaves it open.
      await queue.close();
      client.disconnect();
    },
  };
}

function isMemoryFull(error: unknown): boolean {
  return error instanceof Error && /\bOOM\b/.test(error.message);
}
