/** Owns how the write path behind publish is put together: the queue, the relays, the worker. Belongs to the composition root, beside assembly.ts. */
import type { CacheAssembly } from './cache-assembly.ts';
import type { Config } from './config.ts';
import type { Metrics } from './metrics/metrics.ts';
import { createFanoutQueue } from './queue/fanout-queue.ts';
import { startFanoutWorker } from './queue/fanout-worker.ts';
import { createFailoverWatch } from './repair/failover.ts';
import { createRetention } from './repair/retention.ts';
import { type Rounds, startRounds } from './repair/rounds.ts';
import type { Runtime } from './runtime.ts';
import type { Database } from './store/postgres/client.ts';
import { noticeLineages, rerunBatch } from './store/postgres/failovers.ts';
import * as jobs from './store/postgres/fanout-jobs.ts';
import * as outbox from './store/postgres/outbox.ts';
import { createDeliver } from './write/fanout-deliver.ts';
import { createFanoutRelay, type FanoutRelay } from './write/fanout-relay.ts';
import { createOutboxRelay } from './write/outbox-relay.ts';
import { createPushPost } from './write/push-post.ts';
import { createPushToList } from './write/push-to-list.ts';

export interface FanoutAssembly {
  /** Hints at a job that was just committed; never waited for. */
  readonly nudge: FanoutRelay['nudge'];
  /** Looks after jobs and events in rounds, until stopped. */
  startRelay(): void;
  /** Takes hints from the queue, until stopped. */
  startWorker(): void;
  /** Lets what runs end within the drain time, then closes the queue. */
  stop(): Promise<void>;
}

/** One lane, until each has a queue and a pool of its own. */
const LANE = 'small';
const ROUND_MAX_MS = 30_000;
const RETENTION_EVERY_MS = 30_000;
const NOTICE_EVERY_MS = 2_000;
const FAILOVER_LOOK_EVERY_MS = 1_000;
/** Longer than a process may speak to a server after that was demoted: its next command is refused, and its next connection leads to the new one. */
const FAILOVER_SETTLE_MS = 15_000;

export function assembleFanout(parts: {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  /** The pool of the workers: fan-out must not take the connections of requests. */
  readonly database: Database;
  readonly relayDatabase: Database;
  readonly cache: CacheAssembly;
}): FanoutAssembly {
  const { config, runtime, metrics, database, relayDatabase, cache } = parts;
  const { clock, log, random } = runtime;
  const monotonicMs = (): number => clock.monotonicMs();

  const queue = createFanoutQueue({
    url: config.redisQueueUrl,
    lane: LANE,
    prefix: config.fanout.queuePrefix,
    events: {
      connectionFailed(error) {
        metrics.queueFault('connection');
        log.warn({ err: error }, 'the connection to the queue failed');
      },
      addFailed: (error, count) =>
        log.warn({ err: error, count }, 'hints did not reach the queue; the rows are hinted again'),
      evictionPossible(policy) {
        metrics.queueFault('eviction_possible');
        log.error({ policy }, 'the queue Redis may evict jobs: its maxmemory-policy must be noeviction');
      },
    },
  });
  const relay = createFanoutRelay({
    claimDueJobs: (signal, input) => jobs.claimDueJobs(relayDatabase, signal, input),
    forgetHints: (signal, keys) => jobs.forgetHints(relayDatabase, signal, keys),
    addHints: (signal, keys) => queue.add(signal, keys),
    loadOpenFigures: (signal) => jobs.loadOpenFigures(relayDatabase, signal),
    monotonicMs,
    events: {
      hinted: (hints) => metrics.fanoutHinted(hints),
      openJobs: (figures) => metrics.fanoutOpen(figures),
    },
  });
  const relayEvents = createOutboxRelay({
    claimEvents: (signal, input) => outbox.claimEvents(relayDatabase, signal, input),
    finishEvents: (signal, ids) => outbox.finishEvents(relayDatabase, signal, ids),
    releaseEvents: (signal, events) => outbox.releaseEvents(relayDatabase, signal, events),
    handle: (signal, event) => cache.afterChange({ tenant: event.tenant, signal }, event),
    loadOldestEventSeconds: (signal) => outbox.loadOldestEventSeconds(relayDatabase, signal),
    monotonicMs,
    random,
    events: {
      eventHandled: (event) => metrics.outboxHandled(event),
      eventFailed: ({ eventId, kind, attempts }, error) =>
        log.warn({ err: error, eventId, kind, attempts }, 'an outbox event failed and is done again'),
      relayLag: (seconds) => metrics.outboxLag(seconds),
    },
  });
  const deliver = createDeliver({
    jobs: {
      takeLease: (signal, job) => jobs.takeLease(database, signal, job),
      checkpoint: (signal, job) => jobs.checkpoint(database, signal, job),
      finish: (signal, job) => jobs.finishJob(database, signal, job),
      fail: (signal, job) => jobs.failJob(database, signal, job),
    },
    loadSubject: (signal, post) => jobs.loadSubject(database, signal, post),
    loadFollowers: (signal, query) => jobs.loadFollowerPage(database, signal, query),
    pushPost: createPushPost({
      push: (signal, post) => cache.timelines.push(signal, post),
      drop: (signal, of) => cache.timelines.drop(signal, of),
      random,
      events: metrics,
    }),
    pushToList: createPushToList({
      push: (signal, post) => cache.lists.push(signal, post),
      drop: (signal, of) => cache.lists.drop(signal, of),
      random,
      events: metrics,
    }),
    clock,
    random,
    followerPage: config.fanout.followerPage,
    leaseMs: config.fanout.leaseMs,
    events: {
      delivered: (page) => metrics.fanoutDelivered(page),
      skipped: (page) => metrics.fanoutSkipped(page),
      jobEnded: (job) => metrics.fanoutJobEnded(job),
      jobFailed: ({ tenant, postId, generation }, error) =>
        log.warn({ err: error, tenant, postId, generation }, 'a fan-out job failed and is done again'),
    },
  });

  const rounds: Rounds[] = [];
  const every = (name: string, everyMs: number, runOnce: (signal: AbortSignal) => Promise<boolean>): void => {
    rounds.push(startRounds({ name, everyMs, runOnce, roundMaxMs: ROUND_MAX_MS, random, log }));
  };
  let worker: ReturnType<typeof startFanoutWorker> | undefined;

  return {
    nudge: relay.nudge,
    startRelay() {
      every('fan-out relay', config.fanout.relayEveryMs, (signal) => relay.runOnce(signal));
      every('outbox relay', config.fanout.relayEveryMs, relayEvents);
      every(
        'failover watch',
        FAILOVER_LOOK_EVERY_MS,
        createFailoverWatch({
          loadLineages: cache.loadLineages,
          noticeLineages: (signal, input) => noticeLineages(relayDatabase, signal, input),
          rerunBatch: (signal, most) => rerunBatch(relayDatabase, signal, most),
          monotonicMs,
          settleMs: FAILOVER_SETTLE_MS,
          events: {
            failedOver(servers) {
              metrics.cacheFailedOver(servers);
              log.warn(
                { servers },
                'another server took over the cache; the jobs and events of the last minutes run again',
              );
            },
            runAgain: (what) => metrics.ranAgain(what),
          },
        }),
      );
      every(
        'retention',
        RETENTION_EVERY_MS,
        createRetention({
          removeDoneJobs: (signal, input) => jobs.removeDoneJobs(relayDatabase, signal, input),
          removeDoneEvents: (signal, input) => outbox.removeDoneEvents(relayDatabase, signal, input),
        }),
      );
    },
    startWorker() {
      const started = startFanoutWorker({
        url: config.redisQueueUrl,
        lane: LANE,
        prefix: config.fanout.queuePrefix,
        concurrency: config.fanout.concurrency,
        // Over before the row's lease is, so that it never holds up who may take the row.
        lockMs: config.fanout.leaseMs / 2,
        drainMs: config.drainTimeoutMs,
        process: async (signal, hint) => void (await deliver(signal, hint)),
        clock,
        events: {
          connectionFailed(error) {
            metrics.queueFault('connection');
            log.warn({ err: error }, 'the connection to the queue failed');
          },
          hintFailed(error) {
            metrics.queueFault('hint_failed');
            log.warn({ err: error }, 'a hint could not be followed; its row is hinted again');
          },
          hintUnreadable: () => metrics.queueFault('hint_unreadable'),
          workerReplaced() {
            metrics.queueFault('worker_replaced');
            log.warn('a worker that heard nothing was replaced');
          },
        },
      });
      worker = started;
      every('queue watch', NOTICE_EVERY_MS, async (signal) => {
        started.noticeWaiting(await queue.countWaiting(signal));
        return false;
      });
    },
    async stop() {
      await Promise.all(rounds.map((one) => one.stop()));
      await worker?.close();
      await queue.close();
    },
  };
}
