/** Owns what is read of pulled authors: who of a viewer's follows is one, and the newest posts of many of them at once. */
import { type PostId, postIdFrom, type TenantId, type UserId } from '../../timeline/ids.ts';
import { PULLED_AUTHORS_MAX, type PulledAuthors } from '../../timeline/pulled.ts';
import type { Database, Statement } from './client.ts';
import { DOWNWARDS, ELIGIBLE, newestOf, UPWARDS } from './newest-posts.ts';

/** OFFSET 0 keeps the lookup as it is written, one short descent for each follow: the planner cannot know how few authors are pulled. */
const PULLED_AUTHORS: Statement = {
  name: 'pulled-authors',
  text: `SELECT f.followee_id AS author_id, a.class_epoch
  FROM follows f CROSS JOIN LATERAL (
    SELECT class_epoch, follower_count FROM authors
    WHERE authors.tenant_id = $1 AND authors.author_id = f.followee_id AND authors.fanout_class <> 'push' OFFSET 0
  ) a
  WHERE f.tenant_id = $1 AND f.follower_id = $2 AND f.ended_at IS NULL
  ORDER BY a.follower_count DESC, f.followee_id LIMIT $3`,
};

/** Those of the viewer's follows that are pulled, most followers first. None by name where there are more than may be known. */
export async function loadPulledAuthors(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly viewer: UserId },
): Promise<PulledAuthors> {
  const rows = await database.query<{ readonly author_id: string; readonly class_epoch: number }>(
    signal,
    PULLED_AUTHORS,
    [query.tenant, query.viewer, PULLED_AUTHORS_MAX + 1],
  );
  if (rows.length > PULLED_AUTHORS_MAX) return { authors: [], tooMany: true };
  return {
    authors: rows.map((row) => ({ author: row.author_id as UserId, epoch: row.class_epoch })),
    tooMany: false,
  };
}

const GIVEN = 'unnest($2::text[]) AS author_id';
const NEWEST = {
  older: statement('newest-of-many-older', DOWNWARDS),
  newer: statement('newest-of-many-newer', UPWARDS),
} as const;

function statement(name: string, direction: typeof DOWNWARDS): Statement {
  return {
    name,
    text: `WITH ${newestOf({ direction, authors: GIVEN, eligible: ELIGIBLE })} SELECT post_id FROM page ORDER BY post_id ${direction.order}`,
  };
}

/**
 * At most `count` posts of these authors that belong on followers' timelines: at or below the position and newest first, or above it and oldest first. Fewer mean that there are no more.
 */
export async function loadNewestOfMany(
  database: Database,
  signal: AbortSignal,
  query: {
    readonly tenant: TenantId;
    readonly authors: readonly UserId[];
    readonly direction: 'older' | 'newer';
    readonly position: number;
    readonly count: number;
  },
): Promise<readonly PostId[]> {
  if (query.authors.length === 0) return [];
  const rows = await database.query<{ readonly post_id: number }>(signal, NEWEST[query.direction], [
    query.tenant,
    query.authors,
    query.position,
    query.count,
  ]);
  return rows.map((row) => postIdFrom(row.post_id));
}
