/** Owns how the write path behind publish is put together: the lanes, the relays, the rounds around them. Belongs to the composition root, beside assembly.ts. */
import type { CacheAssembly } from './cache-assembly.ts';
import type { Config } from './config.ts';
import { assembleLane, type LaneAssembly, type LaneStores } from './lane-assembly.ts';
import type { Metrics } from './metrics/metrics.ts';
import { createFailoverWatch } from './repair/failover.ts';
import { createRetention } from './repair/retention.ts';
import { type Rounds, startRounds } from './repair/rounds.ts';
import type { Runtime } from './runtime.ts';
import type { Database } from './store/postgres/client.ts';
import { noticeLineages, rerunBatch } from './store/postgres/failovers.ts';
import * as dead from './store/postgres/fanout-dead.ts';
import * as jobs from './store/postgres/fanout-jobs.ts';
import * as outbox from './store/postgres/outbox.ts';
import { LANES, type Lane } from './timeline/lanes.ts';
import { createBlame } from './write/fanout-blame.ts';
import { createFanoutRelay, type FanoutRelay } from './write/fanout-relay.ts';
import { createOutboxRelay } from './write/outbox-relay.ts';

export interface FanoutAssembly {
  /** Hints at a job that was just committed; never waited for. */
  readonly nudge: FanoutRelay['nudge'];
  /** Looks after jobs and events in rounds, until stopped. */
  startRelay(): void;
  /** Takes hints from the queues, until stopped. */
  startWorkers(): void;
  /** Lets what runs end within `drainMs`, then closes the queues. */
  stop(drainMs: number): Promise<void>;
}

const ROUND_MAX_MS = 30_000;
const RETENTION_EVERY_MS = 30_000;
const NOTICE_EVERY_MS = 2_000;
/** For one hint outside of the relay's rounds, which send it again where it is lost. */
const HINT_MAX_MS = 1_000;
const FAILOVER_LOOK_EVERY_MS = 1_000;
/** Longer than a process may speak to a server after that was demoted: its next command is refused, and its next connection leads to the new one. */
const FAILOVER_SETTLE_MS = 15_000;

export function assembleFanout(parts: {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  readonly relayDatabase: Database;
  readonly cache: CacheAssembly;
  /** Connections for the workers of a lane. */
  readonly openLane: (lane: Lane) => LaneStores;
}): FanoutAssembly {
  const { config, runtime, metrics, relayDatabase, cache } = parts;
  const { clock, log, random } = runtime;
  const monotonicMs = (): number => clock.monotonicMs();

  const blame = createBlame();
  const laneOf = (lane: Lane): LaneAssembly =>
    assembleLane({
      config,
      runtime,
      metrics,
      lane,
      blame,
      hintMoved: (job) =>
        void lanes[job.lane].queue.add(AbortSignal.timeout(HINT_MAX_MS), [job]).catch(() => undefined),
      memoryFull() {
        log.error('the queue Redis is full: the hints that wait there are dropped, their rows are hinted again');
        for (const each of LANES) void lanes[each].queue.dropWaiting();
      },
    });
  const lanes: Readonly<Record<Lane, LaneAssembly>> = {
    small: laneOf('small'),
    medium: laneOf('medium'),
    bulk: laneOf('bulk'),
  };
  const relay = createFanoutRelay({
    claimDueJobs: (signal, input) => jobs.claimDueJobs(relayDatabase, signal, input),
    forgetHints: (signal, keys) => jobs.forgetHints(relayDatabase, signal, keys),
    async addHints(signal, due) {
      const byLane = Map.groupBy(due, (job) => job.lane);
      const failed = await Promise.all([...byLane].map(([lane, some]) => lanes[lane].queue.add(signal, some)));
      return failed.flat();
    },
    countWaiting: (signal, lane) => lanes[lane].queue.countWaiting(signal),
    loadOpenFigures: (signal) => jobs.loadOpenFigures(relayDatabase, signal),
    countDeadJobs: (signal) => dead.countDeadJobs(relayDatabase, signal),
    monotonicMs,
    events: {
      hinted: (hints) => metrics.fanoutHinted(hints),
      openJobs: (figures) => metrics.fanoutOpen(figures),
      deadJobs: (figures) => metrics.fanoutDead(figures),
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

  const rounds: Rounds[] = [];
  const every = (name: string, everyMs: number, runOnce: (signal: AbortSignal) => Promise<boolean>): void => {
    rounds.push(startRounds({ name, everyMs, runOnce, roundMaxMs: ROUND_MAX_MS, random, log }));
  };
  let watched = false;
  /** By relays and workers alike: the backlog must show although one of the two is gone. */
  function watchQueues(): void {
    if (watched) return;
    watched = true;
    every('queue watch', NOTICE_EVERY_MS, async (signal) => {
      // All lanes share one server: any of them can ask it.
      const looked = lanes.small.queue.lookAtMemory(signal).then((memory) => metrics.queueMemory(memory));
      await Promise.all([looked, ...LANES.map((lane) => lanes[lane].watch(signal))]);
      return false;
    });
  }

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
      watchQueues();
    },
    startWorkers() {
      for (const lane of LANES) lanes[lane].startWorker(parts.openLane(lane));
      watchQueues();
    },
    async stop(drainMs) {
      await Promise.all([...rounds.map((one) => one.stop()), ...LANES.map((lane) => lanes[lane].stopWorker(drainMs))]);
      await Promise.all(LANES.map((lane) => lanes[lane].queue.close()));
    },
  };
}
