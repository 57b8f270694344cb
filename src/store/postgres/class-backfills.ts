/**
 * Owns the checkpoints of the backfill on an author's way down from pulling to pushing. They are written only while the author is on the same way down as when the
 * backfill was claimed: one who turned round begins anew. A lease keeps others from the same pages; pages done twice change nothing.
 */
import type { UserId } from '../../timeline/ids.ts';
import type { AuthorOf } from './author-classes.ts';
import type { Database, Statement } from './client.ts';

export interface ClassBackfill extends AuthorOf {
  /** When the author's way down began, exactly as Postgres has it: names this way down. */
  readonly since: string;
  /** Last follower whose timeline is done; '' before the first. */
  readonly cursor: string;
}

const CLAIM: Statement = {
  name: 'class-backfill-claim',
  text: `UPDATE authors SET backfill_lease_until = clock_timestamp() + $2::float8 * interval '1 millisecond'
  WHERE (tenant_id, author_id) = (
    SELECT tenant_id, author_id FROM authors
    WHERE fanout_class = 'both' AND class_target = 'push' AND NOT backfill_finished
      AND class_changed_at <= clock_timestamp() - $1::float8 * interval '1 millisecond'
      AND (backfill_lease_until IS NULL OR backfill_lease_until < clock_timestamp())
    ORDER BY class_changed_at LIMIT 1 FOR UPDATE SKIP LOCKED
  )
  RETURNING tenant_id, author_id, class_changed_at::text AS since, backfill_cursor AS cursor`,
};

/** The oldest backfill that is due and that nobody works on, or undefined. `waitMs`: how long an author is in BOTH before it begins. */
export async function claimBackfill(
  database: Database,
  signal: AbortSignal,
  input: { readonly waitMs: number; readonly leaseMs: number },
): Promise<ClassBackfill | undefined> {
  const [row] = await database.query<{
    readonly tenant_id: AuthorOf['tenant'];
    readonly author_id: UserId;
    readonly since: string;
    readonly cursor: string;
  }>(signal, CLAIM, [input.waitMs, input.leaseMs]);
  return row && { tenant: row.tenant_id, author: row.author_id, since: row.since, cursor: row.cursor };
}

const SAME_WAY = `tenant_id = $1 AND author_id = $2 AND fanout_class = 'both' AND class_target = 'push' AND class_changed_at = $3::timestamptz`;

const ADVANCE: Statement = {
  name: 'class-backfill-advance',
  text: `UPDATE authors SET backfill_cursor = $4, backfill_finished = $5, backfill_lease_until = clock_timestamp() + $6::float8 * interval '1 millisecond'
  WHERE ${SAME_WAY} AND backfill_cursor <= $4 AND NOT backfill_finished RETURNING 1 AS held`,
};

/** Records that all followers up to the cursor are done, or all there are. False where the author has turned round, or another has come further: stop. */
export async function advanceBackfill(
  database: Database,
  signal: AbortSignal,
  backfill: ClassBackfill & { readonly finished: boolean; readonly leaseMs: number },
): Promise<boolean> {
  const { tenant, author, since, cursor, finished, leaseMs } = backfill;
  return (await database.query(signal, ADVANCE, [tenant, author, since, cursor, finished, leaseMs])).length > 0;
}

const RELEASE: Statement = {
  name: 'class-backfill-release',
  text: `UPDATE authors SET backfill_lease_until = NULL WHERE ${SAME_WAY} AND backfill_cursor = $4`,
};

/** Gives the lease back: the backfill goes on from its checkpoint with whoever comes next. */
export async function releaseBackfill(database: Database, signal: AbortSignal, backfill: ClassBackfill): Promise<void> {
  const { tenant, author, since, cursor } = backfill;
  await database.query(signal, RELEASE, [tenant, author, since, cursor]);
}
