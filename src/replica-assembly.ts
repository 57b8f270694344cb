/** Owns how the replica of Postgres is put together: its connections, the looks at it, and what of it is told. Belongs to the composition root, beside cache-assembly.ts. */
import type { Config } from './config.ts';
import type { Metrics } from './metrics/metrics.ts';
import { type Rounds, startRounds } from './repair/rounds.ts';
import { createReplica, type ReadSnapshot } from './repair/snapshot-source.ts';
import type { Runtime } from './runtime.ts';
import { type Database, type DatabaseGuard, isDatabaseUnreached } from './store/postgres/client.ts';
import { readCaughtUp, readMark, readStanding } from './store/postgres/replica.ts';

export interface ReplicaAssembly {
  /** Snapshots from the replica where that may be, else from `primary`. */
  sourceFor(primary: Database): ReadSnapshot;
  start(): void;
  stop(): Promise<void>;
}

const LOOK_EVERY_MS = 500;
const LOOK_ROUND_MAX_MS = 5_000;
/** For the mark and the way to both servers, beside the wait: more than they take where anybody answers, little of a read's deadline. */
const ANSWER_MAX_MS = 200;
/** Of a rebuild's lease: as much is left for the primary. */
const SNAPSHOT_SHARE = 0.5;

export function assembleReplica(parts: {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  /** For looks. */
  readonly primary: Database;
  readonly openDatabase: (
    pool: string,
    connectionsMax: number,
    statementTimeoutMs: number,
    guard: DatabaseGuard | undefined,
    url: string,
  ) => Database;
}): ReplicaAssembly {
  const { config, runtime, metrics } = parts;
  const { clock, log, random } = runtime;
  const url = config.databaseReplicaUrl;
  if (url === undefined) {
    return {
      sourceFor: (primary) => (_signal, load) => load(primary),
      start: () => undefined,
      stop: async () => undefined,
    };
  }
  const { poolReplica, replicaWaitMs: waitMs } = config.database;
  const snapshotMaxMs = Math.round(SNAPSHOT_SHARE * config.rebuild.leaseMs);
  const database = parts.openDatabase('replica', poolReplica, snapshotMaxMs, undefined, url);
  const replica = createReplica({
    readCaughtUp: (signal, mark, read) => readCaughtUp(database, signal, { mark, waitMs }, read),
    readStanding: (signal) => readStanding(database, signal),
    readMark: (signal) => readMark(parts.primary, signal),
    isUnreached: (error) =>
      isDatabaseUnreached(error instanceof Error && error.cause !== undefined ? error.cause : error),
    answerMaxMs: waitMs + ANSWER_MAX_MS,
    snapshotMaxMs,
    clock,
    events: {
      snapshotRead: (from) => metrics.snapshotRead(from === 'replica' ? from : `primary_${from}`),
      lagKnown: (seconds) => metrics.replicaLag(seconds),
      standingChanged(standing, error) {
        const isWell = standing === 'in_step';
        log[isWell ? 'info' : 'warn'](
          { standing, ...(error !== undefined && { err: error }) },
          isWell ? 'rebuilds read the replica' : 'rebuilds read the primary, since the replica cannot be',
        );
      },
    },
  });
  let looks: Rounds | undefined;
  return {
    sourceFor: (primary) => replica.sourceFor({ queries: primary, readMark: (signal) => readMark(primary, signal) }),
    start() {
      const look = (signal: AbortSignal): Promise<boolean> => replica.look(signal);
      looks = startRounds({
        name: 'replica',
        everyMs: LOOK_EVERY_MS,
        roundMaxMs: LOOK_ROUND_MAX_MS,
        runOnce: look,
        random,
        log,
      });
    },
    async stop() {
      await looks?.stop();
      await database.close();
    },
  };
}
