/** Owns rows that no caller could bring about: posts with chosen IDs, many in one statement. As published, but for the ID. */
import type { Visibility } from '../../src/timeline/post.ts';
import type { TestDatabase } from './database.ts';

export interface StoredPost {
  readonly author: string;
  readonly postId: number;
  readonly visibility?: Visibility;
  readonly replyTo?: { readonly postId: number; readonly author: string };
  readonly repostOf?: { readonly postId: number; readonly author: string };
  /** A post about its own ID where absent. */
  readonly text?: string;
}

const STORE = `
WITH given AS (
  SELECT * FROM jsonb_to_recordset($2::jsonb) AS g (author text, "postId" bigint, visibility text, text text,
    "replyTo" jsonb, "repostOf" jsonb)
), stats AS (
  INSERT INTO post_stats (tenant_id, post_id, author_id) SELECT $1, "postId", author FROM given
), own AS (
  INSERT INTO self_entries (tenant_id, viewer_id, post_id) SELECT $1, author, "postId" FROM given
), jobs AS (
  INSERT INTO fanout_jobs (tenant_id, post_id, author_id, lane) SELECT $1, "postId", author, 'small' FROM given
  WHERE $3::boolean
)
INSERT INTO posts (tenant_id, author_id, post_id, text, visibility, plain_repost,
  reply_to_post_id, reply_to_author_id, repost_of_post_id, repost_of_author_id)
SELECT $1, author, "postId", coalesce(text, 'post ' || "postId"), coalesce(visibility, 'public'),
  "repostOf" IS NOT NULL AND "replyTo" IS NULL AND text IS NOT DISTINCT FROM '',
  ("replyTo"->>'postId')::bigint, "replyTo"->>'author', ("repostOf"->>'postId')::bigint, "repostOf"->>'author'
FROM given`;

/**
 * Stores all of them in one statement, so with one `now()`. Without `fanOut` they reach no timeline that is resident already: right where nobody
 * has read a page that they belong to.
 */
export async function storePosts(
  database: Pick<TestDatabase, 'sql'>,
  tenant: string,
  posts: readonly StoredPost[],
  { fanOut = false }: { readonly fanOut?: boolean } = {},
): Promise<void> {
  await database.sql(STORE, [tenant, JSON.stringify(posts), fanOut]);
}

/** Makes all of `followers` follow `followee` in one statement. */
export async function storeFollowers(
  database: Pick<TestDatabase, 'sql'>,
  tenant: string,
  edge: { readonly followee: string; readonly followers: readonly string[] },
): Promise<void> {
  await database.sql(
    'INSERT INTO follows (tenant_id, follower_id, followee_id) SELECT $1, follower, $2 FROM unnest($3::text[]) AS follower',
    [tenant, edge.followee, edge.followers],
  );
}

/** Makes `follower` follow all of `followees` in one statement. */
export async function storeFollowees(
  database: Pick<TestDatabase, 'sql'>,
  tenant: string,
  edge: { readonly follower: string; readonly followees: readonly string[] },
): Promise<void> {
  await database.sql(
    'INSERT INTO follows (tenant_id, follower_id, followee_id) SELECT $1, $2, followee FROM unnest($3::text[]) AS followee',
    [tenant, edge.follower, edge.followees],
  );
}

/** Makes the first of each pair follow the second, all in one statement. */
export async function storeFollows(
  database: Pick<TestDatabase, 'sql'>,
  tenant: string,
  pairs: readonly (readonly [follower: string, followee: string])[],
): Promise<void> {
  await database.sql(
    'INSERT INTO follows (tenant_id, follower_id, followee_id) SELECT $1, * FROM unnest($2::text[], $3::text[])',
    [tenant, pairs.map(([follower]) => follower), pairs.map(([, followee]) => followee)],
  );
}

/** Makes `count` users follow `followee` in one statement, and answers them: `f00000`, `f00001` …, in the order of fan-out's pages. */
export async function storeManyFollowers(
  database: Pick<TestDatabase, 'sql'>,
  tenant: string,
  { followee, count }: { readonly followee: string; readonly count: number },
): Promise<readonly string[]> {
  await database.sql(
    `INSERT INTO follows (tenant_id, follower_id, followee_id)
     SELECT $1, 'f' || lpad(n::text, 5, '0'), $2 FROM generate_series(0, $3 - 1) n`,
    [tenant, followee, count],
  );
  return Array.from({ length: count }, (_, index) => `f${String(index).padStart(5, '0')}`);
}

/** Makes an author be of a class, and so widely followed that nothing of ours takes the class back. */
export async function storeClass(
  database: Pick<TestDatabase, 'sql'>,
  tenant: string,
  of: { readonly authors: readonly string[]; readonly fanoutClass: 'push' | 'both' | 'pull'; readonly epoch?: number },
): Promise<void> {
  await database.sql(
    `INSERT INTO authors (tenant_id, author_id, fanout_class, class_epoch, class_changed_at, follower_count)
    SELECT $1, author, $3, $4, clock_timestamp(), 1000000 + at FROM unnest($2::text[]) WITH ORDINALITY AS given (author, at)
    ON CONFLICT (tenant_id, author_id) DO UPDATE SET fanout_class = excluded.fanout_class, class_epoch = excluded.class_epoch,
      class_changed_at = excluded.class_changed_at, follower_count = excluded.follower_count`,
    [tenant, of.authors, of.fanoutClass, of.epoch ?? 1],
  );
}
