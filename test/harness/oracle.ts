/**
 * Owns the second opinion: what a viewer may see, worked out by one SQL statement from Postgres alone. It shares neither SQL nor
 * visibility code with the product, and imports nothing of it, so a fault would have to be made twice to go unseen.
 *
 * It is written as sets, where the product asks rules of one post at a time: `seen` holds the posts that may be shown by
 * themselves, also inside others; `shown` is without the bare reposts that would show nothing. Whether a repost is bare is
 * told from what it holds, not from the column the product keeps for that.
 */

/** Of one post that the viewer may see. */
export interface OracleEntry {
  readonly postId: string;
  readonly author: string;
  /** Whether the post belongs on the viewer's home timeline. */
  readonly onHome: boolean;
  /** The target that is shown inside; undefined where there is none or it stays hidden. */
  readonly replyTo: string | undefined;
  readonly repostOf: string | undefined;
}

export interface OracleView {
  /** All that the viewer may see in the tenant, newest first. */
  readonly all: readonly OracleEntry[];
  /** Post IDs of the home timeline, newest first. */
  readonly home: readonly string[];
  /** Post IDs of one author's list, newest first. */
  byAuthor(author: string): readonly string[];
  entry(postId: string): OracleEntry | undefined;
}

export interface OracleQuestion {
  readonly tenant: string;
  readonly viewer: string;
  /** When the viewer looks: mutes end by time. */
  readonly nowMs: number;
}

export type RunSql = <Row extends Record<string, unknown>>(text: string, values: readonly unknown[]) => Promise<Row[]>;

const STATEMENT = `
WITH adverse AS (
  SELECT blocked_id AS who FROM blocks WHERE tenant_id = $1 AND blocker_id = $2
  UNION
  SELECT blocker_id FROM blocks WHERE tenant_id = $1 AND blocked_id = $2
  UNION
  SELECT muted_id FROM mutes
  WHERE tenant_id = $1 AND muter_id = $2 AND coalesce(extract(epoch FROM until) * 1000 > $3::numeric, true)
),
followed AS (
  SELECT followee_id AS who FROM follows WHERE tenant_id = $1 AND follower_id = $2 AND ended_at IS NULL
),
absent AS (
  SELECT author_id AS who FROM authors WHERE tenant_id = $1 AND lifecycle <> 'active'
),
closed AS (
  SELECT author_id AS who FROM authors WHERE tenant_id = $1 AND protected
),
standing AS (
  SELECT * FROM posts
  WHERE tenant_id = $1 AND deleted_at IS NULL AND moderation IN ('clear', 'sensitive') AND author_id NOT IN (TABLE absent)
),
seen AS (
  SELECT * FROM standing WHERE author_id = $2
  UNION ALL
  (
    SELECT * FROM standing WHERE author_id <> $2 AND visibility = 'public' AND author_id NOT IN (TABLE closed)
    UNION
    SELECT * FROM standing WHERE author_id <> $2 AND visibility IN ('public', 'followers') AND author_id IN (TABLE followed)
    EXCEPT
    SELECT * FROM standing
    WHERE author_id IN (TABLE adverse) OR reply_to_author_id IN (TABLE adverse) OR repost_of_author_id IN (TABLE adverse)
  )
),
shown AS (
  SELECT outer_post.*, answered.post_id AS answered_id, passed_on.post_id AS passed_on_id
  FROM seen AS outer_post
  LEFT JOIN seen AS answered ON answered.post_id = outer_post.reply_to_post_id
  LEFT JOIN seen AS passed_on ON passed_on.post_id = outer_post.repost_of_post_id
  WHERE outer_post.text <> '' OR outer_post.media <> '[]' OR outer_post.reply_to_post_id IS NOT NULL OR passed_on.post_id IS NOT NULL
)
SELECT post_id::text, author_id, answered_id::text, passed_on_id::text,
  author_id = $2 OR author_id IN (TABLE followed) AS on_home
FROM shown
ORDER BY shown.post_id DESC`;

interface Row extends Record<string, unknown> {
  readonly post_id: string;
  readonly author_id: string;
  readonly answered_id: string | null;
  readonly passed_on_id: string | null;
  readonly on_home: boolean;
}

export async function askOracle(sql: RunSql, { tenant, viewer, nowMs }: OracleQuestion): Promise<OracleView> {
  const rows = await sql<Row>(STATEMENT, [tenant, viewer, nowMs]);
  const all = rows.map(
    (row): OracleEntry => ({
      postId: row.post_id,
      author: row.author_id,
      onHome: row.on_home,
      replyTo: row.answered_id ?? undefined,
      repostOf: row.passed_on_id ?? undefined,
    }),
  );
  const byId = new Map(all.map((entry) => [entry.postId, entry]));
  return {
    all,
    home: all.filter((entry) => entry.onHome).map((entry) => entry.postId),
    byAuthor: (author) => all.filter((entry) => entry.author === author).map((entry) => entry.postId),
    entry: (postId) => byId.get(postId),
  };
}
