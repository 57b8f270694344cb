/** Owns how a row of `posts` becomes a Post: one column list for every query, one reader for every row. */
import { type PostId, postIdFrom, type TenantId, type UserId } from '../../timeline/ids.ts';
import type { MediaRef, ModerationState, Post, PostMeta, Visibility, WrittenPost } from '../../timeline/post.ts';
import { encodeBody } from '../encode-bodies.ts';

/** Columns of a post under the alias `p`, as PostRow names them. Times are milliseconds, so that no microsecond is lost on the way. */
export const POST_COLUMNS = `p.post_id, p.author_id, p.text, p.media, p.reply_to_post_id, p.reply_to_author_id,
  p.repost_of_post_id, p.repost_of_author_id, p.plain_repost, p.visibility, p.moderation, p.meta_version, p.body_version,
  p.deleted_at IS NOT NULL AS deleted, (extract(epoch FROM p.edited_at) * 1000)::float8 AS edited_at_ms`;

export interface PostRow {
  readonly post_id: number;
  readonly author_id: string;
  readonly text: string;
  readonly media: readonly MediaRef[];
  readonly reply_to_post_id: number | null;
  readonly reply_to_author_id: string | null;
  readonly repost_of_post_id: number | null;
  readonly repost_of_author_id: string | null;
  readonly plain_repost: boolean;
  readonly visibility: Visibility;
  readonly moderation: ModerationState;
  readonly meta_version: number;
  readonly body_version: number;
  readonly deleted: boolean;
  readonly edited_at_ms: number | null;
}

export function postFromRow(row: PostRow): WrittenPost {
  const replyTo = refFrom(row.reply_to_post_id, row.reply_to_author_id);
  const repostOf = refFrom(row.repost_of_post_id, row.repost_of_author_id);
  const meta: PostMeta = {
    postId: postIdFrom(row.post_id),
    author: row.author_id as UserId,
    visibility: row.visibility,
    moderation: row.moderation,
    deleted: row.deleted,
    plainRepost: row.plain_repost,
    metaVersion: row.meta_version,
    bodyVersion: row.body_version,
    ...(replyTo && { replyTo }),
    ...(repostOf && { repostOf }),
  };
  const editedAtMs = row.edited_at_ms === null ? undefined : Math.floor(row.edited_at_ms);
  return { meta, body: { text: row.text, media: row.media, ...(editedAtMs !== undefined && { editedAtMs }) } };
}

function refFrom(postId: number | null, author: string | null): PostMeta['replyTo'] {
  return postId === null || author === null ? undefined : { postId: postIdFrom(postId), author: author as UserId };
}

/** Posts of one answer, with the posts that they name. What is not there was not in Postgres. */
export interface LoadedPosts {
  /** IDs in the order of the query; a post is absent where an entry names one that is gone. */
  readonly entries: readonly { readonly postId: PostId; readonly post?: Post }[];
  readonly targets: ReadonlyMap<PostId, Post>;
}

/** Rows of a query made by `withTargets`: entries first, in order, then targets. */
export type LoadedRow = { readonly role: 'entry' | 'target'; readonly entry_id: number } & {
  readonly [K in keyof PostRow]: PostRow[K] | null;
};

/**
 * Completes `WITH page AS (SELECT post_id, author_id …)` to a statement that answers the page's posts and, in the same round trip, the
 * posts they name. Every lookup gives author and ID, so that each touches one partition. The order is the page's: `direction` by ID.
 */
export function withTargets(pageCtes: string, direction: 'ASC' | 'DESC'): string {
  return `WITH ${pageCtes},
entries AS MATERIALIZED (
  SELECT page.post_id AS entry_id, ${POST_COLUMNS}
  FROM page LEFT JOIN LATERAL (
    SELECT * FROM posts WHERE posts.tenant_id = $1 AND posts.author_id = page.author_id AND posts.post_id = page.post_id
  ) p ON true
),
named AS (
  SELECT DISTINCT target.author_id, target.post_id
  FROM entries, LATERAL (VALUES (reply_to_author_id, reply_to_post_id), (repost_of_author_id, repost_of_post_id)) AS target (author_id, post_id)
  WHERE target.post_id IS NOT NULL
)
SELECT 'entry' AS role, entries.* FROM entries
UNION ALL
SELECT 'target' AS role, p.post_id AS entry_id, ${POST_COLUMNS}
FROM named CROSS JOIN LATERAL (
  SELECT * FROM posts WHERE posts.tenant_id = $1 AND posts.author_id = named.author_id AND posts.post_id = named.post_id
) p
ORDER BY role, entry_id ${direction}`;
}

export function loadedFrom(rows: readonly LoadedRow[]): LoadedPosts {
  const entries: { readonly postId: PostId; readonly post?: Post }[] = [];
  const targets = new Map<PostId, Post>();
  for (const row of rows) {
    const postId = postIdFrom(row.entry_id);
    const post = row.post_id === null ? undefined : encoded(postFromRow(row as PostRow));
    if (row.role === 'entry') entries.push({ postId, ...(post && { post }) });
    else if (post) targets.set(postId, post);
  }
  return { entries, targets };
}

function encoded({ meta, body }: WrittenPost): Post {
  return { meta, body: encodeBody(body) };
}

export interface PostKey {
  readonly tenant: TenantId;
  readonly author: UserId;
  readonly postId: PostId;
}
