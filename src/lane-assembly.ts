/**
 * Owns how one lane of fan-out is put together: its queue, its workers, and the connections that are theirs alone. Belongs to the composition root, beside fanout-assembly.ts.
 *
 * Lanes share nothing that one could take from another: a bulk fan-out fills its own connections to Postgres, its own to Redis with its own small window, and its own hands.
 */
import type { Config } from './config.ts';
import type { Metrics } from './metrics/metrics.ts';
import { createFanoutQueue, type FanoutQueue } from './queue/fanout-queue.ts';
import { type FanoutWorker, startFanoutWorker } from './queue/fanout-worker.ts';
import type { Runtime } from './runtime.ts';
import type { Database } from './store/postgres/client.ts';
import * as dead from './store/postgres/fanout-dead.ts';
import * as jobs from './store/postgres/fanout-jobs.ts';
import type { PulledLists } from './store/redis/pulled-lists.ts';
import type { Timelines } from './store/redis/timelines.ts';
import type { Lane } from './timeline/lanes.ts';
import type { Blame } from './write/fanout-blame.ts';
import { createDeliver, type Deliver } from './write/fanout-deliver.ts';
import { createPushPost } from './write/push-post.ts';
import { createPushToList } from './write/push-to-list.ts';

/** What the workers of a lane work with; theirs alone. */
export interface LaneStores {
  readonly database: Database;
  readonly timelines: Timelines;
  readonly lists: Pick<PulledLists, 'push' | 'drop'>;
  close(): Promise<void>;
}

export interface LaneAssembly {
  readonly lane: Lane;
  readonly queue: FanoutQueue;
  /** Takes hints, until stopped. */
  startWorker(stores: LaneStores): void;
  /** Looks at the queue, for the measures and for the worker, which is replaced where it hears nothing. */
  watch(signal: AbortSignal): Promise<void>;
  /** Lets what runs end within `drainMs`. */
  stopWorker(drainMs: number): Promise<void>;
}

export interface LaneParts {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  readonly lane: Lane;
  /** One for all lanes. */
  readonly blame: Blame;
  /** Hints at a job that has moved to another lane. */
  readonly hintMoved: (job: jobs.DueJob) => void;
  /** Redis takes no more hints. */
  readonly memoryFull: () => void;
}

/** For a hint more, of a job that gave way; where it fails, the relay sends one. */
const HINT_MAX_MS = 1_000;

export function assembleLane(parts: LaneParts): LaneAssembly {
  const { config, runtime, metrics, lane } = parts;
  const { clock, log } = runtime;
  const at = { url: config.redisQueueUrl, lane, prefix: config.fanout.queuePrefix };
  const connectionFailed = (error: Error): void => {
    metrics.queueFault('connection');
    log.warn({ err: error, lane }, 'the connection to the queue failed');
  };
  const queue = createFanoutQueue({
    ...at,
    events: {
      connectionFailed,
      addFailed: (error, count) =>
        log.warn({ err: error, count, lane }, 'hints did not reach the queue; the rows are hinted again'),
      memoryFull() {
        metrics.queueFault('memory_full');
        parts.memoryFull();
      },
      evictionPossible(policy) {
        metrics.queueFault('eviction_possible');
        log.error({ policy }, 'the queue Redis may evict jobs: its maxmemory-policy must be noeviction');
      },
    },
  });
  let worker: FanoutWorker | undefined;
  let stores: LaneStores | undefined;

  function startWorker(with_: LaneStores): void {
    stores = with_;
    const started = startFanoutWorker({
      ...at,
      concurrency: config.fanout.concurrency[lane],
      // Over before the row's lease is, so that it never holds up who may take the row.
      lockMs: config.fanout.leaseMs / 2,
      async process(signal, hint, turn) {
        const outcome = await deliver(signal, hint);
        if (outcome === 'gave_way') turn.takeAnother();
      },
      async hintAgain(hint) {
        await queue.add(AbortSignal.timeout(HINT_MAX_MS), [hint]);
      },
      clock,
      events: {
        connectionFailed,
        hintFailed(error) {
          metrics.queueFault('hint_failed');
          log.warn({ err: error, lane }, 'a hint could not be followed; its row is hinted again');
        },
        hintUnreadable: () => metrics.queueFault('hint_unreadable'),
        workerReplaced() {
          metrics.queueFault('worker_replaced');
          log.warn({ lane }, 'a worker that heard nothing was replaced');
        },
      },
    });
    const deliver = assembleDeliver(parts, with_, {
      othersWait: async (signal) => (await queue.countWaiting(signal).catch(() => 0)) > 0,
      isEnding: () => started.isEnding(),
    });
    worker = started;
  }

  return {
    lane,
    queue,
    startWorker,
    async watch(signal) {
      const looked = await queue.look(signal).catch((error: unknown) => {
        worker?.noticeWaiting(undefined);
        throw error;
      });
      const { waiting, active, oldestAddedMs } = looked;
      const oldestWaitingSeconds = oldestAddedMs === undefined ? 0 : Math.max(0, clock.nowMs() - oldestAddedMs) / 1_000;
      metrics.queueDepth({ lane, waiting, active, oldestWaitingSeconds });
      if (!worker) return;
      worker.noticeWaiting(waiting);
      metrics.workerDeaf(lane, (worker.progress().deafForMs ?? 0) / 1_000);
    },
    async stopWorker(drainMs) {
      await worker?.close(drainMs);
      await stores?.close();
    },
  };
}

/** One run of a job as the workers of a lane do it; the benchmarks measure this very thing. */
export function assembleDeliver(
  { config, runtime, metrics, lane, blame, hintMoved }: Omit<LaneParts, 'memoryFull'>,
  { database, timelines, lists }: LaneStores,
  turn: { readonly othersWait: (signal: AbortSignal) => Promise<boolean>; readonly isEnding: () => boolean },
): Deliver {
  const { clock, log, random } = runtime;
  const { attemptsMax, bulkPages, followerPage, leaseMs } = config.fanout;
  return createDeliver({
    jobs: {
      takeLease: (signal, job) => jobs.takeLease(database, signal, { ...job, attemptsMax }),
      checkpoint: (signal, job) => jobs.checkpoint(database, signal, job),
      finish: (signal, job) => jobs.finishJob(database, signal, job),
      fail: (signal, job) => jobs.failJob(database, signal, { ...job, attemptsMax }),
      giveWay: (signal, job) => jobs.giveWay(database, signal, job),
      bury: (signal, job) => dead.buryJob(database, signal, { ...job, attemptsMax }),
    },
    loadSubject: (signal, post) => jobs.loadSubject(database, signal, post),
    loadFollowers: (signal, query) => jobs.loadFollowerPage(database, signal, query),
    pushPost: createPushPost({
      push: (signal, post) => timelines.push(signal, post),
      drop: (signal, of) => timelines.drop(signal, of),
      random,
      events: metrics,
    }),
    pushToList: createPushToList({
      push: (signal, post) => lists.push(signal, post),
      drop: (signal, of) => lists.drop(signal, of),
      random,
      events: metrics,
    }),
    // Jobs of the other lanes end after a few pages.
    turn: { ...turn, ...(lane === 'bulk' && { pages: bulkPages }) },
    blame,
    clock,
    random,
    followerPage,
    leaseMs,
    events: {
      delivered: (page) => metrics.fanoutDelivered(page),
      skipped: (page) => metrics.fanoutSkipped(page),
      jobEnded: (job) => metrics.fanoutJobEnded(job),
      jobFailed: ({ tenant, postId, generation }, error) =>
        log.warn({ err: error, tenant, postId, generation }, 'a fan-out job failed and is done again'),
      jobDied({ tenant, postId, generation, lane: of, error }) {
        metrics.fanoutDied(of);
        log.error({ tenant, postId, generation, lane: of, error }, 'a fan-out job failed too often: a dead letter');
      },
      jobMoved: hintMoved,
    },
  });
}
