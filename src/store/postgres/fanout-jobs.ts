/**
 * Owns the rows of `fanout_jobs`: who may work on a job, how far it came, and when it is over. The row is the truth and a queue's job only a
 * hint that names it, so whatever the queue loses is hinted again from here.
 *
 * A lease is a token with an end by Postgres' clock. Progress is written with the current token only, the cursor never moves back, and what is
 * done stays done: a worker that was taken for dead can neither undo nor finish what another has taken over.
 */

import type { AuthorClass } from '../../timeline/fanout-class.ts';
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import { LANE_FOLLOWERS_MAX, LANES, type Lane } from '../../timeline/lanes.ts';
import type { AuthorLifecycle, ModerationState, Visibility } from '../../timeline/post.ts';
import type { Database, Statement } from './client.ts';

/** Names one row: a post, and which of its fan-outs. */
export interface FanoutJobKey {
  readonly tenant: TenantId;
  readonly postId: PostId;
  readonly generation: number;
}

/** Names the row in a word, for maps and sets. */
export function keyText({ tenant, postId, generation }: FanoutJobKey): string {
  return `${tenant} ${postId} ${generation}`;
}

export interface DueJob extends FanoutJobKey {
  readonly lane: Lane;
}

export interface FanoutLease {
  readonly token: string;
  readonly author: UserId;
  readonly lane: Lane;
  /** Last follower delivered to; '' before the first. */
  readonly cursor: string;
  readonly delivered: number;
  readonly skipped: number;
  readonly pushingMs: number;
  /** How often the job was begun since it last gave way, this time included. */
  readonly attempts: number;
  /** When the post was published or became eligible again, and now: both by Postgres' clock, in milliseconds since the Unix epoch. */
  readonly createdAtMs: number;
  readonly databaseNowMs: number;
}

/** Absolute figures and not additions: a checkpoint whose answer was lost may be written again. */
export interface FanoutProgress {
  readonly cursor: string;
  readonly delivered: number;
  readonly skipped: number;
  /** Time spent in pushes, in milliseconds. */
  readonly pushingMs: number;
}

export type HeldJob = FanoutJobKey & { readonly token: string };

const ERROR_LENGTH_MAX = 500;
/** A Postgres integer. */
const UNBOUNDED = 2 ** 31 - 1;

/** The lane of an author with so many followers, as timeline/lanes.ts says it, for statements that know the count. */
export function laneSql(followers: string): string {
  return `CASE WHEN ${followers} <= ${LANE_FOLLOWERS_MAX.small} THEN 'small' WHEN ${followers} <= ${LANE_FOLLOWERS_MAX.medium} THEN 'medium' ELSE 'bulk' END`;
}

/** A job that somebody has to do: dead letters wait for an operator. */
export const OPEN = 'done_at IS NULL AND dead_at IS NULL';

/**
 * `hinted_at` comes next to the lane in the index: what was hinted a moment ago is not even looked at. now() and not clock_timestamp(), which no index can use.
 * Each lane has a range and a bound of its own, so that none waits behind the backlog of another.
 */
const CLAIM_DUE: Statement = {
  name: 'fanout-claim-due',
  text: `WITH due AS MATERIALIZED (
    SELECT of_lane.* FROM unnest($3::text[]) AS wanted (lane), LATERAL (
      SELECT tenant_id, post_id, generation FROM fanout_jobs j
      WHERE j.lane = wanted.lane AND ${OPEN} AND hinted_at < now() - $2::float8 * interval '1 millisecond'
        AND (lease_until IS NULL OR lease_until < now())
      ORDER BY hinted_at LIMIT $1 FOR UPDATE SKIP LOCKED
    ) AS of_lane
  )
  UPDATE fanout_jobs j SET hinted_at = clock_timestamp() FROM due
  WHERE j.tenant_id = due.tenant_id AND j.post_id = due.post_id AND j.generation = due.generation
  RETURNING j.tenant_id, j.post_id, j.generation, j.lane`,
};

interface DueRow {
  readonly tenant_id: string;
  readonly post_id: number;
  readonly generation: number;
  readonly lane: Lane;
}

/** At most `most` open jobs of each lane (of all where none are named) that nobody works on and that were not hinted within `hintAgainMs`; marks them hinted, row by row. */
export async function claimDueJobs(
  database: Database,
  signal: AbortSignal,
  input: { readonly lanes?: readonly Lane[]; readonly most: number; readonly hintAgainMs: number },
): Promise<readonly DueJob[]> {
  const values = [input.most, input.hintAgainMs, input.lanes ?? LANES];
  const rows = await database.query<DueRow>(signal, CLAIM_DUE, values);
  return rows.map((row) => ({
    tenant: row.tenant_id as TenantId,
    postId: row.post_id as PostId,
    generation: row.generation,
    lane: row.lane,
  }));
}

const FORGET_HINTS: Statement = {
  name: 'fanout-forget-hints',
  text: `UPDATE fanout_jobs j SET hinted_at = '-infinity'
  FROM unnest($1::text[], $2::bigint[], $3::int[]) AS k (tenant_id, post_id, generation)
  WHERE j.tenant_id = k.tenant_id AND j.post_id = k.post_id AND j.generation = k.generation AND ${OPEN}`,
};

/** Makes claimed jobs due again at once: their hints did not reach the queue. */
export async function forgetHints(
  database: Database,
  signal: AbortSignal,
  jobs: readonly FanoutJobKey[],
): Promise<void> {
  if (jobs.length === 0) return;
  await database.query(signal, FORGET_HINTS, [
    jobs.map((job) => job.tenant),
    jobs.map((job) => job.postId),
    jobs.map((job) => job.generation),
  ]);
}

/** Whoever held the lease before never said how it ended: it was killed, by this job perhaps, and that counts against the job. */
export const BLAMED_NOW = 'blamed + (lease_token IS NOT NULL)::int';

const TAKE_LEASE: Statement = {
  name: 'fanout-take-lease',
  text: `UPDATE fanout_jobs SET lease_token = gen_random_uuid(), attempts = attempts + 1, blamed = ${BLAMED_NOW},
    lease_until = clock_timestamp() + $4::float8 * interval '1 millisecond'
  WHERE tenant_id = $1 AND post_id = $2 AND generation = $3 AND ${OPEN} AND ${BLAMED_NOW} < $5
    AND (lease_until IS NULL OR lease_until < clock_timestamp())
  RETURNING lease_token::text AS token, author_id, lane, follower_cursor, delivered, skipped, pushing_ms, attempts,
    (extract(epoch FROM created_at) * 1000)::float8 AS created_at_ms, (extract(epoch FROM clock_timestamp()) * 1000)::float8 AS now_ms`,
};

interface LeaseRow {
  readonly token: string;
  readonly author_id: string;
  readonly lane: Lane;
  readonly follower_cursor: string;
  readonly delivered: number;
  readonly skipped: number;
  readonly pushing_ms: number;
  readonly attempts: number;
  readonly created_at_ms: number;
  readonly now_ms: number;
}

/**
 * The right to work on a job, or undefined where it is done, gone, waits for its next attempt, a living worker holds it, or it is or ought to be a dead letter: it has as many
 * attempts against it as may be (any number where no bound is given).
 */
export async function takeLease(
  database: Database,
  signal: AbortSignal,
  job: FanoutJobKey & { readonly leaseMs: number; readonly attemptsMax?: number },
): Promise<FanoutLease | undefined> {
  const [row] = await database.query<LeaseRow>(signal, TAKE_LEASE, [
    job.tenant,
    job.postId,
    job.generation,
    job.leaseMs,
    job.attemptsMax ?? UNBOUNDED,
  ]);
  return (
    row && {
      token: row.token,
      author: row.author_id as UserId,
      lane: row.lane,
      cursor: row.follower_cursor,
      delivered: row.delivered,
      skipped: row.skipped,
      pushingMs: row.pushing_ms,
      attempts: row.attempts,
      createdAtMs: row.created_at_ms,
      databaseNowMs: row.now_ms,
    }
  );
}

const HELD = `tenant_id = $1 AND post_id = $2 AND generation = $3 AND lease_token = $4::uuid AND ${OPEN}`;
/** A job that came further has nothing against it any more. */
const FURTHER =
  'follower_cursor = $5, delivered = $6, skipped = $7, pushing_ms = $9, blamed = CASE WHEN follower_cursor < $5 THEN 0 ELSE blamed END';

const CHECKPOINT: Statement = {
  name: 'fanout-checkpoint',
  text: `UPDATE fanout_jobs SET ${FURTHER},
    lease_until = clock_timestamp() + $8::float8 * interval '1 millisecond'
  WHERE ${HELD} AND follower_cursor <= $5 RETURNING 1 AS held`,
};

/** Records progress and lengthens the lease. False where the token is not the current one any more: stop. */
export async function checkpoint(
  database: Database,
  signal: AbortSignal,
  job: HeldJob & FanoutProgress & { readonly leaseMs: number },
): Promise<boolean> {
  const values = [...heldValues(job), job.cursor, job.delivered, job.skipped, job.leaseMs, job.pushingMs];
  return (await database.query(signal, CHECKPOINT, values)).length > 0;
}

const GIVE_WAY: Statement = {
  name: 'fanout-give-way',
  text: `UPDATE fanout_jobs SET ${FURTHER}, attempts = 0, lane = $8, lease_token = NULL, lease_until = NULL, hinted_at = '-infinity'
  WHERE ${HELD} AND follower_cursor <= $5 RETURNING 1 AS held`,
};

/** Records progress and gives the lease back with it: the job is due at once, in the lane given. False where the token is not the current one any more. */
export async function giveWay(
  database: Database,
  signal: AbortSignal,
  job: HeldJob & FanoutProgress & { readonly lane: Lane },
): Promise<boolean> {
  const values = [...heldValues(job), job.cursor, job.delivered, job.skipped, job.lane, job.pushingMs];
  return (await database.query(signal, GIVE_WAY, values)).length > 0;
}

const FINISH: Statement = {
  name: 'fanout-finish',
  text: `WITH done AS (
    UPDATE fanout_jobs SET done_at = clock_timestamp(), delivered = $5, skipped = $6, pushing_ms = $7, lease_token = NULL, lease_until = NULL, error = NULL
    WHERE ${HELD} RETURNING tenant_id, author_id, lane, delivered
  ),
  resident AS (
    UPDATE authors a SET resident_followers = done.delivered FROM done
    WHERE $8::boolean AND done.lane <> 'small' AND a.tenant_id = done.tenant_id AND a.author_id = done.author_id
      AND (a.resident_followers IS NULL OR abs(a.resident_followers - done.delivered) * 10 > greatest(a.resident_followers, done.delivered))
  )
  SELECT 1 AS held FROM done`,
};

/**
 * Marks the job done for ever. False where the token is not the current one any more: then it is not done by this. `toFollowers`: every follower was on its pages; of a large author their
 * number is kept with the author, where it has changed by more than a tenth.
 */
export async function finishJob(
  database: Database,
  signal: AbortSignal,
  job: HeldJob & Omit<FanoutProgress, 'cursor'> & { readonly toFollowers: boolean },
): Promise<boolean> {
  const values = [...heldValues(job), job.delivered, job.skipped, job.pushingMs, job.toFollowers];
  return (await database.query(signal, FINISH, values)).length > 0;
}

const FAIL: Statement = {
  name: 'fanout-fail',
  text: `UPDATE fanout_jobs SET error = $5, lease_token = NULL, lease_until = clock_timestamp() + $6::float8 * interval '1 millisecond',
    blamed = blamed + $7::int,
    dead_at = CASE WHEN blamed + $7::int >= $8 AND $7 > 0 THEN clock_timestamp() END,
    hinted_at = CASE WHEN blamed + $7::int >= $8 AND $7 > 0 THEN timestamptz 'infinity' ELSE timestamptz '-infinity' END
  WHERE ${HELD} RETURNING dead_at IS NOT NULL AS dead`,
};

/** `due`: again, from its checkpoint, in `retryInMs`. `dead`: put aside, with its error. `lost`: the token is not the current one any more. */
export type FailOutcome = 'due' | 'dead' | 'lost';

/** Gives the lease back after an attempt that did not come through; with `attemptsMax` of them against it the job is a dead letter. */
export async function failJob(
  database: Database,
  signal: AbortSignal,
  job: HeldJob & {
    readonly error: string;
    readonly retryInMs: number;
    /** Whether the attempt counts against the job. */
    readonly blamed: boolean;
    readonly attemptsMax: number;
  },
): Promise<FailOutcome> {
  const values = [
    ...heldValues(job),
    job.error.slice(0, ERROR_LENGTH_MAX),
    job.retryInMs,
    job.blamed ? 1 : 0,
    job.attemptsMax,
  ];
  const [row] = await database.query<{ readonly dead: boolean }>(signal, FAIL, values);
  if (!row) return 'lost';
  return row.dead ? 'dead' : 'due';
}

function heldValues(job: HeldJob): readonly unknown[] {
  return [job.tenant, job.postId, job.generation, job.token];
}

const SUBJECT: Statement = {
  name: 'fanout-subject',
  text: `SELECT p.visibility, p.moderation, p.deleted_at IS NOT NULL AS deleted, coalesce(a.lifecycle, 'active') AS lifecycle,
    coalesce(a.fanout_class, 'push') AS "fanoutClass", coalesce(a.class_epoch, 0) AS "classEpoch"
  FROM posts p LEFT JOIN authors a ON a.tenant_id = p.tenant_id AND a.author_id = p.author_id
  WHERE p.tenant_id = $1 AND p.author_id = $2 AND p.post_id = $3`,
};

/** What decides to whom a post is delivered. */
export interface FanoutSubject extends AuthorClass {
  readonly visibility: Visibility;
  readonly moderation: ModerationState;
  readonly deleted: boolean;
  readonly lifecycle: AuthorLifecycle;
}

/** The post and its author as they are now, or undefined where there is no such post. */
export async function loadSubject(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly author: UserId; readonly postId: PostId },
): Promise<FanoutSubject | undefined> {
  const [row] = await database.query<FanoutSubject>(signal, SUBJECT, [query.tenant, query.author, query.postId]);
  return row;
}

/** IDs hold no space (timeline/ids.ts), so one value can carry a page: twice as fast as a row for each follower. */
const FOLLOWER_PAGE: Statement = {
  name: 'fanout-followers',
  text: `SELECT string_agg(follower_id, ' ' ORDER BY follower_id) AS followers FROM (
    SELECT follower_id FROM follows
    WHERE tenant_id = $1 AND followee_id = $2 AND follower_id > $3 AND ended_at IS NULL ORDER BY follower_id LIMIT $4
  ) page`,
};

/** At most `limit` active followers after the given ID, in byte order. Fewer than `limit` means that there are no more. */
export async function loadFollowerPage(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly author: UserId; readonly after: string; readonly limit: number },
): Promise<readonly UserId[]> {
  const [row] = await database.query<{ readonly followers: string | null }>(signal, FOLLOWER_PAGE, [
    query.tenant,
    query.author,
    query.after,
    query.limit,
  ]);
  const followers = row?.followers;
  return followers === null || followers === undefined ? [] : (followers.split(' ') as UserId[]);
}

const OPEN_FIGURES: Statement = {
  name: 'fanout-open-figures',
  text: `SELECT lane, count(*) AS open, greatest(0, extract(epoch FROM clock_timestamp() - min(created_at)))::float8 AS oldest_seconds
  FROM fanout_jobs WHERE ${OPEN} GROUP BY lane`,
};

export interface OpenFigures {
  readonly lane: Lane;
  readonly open: number;
  readonly oldestSeconds: number;
}

/** Open jobs and the age of the oldest, for every lane that has any. Reads the index of open jobs as a whole: not for every call. */
export async function loadOpenFigures(database: Database, signal: AbortSignal): Promise<readonly OpenFigures[]> {
  const rows = await database.query<{ readonly lane: Lane; readonly open: number; readonly oldest_seconds: number }>(
    signal,
    OPEN_FIGURES,
    [],
  );
  return rows.map((row) => ({ lane: row.lane, open: row.open, oldestSeconds: row.oldest_seconds }));
}

const REMOVE_DONE: Statement = {
  name: 'fanout-remove-done',
  text: `DELETE FROM fanout_jobs WHERE (tenant_id, post_id, generation) IN (
    SELECT tenant_id, post_id, generation FROM fanout_jobs WHERE done_at < now() - make_interval(mins => $1) ORDER BY done_at LIMIT $2
    FOR UPDATE SKIP LOCKED
  ) RETURNING 1 AS removed`,
};

/** Removes at most `most` jobs that were done more than `minutes` ago; answers how many. */
export async function removeDoneJobs(
  database: Database,
  signal: AbortSignal,
  input: { readonly minutes: number; readonly most: number },
): Promise<number> {
  return (await database.query(signal, REMOVE_DONE, [input.minutes, input.most])).length;
}
