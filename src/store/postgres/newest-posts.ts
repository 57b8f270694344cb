/**
 * Owns the SQL of the newest (or the next newer) posts of many authors beyond a position, for pages and snapshots.
 *
 * In two steps. First the index gives a few posts of each author beyond the position; the `limit`-th best of those is a line that no
 * entry of the page lies behind. Then only authors all of whose few posts came before the line are asked for more, up to the line. So the
 * work is authors × PROBE index entries, and what the page itself takes, whatever the number of posts and however silent the authors are; each
 * descent touches one partition. (Asking every author for `limit` posts at once took 18, 85 and 370 ms for 200, 1,000 and 5,000 follows, this
 * takes 9, 22 and 75 ms: pages of 60 out of 400,000 posts of 5,000 authors, on two cores.)
 */

/** Posts of each author that the first step looks at. */
const PROBE = 4;

export interface Direction {
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

export const DOWNWARDS: Direction = {
  beyond: '<=',
  further: '<',
  upTo: '>=',
  order: 'DESC',
  furthest: 'min',
  farEnd: 0,
};
export const UPWARDS: Direction = {
  beyond: '>',
  further: '>',
  upTo: '<=',
  order: 'ASC',
  furthest: 'max',
  farEnd: Number.MAX_SAFE_INTEGER,
};

/** Posts that somebody may be shown, and posts that somebody but their author may be shown: the latter belong on others' timelines. */
export const STANDING = 'posts.deleted_at IS NULL';
export const ELIGIBLE = `${STANDING} AND posts.moderation <> 'hidden' AND posts.visibility <> 'private'`;

export interface NewestOf {
  readonly direction: Direction;
  /** A FROM clause, conditions included, that gives `author_id`; $1 is the tenant. */
  readonly authors: string;
  /** A condition on `posts`. */
  readonly eligible: string;
  /** Entries of another source, as a query of (post_id, author_id); none where absent. */
  readonly beside?: string;
}

/** CTEs that end in `page (post_id, author_id)`. $3 is the position, $4 the limit. */
export function newestOf({ direction, authors, eligible, beside }: NewestOf): string {
  const { beyond, further, upTo, order, furthest, farEnd } = direction;
  return `probed AS MATERIALIZED (
  SELECT p.post_id, p.author_id
  FROM (SELECT author_id FROM ${authors}) AS given CROSS JOIN LATERAL (
    SELECT posts.post_id, posts.author_id FROM posts
    WHERE posts.tenant_id = $1 AND posts.author_id = given.author_id AND posts.post_id ${beyond} $3 AND ${eligible}
    ORDER BY posts.post_id ${order} LIMIT ${PROBE}
  ) p
),
line AS MATERIALIZED (
  SELECT coalesce((SELECT post_id FROM probed ORDER BY post_id ${order} LIMIT 1 OFFSET $4::int - 1), ${farEnd}) AS post_id
),
prolific AS MATERIALIZED (
  SELECT author_id, ${furthest}(post_id) AS seen FROM probed GROUP BY author_id
  HAVING count(*) = ${PROBE} AND (SELECT post_id FROM line) ${further} ${furthest}(post_id)
),
theirs AS (
  SELECT post_id, author_id FROM probed
  UNION ALL
  SELECT p.post_id, p.author_id
  FROM prolific CROSS JOIN LATERAL (
    SELECT posts.post_id, posts.author_id FROM posts
    WHERE posts.tenant_id = $1 AND posts.author_id = prolific.author_id
      AND posts.post_id ${further} prolific.seen AND posts.post_id ${upTo} (SELECT post_id FROM line) AND ${eligible}
    ORDER BY posts.post_id ${order} LIMIT $4::int
  ) p
),${
    beside === undefined
      ? ''
      : `
beside AS (
  ${beside}
),`
  }
page AS MATERIALIZED (
  SELECT post_id, author_id FROM ${beside === undefined ? 'theirs' : '(SELECT * FROM theirs UNION ALL SELECT * FROM beside) AS either'}
  ORDER BY post_id ${order} LIMIT $4::int
)`;
}
