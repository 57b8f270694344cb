/** Owns reading the graph: a viewer's relations to the authors of a page, and pages of followers and followees. */
import type { TenantId, UserId } from '../../timeline/ids.ts';
import type { Relation } from '../../timeline/post.ts';
import type { Database, Statement } from './client.ts';

const RELATIONS: Statement = {
  name: 'graph-relations',
  text: `SELECT author AS author_id,
    EXISTS (SELECT 1 FROM follows WHERE tenant_id = $1 AND follower_id = $2 AND followee_id = author AND ended_at IS NULL) AS follows,
    EXISTS (SELECT 1 FROM blocks WHERE tenant_id = $1 AND blocker_id = $2 AND blocked_id = author) AS blocks,
    EXISTS (SELECT 1 FROM blocks WHERE tenant_id = $1 AND blocker_id = author AND blocked_id = $2) AS blocked_by,
    (SELECT coalesce(round(extract(epoch FROM until) * 1000)::float8, 'infinity') FROM mutes
      WHERE tenant_id = $1 AND muter_id = $2 AND muted_id = author) AS muted_until_ms
  FROM unnest($3::text[]) AS author`,
};

interface RelationRow {
  readonly author_id: string;
  readonly follows: boolean;
  readonly blocks: boolean;
  readonly blocked_by: boolean;
  readonly muted_until_ms: number | null;
}

/** How the viewer stands to each of the authors; every author asked for is in the answer. */
export async function loadRelations(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly viewer: UserId; readonly authors: readonly UserId[] },
): Promise<ReadonlyMap<UserId, Relation>> {
  if (query.authors.length === 0) return new Map();
  const rows = await database.query<RelationRow>(signal, RELATIONS, [query.tenant, query.viewer, query.authors]);
  return new Map(
    rows.map((row) => [
      row.author_id as UserId,
      {
        follows: row.follows,
        blocks: row.blocks,
        blockedBy: row.blocked_by,
        ...(row.muted_until_ms !== null && { mutedUntilMs: row.muted_until_ms }),
      },
    ]),
  );
}

const FOLLOWERS: Statement = {
  name: 'graph-followers',
  text: `SELECT follower_id AS user_id FROM follows
  WHERE tenant_id = $1 AND followee_id = $2 AND follower_id > $3 AND ended_at IS NULL
  ORDER BY follower_id LIMIT $4`,
};
const FOLLOWING: Statement = {
  name: 'graph-following',
  text: `SELECT followee_id AS user_id FROM follows
  WHERE tenant_id = $1 AND follower_id = $2 AND followee_id > $3 AND ended_at IS NULL
  ORDER BY followee_id LIMIT $4`,
};

export interface EdgePageQuery {
  readonly tenant: TenantId;
  readonly user: UserId;
  /** The last ID of the page before, '' for the first page. */
  readonly after: string;
  readonly limit: number;
}

/** At most `limit` followers after the given ID, in byte order. Fewer than `limit` means that there are no more. */
export function loadFollowers(
  database: Database,
  signal: AbortSignal,
  query: EdgePageQuery,
): Promise<readonly UserId[]> {
  return loadEdges(database, FOLLOWERS, signal, query);
}

/** The same for those whom the user follows. */
export function loadFollowing(
  database: Database,
  signal: AbortSignal,
  query: EdgePageQuery,
): Promise<readonly UserId[]> {
  return loadEdges(database, FOLLOWING, signal, query);
}

async function loadEdges(
  database: Database,
  statement: Statement,
  signal: AbortSignal,
  query: EdgePageQuery,
): Promise<readonly UserId[]> {
  const rows = await database.query<{ readonly user_id: string }>(signal, statement, [
    query.tenant,
    query.user,
    query.after,
    query.limit,
  ]);
  return rows.map((row) => row.user_id as UserId);
}
