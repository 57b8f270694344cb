/**
 * Owns the promise of encoded pages: what is put together from stored bytes is what the message, built field by field, would have been. The expected message is built here, from the
 * content that was encoded.
 */
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import { durationFromMs, timestampFromMs } from '@bufbuild/protobuf/wkt';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  AuthorProfileSchema,
  type Completeness as WireCompleteness,
  type AuthorProfile as WireProfile,
} from '../../src/gen/tributary/v1/author_pb.ts';
import {
  PostSchema,
  PostViewSchema,
  type ModerationState as WireModeration,
  type Post as WirePost,
  type Visibility as WireVisibility,
} from '../../src/gen/tributary/v1/post_pb.ts';
import {
  BatchGetPostsResponseSchema,
  GetPostResponseSchema,
  ListAuthorPostsResponseSchema,
} from '../../src/gen/tributary/v1/post_service_pb.ts';
import { GetHomeTimelineResponseSchema } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { COMPLETENESS, type HomePage, type PostView } from '../../src/read/page.ts';
import { BackwardWriter } from '../../src/rpc/backward-writer.ts';
import { encodeAuthorPage, encodeBatch, encodeHomePage, encodeSingle } from '../../src/rpc/encoded-page.ts';
import { encodeBody, encodeProfile } from '../../src/store/encode-bodies.ts';
import { type PostId, postIdMs, type UserId } from '../../src/timeline/ids.ts';
import {
  MODERATION_STATES,
  NO_BODY,
  type Post,
  type PostContent,
  type PostCounts,
  VISIBILITIES,
  type WrittenPost,
  type WrittenProfile,
} from '../../src/timeline/post.ts';

const MAX = Number.MAX_SAFE_INTEGER;
const odd = fc.constantFrom('__proto__', 'constructor', 'toString', 'hasOwnProperty', '0', '-', '~'.repeat(64));
const users = fc.oneof(odd, fc.stringMatching(/^[A-Za-z0-9_.~-]{1,64}$/)).map((text) => text as UserId);
/** Every number of digits alike, and the ends of each. */
const wholes = fc.oneof(
  fc.bigInt({ min: 1n, max: BigInt(MAX) }).map(Number),
  fc.integer({ min: 0, max: 53 }).map((bits) => 2 ** bits - (bits === 53 ? 1 : 0)),
  fc.integer({ min: 1, max: 15 }).map((digits) => 10 ** digits),
);
const versions = wholes;
const postIds = wholes.map((value) => value as PostId);
const texts = fc.oneof(fc.constant(''), fc.string({ unit: 'grapheme', maxLength: 300 }));
const pixels = fc.integer({ min: 0, max: 100_000 });
const tokens = fc.stringMatching(/^[A-Za-z0-9_-]{0,200}$/);

function without<Value extends object>(value: Value): { [K in keyof Value]: Exclude<Value[K], undefined> } {
  return Object.fromEntries(Object.entries(value).filter(([, field]) => field !== undefined)) as never;
}
const optional = <Value>(of: fc.Arbitrary<Value>) => fc.option(of, { nil: undefined });

const contents = fc
  .record({
    text: texts,
    media: fc.array(
      fc.record({ address: texts, mediaType: texts, altText: texts, widthPixels: pixels, heightPixels: pixels }),
      { maxLength: 3 },
    ),
    editedAtMs: optional(fc.integer({ min: 0, max: 4_102_444_800_000 })),
  })
  .map(without) as fc.Arbitrary<PostContent>;
const refs = fc.record({ postId: postIds, author: users });
const posts: fc.Arbitrary<WrittenPost> = fc.record({
  meta: fc
    .record({
      postId: postIds,
      author: users,
      visibility: fc.constantFrom(...VISIBILITIES),
      moderation: fc.constantFrom(...MODERATION_STATES),
      deleted: fc.boolean(),
      plainRepost: fc.boolean(),
      replyTo: optional(refs),
      repostOf: optional(refs),
      metaVersion: versions,
      bodyVersion: versions,
    })
    .map(without) as fc.Arbitrary<WrittenPost['meta']>,
  body: contents,
});
const counted = fc.oneof(fc.constant(0), wholes);

interface WrittenView {
  readonly post: WrittenPost;
  readonly replyTo?: WrittenPost;
  readonly repostOf?: WrittenPost;
  readonly counts?: PostCounts;
}
const views = fc
  .record({
    post: posts,
    replyTo: optional(posts),
    repostOf: optional(posts),
    counts: optional(fc.record({ reposts: optional(counted), replies: optional(counted) }).map(without)),
  })
  .map(without) as fc.Arbitrary<WrittenView>;
const profiles: fc.Arbitrary<WrittenProfile> = fc.record({
  author: users,
  displayName: texts,
  avatarAddress: texts,
  bio: texts,
  protected: fc.boolean(),
  profileVersion: versions,
});
const pages = fc.record({
  views: fc.array(views, { maxLength: 5 }),
  profiles: fc.uniqueArray(profiles, { maxLength: 5, selector: ({ author }) => author }),
  completeness: fc.constantFrom(...COMPLETENESS),
  nextPageToken: tokens,
  headToken: tokens,
  retryAfterMs: optional(fc.integer({ min: 0, max: 10_000_000 })),
});
type WrittenPage = typeof pages extends fc.Arbitrary<infer Page> ? Page : never;

const encodedPost = ({ meta, body }: WrittenPost): Post => ({ meta, body: encodeBody(body) });
const encodedView = ({ post, replyTo, repostOf, counts }: WrittenView): PostView => ({
  post: encodedPost(post),
  ...(replyTo && { replyTo: encodedPost(replyTo) }),
  ...(repostOf && { repostOf: encodedPost(repostOf) }),
  ...(counts && { counts }),
});
function encodedPage({ views: of, profiles: shown, retryAfterMs, ...rest }: WrittenPage): HomePage {
  return {
    ...rest,
    views: of.map(encodedView),
    authors: new Map(shown.map((profile) => [profile.author, encodeProfile(profile)])),
    ...(retryAfterMs !== undefined && { retryAfterMs }),
  };
}

function messageOfPost({ meta, body }: WrittenPost): WirePost {
  const ref = (of: WrittenPost['meta']['replyTo']) => of && { postId: String(of.postId), authorId: of.author };
  return create(PostSchema, {
    postId: String(meta.postId),
    authorId: meta.author,
    text: body.text,
    media: body.media.map((item) => ({ ...item })),
    visibility: (1 + VISIBILITIES.indexOf(meta.visibility)) as WireVisibility,
    moderationState: (1 + MODERATION_STATES.indexOf(meta.moderation)) as WireModeration,
    metaVersion: BigInt(meta.metaVersion),
    bodyVersion: BigInt(meta.bodyVersion),
    publishedAt: timestampFromMs(postIdMs(meta.postId)),
    ...without({ replyTo: ref(meta.replyTo), repostOf: ref(meta.repostOf) }),
    ...(body.editedAtMs !== undefined && { editedAt: timestampFromMs(body.editedAtMs) }),
  });
}

function messageOfView({ post, replyTo, repostOf, counts }: WrittenView) {
  return create(PostViewSchema, {
    post: messageOfPost(post),
    ...(replyTo && { replyTo: messageOfPost(replyTo) }),
    ...(repostOf && { repostOf: messageOfPost(repostOf) }),
    ...(counts && {
      counts: {
        ...(counts.reposts !== undefined && { reposts: BigInt(counts.reposts) }),
        ...(counts.replies !== undefined && { replies: BigInt(counts.replies) }),
      },
    }),
  });
}

function messagesOf(page: WrittenPage) {
  const of = page.views.map(messageOfView);
  const authors: Record<string, WireProfile> = Object.create(null);
  for (const { author, profileVersion, ...shown } of page.profiles) {
    authors[author] = create(AuthorProfileSchema, {
      ...shown,
      authorId: author,
      profileVersion: BigInt(profileVersion),
    });
  }
  const completeness = (1 + COMPLETENESS.indexOf(page.completeness)) as WireCompleteness;
  const { nextPageToken, headToken, retryAfterMs } = page;
  return {
    home: create(GetHomeTimelineResponseSchema, {
      entries: of,
      authors,
      completeness,
      nextPageToken,
      headToken,
      ...(retryAfterMs !== undefined && { retryDelay: durationFromMs(retryAfterMs) }),
    }),
    author: create(ListAuthorPostsResponseSchema, { entries: of, authors, completeness, nextPageToken }),
    batch: create(BatchGetPostsResponseSchema, { views: of, authors, completeness }),
    single: create(GetPostResponseSchema, { ...(of[0] && { view: of[0] }), authors, completeness }),
  };
}

describe('an encoded page', () => {
  it('is the message that was built field by field, on every surface, and not a byte longer', () => {
    fc.assert(
      fc.property(pages, (written) => {
        const page = encodedPage(written);
        const expected = messagesOf(written);
        const home = encodeHomePage(page);
        expect(fromBinary(GetHomeTimelineResponseSchema, home)).toEqual(expected.home);
        expect(home).toHaveLength(toBinary(GetHomeTimelineResponseSchema, expected.home).length);
        const author = encodeAuthorPage(page);
        expect(fromBinary(ListAuthorPostsResponseSchema, author)).toEqual(expected.author);
        expect(author).toHaveLength(toBinary(ListAuthorPostsResponseSchema, expected.author).length);
        const batch = encodeBatch(page);
        expect(fromBinary(BatchGetPostsResponseSchema, batch)).toEqual(expected.batch);
        expect(batch).toHaveLength(toBinary(BatchGetPostsResponseSchema, expected.batch).length);
        const single = encodeSingle({ ...page, views: page.views.slice(0, 1) });
        expect(fromBinary(GetPostResponseSchema, single)).toEqual(expected.single);
        expect(single).toHaveLength(toBinary(GetPostResponseSchema, expected.single).length);
      }),
      { numRuns: 100 },
    );
  });

  it('may be far larger than what was expected of it', () => {
    const long = 'A'.repeat(100_000);
    const page = encodedPage({
      views: [],
      profiles: [],
      completeness: 'complete',
      nextPageToken: long,
      headToken: long,
      retryAfterMs: undefined,
    });
    const message = fromBinary(GetHomeTimelineResponseSchema, encodeHomePage(page));
    expect([message.nextPageToken === long, message.headToken === long]).toEqual([true, true]);
  });

  it('shows a post without content as one with empty content', () => {
    const meta = {
      postId: MAX as PostId,
      author: 'a' as UserId,
      visibility: 'public',
      moderation: 'clear',
      deleted: false,
      plainRepost: true,
      metaVersion: 1,
      bodyVersion: 1,
    } as const;
    const page = { views: [{ post: { meta, body: NO_BODY } }], authors: new Map(), completeness: 'complete' } as const;
    const message = fromBinary(BatchGetPostsResponseSchema, encodeBatch(page));
    expect(message.views[0]?.post).toMatchObject({ postId: '9007199254740991', text: '', media: [] });
  });

  it('takes what visibility was decided from out of the meta, whatever a body says', () => {
    const meta = {
      postId: 7 as PostId,
      author: 'alice' as UserId,
      visibility: 'followers',
      moderation: 'sensitive',
      deleted: false,
      plainRepost: false,
      metaVersion: 2,
      bodyVersion: 3,
    } as const;
    const lies = create(PostSchema, { postId: '9', authorId: 'mallory', text: 'x', visibility: 1, moderationState: 1 });
    const body = toBinary(PostSchema, lies) as Post['body'];
    const page = { views: [{ post: { meta, body } }], authors: new Map(), completeness: 'complete' } as const;
    expect(fromBinary(BatchGetPostsResponseSchema, encodeBatch(page)).views[0]?.post).toMatchObject({
      postId: '7',
      authorId: 'alice',
      text: 'x',
      visibility: 2,
      moderationState: 2,
    });
  });
});

describe('what cannot be written is refused instead of being sent as something else', () => {
  it.each([-1, Number.NaN, 2 ** 53, Number.POSITIVE_INFINITY])('the number %d', (value) => {
    expect(() => new BackwardWriter(100).number(value)).toThrow(RangeError);
  });

  it('text that is not ASCII, where only ASCII can be', () => {
    expect(() => new BackwardWriter(100).ascii('zoë')).toThrow(RangeError);
  });
});
