/** Owns what the reconciler asks Postgres: whom to look at next, and of entries that are missing or too many whether anything explains it. */
import { type PostId, postIdFrom, type TenantId, type UserId } from '../../timeline/ids.ts';
import type { Database, Statement } from './client.ts';
import { ELIGIBLE } from './newest-posts.ts';

export interface ViewerOf {
  readonly tenant: TenantId;
  readonly viewer: UserId;
}

/** One descent into the index for each viewer, whatever the number of follows. A worker that finds the row locked leaves this round to the other. */
const NEXT_VIEWERS: Statement = {
  name: 'reconcile-next-viewers',
  text: `WITH RECURSIVE held AS MATERIALIZED (
  SELECT tenant_id, viewer_id FROM reconcile_walk FOR UPDATE SKIP LOCKED
),
walk (tenant_id, viewer_id, place) AS (
  SELECT tenant_id, viewer_id, 0 FROM held
  UNION ALL
  SELECT f.tenant_id, f.follower_id, place + 1 FROM walk CROSS JOIN LATERAL (
    SELECT tenant_id, follower_id FROM follows
    WHERE (tenant_id, follower_id) > (walk.tenant_id, walk.viewer_id) AND ended_at IS NULL
    ORDER BY tenant_id, follower_id LIMIT 1
  ) AS f
  WHERE place < $1::int
),
moved AS (
  UPDATE reconcile_walk SET tenant_id = coalesce(last.tenant_id, ''), viewer_id = coalesce(last.viewer_id, '')
  FROM held LEFT JOIN walk AS last ON last.place = $1::int
)
SELECT tenant_id, viewer_id FROM walk WHERE place > 0 ORDER BY place`,
};

/** The next viewers of those who follow anybody, in the order of their IDs; fewer than `most` at the end, after which the walk begins anew. */
export async function claimNextViewers(
  database: Database,
  signal: AbortSignal,
  most: number,
): Promise<readonly ViewerOf[]> {
  const rows = await database.query<{ readonly tenant_id: string; readonly viewer_id: string }>(signal, NEXT_VIEWERS, [
    most,
  ]);
  return rows.map((row) => ({ tenant: row.tenant_id as TenantId, viewer: row.viewer_id as UserId }));
}

const OVERDUE: Statement = {
  name: 'reconcile-overdue',
  text: `SELECT posts.post_id
  FROM unnest($3::bigint[]) AS asked (post_id)
  JOIN post_stats AS stats ON stats.tenant_id = $1 AND stats.post_id = asked.post_id
  JOIN posts ON posts.tenant_id = $1 AND posts.author_id = stats.author_id AND posts.post_id = asked.post_id
  WHERE CASE WHEN posts.author_id = $2 THEN posts.deleted_at IS NULL ELSE ${ELIGIBLE}
      AND EXISTS (
        SELECT FROM follows WHERE tenant_id = $1 AND follower_id = $2 AND followee_id = posts.author_id AND ended_at IS NULL
          AND started_at < now() - $4::float8 * interval '1 millisecond')
      AND NOT EXISTS (
        SELECT FROM authors WHERE tenant_id = $1 AND author_id = posts.author_id
          AND (fanout_class <> 'push' OR class_changed_at > now() - $4::float8 * interval '1 millisecond'))
    END
    AND NOT EXISTS (SELECT FROM fanout_jobs WHERE tenant_id = $1 AND post_id = asked.post_id AND done_at IS NULL)
    AND NOT EXISTS (
      SELECT FROM outbox WHERE done_at IS NULL AND tenant_id = $1 AND kind = 'follows_changed' AND payload->>'followerId' = $2)`,
};

/**
 * Those of the posts that should have reached the viewer's timeline by now: they belong there, no fan-out of theirs is open, nothing of the viewer's follows waits to be done, and follow and class are
 * as they have been for a while. Authors in BOTH are left out: what their backfill has not given back yet, readers have from the list.
 */
export async function findOverdue(
  database: Database,
  signal: AbortSignal,
  query: ViewerOf & { readonly postIds: readonly PostId[]; readonly settleMs: number },
): Promise<ReadonlySet<PostId>> {
  const { tenant, viewer, postIds, settleMs } = query;
  if (postIds.length === 0) return new Set();
  const values = [tenant, viewer, postIds, settleMs];
  const rows = await database.query<{ readonly post_id: number }>(signal, OVERDUE, values);
  return new Set(rows.map((row) => postIdFrom(row.post_id)));
}

const STRANGERS: Statement = {
  name: 'reconcile-strangers',
  text: `SELECT asked.post_id, stats.author_id
  FROM unnest($3::bigint[]) AS asked (post_id)
  LEFT JOIN post_stats AS stats ON stats.tenant_id = $1 AND stats.post_id = asked.post_id
  WHERE stats.author_id IS DISTINCT FROM $2 AND NOT EXISTS (
    SELECT FROM follows
    WHERE tenant_id = $1 AND follower_id = $2 AND followee_id = stats.author_id AND (ended_at IS NULL OR cleaned_at IS NULL))`,
};

export interface Stranger {
  readonly postId: PostId;
  /** Undefined where there never was such a post. */
  readonly author: UserId | undefined;
}

/**
 * Those of the entries that nothing explains: of no post at all, or of an author whom the viewer neither follows nor followed until a moment ago. Entries of posts that were deleted, hidden or made
 * private, of authors who are pulled now, and of follows that ended and have not been cleaned up a second time are no strangers: they are hidden at read, or shown once by the merge, and go by themselves.
 */
export async function findStrangers(
  database: Database,
  signal: AbortSignal,
  { tenant, viewer, postIds }: ViewerOf & { readonly postIds: readonly PostId[] },
): Promise<readonly Stranger[]> {
  if (postIds.length === 0) return [];
  const rows = await database.query<{ readonly post_id: number; readonly author_id: string | null }>(
    signal,
    STRANGERS,
    [tenant, viewer, postIds],
  );
  return rows.map((row) => ({
    postId: postIdFrom(row.post_id),
    author: (row.author_id ?? undefined) as UserId | undefined,
  }));
}
