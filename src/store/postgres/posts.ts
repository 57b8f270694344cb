/** Owns the rows of single posts: reading them by ID or by author, locking and changing them. Publishing has a file of its own. */
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import type { MediaRef, ModerationState, Visibility, WrittenPost } from '../../timeline/post.ts';
import type { Database, Statement, Transaction } from './client.ts';
import { laneSql } from './fanout-jobs.ts';
import {
  type LoadedPosts,
  type LoadedRow,
  loadedFrom,
  POST_COLUMNS,
  type PostKey,
  type PostRow,
  postFromRow,
  withTargets,
} from './post-rows.ts';

/** `post_stats` names each post's author, so that the lookup touches one partition for each post instead of all. */
const BY_ID: Statement = {
  name: 'posts-by-id',
  text: withTargets(
    `page AS MATERIALIZED (SELECT post_id, author_id FROM post_stats WHERE tenant_id = $1 AND post_id = ANY ($2::bigint[]))`,
    'DESC',
  ),
};

export async function loadPostsById(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly postIds: readonly PostId[] },
): Promise<LoadedPosts> {
  if (query.postIds.length === 0) return { entries: [], targets: new Map() };
  return loadedFrom(await database.query<LoadedRow>(signal, BY_ID, [query.tenant, query.postIds]));
}

const BY_AUTHOR: Statement = {
  name: 'posts-by-author',
  text: withTargets(
    `page AS MATERIALIZED (
  SELECT post_id, author_id FROM posts
  WHERE tenant_id = $1 AND author_id = $2 AND post_id <= $3 AND deleted_at IS NULL
  ORDER BY post_id DESC LIMIT $4
)`,
    'DESC',
  ),
};

/** At most `limit` posts of an author at or below the position, newest first. Fewer than `limit` means that there are no more. */
export async function loadAuthorPosts(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly author: UserId; readonly position: number; readonly limit: number },
): Promise<LoadedPosts> {
  return loadedFrom(
    await database.query<LoadedRow>(signal, BY_AUTHOR, [query.tenant, query.author, query.position, query.limit]),
  );
}

const LOCK: Statement = {
  name: 'post-lock',
  text: `SELECT ${POST_COLUMNS} FROM posts p WHERE p.tenant_id = $1 AND p.author_id = $2 AND p.post_id = $3 FOR UPDATE`,
};

/** The post, locked until the transaction ends, or undefined where the author has no such post. */
export async function lockPost(transaction: Transaction, key: PostKey): Promise<WrittenPost | undefined> {
  const [row] = await transaction.query<PostRow>(LOCK, [key.tenant, key.author, key.postId]);
  return row && postFromRow(row);
}

const WRITE: Statement = {
  name: 'post-write',
  text: `UPDATE posts p SET text = $4, media = $5::jsonb, visibility = $6, moderation = $7, meta_version = $8, body_version = $9,
    edited_at = CASE WHEN $9 > p.body_version THEN date_trunc('milliseconds', clock_timestamp()) ELSE p.edited_at END
  WHERE p.tenant_id = $1 AND p.author_id = $2 AND p.post_id = $3
  RETURNING ${POST_COLUMNS}`,
};

export interface PostChange {
  readonly text: string;
  readonly media: readonly MediaRef[];
  readonly visibility: Visibility;
  readonly moderation: ModerationState;
  readonly metaVersion: number;
  readonly bodyVersion: number;
}

/** Writes the changed post, which the transaction has locked. A risen body version marks it edited by Postgres' clock. */
export async function writePost(transaction: Transaction, key: PostKey, change: PostChange): Promise<WrittenPost> {
  const [row] = await transaction.query<PostRow>(WRITE, [
    key.tenant,
    key.author,
    key.postId,
    change.text,
    JSON.stringify(change.media),
    change.visibility,
    change.moderation,
    change.metaVersion,
    change.bodyVersion,
  ]);
  if (!row) throw new Error('a locked post was not there to be written');
  return postFromRow(row);
}

const ERASE: Statement = {
  name: 'post-erase',
  text: `WITH erased AS (
    UPDATE posts SET deleted_at = clock_timestamp(), text = '', media = '[]', meta_version = meta_version + 1
    WHERE tenant_id = $1 AND author_id = $2 AND post_id = $3
  )
  DELETE FROM self_entries WHERE tenant_id = $1 AND viewer_id = $2 AND post_id = $3`,
};

/** Marks a locked post deleted for ever and takes its content and the author's own entry away. */
export async function erasePost(transaction: Transaction, key: PostKey): Promise<void> {
  await transaction.query(ERASE, [key.tenant, key.author, key.postId]);
}

const AUTHOR_OF: Statement = {
  name: 'post-author',
  text: 'SELECT author_id FROM post_stats WHERE tenant_id = $1 AND post_id = $2',
};

/** Who wrote the post, or undefined where the ID was never given out in the tenant. */
export async function findPostAuthor(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly postId: PostId },
): Promise<UserId | undefined> {
  const [row] = await database.query<{ readonly author_id: string }>(signal, AUTHOR_OF, [query.tenant, query.postId]);
  return row?.author_id as UserId | undefined;
}

const NEW_GENERATION: Statement = {
  name: 'fanout-generation',
  text: `INSERT INTO fanout_jobs (tenant_id, post_id, generation, author_id, lane)
  SELECT $1, $2, coalesce(max(generation), 0) + 1, $3, (
    SELECT CASE WHEN max(fanout_class) = 'pull' THEN 'small' ELSE ${laneSql('coalesce(max(follower_count), 0)')} END FROM authors WHERE tenant_id = $1 AND author_id = $3
  )
  FROM fanout_jobs WHERE tenant_id = $1 AND post_id = $2`,
};

/** Asks for another fan-out of a post that became eligible again. Its row is locked, so that generations cannot collide. */
export async function appendFanoutGeneration(transaction: Transaction, key: PostKey): Promise<void> {
  await transaction.query(NEW_GENERATION, [key.tenant, key.postId, key.author]);
}
