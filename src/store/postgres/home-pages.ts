/**
 * Owns the bounded SQL for home: the newest (or the next newer) posts of a viewer's follows and of the viewer, beyond a position.
 *
 * In two steps. First the index gives a few posts of each followed author beyond the position; the `limit`-th best of those is a line that no
 * entry of the page lies behind. Then only authors all of whose few posts came before the line are asked for more, up to the line. So the
 * work is follows × PROBE index entries, and what the page itself takes, whatever the number of posts and however silent the authors are; each
 * descent touches one partition. (Asking every author for `limit` posts at once took 18, 85 and 370 ms for 200, 1,000 and 5,000 follows, this
 * takes 9, 22 and 75 ms: pages of 60 out of 400,000 posts of 5,000 authors, on two cores.)
 *
 * Deleted posts are left out because nobody is ever shown one; every other decision belongs to visibility.
 */
import { POST_ID_MAX, type PostId, postIdFrom, type TenantId, type UserId } from '../../timeline/ids.ts';
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

/** Posts of each author that the first step looks at. */
const PROBE = 4;

interface Direction {
  readonly name: string;
  /** Compares an entry with the position. */
  readonly beyond: '<=' | '>';
  /** Towards the end of the page, and not past something on that way. */
  readonly further: '<' | '>';
  readonly upTo: '>=' | '<=';
  readonly order: 'DESC' | 'ASC';
  readonly furthest: 'min' | 'max';
  /** Where the page ends when nothing ends it before. */
  readonly farEnd: number;
}

function homeStatement(direction: Direction): Statement {
  return { name: direction.name, text: withTargets(pageCtes(direction, STANDING), direction.order) };
}

/** Posts that somebody may be shown, and posts that somebody but their author may be shown: the latter belong on others' timelines. */
const STANDING = 'posts.deleted_at IS NULL';
const ELIGIBLE = `${STANDING} AND posts.moderation <> 'hidden' AND posts.visibility <> 'private'`;

/** CTEs that end in `page (post_id, author_id)`. */
function pageCtes(
  { beyond, further, upTo, order, furthest, farEnd }: Omit<Direction, 'name'>,
  eligible: string,
): string {
  return `probed AS MATERIALIZED (
  SELECT p.post_id, p.author_id
  FROM follows f CROSS JOIN LATERAL (
    SELECT posts.post_id, posts.author_id FROM posts
    WHERE posts.tenant_id = $1 AND posts.author_id = f.followee_id AND posts.post_id ${beyond} $3 AND ${eligible}
    ORDER BY posts.post_id ${order} LIMIT ${PROBE}
  ) p
  WHERE f.tenant_id = $1 AND f.follower_id = $2 AND f.ended_at IS NULL
),
line AS MATERIALIZED (
  SELECT coalesce((SELECT post_id FROM probed ORDER BY post_id ${order} LIMIT 1 OFFSET $4::int - 1), ${farEnd}) AS post_id
),
prolific AS MATERIALIZED (
  SELECT author_id, ${furthest}(post_id) AS seen FROM probed GROUP BY author_id
  HAVING count(*) = ${PROBE} AND (SELECT post_id FROM line) ${further} ${furthest}(post_id)
),
followed AS (
  SELECT post_id, author_id FROM probed
  UNION ALL
  SELECT p.post_id, p.author_id
  FROM prolific CROSS JOIN LATERAL (
    SELECT posts.post_id, posts.author_id FROM posts
    WHERE posts.tenant_id = $1 AND posts.author_id = prolific.author_id
      AND posts.post_id ${further} prolific.seen AND posts.post_id ${upTo} (SELECT post_id FROM line) AND ${eligible}
    ORDER BY posts.post_id ${order} LIMIT $4::int
  ) p
),
own AS (
  SELECT post_id, viewer_id AS author_id FROM self_entries
  WHERE tenant_id = $1 AND viewer_id = $2 AND post_id ${beyond} $3
  ORDER BY post_id ${order} LIMIT $4::int
),
page AS MATERIALIZED (
  SELECT post_id, author_id FROM (SELECT * FROM followed UNION ALL SELECT * FROM own) AS either
  ORDER BY post_id ${order} LIMIT $4::int
)`;
}

const DOWNWARDS = { beyond: '<=', further: '<', upTo: '>=', order: 'DESC', furthest: 'min', farEnd: 0 } as const;
const OLDER = homeStatement({ name: 'home-older', ...DOWNWARDS });
const NEWER = homeStatement({
  name: 'home-newer',
  beyond: '>',
  further: '>',
  upTo: '<=',
  order: 'ASC',
  furthest: 'max',
  farEnd: Number.MAX_SAFE_INTEGER,
});

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

const SNAPSHOT: Statement = {
  name: 'home-snapshot',
  text: `WITH ${pageCtes(DOWNWARDS, ELIGIBLE)} SELECT post_id FROM page ORDER BY post_id DESC`,
};

/** What a timeline holds when it is rebuilt. */
export interface Snapshot {
  /** Newest first; at most the cap. */
  readonly postIds: readonly PostId[];
  /** The list is complete above it: 0 where it holds everything. */
  readonly floor: number;
}

/**
 * The newest posts that belong on the viewer's timeline, those of suspended authors included: they are hidden at read, and back at once when the author is restored.
 * Mutes and blocks play no part.
 */
export async function loadSnapshot(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly viewer: UserId; readonly cap: number },
): Promise<Snapshot> {
  // One more than the cap tells whether anything lies below.
  const rows = await database.query<{ readonly post_id: number }>(signal, SNAPSHOT, [
    query.tenant,
    query.viewer,
    POST_ID_MAX,
    query.cap + 1,
  ]);
  const postIds = rows.slice(0, query.cap).map((row) => postIdFrom(row.post_id));
  const oldest = postIds.at(-1);
  return { postIds, floor: rows.length > query.cap && oldest !== undefined ? oldest - 1 : 0 };
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
export function loadNewestOf(database: Database, signal: AbortSignal, query: NewestQuery): Promise<readonly PostId[]> {
  return newestOf(database, NEWEST_OF, signal, query);
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
  return newestOf(database, NEWEST_PUSHED_OF, signal, query);
}

async function newestOf(
  database: Database,
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
