/**
 * Owns two other ways to answer a home page, behind our own listener and call chain: by SQL alone, as a service does that only pulls; and from our own flow, but with messages in between, as
 * a service does that keeps objects.
 *
 * Invariant: each answers the same page as ours; the benchmark compares them before it measures.
 */
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import { AuthorProfileSchema } from '../../src/gen/tributary/v1/author_pb.ts';
import { PostSchema, type PostView as WireView } from '../../src/gen/tributary/v1/post_pb.ts';
import { GetHomeTimelineResponseSchema } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import type { HomePage, PostView } from '../../src/read/page.ts';
import type { PageTokens } from '../../src/read/page-token.ts';
import { encodeHomePage } from '../../src/rpc/encoded-page.ts';
import type { Encoded } from '../../src/rpc/methods.ts';
import { COMPLETENESS, MODERATION, VISIBILITY } from '../../src/rpc/post-to-wire.ts';
import type { Call } from '../../src/runtime.ts';
import { encodeBody, encodeProfile } from '../../src/store/encode-bodies.ts';
import type { Database, Statement } from '../../src/store/postgres/client.ts';
import { POST_COLUMNS, type PostRow, postFromRow } from '../../src/store/postgres/post-rows.ts';
import { POST_ID_MAX, postIdMs, type UserId } from '../../src/timeline/ids.ts';
import type { AuthorProfile, Post } from '../../src/timeline/post.ts';

type Page = Encoded<typeof GetHomeTimelineResponseSchema>;
/** Answers a viewer's newest page. */
export type ReadPage = (call: Call, viewer: UserId, pageSize: number) => Promise<Page>;

interface PulledRow extends PostRow {
  readonly reposts: number | null;
  readonly replies: number | null;
  readonly display_name: string | null;
  readonly avatar_address: string | null;
  readonly bio: string | null;
  readonly protected: boolean | null;
  readonly profile_version: number | null;
}

/** One row more than the page, to know whether it is the last. Everything in one round trip, and prepared. */
const PULL: Statement = {
  name: 'bench-pull-page',
  text: `SELECT ${POST_COLUMNS}, s.reposts, s.replies, a.display_name, a.avatar_address, a.bio, a.protected, a.profile_version
  FROM (
    SELECT * FROM posts WHERE tenant_id = $1 AND deleted_at IS NULL AND moderation <> 'hidden' AND (visibility <> 'private' OR author_id = $2)
      AND author_id = ANY (ARRAY(
        SELECT followee_id FROM follows f WHERE tenant_id = $1 AND follower_id = $2 AND ended_at IS NULL
          AND NOT EXISTS (SELECT 1 FROM mutes WHERE tenant_id = $1 AND muter_id = $2 AND muted_id = f.followee_id AND (until IS NULL OR until > now()))
        UNION ALL SELECT $2
      ))
    ORDER BY post_id DESC LIMIT $3
  ) p
  LEFT JOIN post_stats s ON s.tenant_id = $1 AND s.post_id = p.post_id
  LEFT JOIN authors a ON a.tenant_id = $1 AND a.author_id = p.author_id
  ORDER BY p.post_id DESC`,
};

export function createPullPage(database: Database, tokens: PageTokens): ReadPage {
  return async (call, viewer, pageSize) => {
    const rows = await database.query<PulledRow>(call.signal, PULL, [call.tenant, viewer, pageSize + 1]);
    const shown = rows.slice(0, pageSize);
    const authors = new Map<UserId, AuthorProfile>();
    const views = shown.map((row): PostView => {
      const { meta, body } = postFromRow(row);
      if (row.profile_version !== null && row.profile_version > 0 && !authors.has(meta.author)) {
        authors.set(meta.author, profileOf(meta.author, row));
      }
      const counts = {
        ...(row.reposts !== null && { reposts: row.reposts }),
        ...(row.replies !== null && { replies: row.replies }),
      };
      return { post: { meta, body: encodeBody(body) }, counts };
    });
    const owner = { tenant: call.tenant, viewer };
    const first = views[0]?.post.meta.postId ?? 0;
    const last = views.at(-1)?.post.meta.postId ?? POST_ID_MAX;
    return encodeHomePage({
      views,
      authors,
      completeness: 'complete',
      nextPageToken: rows.length > pageSize ? tokens.seal(owner, { kind: 'home_older', from: last - 1 }) : '',
      headToken: tokens.seal(owner, { kind: 'home_newer', after: first, high: first, low: first, shown: [] }),
    });
  };
}

function profileOf(author: UserId, row: PulledRow): AuthorProfile {
  return encodeProfile({
    author,
    displayName: row.display_name ?? '',
    avatarAddress: row.avatar_address ?? '',
    bio: row.bio ?? '',
    protected: row.protected ?? false,
    profileVersion: row.profile_version ?? 0,
  });
}

/** The page as a message, from bodies that are decoded first, and encoded as a whole. */
export function decodedAndEncoded(page: HomePage): Page {
  const entries = page.views.map(({ post, replyTo, repostOf, counts }) => ({
    post: messageOf(post),
    ...(replyTo && { replyTo: messageOf(replyTo) }),
    ...(repostOf && { repostOf: messageOf(repostOf) }),
    ...(counts && {
      counts: {
        ...(counts.reposts !== undefined && { reposts: BigInt(counts.reposts) }),
        ...(counts.replies !== undefined && { replies: BigInt(counts.replies) }),
      },
    }),
  })) as WireView[];
  const authors = Object.fromEntries(
    [...page.authors].map(([author, { body }]) => [author, fromBinary(AuthorProfileSchema, body)]),
  );
  const message = create(GetHomeTimelineResponseSchema, {
    entries,
    authors,
    nextPageToken: page.nextPageToken,
    headToken: page.headToken,
    completeness: COMPLETENESS[page.completeness],
  });
  return toBinary(GetHomeTimelineResponseSchema, message) as Page;
}

function messageOf({ meta, body }: Post) {
  const post = fromBinary(PostSchema, body);
  const refOf = (ref: typeof meta.replyTo) => ref && { postId: String(ref.postId), authorId: ref.author };
  return create(PostSchema, {
    postId: String(meta.postId),
    authorId: meta.author,
    text: post.text,
    media: post.media,
    visibility: VISIBILITY[meta.visibility],
    moderationState: MODERATION[meta.moderation],
    metaVersion: BigInt(meta.metaVersion),
    bodyVersion: BigInt(meta.bodyVersion),
    publishedAt: timestampFromMs(postIdMs(meta.postId)),
    ...(meta.replyTo && { replyTo: refOf(meta.replyTo) }),
    ...(meta.repostOf && { repostOf: refOf(meta.repostOf) }),
    ...(post.editedAt && { editedAt: post.editedAt }),
  } as never);
}
