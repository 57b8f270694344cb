/**
 * Owns the measures of the write path behind publish: fan-out, its queue, the relays. Post-to-timeline is the service's main indicator: from Postgres' clock in the publish statement to the
 * delivery, by that same clock.
 */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import { LANES, type Lane } from '../timeline/lanes.ts';
import { FRESHNESS_SECONDS } from './buckets.ts';

/** How a run of a fan-out job ended; the first four finish the job. */
export type FanoutOutcome =
  | 'delivered'
  | 'author_only'
  | 'pulled'
  | 'nothing'
  | 'gave_way'
  | 'moved'
  | 'stopped'
  | 'failed'
  | 'dead'
  | 'lost'
  | 'not_held';

export interface FanoutMetrics {
  /** Timelines that took a post, all of them `seconds` after it was published. */
  fanoutDelivered(page: { readonly lane: Lane; readonly count: number; readonly seconds: number }): void;
  fanoutSkipped(page: { readonly lane: Lane; readonly notResident: number; readonly belowFloor: number }): void;
  /** `seconds`: from the publishing to the end of the run. */
  fanoutJobEnded(job: { readonly lane: Lane; readonly outcome: FanoutOutcome; readonly seconds: number }): void;
  pushesFailed(count: number): void;
  pushesRetried(count: number): void;
  /** A timeline refused a post to the end and was dropped, to be rebuilt. */
  timelineDropped(): void;
  fanoutHinted(hints: {
    readonly by: 'round' | 'nudge';
    readonly result: 'added' | 'failed' | 'dropped';
    readonly count: number;
  }): void;
  /** What stood open when the relay last looked; lanes that are not named have nothing open. */
  fanoutOpen(figures: readonly { readonly lane: Lane; readonly open: number; readonly oldestSeconds: number }[]): void;
  /** A job was put aside. */
  fanoutDied(lane: Lane): void;
  /** Dead letters when the relay last looked; lanes that are not named have none. */
  fanoutDead(figures: readonly { readonly lane: Lane; readonly dead: number }[]): void;
  /** What the queue of a lane holds. */
  queueDepth(depth: {
    readonly lane: Lane;
    readonly waiting: number;
    readonly active: number;
    readonly oldestWaitingSeconds: number;
  }): void;
  /** How long hints of a lane have waited beside free hands of this process. */
  workerDeaf(lane: Lane, seconds: number): void;
  /** What counts of the queue Redis' memory, and what it may take; 0 where it has no bound. */
  queueMemory(memory: { readonly usedBytes: number; readonly limitBytes: number }): void;
  queueFault(fault: QueueFault): void;
  /** `seconds`: from the change that it tells of. */
  outboxHandled(event: { readonly kind: string; readonly outcome: 'done' | 'failed'; readonly seconds: number }): void;
  outboxLag(seconds: number): void;
  ownTimelinePending(): void;
}

export const QUEUE_FAULTS = [
  'connection',
  'hint_failed',
  'hint_unreadable',
  'worker_replaced',
  'eviction_possible',
  'memory_full',
] as const;
export type QueueFault = (typeof QUEUE_FAULTS)[number];

export function fanoutMetrics(registry: Registry): FanoutMetrics {
  const registers = [registry];
  const freshness = new Histogram({
    name: 'tributary_post_to_timeline_seconds',
    help: "Time from a post's publishing to its delivery into a resident timeline, weighted by deliveries, by lane.",
    labelNames: ['lane'],
    buckets: FRESHNESS_SECONDS,
    registers,
  });
  const jobSeconds = new Histogram({
    name: 'tributary_fanout_job_seconds',
    help: "Time from a post's publishing to the end of its fan-out, for finished jobs, by lane.",
    labelNames: ['lane'],
    buckets: FRESHNESS_SECONDS,
    registers,
  });
  const counter = <Label extends string>(name: string, help: string, labelNames: readonly Label[]): Counter<Label> =>
    new Counter({ name, help, labelNames: [...labelNames], registers });
  const deliveries = counter(
    'tributary_deliveries_total',
    'Posts pushed into timelines that did not hold them, by lane.',
    ['lane'],
  );
  const skipped = counter(
    'tributary_deliveries_skipped_total',
    'Followers whose timelines did not take a post, by lane and why (not_resident, below_floor).',
    ['lane', 'why'],
  );
  const jobs = counter('tributary_fanout_runs_total', 'Runs of fan-out jobs that ended, by lane and outcome.', [
    'lane',
    'outcome',
  ]);
  const pushes = counter(
    'tributary_pushes_unconfirmed_total',
    'Pushes into timelines that were not confirmed (failed), tried again (retried), or given up by dropping the timeline (dropped).',
    ['what'],
  );
  const hints = counter(
    'tributary_fanout_hints_total',
    'Hints of fan-out jobs for the queue, by sender (nudge, round) and result.',
    ['by', 'result'],
  );
  const faults = counter('tributary_queue_faults_total', 'Faults of the queue, by kind.', ['fault']);
  // Zero from the start: a series that begins with its first fault shows no rise.
  for (const fault of QUEUE_FAULTS) faults.inc({ fault }, 0);
  const events = counter('tributary_outbox_events_total', 'Outbox events handled, by kind and outcome.', [
    'kind',
    'outcome',
  ]);
  const eventSeconds = new Histogram({
    name: 'tributary_outbox_event_seconds',
    help: 'Time from a change to the end of what its outbox event asks for, for handled events, by kind.',
    labelNames: ['kind'],
    buckets: FRESHNESS_SECONDS,
    registers,
  });
  const pending = counter(
    'tributary_own_timeline_pending_total',
    "Publishes answered before the post was in the author's own timeline.",
    [],
  );
  const open = new Gauge({
    name: 'tributary_fanout_open_jobs',
    help: 'Fan-out jobs that are not done, by lane, as the relay last saw them.',
    labelNames: ['lane'],
    registers,
  });
  const oldest = new Gauge({
    name: 'tributary_fanout_oldest_job_seconds',
    help: 'Age of the oldest fan-out job that is not done, by lane, as the relay last saw it.',
    labelNames: ['lane'],
    registers,
  });
  const gauge = <Label extends string>(name: string, help: string, labelNames: readonly Label[]): Gauge<Label> =>
    new Gauge({ name, help, labelNames: [...labelNames], registers });
  const died = counter('tributary_fanout_died_total', 'Fan-out jobs that became dead letters, by lane.', ['lane']);
  const dead = gauge('tributary_fanout_dead_jobs', 'Dead letters of fan-out, by lane, as the relay last saw them.', [
    'lane',
  ]);
  const depth = gauge('tributary_queue_jobs', 'Hints in the queue, by lane and state (waiting, active).', [
    'lane',
    'state',
  ]);
  const oldestWaiting = gauge(
    'tributary_queue_oldest_waiting_seconds',
    'Age of the hint that waits longest in the queue, by lane; 0 where none waits.',
    ['lane'],
  );
  const deaf = gauge(
    'tributary_worker_deaf_seconds',
    'How long hints have waited beside free hands of this process, by lane; a worker that leaves them for 10 s is replaced.',
    ['lane'],
  );
  const memoryUsed = gauge(
    'tributary_queue_memory_used_bytes',
    'Memory of the queue Redis that counts against its bound.',
    [],
  );
  const memoryLimit = gauge(
    'tributary_queue_memory_limit_bytes',
    'Bound of the memory of the queue Redis (maxmemory); 0 where it has none.',
    [],
  );
  const lag = new Gauge({
    name: 'tributary_relay_lag_seconds',
    help: 'Age of the oldest outbox event that is not handled, as the relay last saw it.',
    registers,
  });

  return {
    fanoutDelivered({ lane, count, seconds }) {
      if (count > 0) deliveries.inc({ lane }, count);
      // The library has no weights; an observation takes well under a microsecond, a delivery several.
      for (let delivery = 0; delivery < count; delivery += 1) freshness.observe({ lane }, seconds);
    },
    fanoutSkipped({ lane, notResident, belowFloor }) {
      if (notResident > 0) skipped.inc({ lane, why: 'not_resident' }, notResident);
      if (belowFloor > 0) skipped.inc({ lane, why: 'below_floor' }, belowFloor);
    },
    fanoutJobEnded({ lane, outcome, seconds }) {
      jobs.inc({ lane, outcome });
      if (outcome === 'delivered' || outcome === 'author_only' || outcome === 'pulled')
        jobSeconds.observe({ lane }, seconds);
    },
    pushesFailed: (count) => pushes.inc({ what: 'failed' }, count),
    pushesRetried: (count) => pushes.inc({ what: 'retried' }, count),
    timelineDropped: () => pushes.inc({ what: 'dropped' }),
    fanoutHinted: ({ by, result, count }) => hints.inc({ by, result }, count),
    fanoutOpen(figures) {
      for (const lane of LANES) {
        const figure = figures.find((each) => each.lane === lane);
        open.set({ lane }, figure?.open ?? 0);
        oldest.set({ lane }, figure?.oldestSeconds ?? 0);
      }
    },
    fanoutDied: (lane) => died.inc({ lane }),
    fanoutDead(figures) {
      for (const lane of LANES) dead.set({ lane }, figures.find((each) => each.lane === lane)?.dead ?? 0);
    },
    queueDepth({ lane, waiting, active, oldestWaitingSeconds }) {
      depth.set({ lane, state: 'waiting' }, waiting);
      depth.set({ lane, state: 'active' }, active);
      oldestWaiting.set({ lane }, oldestWaitingSeconds);
    },
    workerDeaf: (lane, seconds) => deaf.set({ lane }, seconds),
    queueMemory({ usedBytes, limitBytes }) {
      memoryUsed.set(usedBytes);
      memoryLimit.set(limitBytes);
    },
    queueFault: (fault) => faults.inc({ fault }),
    outboxHandled({ kind, outcome, seconds }) {
      events.inc({ kind, outcome });
      if (outcome === 'done') eventSeconds.observe({ kind }, seconds);
    },
    outboxLag: (seconds) => lag.set(seconds),
    ownTimelinePending: () => pending.inc(),
  };
}
