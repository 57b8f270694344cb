/**
 * Owns the SQL of a rebuild: the newest posts that belong on a viewer's timeline, good on busy follow lists and on silent ones.
 *
 * Two ways, each several times too slow on the other's ground. *By time*: walk the tenant's newest posts and keep those of follows: the price is the rows passed over, many where the follows are few
 * or silent. *By author*: ask the index for a few posts of each follow: the price is a descent for each, however busy they are. Few follows are read by author. Of many, a
 * small window of the newest posts tells how dense their posts are there; from that, and in the same statement, the walk goes on as far as it should take, or what is missing below is read by author in a
 * second one. Each statement sees what was committed when it began. That is as good as one moment: whatever is published, followed, backfilled or taken away in between reaches a timeline that is
 * being built, as it reaches a resident one.
 *
 * By author is two steps, as in newest-posts.ts: the newest few of each give the line that no entry of the page lies behind; only who has more above it is asked again. "A few" is twice what each
 * would have to give; with four for everybody, 200 follows gave 800 of 801 posts, no line, and all their posts were read. Descents read the index alone (`posts_live` holds what
 * decides): where they read rows, each of some thousands lies on a page of its own.
 *
 * Plans, over 3 million posts of 10,000 authors in 16 partitions: by time, MergeAppend of backward scans of `posts_by_id`, stopped by its LIMIT, follows and pulled authors as hashed subplans
 * (0.8 µs a row); by author, for each follow an index-only scan of `posts_live` in the one partition that is left at run time (9 to 12 µs). The pulled authors of a tenant are read once and
 * hashed: they are few, since each has very many followers; looked up for each of 5,000 follows they took 20 ms. Mutes and blocks are in no plan. `npm run bench -- rebuild` measures it beside each
 * single way.
 *
 * The arguments come through a CTE, of which the planner knows no value: so the plan that it makes once is worth as much to it as one made anew, which takes 4 ms for 16 partitions, and it keeps it.
 */
import { POST_ID_MAX, type PostId, postIdFrom, type TenantId, type UserId } from '../../timeline/ids.ts';
import type { Queries, Statement } from './client.ts';
import { ELIGIBLE } from './newest-posts.ts';

/** What a timeline, or the list of a pulled author, holds when it is rebuilt. */
export interface Snapshot {
  /** Newest first; at most the cap. */
  readonly postIds: readonly PostId[];
  /** The list is complete above it: 0 where it holds everything. */
  readonly floor: number;
}

/**
 * Posts in the first window: as many as there are follows at most, which costs a twelfth of reading those by author, and tells the density to some 15 % where a tenth of the posts count. With fewer
 * follows than the smaller there is none.
 */
const FIRST_WINDOWS = [512, 4_096] as const;
/** Rows by time that cost as much as a descent by author. */
const ROWS_PER_DESCENT = 12;
/** A walk that ends before enough was found was for nothing: it may go further than expected, and its LIMIT stops it. */
const SLACK = 1.5;
/** Rows of the second window: what is walked in some 80 ms. */
const WINDOW_MAX = 100_000;
/** Posts of each author that the first step looks at, at least. */
const DEPTH_MIN = 4;

const ASKED =
  'asked AS MATERIALIZED (SELECT $1::text AS tenant, $2::text AS viewer, $3::bigint AS position, $4::int AS most)';
const TENANT = '(SELECT tenant FROM asked)';
const POSITION = '(SELECT position FROM asked)';
const MOST = '(SELECT most FROM asked)';
const FOLLOWED = `SELECT followee_id AS author_id FROM follows
  WHERE tenant_id = ${TENANT} AND follower_id = (SELECT viewer FROM asked) AND ended_at IS NULL`;
/** Readers have the lists of these, who are not pushed. Of an author in BOTH there are entries. */
const PULLED = `(SELECT author_id FROM authors WHERE tenant_id = ${TENANT} AND fanout_class = 'pull')`;
/** The viewer's own posts, private ones included, not above the position. */
const OWN = `SELECT post_id FROM self_entries
  WHERE tenant_id = ${TENANT} AND viewer_id = (SELECT viewer FROM asked) AND post_id <= ${POSITION}`;

/** The rows are walked in order and not one further than needed. */
function walk({ from, rows, most }: { readonly from: string; readonly rows: string; readonly most: string }): string {
  return `SELECT post_id FROM (
    SELECT post_id, author_id, ${ELIGIBLE} AS eligible FROM posts
    WHERE tenant_id = ${TENANT} AND post_id <= ${from} ORDER BY post_id DESC LIMIT ${rows}
  ) AS newest
  WHERE eligible AND (author_id IN (SELECT author_id FROM followed) AND author_id NOT IN ${PULLED}) IS TRUE
  ORDER BY post_id DESC LIMIT ${most}`;
}

/** The last row of a walk: where it found enough, the last that it found; else it is looked up apart, which is cheaper than numbering every row. 0 where there are not so many. */
function endOf({ from, rows, most }: { readonly from: string; readonly rows: string; readonly most: string }): string {
  return `CASE WHEN count(*) = ${most} THEN min(post_id) ELSE coalesce((
    SELECT post_id FROM posts WHERE tenant_id = ${TENANT} AND post_id <= ${from} ORDER BY post_id DESC LIMIT 1 OFFSET ${rows} - 1
  ), 0) END`;
}

const FIRST = { from: POSITION, rows: '(SELECT rows FROM first_window)', most: MOST };
const SECOND = {
  from: '(SELECT down_to - 1 FROM first_walked)',
  rows: '(SELECT rows FROM second_window)',
  most: `(${MOST} - (SELECT hits FROM first_walked))`,
};

const BY_TIME: Statement = {
  name: 'home-snapshot-by-time',
  text: `WITH ${ASKED},
followed AS MATERIALIZED (${FOLLOWED}),
first_window AS MATERIALIZED (
  SELECT count(*) AS follows,
    CASE WHEN count(*) >= ${FIRST_WINDOWS[1]} THEN ${FIRST_WINDOWS[1]} WHEN count(*) >= ${FIRST_WINDOWS[0]} THEN ${FIRST_WINDOWS[0]} ELSE 0 END AS rows
  FROM followed
),
first_walk AS MATERIALIZED (${walk(FIRST)}),
first_walked AS MATERIALIZED (
  SELECT count(*) AS hits, CASE WHEN ${FIRST.rows} > 0 THEN ${endOf(FIRST)} END AS down_to FROM first_walk
),
second_window AS MATERIALIZED (
  SELECT CASE
    WHEN coalesce(down_to, 0) = 0 OR hits = ${MOST} THEN 0
    WHEN (${MOST} - hits) * rows > ${ROWS_PER_DESCENT} * follows * hits THEN 0
    ELSE least(${WINDOW_MAX}, ceil(${SLACK} * (${MOST} - hits) * rows / greatest(hits, 1)))::int END AS rows
  FROM first_walked, first_window
),
second_walk AS MATERIALIZED (${walk(SECOND)}),
walked AS MATERIALIZED (
  SELECT CASE WHEN ${SECOND.rows} = 0 THEN (SELECT down_to FROM first_walked) ELSE ${endOf(SECOND)} END AS down_to FROM second_walk
)
SELECT down_to, (
  SELECT string_agg(post_id::text, ',' ORDER BY post_id DESC) FROM (
    SELECT post_id FROM first_walk
    UNION ALL
    SELECT post_id FROM second_walk
    UNION ALL
    (${OWN} AND post_id >= (SELECT down_to FROM walked) ORDER BY post_id DESC LIMIT ${MOST})
  ) AS every_kind
) AS post_ids
FROM walked`,
};

const BY_AUTHOR: Statement = {
  name: 'home-snapshot-by-author',
  text: `WITH ${ASKED},
followed AS MATERIALIZED (${FOLLOWED} AND followee_id NOT IN ${PULLED}),
depth AS MATERIALIZED (
  SELECT least(${MOST}, greatest(${DEPTH_MIN}, ceil(2.0 * ${MOST} / greatest(count(*), 1))))::int AS posts FROM followed
),
probed AS MATERIALIZED (
  SELECT author_id, ARRAY(
    SELECT posts.post_id FROM posts
    WHERE posts.tenant_id = ${TENANT} AND posts.author_id = followed.author_id AND posts.post_id <= ${POSITION} AND ${ELIGIBLE}
    ORDER BY posts.post_id DESC LIMIT (SELECT posts FROM depth)
  ) AS newest
  FROM followed
),
line AS MATERIALIZED (
  SELECT coalesce((SELECT post_id FROM probed, unnest(newest) AS post_id ORDER BY post_id DESC LIMIT 1 OFFSET ${MOST} - 1), 0) AS post_id
),
page AS (
  SELECT post_id FROM (
    SELECT post_id FROM probed, unnest(newest) AS post_id
    UNION ALL
    SELECT further.post_id FROM probed CROSS JOIN LATERAL (
      SELECT posts.post_id FROM posts
      WHERE posts.tenant_id = ${TENANT} AND posts.author_id = probed.author_id AND posts.post_id < newest[(SELECT posts FROM depth)]
        AND posts.post_id >= (SELECT post_id FROM line) AND ${ELIGIBLE}
      ORDER BY posts.post_id DESC LIMIT ${MOST}
    ) AS further
    WHERE newest[(SELECT posts FROM depth)] > (SELECT post_id FROM line)
    UNION ALL
    (${OWN} ORDER BY post_id DESC LIMIT ${MOST})
  ) AS every_kind
  ORDER BY post_id DESC LIMIT ${MOST}
)
SELECT string_agg(post_id::text, ',' ORDER BY post_id DESC) AS post_ids FROM page`,
};

interface Found {
  /** Newest first, separated by commas: one value is read in a fraction of the time of rows. Null where there are none. */
  readonly post_ids: string | null;
}

interface FoundByTime extends Found {
  /** The oldest post that was walked over; 0 where there is none older, null where nothing was walked. */
  readonly down_to: number | null;
}

/**
 * The newest posts that belong on the viewer's timeline: none of authors who are pulled and no longer pushed, those of suspended authors included: they are hidden at read, and back at once when the author is restored.
 * Mutes and blocks play no part. Two statements at most, under one signal.
 */
export async function loadSnapshot(
  database: Queries,
  signal: AbortSignal,
  { tenant, viewer, cap }: { readonly tenant: TenantId; readonly viewer: UserId; readonly cap: number },
): Promise<Snapshot> {
  // One more than the cap tells whether anything lies below.
  const limit = cap + 1;
  const [byTime] = await database.query<FoundByTime>(signal, BY_TIME, [tenant, viewer, POST_ID_MAX, limit]);
  const found = idsIn(byTime);
  const downTo = byTime?.down_to ?? null;
  if (found.length >= limit || downTo === 0) return cutToCap(cap, found);
  const position = downTo === null ? POST_ID_MAX : downTo - 1;
  const [byAuthor] = await database.query<Found>(signal, BY_AUTHOR, [tenant, viewer, position, limit - found.length]);
  return cutToCap(cap, [...found, ...idsIn(byAuthor)]);
}

function idsIn(found: Found | undefined): readonly PostId[] {
  return found?.post_ids == null ? [] : found.post_ids.split(',').map((id) => postIdFrom(Number(id)));
}

/** What lies beyond the cap is known to be there, and left out: the floor says so. */
export function cutToCap(cap: number, found: readonly PostId[]): Snapshot {
  const postIds = found.slice(0, cap);
  const oldest = postIds.at(-1);
  return { postIds, floor: found.length > cap && oldest !== undefined ? oldest - 1 : 0 };
}
