/**
 * Owns the one statement that publishes: post, self entry, stats, fan-out job, outbox event, request row and counter changes in one
 * round trip and one transaction. Either all of it is there afterwards or nothing.
 *
 * Nothing is written where the author is not active, or where the request ID was used before: `request` inserts its row first and
 * everything else hangs on `go`. Two calls with one request ID meet in the unique index of publish_requests: the second waits for the first.
 */
import type { AuthorClass, FanoutClass } from '../../timeline/fanout-class.ts';
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import type { Lane } from '../../timeline/lanes.ts';
import type { AuthorLifecycle, MediaRef, PostRef, Visibility } from '../../timeline/post.ts';
import { brokenUniqueConstraint, type Database, type Statement } from './client.ts';
import { laneSql } from './fanout-jobs.ts';

export interface NewPost {
  readonly tenant: TenantId;
  readonly author: UserId;
  readonly postId: PostId;
  readonly text: string;
  readonly media: readonly MediaRef[];
  readonly replyTo?: PostRef;
  readonly repostOf?: PostRef;
  readonly plainRepost: boolean;
  readonly visibility: Visibility;
  /** The caller's request ID and the SHA-256 of the content it came with. */
  readonly request?: { readonly requestId: string; readonly contentHash: Buffer };
}

export const PUBLISH: Statement = {
  name: 'publish',
  text: `WITH author AS (
  SELECT coalesce(max(lifecycle), 'active') AS lifecycle, coalesce(max(follower_count), 0) AS followers,
    coalesce(max(fanout_class), 'push') AS fanout_class, coalesce(max(class_epoch), 0) AS class_epoch
  FROM authors WHERE tenant_id = $1 AND author_id = $2
),
request AS (
  INSERT INTO publish_requests (tenant_id, request_id, content_hash, post_id, author_id)
  SELECT $1, $12, $13, $3, $2 FROM author WHERE lifecycle = 'active' AND $12::text IS NOT NULL
  ON CONFLICT DO NOTHING RETURNING 1
),
go AS (
  SELECT followers, fanout_class FROM author WHERE lifecycle = 'active' AND ($12::text IS NULL OR EXISTS (SELECT 1 FROM request))
),
stats AS (
  INSERT INTO post_stats (tenant_id, post_id, author_id) SELECT $1, $3, $2 FROM go
),
post AS (
  INSERT INTO posts (tenant_id, author_id, post_id, text, media, reply_to_post_id, reply_to_author_id, repost_of_post_id,
    repost_of_author_id, plain_repost, visibility)
  SELECT $1, $2, $3, $4, $5::jsonb, $6, $7, $8, $9, $10, $11 FROM go
),
self AS (
  INSERT INTO self_entries (tenant_id, viewer_id, post_id) SELECT $1, $2, $3 FROM go
),
job AS (
  INSERT INTO fanout_jobs (tenant_id, post_id, author_id, lane)
  SELECT $1, $3, $2, CASE WHEN fanout_class = 'pull' THEN 'small' ELSE ${laneSql('followers')} END FROM go
  RETURNING lane
),
event AS (
  INSERT INTO outbox (tenant_id, kind, payload)
  SELECT $1, 'post_published', jsonb_build_object('postId', $3::bigint::text, 'authorId', $2::text) FROM go
),
counted AS (
  INSERT INTO counter_deltas (tenant_id, counter, post_id, delta)
  SELECT $1, target.counter, target.post_id, 1 FROM go, (VALUES ('replies', $6::bigint), ('reposts', $8::bigint)) AS target (counter, post_id)
  WHERE target.post_id IS NOT NULL
)
SELECT author.lifecycle, author.fanout_class, author.class_epoch, (SELECT lane FROM job) AS lane FROM author`,
};

export type PublishOutcome =
  /** With the lane of its fan-out. */
  | ({ readonly kind: 'published'; readonly lane: Lane } & AuthorClass)
  | { readonly kind: 'refused'; readonly lifecycle: AuthorLifecycle }
  | { readonly kind: 'request_known' }
  | { readonly kind: 'id_taken' };

interface PublishedRow {
  readonly lifecycle: AuthorLifecycle;
  readonly lane: Lane | null;
  readonly fanout_class: FanoutClass;
  readonly class_epoch: number;
}

export async function insertPost(database: Database, signal: AbortSignal, post: NewPost): Promise<PublishOutcome> {
  try {
    const [row] = await database.query<PublishedRow>(signal, PUBLISH, publishValues(post));
    if (!row) throw new Error('the publish statement answered no row');
    if (row.lane !== null)
      return { kind: 'published', lane: row.lane, fanoutClass: row.fanout_class, classEpoch: row.class_epoch };
    return row.lifecycle === 'active' ? { kind: 'request_known' } : { kind: 'refused', lifecycle: row.lifecycle };
  } catch (error) {
    if (brokenUniqueConstraint(error)?.startsWith('post_stats')) return { kind: 'id_taken' };
    throw error;
  }
}

export function publishValues(post: NewPost): readonly unknown[] {
  return [
    post.tenant,
    post.author,
    post.postId,
    post.text,
    JSON.stringify(post.media),
    post.replyTo?.postId ?? null,
    post.replyTo?.author ?? null,
    post.repostOf?.postId ?? null,
    post.repostOf?.author ?? null,
    post.plainRepost,
    post.visibility,
    post.request?.requestId ?? null,
    post.request?.contentHash ?? null,
  ];
}

const FIND_REQUEST: Statement = {
  name: 'publish-request',
  text: `SELECT r.content_hash, r.post_id, p.reply_to_post_id, p.reply_to_author_id, p.repost_of_post_id, p.repost_of_author_id,
    coalesce(a.fanout_class, 'push') AS fanout_class, coalesce(a.class_epoch, 0) AS class_epoch
  FROM publish_requests r LEFT JOIN LATERAL (
    SELECT * FROM posts WHERE posts.tenant_id = r.tenant_id AND posts.author_id = r.author_id AND posts.post_id = r.post_id
  ) p ON true LEFT JOIN authors a ON a.tenant_id = r.tenant_id AND a.author_id = r.author_id
  WHERE r.tenant_id = $1 AND r.request_id = $2`,
};

export interface KnownRequest extends AuthorClass {
  readonly contentHash: Buffer;
  readonly postId: PostId;
  readonly replyTo?: PostRef;
  readonly repostOf?: PostRef;
}

interface RequestRow {
  readonly content_hash: Buffer;
  readonly post_id: number;
  readonly reply_to_post_id: number | null;
  readonly reply_to_author_id: string | null;
  readonly repost_of_post_id: number | null;
  readonly repost_of_author_id: string | null;
  readonly fanout_class: FanoutClass;
  readonly class_epoch: number;
}

/** What an earlier publish with this request ID wrote, or undefined where there was none within the retention. */
export async function findPublishRequest(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly requestId: string },
): Promise<KnownRequest | undefined> {
  const [row] = await database.query<RequestRow>(signal, FIND_REQUEST, [query.tenant, query.requestId]);
  if (!row) return undefined;
  return {
    contentHash: row.content_hash,
    postId: row.post_id as PostId,
    fanoutClass: row.fanout_class,
    classEpoch: row.class_epoch,
    ...(row.reply_to_post_id !== null && {
      replyTo: { postId: row.reply_to_post_id as PostId, author: row.reply_to_author_id as UserId },
    }),
    ...(row.repost_of_post_id !== null && {
      repostOf: { postId: row.repost_of_post_id as PostId, author: row.repost_of_author_id as UserId },
    }),
  };
}

const IMPORT: Statement = {
  name: 'import-posts',
  text: `WITH incoming AS (
  SELECT * FROM unnest($2::text[], $3::bigint[], $4::text[], $5::text[]) AS i (author_id, post_id, text, visibility)
),
fresh AS (
  INSERT INTO post_stats (tenant_id, post_id, author_id) SELECT $1, post_id, author_id FROM incoming
  ON CONFLICT DO NOTHING RETURNING post_id
),
stored AS (
  INSERT INTO posts (tenant_id, author_id, post_id, text, visibility)
  SELECT $1, author_id, post_id, text, visibility FROM incoming JOIN fresh USING (post_id)
  RETURNING author_id, post_id
),
self AS (
  INSERT INTO self_entries (tenant_id, viewer_id, post_id) SELECT $1, author_id, post_id FROM stored
),
job AS (
  INSERT INTO fanout_jobs (tenant_id, post_id, author_id, lane)
  SELECT $1, post_id, stored.author_id, ${laneSql('coalesce(follower_count, 0)')}
  FROM stored LEFT JOIN authors ON authors.tenant_id = $1 AND authors.author_id = stored.author_id WHERE $6::boolean
)
SELECT post_id FROM stored`,
};

export interface ImportRow {
  readonly author: UserId;
  readonly postId: PostId;
  readonly text: string;
  readonly visibility: Visibility;
}

/** Stores posts that bear an old date, without events; answers the IDs stored, leaving out those that were taken. At most some thousand. */
export async function insertImportedPosts(
  database: Database,
  signal: AbortSignal,
  input: { readonly tenant: TenantId; readonly posts: readonly ImportRow[]; readonly fanOut: boolean },
): Promise<ReadonlySet<PostId>> {
  const rows = await database.query<{ readonly post_id: number }>(signal, IMPORT, [
    input.tenant,
    input.posts.map((post) => post.author),
    input.posts.map((post) => post.postId),
    input.posts.map((post) => post.text),
    input.posts.map((post) => post.visibility),
    input.fanOut,
  ]);
  return new Set(rows.map((row) => row.post_id as PostId));
}
