/**
 * Owns where a rebuild reads its snapshot: on a replica that has replayed all that the primary showed after the rebuild began, else on the primary. A replica that is away, behind, promoted or of
 * another history costs a moment once, and is then left alone until it has been seen in step again: it is never wrong, only unused.
 *
 * Why that is as good as the primary: what was committed before the mark is in the snapshot; what comes later meets a timeline that is already BUILDING, as it meets a resident one.
 */
import { after, type Clock } from '../runtime.ts';
import type { Queries } from '../store/postgres/client.ts';
import { isOfHistory, lsnNumber, type Mark, ReplicaUnfit, type Standing } from '../store/postgres/replica.ts';

/** Runs `load` where the snapshot may be read; begun after the rebuild. Once at most on the replica, and again on the primary where that came to nothing. */
export type ReadSnapshot = <Result>(signal: AbortSignal, load: (from: Queries) => Promise<Result>) => Promise<Result>;

/** Why a replica is not read: it does not answer, is behind, has another history, or failed one read. */
export const REPLICA_FAULTS = ['away', 'lagging', 'foreign', 'failed'] as const;
export type ReplicaFault = (typeof REPLICA_FAULTS)[number];

export interface ReplicaParts {
  /** See store/postgres/replica.ts. */
  readonly readCaughtUp: <Result>(
    signal: AbortSignal,
    mark: Mark,
    read: (from: Queries) => Promise<Result>,
  ) => Promise<Result>;
  readonly readStanding: (signal: AbortSignal) => Promise<Standing>;
  /** Of the primary, for looks. */
  readonly readMark: (signal: AbortSignal) => Promise<Mark>;
  readonly isUnreached: (error: unknown) => boolean;
  /** How long a replica that is there may take to say that it has caught up, its way to the mark included. */
  readonly answerMaxMs: number;
  /** How long it may take for the snapshot after that; leaves the primary time within the lease of the rebuild. */
  readonly snapshotMaxMs: number;
  readonly clock: Pick<Clock, 'monotonicMs'>;
  readonly events: {
    snapshotRead(from: 'replica' | ReplicaFault): void;
    /** Seconds by which the replica is behind; undefined where that is not known. */
    lagKnown(seconds: number | undefined): void;
    /** A look saw something else than the one before. */
    standingChanged(standing: ReplicaFault | 'in_step', error?: unknown): void;
  };
}

export interface Replica {
  /** `primary`: read where the replica cannot be. */
  sourceFor(primary: {
    readonly queries: Queries;
    readonly readMark: (signal: AbortSignal) => Promise<Mark>;
  }): ReadSnapshot;
  /** One look at how the replica stands. It is its breaker: what a look has refused is not tried by rebuilds, and the next look probes it. */
  look(signal: AbortSignal): Promise<boolean>;
}

/** After a read that came to nothing, so that in a lag or an outage one in a second pays for finding out; the next look comes within that time as well. */
const REST_MS = 1_000;
const LOOK_MAX_MS = 1_000;
/** Behind by more than this, waiting for it is in vain. */
const LAG_BEARABLE_SECONDS = 1;
/** Places of the primary that the replica has not reached, one a look, half an hour of them: one that was behind for longer is told to be nearer than it is while it comes back, and rebuilds ask for themselves. */
const PLACES_MAX = 3_600;

export function createReplica(parts: ReplicaParts): Replica {
  const { events, clock } = parts;
  /** What the last look saw; until there is one, nothing is read there. */
  let seen: ReplicaFault | 'in_step' | undefined;
  let resting: { readonly fault: ReplicaFault; readonly untilMs: number } | undefined;
  let places: { readonly lsn: bigint; readonly atMs: number }[] = [];

  function faultNow(): ReplicaFault | undefined {
    if (resting && clock.monotonicMs() >= resting.untilMs) resting = undefined;
    if (seen === undefined) return 'away';
    return seen === 'in_step' ? resting?.fault : seen;
  }

  function faultOf(error: unknown): ReplicaFault {
    if (error instanceof ReplicaUnfit) return error.why;
    return parts.isUnreached(error) ? 'away' : 'failed';
  }

  /** The snapshot, or why there is none. A primary that did not give its mark says nothing against the replica. */
  async function fromReplica<Result>(
    signal: AbortSignal,
    readMark: (signal: AbortSignal) => Promise<Mark>,
    load: (from: Queries) => Promise<Result>,
  ): Promise<{ readonly value: Result } | { readonly fault: ReplicaFault; readonly ofReplica: boolean }> {
    let mark: Mark | undefined;
    const limit = new AbortController();
    const tooLate = (): void => limit.abort(new Error('the replica did not answer in time'));
    let cancelLimit = after(parts.answerMaxMs, tooLate);
    try {
      const limited = AbortSignal.any([signal, limit.signal]);
      mark = await readMark(limited);
      const value = await parts.readCaughtUp(limited, mark, (from) => {
        cancelLimit();
        cancelLimit = after(parts.snapshotMaxMs, tooLate);
        return load(from);
      });
      return { value };
    } catch (error) {
      if (signal.aborted) throw error;
      return { fault: limit.signal.aborted ? 'away' : faultOf(error), ofReplica: mark !== undefined };
    } finally {
      cancelLimit();
    }
  }

  async function stand(signal: AbortSignal): Promise<ReplicaFault | 'in_step'> {
    // The replica first: one in step cannot be ahead of where the primary is after that. One that is was left over by a primary that was put back to its past.
    const standing = await parts.readStanding(signal);
    const mark = await parts.readMark(signal);
    const replayed = lsnNumber(standing.lsn);
    const written = lsnNumber(mark.lsn);
    if (!isOfHistory(standing, mark) || replayed > written) {
      places = [];
      events.lagKnown(undefined);
      return 'foreign';
    }
    const nowMs = clock.monotonicMs();
    places = places.filter(({ lsn }) => lsn > replayed);
    const [oldest] = places;
    const lagSeconds = oldest ? (nowMs - oldest.atMs) / 1_000 : 0;
    if (written > replayed && places.length < PLACES_MAX) places.push({ lsn: written, atMs: nowMs });
    events.lagKnown(lagSeconds);
    return lagSeconds > LAG_BEARABLE_SECONDS ? 'lagging' : 'in_step';
  }

  function settle(next: ReplicaFault | 'in_step', error?: unknown): void {
    if (next !== seen) events.standingChanged(next, error);
    seen = next;
  }

  return {
    sourceFor: ({ queries, readMark }) =>
      async function readSnapshot(signal, load) {
        let why = faultNow();
        if (why === undefined) {
          const found = await fromReplica(signal, readMark, load);
          if ('value' in found) {
            events.snapshotRead('replica');
            return found.value;
          }
          why = found.fault;
          // Else a primary that is short of connections would get all snapshots beside.
          if (found.ofReplica) resting = { fault: why, untilMs: clock.monotonicMs() + REST_MS };
        }
        events.snapshotRead(why);
        return load(queries);
      },

    async look(signal) {
      try {
        settle(await stand(AbortSignal.any([signal, AbortSignal.timeout(LOOK_MAX_MS)])));
      } catch (error) {
        if (signal.aborted) throw error;
        events.lagKnown(undefined);
        settle('away', error);
      }
      return false;
    },
  };
}
