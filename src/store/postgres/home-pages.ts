/**
 * Owns the bounded SQL for home: the newest (or the next newer) posts of a viewer's follows and of the viewer, beyond a position.
 *
 * Deleted posts are left out because nobody is ever shown one; every other decision belongs to visibility.
 */
import { type PostId, postIdFrom, type TenantId, type UserId } from '../../timeline/ids.ts';
import type { Database, Queries, Statement } from './client.ts';
import { cutToCap, type Snapshot } from './home-snapshot.ts';
import { type Direction, DOWNWARDS, ELIGIBLE, newestOf, STANDING, UPWARDS } from './newest-posts.ts';
import { type LoadedPosts, type LoadedRow, loadedFrom, withTargets } from './post-rows.ts';

export interface HomeQuery {
  readonly tenant: TenantId;
  readonly viewer: UserId;
  /** Older pages: IDs at or below it. Newer pages: IDs above it. */
  readonly position: number;
  readonly limit: number;
}

export type LoadHome = (signal: AbortSignal, query: HomeQuery) => Promise<LoadedPosts>;

/** Whom $2 follows. */
const FOLLOWED =
  '(SELECT followee_id AS author_id FROM follows WHERE tenant_id = $1 AND follower_id = $2 AND ended_at IS NULL) AS followed';

function ownEntries({ beyond, order }: Direction): string {
  return `SELECT post_id, viewer_id AS author_id FROM self_entries
  WHERE tenant_id = $1 AND viewer_id = $2 AND post_id ${beyond} $3
  ORDER BY post_id ${order} LIMIT $4::int`;
}

function homeStatement(name: string, direction: Direction): Statement {
  const page = newestOf({ direction, authors: FOLLOWED, eligible: STANDING, beside: ownEntries(direction) });
  return { name, text: withTargets(page, direction.order) };
}

const OLDER = homeStatement('home-older', DOWNWARDS);
const NEWER = homeStatement('home-newer', UPWARDS);

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

/** The newest posts of a pulled author, for the list. */
export async function loadListSnapshot(
  database: Queries,
  signal: AbortSignal,
  { cap, ...query }: { readonly tenant: TenantId; readonly author: UserId; readonly cap: number },
): Promise<Snapshot> {
  return cutToCap(cap, await loadNewestOf(database, signal, { ...query, above: 0, limit: cap + 1 }));
}

const NEWEST_OF: Statement = {
  name: 'home-newest-of',
  text: `SELECT posts.post_id FROM posts WHERE posts.tenant_id = $1 AND posts.author_id = $2 AND posts.post_id > $3 AND ${ELIGIBLE} ORDER BY posts.post_id DESC LIMIT $4`,
};

export interface NewestQuery {
  readonly tenant: TenantId;
  readonly author: UserId;
  readonly above: number;
  readonly limit: number;
}

/** An author's newest posts above a position that belong on followers' timelines, newest first. */
export function loadNewestOf(database: Queries, signal: AbortSignal, query: NewestQuery): Promise<readonly PostId[]> {
  return newestOfOne(database, NEWEST_OF, signal, query);
}

/** The class is read in the same moment as the posts: whoever asks after a follow was committed is seen by the backfill on the author's way down, or sees that way down. */
const NEWEST_PUSHED_OF: Statement = {
  name: 'home-newest-pushed-of',
  text: `SELECT newest.post_id FROM (${NEWEST_OF.text}) newest
  WHERE NOT EXISTS (SELECT 1 FROM authors WHERE tenant_id = $1 AND author_id = $2 AND fanout_class = 'pull') ORDER BY newest.post_id DESC`,
};

/** The same of an author who is pushed; nothing of one who is pulled. */
export function loadNewestPushedOf(
  database: Database,
  signal: AbortSignal,
  query: NewestQuery,
): Promise<readonly PostId[]> {
  return newestOfOne(database, NEWEST_PUSHED_OF, signal, query);
}

async function newestOfOne(
  database: Queries,
  statement: Statement,
  signal: AbortSignal,
  { tenant, author, above, limit }: NewestQuery,
): Promise<readonly PostId[]> {
  const rows = await database.query<{ readonly post_id: number }>(signal, statement, [tenant, author, above, limit]);
  return rows.map((row) => postIdFrom(row.post_id));
}

const WRITTEN_BY: Statement = {
  name: 'posts-written-by',
  text: 'SELECT post_id FROM post_stats WHERE tenant_id = $1 AND post_id = ANY ($2::bigint[]) AND author_id = $3',
};

/** Those of the posts that the author wrote: bounded by the IDs given, however many posts the author has. */
export async function findWrittenBy(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly author: UserId; readonly postIds: readonly PostId[] },
): Promise<readonly PostId[]> {
  if (query.postIds.length === 0) return [];
  const rows = await database.query<{ readonly post_id: number }>(signal, WRITTEN_BY, [
    query.tenant,
    query.postIds,
    query.author,
  ]);
  return rows.map((row) => postIdFrom(row.post_id));
}
