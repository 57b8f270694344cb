/**
 * Owns the memory of the cache's failovers: which lineages of data were seen, and what is to be run again because a server took over that may lack it. However many
 * processes see a failover, it is noticed once; a process that dies while it runs things again leaves the rest to another.
 *
 * A job is run again as a further generation, so that its measures begin with the failover and a run that is under way is left alone; an event is opened again.
 */
import { NEW_EPOCH } from './author-classes.ts';
import type { Database, Statement } from './client.ts';

export interface SeenLineage {
  readonly replicationId: string;
  /** Whether the server was a replica before; one that was not began empty. */
  readonly promoted: boolean;
  /** The lineage that it was a replica of. */
  readonly before?: string;
}

/** A job that is run again comes after all that were never hinted, however many there are: posts that nobody has seen go first. */
const BEHIND_FRESH_POSTS = "timestamptz '2000-01-01'";
/** Longer than a rerun takes, and what it looks back. */
const WAYS_DOWN_LOOK_BACK_MS = 30 * 60_000;
const LINEAGE_LIFE = "interval '30 days'";

/**
 * Without the row of a lineage that lives, seeing it again would be news: `seen_at` moves with it. That of the lineage before says when the primary that is gone was last seen: what its failover has lost
 * was finished after that at the earliest, or within the look-back, whichever is longer. Other masters of a cluster, which are seen all the time, say nothing of it; where the one before is not known,
 * the newest of all has to do.
 */
const NOTICE: Statement = {
  name: 'failover-notice',
  text: `WITH told AS (
    SELECT * FROM unnest($1::text[], $2::boolean[], $5::text[]) AS t (replication_id, promoted, before)
  ),
  known AS MATERIALIZED (SELECT replication_id, seen_at FROM cache_lineages),
  stored AS (
    INSERT INTO cache_lineages AS l (replication_id) SELECT replication_id FROM told
    ON CONFLICT (replication_id) DO UPDATE SET seen_at = now() WHERE l.seen_at < now() - interval '30 seconds'
    RETURNING replication_id
  ),
  forgotten AS (DELETE FROM cache_lineages WHERE seen_at < now() - ${LINEAGE_LIFE} AND replication_id <> ALL ($1)),
  failovers AS (
    SELECT count(*) AS count, min(coalesce((SELECT seen_at FROM known WHERE known.replication_id = told.before), (SELECT max(seen_at) FROM known))) AS last_seen_at
    FROM stored JOIN told USING (replication_id)
    WHERE told.promoted AND EXISTS (TABLE known) AND replication_id NOT IN (SELECT replication_id FROM known)
  ),
  reruns AS (
    INSERT INTO cache_reruns (due_at, from_at, until_at)
    SELECT due_at, from_at, until_at FROM failovers, LATERAL (VALUES
      (now(), least(last_seen_at, now()) - $3::float8 * interval '1 millisecond', now()),
      (now() + $4::float8 * interval '1 millisecond', now(), now() + $4::float8 * interval '1 millisecond')
    ) AS r (due_at, from_at, until_at) WHERE count > 0
  )
  SELECT count::int FROM failovers`,
};

/**
 * Stores which lineages there are, and answers how many of them took over since somebody looked. For these everything finished within `lookBackMs` is due to be run again now, and
 * what is finished within `settleMs` from now is after that; where the one before has not been seen for longer, so much longer back. Where no lineage was known before, none counts.
 */
export async function noticeLineages(
  database: Database,
  signal: AbortSignal,
  input: { readonly lineages: readonly SeenLineage[]; readonly lookBackMs: number; readonly settleMs: number },
): Promise<number> {
  const [row] = await database.query<{ readonly count: number }>(signal, NOTICE, [
    input.lineages.map((lineage) => lineage.replicationId),
    input.lineages.map((lineage) => lineage.promoted),
    input.lookBackMs,
    input.settleMs,
    input.lineages.map((lineage) => lineage.before),
  ]);
  return row?.count ?? 0;
}

const TAKE_RERUN: Statement = {
  name: 'failover-take-rerun',
  text: 'SELECT rerun_id FROM cache_reruns WHERE due_at <= clock_timestamp() ORDER BY due_at LIMIT 1 FOR UPDATE SKIP LOCKED',
};

/**
 * The next finished jobs, in the order of their ends. The lock on the post keeps others from appending a generation meanwhile. Jobs that end at the same microsecond as the last
 * one are met again by the next batch, which does no harm.
 */
const RERUN_DONE: Statement = {
  name: 'failover-rerun-done',
  text: `WITH done AS MATERIALIZED (
    SELECT j.tenant_id, j.post_id, j.generation, j.author_id, j.lane, j.done_at FROM cache_reruns r
    JOIN fanout_jobs j ON j.done_at >= r.from_at AND j.done_at < r.until_at WHERE r.rerun_id = $1 ORDER BY j.done_at LIMIT $2
  ),
  locked AS MATERIALIZED (
    SELECT done.* FROM done JOIN posts p ON p.tenant_id = done.tenant_id AND p.author_id = done.author_id AND p.post_id = done.post_id
    FOR NO KEY UPDATE OF p
  ),
  appended AS (
    INSERT INTO fanout_jobs (tenant_id, post_id, generation, author_id, lane, hinted_at)
    SELECT tenant_id, post_id, generation + 1, author_id, lane, ${BEHIND_FRESH_POSTS} FROM locked ON CONFLICT DO NOTHING RETURNING 1
  ),
  moved AS (
    UPDATE cache_reruns SET from_at = coalesce((SELECT max(done_at) FROM done), from_at) WHERE rerun_id = $1
  )
  SELECT (SELECT count(*) FROM done)::int AS met, (SELECT count(*) FROM appended)::int AS again`,
};

/** Jobs under way whose checkpoint speaks of pages that may be lost. */
const RERUN_OPEN: Statement = {
  name: 'failover-rerun-open',
  text: `WITH open AS MATERIALIZED (
    SELECT j.tenant_id, j.post_id, j.generation, j.author_id, j.lane FROM cache_reruns r
    JOIN fanout_jobs j ON j.done_at IS NULL AND j.dead_at IS NULL AND j.follower_cursor <> '' AND j.created_at < r.until_at
    JOIN posts p ON p.tenant_id = j.tenant_id AND p.author_id = j.author_id AND p.post_id = j.post_id
    WHERE r.rerun_id = $1
      AND NOT EXISTS (SELECT 1 FROM fanout_jobs n WHERE n.tenant_id = j.tenant_id AND n.post_id = j.post_id AND n.generation > j.generation)
    LIMIT $2 FOR NO KEY UPDATE OF p
  )
  INSERT INTO fanout_jobs (tenant_id, post_id, generation, author_id, lane, hinted_at)
  SELECT tenant_id, post_id, generation + 1, author_id, lane, ${BEHIND_FRESH_POSTS} FROM open ON CONFLICT DO NOTHING RETURNING 1 AS again`,
};

const RERUN_EVENTS: Statement = {
  name: 'failover-rerun-events',
  text: `UPDATE outbox SET done_at = NULL, lease_until = NULL, attempts = 0 WHERE event_id IN (
    SELECT o.event_id FROM cache_reruns r JOIN outbox o ON o.done_at >= r.from_at AND o.done_at < r.until_at
    WHERE r.rerun_id = $1 ORDER BY o.done_at LIMIT $2 FOR UPDATE OF o SKIP LOCKED
  ) RETURNING 1 AS again`,
};

/**
 * Timelines that were given an author's posts on the way from pulling to pushing may lack them: the way down is gone again from its start, also by authors who had just come to its end.
 */
const RERUN_WAYS_DOWN: Statement = {
  name: 'failover-rerun-ways-down',
  text: `UPDATE authors SET class_epoch = CASE WHEN fanout_class = 'push' THEN ${NEW_EPOCH} ELSE class_epoch END,
    class_changed_at = CASE WHEN fanout_class = 'push' THEN clock_timestamp() ELSE class_changed_at END,
    fanout_class = 'both', class_target = 'push', backfill_cursor = '', backfill_finished = false, backfill_lease_until = NULL
  WHERE (fanout_class = 'both' AND class_target = 'push')
    OR (fanout_class = 'push' AND class_changed_at >= now() - $1::float8 * interval '1 millisecond')`,
};

const END_RERUN: Statement = { name: 'failover-end-rerun', text: 'DELETE FROM cache_reruns WHERE rerun_id = $1' };

export interface Rerun {
  readonly jobs: number;
  readonly events: number;
}

/** Opens the next of what is due to be run again, at most `most` of each kind; undefined where nothing is. */
export function rerunBatch(database: Database, signal: AbortSignal, most: number): Promise<Rerun | undefined> {
  return database.transaction(signal, async (transaction) => {
    const [rerun] = await transaction.query<{ readonly rerun_id: number }>(TAKE_RERUN, []);
    if (!rerun) return undefined;
    const values = [rerun.rerun_id, most];
    // Events first: the jobs move the start of the rerun on.
    const events = (await transaction.query(RERUN_EVENTS, values)).length;
    if (events === most) return { jobs: 0, events };
    const [done] = await transaction.query<{ readonly met: number; readonly again: number }>(RERUN_DONE, values);
    if (!done) throw new Error('an aggregate had no row');
    if (done.met === most) return { jobs: done.again, events };
    const open = (await transaction.query(RERUN_OPEN, values)).length;
    if (open < most) {
      await transaction.query(RERUN_WAYS_DOWN, [WAYS_DOWN_LOOK_BACK_MS]);
      await transaction.query(END_RERUN, [rerun.rerun_id]);
    }
    return { jobs: done.again + open, events };
  });
}
