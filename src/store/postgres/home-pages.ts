/**
 * Owns the bounded SQL for home: the newest (or the next newer) posts of a viewer's follows and of the viewer, beyond a position.
 *
 * Per author, the index gives at most `limit` posts beyond the position; of those the best `limit` are kept. The work is bounded by
 * follows × limit index entries (at most 5,000 × 100s), whatever the number of posts: one index descent for each followed author in one
 * partition. Deleted posts are left out because nobody is ever shown one; every other decision belongs to visibility.
 */
import type { TenantId, UserId } from '../../timeline/ids.ts';
import type { Database, Statement } from './client.ts';
import { type LoadedPosts, type LoadedRow, loadedFrom, withTargets } from './post-rows.ts';

export interface HomeQuery {
  readonly tenant: TenantId;
  readonly viewer: UserId;
  /** Older pages: IDs at or below it. Newer pages: IDs above it. */
  readonly position: number;
  readonly limit: number;
}

export type LoadHome = (signal: AbortSignal, query: HomeQuery) => Promise<LoadedPosts>;

function homeStatement(name: string, beyond: string, direction: 'ASC' | 'DESC'): Statement {
  return {
    name,
    text: withTargets(
      `followed AS MATERIALIZED (
  SELECT p.post_id, p.author_id
  FROM follows f CROSS JOIN LATERAL (
    SELECT posts.post_id, posts.author_id FROM posts
    WHERE posts.tenant_id = $1 AND posts.author_id = f.followee_id AND posts.post_id ${beyond} AND posts.deleted_at IS NULL
    ORDER BY posts.post_id ${direction} LIMIT $4
  ) p
  WHERE f.tenant_id = $1 AND f.follower_id = $2 AND f.ended_at IS NULL
  ORDER BY p.post_id ${direction} LIMIT $4
),
own AS (
  SELECT post_id, viewer_id AS author_id FROM self_entries
  WHERE tenant_id = $1 AND viewer_id = $2 AND post_id ${beyond}
  ORDER BY post_id ${direction} LIMIT $4
),
page AS MATERIALIZED (
  SELECT post_id, author_id FROM (SELECT * FROM followed UNION ALL SELECT * FROM own) AS either
  ORDER BY post_id ${direction} LIMIT $4
)`,
      direction,
    ),
  };
}

const OLDER = homeStatement('home-older', '<= $3', 'DESC');
const NEWER = homeStatement('home-newer', '> $3', 'ASC');

/** At most `limit` entries at or below the position, newest first. Fewer than `limit` means that there are no more. */
export function createLoadHomeOlder(database: Database): LoadHome {
  return (signal, query) => load(database, OLDER, signal, query);
}

/** At most `limit` entries above the position, oldest first. Fewer than `limit` means that there are no more now. */
export function createLoadHomeNewer(database: Database): LoadHome {
  return (signal, query) => load(database, NEWER, signal, query);
}

async function load(
  database: Database,
  statement: Statement,
  signal: AbortSignal,
  query: HomeQuery,
): Promise<LoadedPosts> {
  const rows = await database.query<LoadedRow>(signal, statement, [
    query.tenant,
    query.viewer,
    query.position,
    query.limit,
  ]);
  return loadedFrom(rows);
}
