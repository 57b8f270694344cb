/** Owns counters: changes are appended, one aggregator at a time folds them in batches, nobody else touches a total. */
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import type { PostCounts, PostRef } from '../../timeline/post.ts';
import type { Database, Statement, Transaction } from './client.ts';

const APPEND: Statement = {
  name: 'counter-append',
  text: `INSERT INTO counter_deltas (tenant_id, counter, post_id, delta)
  SELECT $1, target.counter, target.post_id, $4 FROM (VALUES ('replies', $2::bigint), ('reposts', $3::bigint)) AS target (counter, post_id)
  WHERE target.post_id IS NOT NULL`,
};

/** Notes that the targets of a post have one reply or repost more or less. */
export async function appendTargetCounts(
  transaction: Transaction,
  input: {
    readonly tenant: TenantId;
    readonly replyTo: PostRef | undefined;
    readonly repostOf: PostRef | undefined;
    readonly delta: 1 | -1;
  },
): Promise<void> {
  await transaction.query(APPEND, [
    input.tenant,
    input.replyTo?.postId ?? null,
    input.repostOf?.postId ?? null,
    input.delta,
  ]);
}

const FOLD_LOCK_KEY = 7_101_005;

/**
 * Takes up to $1 changes away and adds their sums to the totals, in one statement. The advisory lock keeps a second aggregator out, so
 * that two of them never lock rows in different orders; it answers null then.
 */
const FOLD: Statement = {
  name: 'counter-fold',
  text: `WITH locked AS MATERIALIZED (SELECT pg_try_advisory_xact_lock(${FOLD_LOCK_KEY}) AS held),
taken AS (
  DELETE FROM counter_deltas WHERE delta_id IN (
    SELECT delta_id FROM counter_deltas WHERE (SELECT held FROM locked) ORDER BY delta_id LIMIT $1
  ) RETURNING tenant_id, counter, author_id, post_id, delta
),
sums AS (
  SELECT tenant_id, author_id, post_id, coalesce(sum(delta) FILTER (WHERE counter = 'followers'), 0) AS followers,
    coalesce(sum(delta) FILTER (WHERE counter = 'reposts'), 0) AS reposts, coalesce(sum(delta) FILTER (WHERE counter = 'replies'), 0) AS replies
  FROM taken GROUP BY tenant_id, author_id, post_id
),
of_authors AS (
  INSERT INTO authors AS a (tenant_id, author_id, follower_count) SELECT tenant_id, author_id, followers FROM sums WHERE author_id IS NOT NULL
  ON CONFLICT (tenant_id, author_id) DO UPDATE SET follower_count = a.follower_count + excluded.follower_count
),
of_posts AS (
  UPDATE post_stats s SET reposts = coalesce(s.reposts, 0) + sums.reposts, replies = coalesce(s.replies, 0) + sums.replies
  FROM sums WHERE sums.post_id IS NOT NULL AND s.tenant_id = sums.tenant_id AND s.post_id = sums.post_id
)
SELECT count(*)::int AS folded FROM taken`,
};

/** Folds at most `most` changes; answers how many there were. */
export async function foldCounterDeltas(database: Database, signal: AbortSignal, most: number): Promise<number> {
  const [row] = await database.query<{ readonly folded: number }>(signal, FOLD, [most]);
  return row?.folded ?? 0;
}

const LOCK_RECOUNT: Statement = {
  name: 'counter-lock-recount',
  text: `SELECT pg_advisory_xact_lock(hashtextextended('recount ' || $2 || ' ' || $1, 0))`,
};

/**
 * What the rows say, less what the total and the changes not folded yet come to, is appended as one more change: the aggregator stays the only one who touches a total, and nobody waits.
 * One statement, so one moment: folding moves changes into the total and leaves their sum as it was, and a follow comes with its change. It reads the author's part of one index,
 * and what waits to be folded.
 */
const RECOUNT: Statement = {
  name: 'counter-recount-followers',
  text: `WITH counted AS MATERIALIZED (
  SELECT count(*) AS followers FROM follows WHERE tenant_id = $1 AND followee_id = $2 AND ended_at IS NULL
),
believed AS MATERIALIZED (
  SELECT coalesce((SELECT follower_count FROM authors WHERE tenant_id = $1 AND author_id = $2), 0)
    + coalesce((SELECT sum(delta) FROM counter_deltas WHERE tenant_id = $1 AND counter = 'followers' AND author_id = $2), 0)::bigint AS followers
),
corrected AS (
  INSERT INTO counter_deltas (tenant_id, counter, author_id, delta)
  SELECT $1, 'followers', $2, counted.followers - believed.followers FROM counted, believed WHERE counted.followers <> believed.followers
)
SELECT counted.followers, counted.followers - believed.followers AS correction FROM counted, believed`,
};

export interface Recount {
  readonly followers: number;
  /** By how much the count was wrong: what was appended to put it right. */
  readonly correction: number;
}

/** Counts an author's followers from the rows and appends what puts the count right. Doing it twice, also at once, corrects once. */
export function recountFollowers(
  database: Database,
  signal: AbortSignal,
  of: { readonly tenant: TenantId; readonly author: UserId },
): Promise<Recount> {
  return database.transaction(signal, async (transaction) => {
    // A statement of its own: the next one must see what the holder before has appended.
    await transaction.query(LOCK_RECOUNT, [of.tenant, of.author]);
    const [row] = await transaction.query<Recount>(RECOUNT, [of.tenant, of.author]);
    if (!row) throw new Error('a recount had no result');
    return row;
  });
}

/** Whose followers are counted: one author's, or those of all after one. */
export type RecountWhich = { readonly author: UserId } | { readonly after: UserId | '' };

/** What came of a walk over authors. */
export interface RecountResult {
  readonly authors: number;
  /** Authors whose counts were wrong. */
  readonly corrected: number;
  /** The last author counted, where time was up before the end. */
  readonly stoppedAfter?: UserId;
}

const NEXT_COUNTED: Statement = {
  name: 'counter-next-author',
  text: `SELECT least(
    (SELECT author_id FROM authors WHERE tenant_id = $1 AND author_id > $2 ORDER BY author_id LIMIT 1),
    (SELECT followee_id FROM follows WHERE tenant_id = $1 AND followee_id > $2 AND ended_at IS NULL ORDER BY followee_id LIMIT 1)
  ) AS author_id`,
};

/** The first author after the given ID, '' before the first, who has a count or a follower. */
export async function findNextCounted(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly after: string },
): Promise<UserId | undefined> {
  const [row] = await database.query<{ readonly author_id: string | null }>(signal, NEXT_COUNTED, [
    query.tenant,
    query.after,
  ]);
  return (row?.author_id ?? undefined) as UserId | undefined;
}

const LOAD: Statement = {
  name: 'counter-load',
  text: 'SELECT post_id, reposts, replies FROM post_stats WHERE tenant_id = $1 AND post_id = ANY ($2::bigint[])',
};

/** Counters of those posts that were ever counted; a counter that was not is absent. */
export async function loadPostCounts(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly postIds: readonly PostId[] },
): Promise<ReadonlyMap<PostId, PostCounts>> {
  if (query.postIds.length === 0) return new Map();
  const rows = await database.query<{
    readonly post_id: number;
    readonly reposts: number | null;
    readonly replies: number | null;
  }>(signal, LOAD, [query.tenant, query.postIds]);
  const counts = new Map<PostId, PostCounts>();
  for (const row of rows) {
    if (row.reposts === null && row.replies === null) continue;
    counts.set(row.post_id as PostId, {
      ...(row.reposts !== null && { reposts: Math.max(0, row.reposts) }),
      ...(row.replies !== null && { replies: Math.max(0, row.replies) }),
    });
  }
  return counts;
}
