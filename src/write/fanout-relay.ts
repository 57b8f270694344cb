/**
 * Owns the way of fan-out jobs into the queue: a nudge right after publishing, and rounds over the rows for whatever the nudge, the queue or a worker has lost. A row that is
 * open and in nobody's hands is hinted again and again until it is done; a hint more changes nothing. Lanes are looked at apart, so that a backlog of one holds no other up.
 */
import { after, withGrace } from '../runtime.ts';
import type { DueJob, FanoutJobKey, OpenFigures } from '../store/postgres/fanout-jobs.ts';
import { LANES, type Lane } from '../timeline/lanes.ts';
import { throttled } from './throttled.ts';

export interface FanoutRelay {
  /** One look at the rows; answers whether there is probably more. */
  runOnce(signal: AbortSignal): Promise<boolean>;
  /** Hints a job that was just committed. Never waits and never fails: what it cannot do, the next round does. */
  nudge(job: DueJob): void;
}

export interface FanoutRelayParts {
  readonly claimDueJobs: (
    signal: AbortSignal,
    input: { readonly lanes: readonly Lane[]; readonly most: number; readonly hintAgainMs: number },
  ) => Promise<readonly DueJob[]>;
  readonly forgetHints: (signal: AbortSignal, jobs: readonly FanoutJobKey[]) => Promise<void>;
  /** Answers the jobs whose hints did not reach the queue; bounded in time by itself, and fails fast while the queue is away. */
  readonly addHints: (signal: AbortSignal, jobs: readonly DueJob[]) => Promise<readonly FanoutJobKey[]>;
  /** Hints of a lane that no worker has taken yet. Rejects while the queue is away. */
  readonly countWaiting: (signal: AbortSignal, lane: Lane) => Promise<number>;
  readonly loadOpenFigures: (signal: AbortSignal) => Promise<readonly OpenFigures[]>;
  readonly countDeadJobs: (signal: AbortSignal) => Promise<readonly DeadFigures[]>;
  readonly monotonicMs: () => number;
  readonly events: FanoutRelayEvents;
}

export interface FanoutRelayEvents {
  /** `round`: found by the relay; `nudge`: sent by publish itself. `dropped`: a nudge that was not even tried. */
  hinted(hints: {
    readonly by: 'round' | 'nudge';
    readonly result: 'added' | 'failed' | 'dropped';
    readonly count: number;
  }): void;
  openJobs(figures: readonly OpenFigures[]): void;
  deadJobs(figures: readonly DeadFigures[]): void;
}

type DeadFigures = { readonly lane: Lane; readonly dead: number };

/** Jobs of one round and lane: one round trip to each server. */
const BATCH_MAX = 200;
/**
 * Hints that may wait in the queue of a lane. More would tell its workers nothing and only fill the memory of Redis, some hundred bytes each; what is beyond waits as rows. Enough for
 * workers that take thousands between two rounds.
 */
const WAITING_MAX = 5_000;
/** How long a hint is trusted before the row is hinted again: the queue may have been flushed, or the worker killed. */
const HINT_AGAIN_MS = 10_000;
/** What is claimed when the process is told to stop is hinted all the same, within this: claimed jobs would wait to be hinted again. */
const STOP_GRACE_MS = 1_500;
/**
 * Nudges under way at once. What is beyond waits for the next round of the relay, half a second at most by default. A hint for every post is not worth its price in a burst: with one
 * each, publishing ran at 0.54 of its bare statement, without any at 0.70 (`npm run bench -- publish`, 20 callers).
 */
const NUDGES_MAX = 2;
const NUDGE_MAX_MS = 1_000;
/** How long a nudge waits for others, in milliseconds: little beside what a fan-out takes. */
const NUDGE_TOGETHER_MS = 4;
/** How long nudges trust the last look at the queues, in milliseconds: a lane takes some thousand hints meanwhile at most. */
const ROOM_EVERY_MS = 1_000;
/** The figures read the whole index of open jobs. */
const FIGURES_EVERY_MS = 5_000;

export function createFanoutRelay(parts: FanoutRelayParts): FanoutRelay {
  const { events } = parts;
  let nudging = 0;
  const waiting: DueJob[] = [];
  let open: readonly Lane[] = LANES;
  /** Whether the last count of the queues still holds: nothing was hinted since, and none was full. Idle rounds ask Postgres alone. */
  let counted = false;
  const refreshFigures = throttled({ everyMs: FIGURES_EVERY_MS, monotonicMs: parts.monotonicMs }, async (signal) => {
    events.openJobs(await parts.loadOpenFigures(signal));
    events.deadJobs(await parts.countDeadJobs(signal));
  });

  /** Lanes whose queues take more hints. */
  async function lanesWithRoom(signal: AbortSignal): Promise<readonly Lane[]> {
    // A queue that is away refuses hints by itself, and their rows stay due.
    const counts = await Promise.all(LANES.map((lane) => parts.countWaiting(signal, lane).catch(() => 0)));
    return LANES.filter((_, index) => (counts[index] ?? 0) < WAITING_MAX);
  }

  /** A process that only publishes has no rounds: its nudges look themselves. */
  const lookForRoom = throttled({ everyMs: ROOM_EVERY_MS, monotonicMs: parts.monotonicMs }, async (signal) => {
    open = await lanesWithRoom(signal);
  });

  async function hint(signal: AbortSignal, by: 'round' | 'nudge', jobs: readonly DueJob[]) {
    const failed = await parts.addHints(signal, jobs);
    if (jobs.length > failed.length) events.hinted({ by, result: 'added', count: jobs.length - failed.length });
    if (failed.length > 0) events.hinted({ by, result: 'failed', count: failed.length });
    return failed;
  }

  async function claimAndHint(signal: AbortSignal) {
    const due = await parts.claimDueJobs(signal, { lanes: open, most: BATCH_MAX, hintAgainMs: HINT_AGAIN_MS });
    counted = due.length === 0 && open.length === LANES.length;
    const failed = due.length === 0 ? [] : await hint(signal, 'round', due);
    // Without this they would be taken for hinted, and wait.
    if (failed.length > 0) await parts.forgetHints(signal, failed);
    return { due, failed };
  }

  /** Posts that are published at about the same time are hinted at in one go. */
  function nudgeTogether(): void {
    const jobs = waiting.splice(0);
    const signal = AbortSignal.timeout(NUDGE_MAX_MS);
    lookForRoom(signal)
      .then(() => hint(signal, 'nudge', jobs))
      .catch(() => events.hinted({ by: 'nudge', result: 'failed', count: jobs.length }))
      .finally(() => {
        nudging -= jobs.length;
      });
  }

  return {
    async runOnce(signal) {
      if (!counted) open = await lanesWithRoom(signal);
      const { due, failed } = await withGrace(signal, STOP_GRACE_MS, claimAndHint);
      await refreshFigures(signal);
      return failed.length === 0 && open.some((lane) => due.filter((job) => job.lane === lane).length === BATCH_MAX);
    },

    nudge(job) {
      if (nudging >= NUDGES_MAX || !open.includes(job.lane)) {
        events.hinted({ by: 'nudge', result: 'dropped', count: 1 });
        return;
      }
      nudging += 1;
      waiting.push(job);
      if (waiting.length === 1) after(NUDGE_TOGETHER_MS, nudgeTogether);
    },
  };
}
