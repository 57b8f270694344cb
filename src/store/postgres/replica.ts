/**
 * Owns reading from a replica of Postgres that is certain to show all that its primary showed at a given moment. A replica that is behind, of another history, or none at all is refused; it is never
 * read first and judged afterwards.
 *
 * The moment is a place in the primary's log: its *insert* position, since what a session can see has its commit record inserted before, though not always flushed (`synchronous_commit` off). A
 * replica that has replayed that place shows every such commit to any statement that begins later. What is inserted is flushed, and so sent, with the next commit or by the writer within 200 ms: on a primary
 * where nobody writes the replica may look behind for that long, and nothing is lost by it. A place means something in one history alone, so cluster, database and timeline must be the same;
 * after a promotion two servers may be ahead of the same place with different posts in it.
 *
 * Judged and read on one connection: behind one address there may be several replicas, each as far as it is.
 */
import { pause } from '../../runtime.ts';
import type { Database, Queries, Statement } from './client.ts';

/** A moment of the primary. */
export interface Mark {
  /** Place in the log, such as `16/B374D848`. */
  readonly lsn: string;
  readonly timeline: number;
  /** Of the cluster; a copy by base backup has the same. */
  readonly system: string;
  /** The database's own number within the cluster. */
  readonly database: number;
}

/** `lagging`: has not replayed the mark in time. `foreign`: promoted, or of another cluster, database or timeline. */
export type Unfitness = 'lagging' | 'foreign';

export class ReplicaUnfit extends Error {
  readonly why: Unfitness;
  constructor(why: Unfitness) {
    super(`the replica is ${why}`);
    this.why = why;
  }
}

export interface Standing {
  readonly following: boolean;
  /** As far as it has replayed the log. */
  readonly lsn: string;
  readonly replayed: boolean;
  readonly system: string;
  readonly database: number;
  readonly timeline: number | null;
}

const OF_CLUSTER = `(SELECT system_identifier::text FROM pg_control_system()) AS system,
  (SELECT oid::int8 FROM pg_database WHERE datname = current_database()) AS database`;

/**
 * Where the last record ended with its page or file, the insert place is behind the header of the next one, which a replica reaches with the next record; it has then replayed all there is at the page's start.
 * No record ends elsewhere within a header or right behind it: 24 bytes of a page, 40 of the first one of a file.
 */
const WRITTEN = `written AS (
  SELECT lsn - (CASE WHEN (lsn - '0/0') % pg_size_bytes(current_setting('wal_segment_size')) = 40 THEN 40
    WHEN (lsn - '0/0') % current_setting('wal_block_size')::int = 24 THEN 24 ELSE 0 END)::numeric AS lsn
  FROM pg_current_wal_insert_lsn() AS lsn
)`;

/** The name of a log file begins with the timeline that is written now; the control file tells of the last checkpoint's, which a server that was just promoted has not made. */
const MARK: Statement = {
  name: 'replica-mark',
  text: `WITH ${WRITTEN}
SELECT (SELECT lsn::text FROM written) AS lsn,
  ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::int AS timeline, ${OF_CLUSTER}`,
};

/** Where the primary is now. Fails on a server that is none. */
export async function readMark(primary: Queries, signal: AbortSignal): Promise<Mark> {
  const [mark] = await primary.query<Mark>(signal, MARK, []);
  if (!mark) throw new Error('a mark had no row');
  return mark;
}

/**
 * The timeline that is replayed is told by nothing; each of these is never ahead of it: what is streamed (shown to members of pg_monitor alone) is asked for only once the replica has
 * made out that it leads on from where it is, the others are of records that were replayed, and follow with the next restart point.
 */
const STANDING: Statement = {
  name: 'replica-standing',
  text: `SELECT pg_is_in_recovery() AS following, coalesce(pg_last_wal_replay_lsn()::text, '0/0') AS lsn,
  coalesce(pg_last_wal_replay_lsn() >= $1::pg_lsn, false) AS replayed, ${OF_CLUSTER},
  greatest(
    (SELECT received_tli FROM pg_stat_wal_receiver), (SELECT timeline_id FROM pg_control_checkpoint()), (SELECT min_recovery_end_timeline FROM pg_control_recovery())
  ) AS timeline`,
};

const ANY_LSN = '0/0';

/** Where the replica is now, and whether that is at or beyond a place in the log. */
export async function readStanding(replica: Queries, signal: AbortSignal, lsn = ANY_LSN): Promise<Standing> {
  const [standing] = await replica.query<Standing>(signal, STANDING, [lsn]);
  if (!standing) throw new Error('a standing had no row');
  return standing;
}

export function isOfHistory(standing: Standing, mark: Mark): boolean {
  const { following, system, database, timeline } = standing;
  return following && system === mark.system && database === mark.database && timeline === mark.timeline;
}

/** Between two looks at a replica that is behind, in milliseconds: in step, it is by one or two. */
const LOOK_EVERY_MS = 5;
const IN_RECOVERY: Statement = { name: 'replica-in-recovery', text: 'SELECT pg_is_in_recovery() AS following' };

/**
 * What `read` finds on the replica, where that has replayed the mark within `waitMs`; else throws ReplicaUnfit. `read` is given one connection, and may be run although its result is thrown away: a
 * replica that is promoted meanwhile takes writes of its own.
 */
export function readCaughtUp<Result>(
  replica: Database,
  signal: AbortSignal,
  { mark, waitMs }: { readonly mark: Mark; readonly waitMs: number },
  read: (from: Queries) => Promise<Result>,
): Promise<Result> {
  return replica.transaction(signal, async (transaction) => {
    const from: Queries = { query: (_, statement, values) => transaction.query(statement, values) };
    const patience = AbortSignal.timeout(waitMs);
    for (;;) {
      const standing = await readStanding(from, signal, mark.lsn);
      if (!isOfHistory(standing, mark)) throw new ReplicaUnfit('foreign');
      if (standing.replayed) break;
      if (patience.aborted || waitMs === 0) throw new ReplicaUnfit('lagging');
      await pause(signal, LOOK_EVERY_MS);
    }
    const result = await read(from);
    // No server becomes a replica again under an open connection: one that is in recovery now was so all the time.
    const [end] = await transaction.query<{ readonly following: boolean }>(IN_RECOVERY, []);
    if (end?.following !== true) throw new ReplicaUnfit('foreign');
    return result;
  });
}

/** A place in the log as a number that can be compared. */
export function lsnNumber(lsn: string): bigint {
  const [high = '', low = ''] = lsn.split('/');
  return (BigInt(`0x${high}`) << 32n) | BigInt(`0x${low}`);
}
