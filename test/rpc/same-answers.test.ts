/**
 * Owns the promise that a page is the same whoever asks for it: one service, real pages with everything in them, each method that answers posts in numbers, every client. The gRPC listener
 * sends bytes as they were put together, the HTTP listener decodes and encodes them by its own codecs.
 */
import type { DescMethodUnary, MessageInitShape } from '@bufbuild/protobuf';
import { equals, toJson } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { PostService } from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { eventually } from '../harness/eventually.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { CLIENT_NAMES, openClient, type TestClient } from './clients.ts';

const [REFERENCE, ...OTHERS] = CLIENT_NAMES;
const WAVES = '🌊 "text" \u2028 \\ </script>';
const IMAGE = { address: 'sha256:ab', mediaType: 'image/webp', altText: 'Zoë', widthPixels: 640, heightPixels: 0 };

let service: TestService;
let tenant: TestTenant;
let reference: TestClient;
let postIds: readonly string[];
beforeAll(async () => {
  // Counters that are not folded yet must not be taken for the last word.
  service = await startTestService({ env: { COUNTS_LIFE_MS: '100' } });
  tenant = await service.tenant();
  reference = openClient(REFERENCE, service.service);
  await tenant.graph.follow({ followerId: 'reader', followeeId: '__proto__' });
  await tenant.graph.follow({ followerId: 'reader', followeeId: 'constructor' });
  await tenant.graph.follow({ followerId: 'constructor', followeeId: '__proto__' });
  await tenant.graph.putAuthor({ authorId: '__proto__', displayName: 'Überall', bio: WAVES, protected: true });
  const publish = async (authorId: string, more: MessageInitShape<typeof PostService.method.publishPost.input>) => {
    const { post } = await tenant.posts.publishPost({ authorId, ...more });
    return post?.postId ?? '';
  };
  const plain = await publish('__proto__', { text: WAVES });
  const pictures = await publish('constructor', { media: [IMAGE, { ...IMAGE, altText: '' }] });
  const reply = await publish('constructor', { text: 'an answer', replyToPostId: plain, visibility: 2 });
  const quote = await publish('reader', { text: 'x'.repeat(5_000), repostOfPostId: pictures, visibility: 3 });
  const repost = await publish('constructor', { repostOfPostId: pictures });
  await tenant.posts.updatePost({ authorId: 'constructor', postId: reply, text: 'another answer' });
  await service.settle();
  postIds = [plain, pictures, reply, quote, repost];
  // Counters are folded a moment after what they count, in one go.
  await eventually(async () => {
    const page = await tenant.timeline.getHomeTimeline({ viewerId: 'reader' });
    expect(page.entries[3]?.counts).toMatchObject({ reposts: 2n });
    expect(page.entries[4]?.counts).toMatchObject({ replies: 1n });
  });
});
afterAll(async () => {
  reference.close();
  await service.stop();
});

interface Question {
  readonly what: string;
  readonly method: DescMethodUnary;
  readonly request: () => Record<string, unknown>;
}

const { getHomeTimeline } = TimelineService.method;
const { listAuthorPosts, batchGetPosts, getPost } = PostService.method;
const QUESTIONS: readonly Question[] = [
  { what: 'a home page', method: getHomeTimeline, request: () => ({ viewerId: 'reader' }) },
  {
    what: 'a home page that ends early',
    method: getHomeTimeline,
    request: () => ({ viewerId: 'reader', pageSize: 2 }),
  },
  { what: 'an empty home page', method: getHomeTimeline, request: () => ({ viewerId: 'nobody' }) },
  {
    what: 'an author’s page',
    method: listAuthorPosts,
    request: () => ({ viewerId: 'reader', authorId: 'constructor' }),
  },
  { what: 'a batch', method: batchGetPosts, request: () => ({ viewerId: 'reader', postIds }) },
  { what: 'a single post', method: getPost, request: () => ({ viewerId: 'reader', postId: postIds[2] }) },
];

describe.each(OTHERS)('asked by %s', (name) => {
  it.each(QUESTIONS)('$what is what gRPC gets', async ({ method, request }) => {
    const headers = { authorization: `Bearer ${tenant.key}` };
    const client = openClient(name, service.service);
    try {
      const { message: expected } = await reference.unary(method, request() as never, { headers });
      const { message } = await client.unary(method, request() as never, { headers });
      expect(toJson(method.output, message)).toEqual(toJson(method.output, expected));
      expect(equals(method.output, message, expected)).toBe(true);
    } finally {
      client.close();
    }
  });
});

it('the pages that are compared hold everything that a page can', async () => {
  const headers = { authorization: `Bearer ${tenant.key}` };
  const { message: page } = await reference.unary(getHomeTimeline, { viewerId: 'reader' }, { headers });
  const [repost, quote, reply, pictures, plain] = page.entries;
  expect(page.entries.map(({ post }) => post?.postId)).toEqual([...postIds].reverse());
  expect(plain?.post).toMatchObject({ authorId: '__proto__', text: WAVES, media: [], bodyVersion: 1n });
  expect(pictures?.post?.media).toMatchObject([IMAGE, { ...IMAGE, altText: '' }]);
  expect(pictures?.counts).toMatchObject({ replies: 0n });
  expect(reply).toMatchObject({
    post: { text: 'another answer', bodyVersion: 2n, visibility: 2, replyTo: { authorId: '__proto__' } },
    replyTo: { text: WAVES },
  });
  expect(reply?.post?.editedAt).toBeDefined();
  expect(quote).toMatchObject({ post: { text: 'x'.repeat(5_000), visibility: 3 }, repostOf: { text: '' } });
  expect(repost).toMatchObject({ post: { text: '', repostOf: { postId: postIds[1] } } });
  expect(Object.getOwnPropertyDescriptor(page.authors, '__proto__')?.value).toMatchObject({
    displayName: 'Überall',
    bio: WAVES,
    protected: true,
    profileVersion: 1n,
  });
  expect(page.headToken).not.toBe('');
});
