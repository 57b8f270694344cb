/**
 * Owns the dead letters of fan-out: rows of `fanout_jobs` that were put aside because they failed by their own fault again and again. Nobody hints or works on them and no
 * retention removes them, until an operator puts them back, from their checkpoints.
 */
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import type { Lane } from '../../timeline/lanes.ts';
import type { Database, Statement } from './client.ts';
import { BLAMED_NOW, type FanoutJobKey, OPEN } from './fanout-jobs.ts';

const BURY: Statement = {
  name: 'fanout-bury',
  text: `UPDATE fanout_jobs SET dead_at = clock_timestamp(), blamed = ${BLAMED_NOW}, hinted_at = 'infinity', lease_token = NULL, lease_until = NULL,
    error = coalesce(error, 'whoever worked on it ended without a word')
  WHERE tenant_id = $1 AND post_id = $2 AND generation = $3 AND ${OPEN} AND lease_until < clock_timestamp() AND ${BLAMED_NOW} >= $4
  RETURNING lane, error`,
};

/** Puts a job aside whose workers were lost with it once too often; answers where that was so, and what had been wrong before. */
export async function buryJob(
  database: Database,
  signal: AbortSignal,
  job: FanoutJobKey & { readonly attemptsMax: number },
): Promise<{ readonly lane: Lane; readonly error: string } | undefined> {
  const values = [job.tenant, job.postId, job.generation, job.attemptsMax];
  const [row] = await database.query<{ readonly lane: Lane; readonly error: string }>(signal, BURY, values);
  return row;
}

export interface DeadJob extends FanoutJobKey {
  readonly lane: Lane;
  readonly author: UserId;
  readonly cursor: string;
  readonly deadAt: Date;
  readonly error: string;
}

/** In the order of the index: a page costs what it holds. */
const LIST: Statement = {
  name: 'fanout-list-dead',
  text: `SELECT lane, tenant_id, post_id, generation, author_id, follower_cursor, dead_at, coalesce(error, '') AS error FROM fanout_jobs
  WHERE dead_at IS NOT NULL AND (lane, tenant_id, post_id, generation) > ($1, $2, $3::bigint, $4::integer)
  ORDER BY lane, tenant_id, post_id, generation LIMIT $5`,
};

interface DeadRow {
  readonly lane: Lane;
  readonly tenant_id: string;
  readonly post_id: number;
  readonly generation: number;
  readonly author_id: string;
  readonly follower_cursor: string;
  readonly dead_at: Date;
  readonly error: string;
}

/** At most `most` dead letters after the one given, by lane, tenant, post and generation. Fewer mean that there are no more. */
export async function listDeadJobs(
  database: Database,
  signal: AbortSignal,
  input: { readonly after?: FanoutJobKey & { readonly lane: Lane }; readonly most: number },
): Promise<readonly DeadJob[]> {
  const { after } = input;
  const values = [after?.lane ?? '', after?.tenant ?? '', after?.postId ?? 0, after?.generation ?? 0, input.most];
  const rows = await database.query<DeadRow>(signal, LIST, values);
  return rows.map((row) => ({
    lane: row.lane,
    tenant: row.tenant_id as TenantId,
    postId: row.post_id as PostId,
    generation: row.generation,
    author: row.author_id as UserId,
    cursor: row.follower_cursor,
    deadAt: row.dead_at,
    error: row.error,
  }));
}

const AGAIN = `dead_at = NULL, attempts = 0, blamed = 0, hinted_at = '-infinity', lease_token = NULL, lease_until = NULL`;

const RETRY: Statement = {
  name: 'fanout-retry-dead',
  text: `UPDATE fanout_jobs SET ${AGAIN}
  WHERE tenant_id = $1 AND post_id = $2 AND ($3::integer IS NULL OR generation = $3) AND dead_at IS NOT NULL RETURNING 1 AS retried`,
};

/** Makes the dead letters of a post due again, one generation of it or all; answers how many there were. */
export async function retryDeadJob(
  database: Database,
  signal: AbortSignal,
  job: { readonly tenant: TenantId; readonly postId: PostId; readonly generation?: number },
): Promise<number> {
  return (await database.query(signal, RETRY, [job.tenant, job.postId, job.generation ?? null])).length;
}

const RETRY_SOME: Statement = {
  name: 'fanout-retry-some-dead',
  text: `UPDATE fanout_jobs SET ${AGAIN} WHERE (tenant_id, post_id, generation) IN (
    SELECT tenant_id, post_id, generation FROM fanout_jobs WHERE dead_at <= $1::timestamptz ORDER BY lane, tenant_id, post_id, generation LIMIT $2 FOR UPDATE SKIP LOCKED
  ) RETURNING 1 AS retried`,
};

/** Makes at most `most` of those that died up to a moment due again; answers how many. What dies anew meanwhile is not taken twice. */
export async function retryDeadJobs(
  database: Database,
  signal: AbortSignal,
  input: { readonly diedUpTo: string; readonly most: number },
): Promise<number> {
  return (await database.query(signal, RETRY_SOME, [input.diedUpTo, input.most])).length;
}

const NOW: Statement = { name: 'fanout-now', text: 'SELECT clock_timestamp()::text AS now' };

/** The clock by which jobs die, as text: a Date would cut its microseconds. */
export async function loadNow(database: Database, signal: AbortSignal): Promise<string> {
  const [row] = await database.query<{ readonly now: string }>(signal, NOW, []);
  if (!row) throw new Error('the clock answered no row');
  return row.now;
}

const COUNT: Statement = {
  name: 'fanout-count-dead',
  text: 'SELECT lane, count(*) AS dead FROM fanout_jobs WHERE dead_at IS NOT NULL GROUP BY lane',
};

/** Dead letters of every lane that has any. Reads their index as a whole: not for every call. */
export async function countDeadJobs(
  database: Database,
  signal: AbortSignal,
): Promise<readonly { readonly lane: Lane; readonly dead: number }[]> {
  return database.query(signal, COUNT, []);
}
