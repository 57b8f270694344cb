/**
 * Owns one lane of fan-out as a BullMQ worker: takes hints, hands them on, and knows when it last took one. That a worker lives is shown by its progress and by nothing else: one that
 * leaves hints waiting although it has hands free is replaced.
 *
 * A job may be handed on twice (its lock ran out, Redis forgot): whoever works on it asks the row first.
 */
import { type Job, Worker } from 'bullmq';
import { after, type Clock } from '../runtime.ts';
import type { Lane } from '../timeline/lanes.ts';
import { BLOCK_SECONDS, openWorkerConnections } from './connections.ts';
import { queueNames } from './fanout-queue.ts';
import { type FanoutHint, type HintPayload, parseHint } from './payload.ts';

export interface FanoutWorker {
  progress(): FanoutProgress;
  /**
   * Says how many hints wait in the queue, every few seconds; undefined where the queue did not answer, which says nothing of the worker. One that is deaf to hints is replaced. Answers whether it was.
   */
  noticeWaiting(count: number | undefined): boolean;
  /** Whether it is closing: what can stop should. */
  isEnding(): boolean;
  /** Takes no more; lets what runs end within `drainMs`, then aborts it. Waits for it, a moment longer than that at most. */
  close(drainMs: number): Promise<void>;
}

export interface FanoutProgress {
  readonly running: number;
  /** For how long hints have been seen to wait beside free hands; absent where none have. */
  readonly deafForMs?: number;
  /** By the monotonic clock; absent where none was ever taken. */
  readonly lastTakenMs?: number;
}

export interface FanoutWorkerOptions {
  readonly url: string;
  readonly lane: Lane;
  /** That of the queue. */
  readonly prefix: string;
  readonly concurrency: number;
  /** Life of BullMQ's lock on a job, renewed at half of it: a job whose worker died is not hinted anew before it is over. */
  readonly lockMs: number;
  /** Does what the hint asks for. Its rejection is counted and the hint is gone: the row is still there. */
  readonly process: (signal: AbortSignal, hint: FanoutHint, turn: HintTurn) => Promise<void>;
  /** Adds a hint again. Called once its job is gone from the queue, which takes no second one of an ID before that. */
  readonly hintAgain: (hint: FanoutHint) => Promise<void>;
  readonly clock: Pick<Clock, 'monotonicMs'>;
  readonly events: FanoutWorkerEvents;
}

export interface HintTurn {
  /** Has the same hint added again when this turn is over: behind those that wait. */
  takeAnother(): void;
}

export interface FanoutWorkerEvents {
  connectionFailed(error: Error): void;
  /** Processing a hint was rejected. */
  hintFailed(error: Error): void;
  /** A job was no hint that this version knows, and was dropped. */
  hintUnreadable(): void;
  workerReplaced(): void;
}

/** Between two looks for jobs whose lock is over, in lives of a lock. */
const STALLED_CHECK_LIVES = 2 / 3;
/** Pause after an error of the connection. BullMQ's own 15 s would be the whole time in which a job must have started again. */
const ERROR_PAUSE_MS = 1_000;
/** How long hints may wait beside free hands before the worker is taken for deaf. */
const DEAF_AFTER_MS = 10_000;
/** For what was aborted to give its lease back. */
const ABORT_WAIT_MS = 2_500;

export function startFanoutWorker(options: FanoutWorkerOptions): FanoutWorker {
  const { clock, events } = options;
  const names = queueNames(options.prefix, options.lane);
  const aborting = new AbortController();
  const running = new Set<Promise<void>>();
  /** What is to be hinted again when its job has ended. With the job: one whose lock was lost ends without a word. */
  const again = new WeakMap<Job, FanoutHint>();
  let ending = false;
  let lastTakenMs: number | undefined;
  let waitingSinceMs: number | undefined;
  let current = open();

  async function take(job: Job<HintPayload>): Promise<void> {
    lastTakenMs = clock.monotonicMs();
    waitingSinceMs = undefined;
    const hint = parseHint(job.data);
    if (!hint) {
      events.hintUnreadable();
      return;
    }
    const turn: HintTurn = { takeAnother: () => again.set(job, hint) };
    await tracked(options.process(aborting.signal, hint, turn));
  }

  /** Told of by `running` until it has ended. */
  async function tracked(work: Promise<void>): Promise<void> {
    const ended = work.then(ignore, ignore);
    running.add(ended);
    try {
      await work;
    } finally {
      running.delete(ended);
    }
  }

  /** The job has left the queue, and its ID is free. */
  function left(job: Job<HintPayload>): void {
    const hint = again.get(job);
    if (!hint) return;
    tracked(options.hintAgain(hint)).catch((error) => events.hintFailed(error));
  }

  function open() {
    const connections = openWorkerConnections(options.url, (error) => events.connectionFailed(error));
    const worker = new Worker<HintPayload>(names.name, take, {
      connection: connections.main,
      prefix: names.prefix,
      concurrency: options.concurrency,
      drainDelay: BLOCK_SECONDS,
      lockDuration: options.lockMs,
      stalledInterval: Math.ceil(options.lockMs * STALLED_CHECK_LIVES),
      runRetryDelay: ERROR_PAUSE_MS,
      skipVersionCheck: true,
      // As the hints say themselves; for jobs that others have put there.
      removeOnComplete: { count: 0 },
      removeOnFail: { count: 0 },
    });
    worker.on('error', (error) => events.connectionFailed(error));
    worker.on('completed', left);
    worker.on('failed', (_job, error) => {
      // What was told to stop has not failed.
      if (!aborting.signal.aborted) events.hintFailed(error);
    });
    return { connections, worker };
  }

  return {
    progress: () => ({
      running: running.size,
      ...(lastTakenMs !== undefined && { lastTakenMs }),
      ...(waitingSinceMs !== undefined && { deafForMs: clock.monotonicMs() - waitingSinceMs }),
    }),

    isEnding: () => ending,

    noticeWaiting(count) {
      const nowMs = clock.monotonicMs();
      if (count === undefined || count === 0 || running.size >= options.concurrency || ending) {
        waitingSinceMs = undefined;
        return false;
      }
      waitingSinceMs ??= nowMs;
      if (nowMs - waitingSinceMs < DEAF_AFTER_MS) return false;
      const { worker, connections } = current;
      waitingSinceMs = undefined;
      current = open();
      events.workerReplaced();
      // What it still works on goes on: the row knows whose it is.
      void closed(worker, true);
      connections.disconnect();
      return true;
    },

    async close(drainMs) {
      ending = true;
      const { worker, connections } = current;
      // What a worker that was replaced meanwhile still does has the same time.
      const closing = Promise.all([closed(worker, false), ...running]);
      if (!(await within(closing, drainMs))) {
        aborting.abort();
        await within(Promise.all(running), ABORT_WAIT_MS);
        // A server that does not answer must not hold up a stop.
        await within(closing, running.size > 0 ? 0 : ABORT_WAIT_MS);
      }
      // Hints of jobs that gave way.
      await within(Promise.all(running), ABORT_WAIT_MS);
      aborting.abort();
      connections.disconnect();
    },
  };

  async function closed(worker: Worker<HintPayload>, force: boolean): Promise<void> {
    try {
      await worker.close(force);
    } catch (error) {
      events.connectionFailed(error as Error);
    }
  }
}

const ignore = (): void => undefined;

/** Whether the work ended within `ms`. */
async function within(work: Promise<unknown>, ms: number): Promise<boolean> {
  let giveUp = ignore;
  const late = new Promise<boolean>((resolve) => {
    giveUp = after(ms, () => resolve(false));
  });
  try {
    return await Promise.race([work.then(() => true), late]);
  } finally {
    giveUp();
  }
}
