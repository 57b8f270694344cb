/**
 * Owns authors' classes in their rows: who must change, the change itself, and how far the backfill on the way down has come. Every write names the state that it was
 * decided on, so that of two who decide at the same moment one writes and the other finds nothing left to do.
 */

import type { ClassTarget, FanoutClass } from '../../timeline/fanout-class.ts';
import type { TenantId, UserId } from '../../timeline/ids.ts';
import type { Database, Statement } from './client.ts';

export interface AuthorOf {
  readonly tenant: TenantId;
  readonly author: UserId;
}

/** An author whose class may have to change. */
export interface ClassCandidate extends AuthorOf {
  readonly fanoutClass: FanoutClass;
  readonly target: ClassTarget;
  /** When the class changed last, exactly as Postgres has it; null where it never did. Names the state. */
  readonly changedAt: string | null;
  readonly elapsedMs: number | undefined;
  readonly followers: number;
  readonly residentFollowers: number | undefined;
  readonly backfilled: boolean;
}

/** The index is on the magnitude: what it finds beyond the threshold's own is exact, of that one the count decides. */
const MAGNITUDE = (parameter: string): string => `floor(4 * log(greatest(${parameter}::float8, 1)))::smallint`;

const CANDIDATES: Statement = {
  name: 'class-candidates',
  text: `WITH found AS (
    (SELECT * FROM authors WHERE fanout_class = 'both' ORDER BY class_changed_at LIMIT $5)
    UNION ALL
    (SELECT * FROM authors WHERE fanout_class = 'push' AND follower_magnitude >= ${MAGNITUDE('$1')} AND follower_count >= $1::float8 LIMIT $5)
    UNION ALL
    (SELECT * FROM authors WHERE fanout_class = 'pull' AND follower_magnitude <= ${MAGNITUDE('$2')} AND follower_count <= $2::float8
      AND ($4::float8 IS NULL OR least(coalesce(resident_followers, 0), follower_count) <= $4::float8) LIMIT $5)
    UNION ALL
    (SELECT * FROM authors WHERE fanout_class = 'push' AND resident_followers > $3::float8 AND follower_count > $3::float8
      AND follower_count < $1::float8 LIMIT $5)
  )
  SELECT tenant_id, author_id, fanout_class, class_target, class_changed_at::text AS changed_at, follower_count, resident_followers, backfill_finished,
    (extract(epoch FROM clock_timestamp() - class_changed_at) * 1000)::float8 AS elapsed_ms
  FROM found`,
};

interface CandidateRow {
  readonly tenant_id: string;
  readonly author_id: string;
  readonly fanout_class: FanoutClass;
  readonly class_target: ClassTarget;
  readonly changed_at: string | null;
  readonly follower_count: number;
  readonly resident_followers: number | null;
  readonly backfill_finished: boolean;
  readonly elapsed_ms: number | null;
}

/**
 * Authors between two classes, and those who are beyond a threshold of their class; at most `most` of each kind. `residentsUp`, `residentsDown`: resident followers
 * whose fan-out takes as long as is allowed, and as short as is asked for on the way down; undefined where too little was measured.
 */
export async function loadClassCandidates(
  database: Database,
  signal: AbortSignal,
  query: {
    readonly up: number;
    readonly down: number;
    readonly residentsUp: number | undefined;
    readonly residentsDown: number | undefined;
    readonly most: number;
  },
): Promise<readonly ClassCandidate[]> {
  const rows = await database.query<CandidateRow>(signal, CANDIDATES, [
    query.up,
    query.down,
    query.residentsUp ?? null,
    query.residentsDown ?? null,
    query.most,
  ]);
  return rows.map((row) => ({
    tenant: row.tenant_id as TenantId,
    author: row.author_id as UserId,
    fanoutClass: row.fanout_class,
    target: row.class_target,
    changedAt: row.changed_at,
    elapsedMs: row.elapsed_ms ?? undefined,
    followers: row.follower_count,
    residentFollowers: row.resident_followers ?? undefined,
    backfilled: row.backfill_finished,
  }));
}

/** By the clock too: an epoch that was lost with a commit, which a list in the cache may still bear, never comes again. */
export const NEW_EPOCH = 'greatest(class_epoch + 1, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)';

/** A change sets the time anew, so the time alone names the state that the next one is decided on. */
const CHANGE: Statement = {
  name: 'class-change',
  text: `UPDATE authors SET fanout_class = $4, class_target = $5, class_epoch = CASE WHEN $6::boolean THEN ${NEW_EPOCH} ELSE class_epoch END, class_changed_at = clock_timestamp(),
    backfill_cursor = '', backfill_finished = false, backfill_lease_until = NULL
  WHERE tenant_id = $1 AND author_id = $2 AND class_changed_at IS NOT DISTINCT FROM $3::timestamptz
  RETURNING 1 AS changed`,
};

/** Writes a change; false where the author's class has changed since it was decided. */
export async function changeClass(
  database: Database,
  signal: AbortSignal,
  change: AuthorOf & {
    readonly changedAt: string | null;
    readonly fanoutClass: FanoutClass;
    readonly target: ClassTarget;
    readonly newEpoch: boolean;
  },
): Promise<boolean> {
  const { tenant, author, changedAt, fanoutClass, target, newEpoch } = change;
  const values = [tenant, author, changedAt, fanoutClass, target, newEpoch];
  return (await database.query(signal, CHANGE, values)).length > 0;
}

const PUSH_FIGURES: Statement = {
  name: 'class-push-figures',
  text: `SELECT coalesce(sum(delivered), 0)::float8 AS pushes, (coalesce(sum(pushing_ms), 0) / 1000)::float8 AS seconds FROM (
    SELECT delivered, pushing_ms FROM fanout_jobs WHERE done_at > now() - interval '10 minutes' AND lane <> 'small' AND pushing_ms > 0
    ORDER BY done_at DESC LIMIT $1
  ) recent`,
};

/** Timelines that took posts, and the time spent in pushes, over at most `jobs` jobs of large authors that were done in the last minutes. */
export async function loadPushFigures(
  database: Database,
  signal: AbortSignal,
  jobs: number,
): Promise<{ readonly pushes: number; readonly seconds: number }> {
  const [row] = await database.query<{ readonly pushes: number; readonly seconds: number }>(signal, PUSH_FIGURES, [
    jobs,
  ]);
  return row ?? { pushes: 0, seconds: 0 };
}

const COUNT: Statement = {
  name: 'class-count',
  text: `SELECT fanout_class, count(*) AS authors FROM authors WHERE fanout_class IN ('both', 'pull') GROUP BY fanout_class`,
};

/** Authors of the classes `both` and `pull`: few, and read from an index. */
export async function countPulledAuthors(
  database: Database,
  signal: AbortSignal,
): Promise<{ readonly both: number; readonly pull: number }> {
  const rows = await database.query<{ readonly fanout_class: FanoutClass; readonly authors: number }>(
    signal,
    COUNT,
    [],
  );
  const of = (fanoutClass: FanoutClass): number => rows.find((row) => row.fanout_class === fanoutClass)?.authors ?? 0;
  return { both: of('both'), pull: of('pull') };
}

const SHOW: Statement = {
  name: 'class-show',
  text: `SELECT fanout_class, class_target, class_epoch, class_changed_at::text AS changed_at, follower_count, resident_followers, backfill_cursor, backfill_finished
  FROM authors WHERE tenant_id = $1 AND author_id = $2`,
};

/** What an operator is shown of an author's class. */
export interface ShownClass {
  readonly fanoutClass: FanoutClass;
  readonly target: ClassTarget;
  readonly epoch: number;
  readonly changedAt: string | undefined;
  readonly followers: number;
  readonly residentFollowers: number | undefined;
  /** How far the backfill on the way down has come; '' before the first follower. */
  readonly backfillCursor: string;
  readonly backfilled: boolean;
}

/** Undefined where the author has no row: pushed, and nothing known. */
export async function loadShownClass(
  database: Database,
  signal: AbortSignal,
  of: AuthorOf,
): Promise<ShownClass | undefined> {
  const [row] = await database.query<
    Omit<CandidateRow, 'elapsed_ms'> & { readonly class_epoch: number; readonly backfill_cursor: string }
  >(signal, SHOW, [of.tenant, of.author]);
  return (
    row && {
      fanoutClass: row.fanout_class,
      target: row.class_target,
      epoch: row.class_epoch,
      changedAt: row.changed_at ?? undefined,
      followers: row.follower_count,
      residentFollowers: row.resident_followers ?? undefined,
      backfillCursor: row.backfill_cursor,
      backfilled: row.backfill_finished,
    }
  );
}
