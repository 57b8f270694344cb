/** What a request may hold, asked over the wire: each wrong field is named by its path, and no wrong request reaches a flow. */
import type { DescMethodUnary, MessageInitShape } from '@bufbuild/protobuf';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { GraphService } from '../../src/gen/tributary/v1/graph_service_pb.ts';
import { PostService } from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { readFields } from '../../src/rpc/fields.ts';
import { failureOf, openClient, type TestClient } from './clients.ts';
import { SERVICE_KEY, startDoor, type TestDoor } from './door.ts';
import { ODD_AUTHORS, ODD_VIEWER } from './fake-flows.ts';

const headers = { authorization: `Bearer ${SERVICE_KEY}` };
const graph = GraphService.method;
const posts = PostService.method;
const timeline = TimelineService.method;
const image = { address: 'sha256:ab', mediaType: 'image/webp' };
const wave = '🌊';

let door: TestDoor;
let grpc: TestClient;
let json: TestClient;
beforeAll(async () => {
  door = await startDoor();
  grpc = openClient('grpc-js on the gRPC port', door);
  json = openClient('Connect JSON over HTTP/1.1', door);
});
afterAll(async () => {
  grpc.close();
  json.close();
  await door.frontDoor.stop();
});
beforeEach(() => {
  door.flows.reached.length = 0;
});

interface Case {
  readonly what: string;
  readonly send: (client: TestClient) => Promise<unknown>;
  readonly fields: readonly string[];
}

function refused<Method extends DescMethodUnary>(
  what: string,
  method: Method,
  request: MessageInitShape<Method['input']>,
  ...fields: readonly string[]
): Case {
  return { what, send: (client) => client.unary(method, request, { headers }), fields };
}

const publish = (request: MessageInitShape<(typeof posts.publishPost)['input']>) => ({
  authorId: 'a',
  text: 'x',
  ...request,
});
const instant = (seconds: bigint, nanos = 0) => ({ muterId: 'a', mutedId: 'b', until: { seconds, nanos } });

const CASES: readonly Case[] = [
  refused('an empty user ID', timeline.getHomeTimeline, { viewerId: '' }, 'viewer_id'),
  refused('a user ID of 65 characters', timeline.getHomeTimeline, { viewerId: 'a'.repeat(65) }, 'viewer_id'),
  refused('a user ID with a slash', timeline.getHomeHead, { viewerId: 'a/b' }, 'viewer_id'),
  refused('a negative page size', timeline.getHomeTimeline, { viewerId: 'a', pageSize: -1 }, 'page_size'),
  refused(
    'several wrong fields at once',
    posts.listAuthorPosts,
    { viewerId: '', authorId: ' ', pageSize: -9 },
    'viewer_id',
    'author_id',
    'page_size',
  ),
  refused('post ID 0', posts.getPost, { viewerId: 'a', postId: '0' }, 'post_id'),
  refused('post ID 2^53', posts.getPost, { viewerId: 'a', postId: '9007199254740992' }, 'post_id'),
  refused('a post ID with a leading zero', posts.getPost, { viewerId: 'a', postId: '01' }, 'post_id'),
  refused('a post ID that is a fraction', posts.deletePost, { authorId: 'a', postId: '1.5' }, 'post_id'),
  refused('an empty batch', posts.batchGetPosts, { viewerId: 'a' }, 'post_ids'),
  refused('a batch of 101', posts.batchGetPosts, { viewerId: 'a', postIds: Array(101).fill('1') }, 'post_ids'),
  refused('one wrong ID in a batch', posts.batchGetPosts, { viewerId: 'a', postIds: ['1', 'x', '3'] }, 'post_ids[1]'),
  refused('text one code point too long', posts.publishPost, publish({ text: wave.repeat(5_001) }), 'text'),
  refused('text with the character U+0000', posts.publishPost, publish({ text: 'a\0b' }), 'text'),
  refused('a post of nothing', posts.publishPost, { authorId: 'a' }, 'text'),
  refused('an unknown visibility', posts.publishPost, publish({ visibility: 99 as never }), 'visibility'),
  refused('a request ID of the wrong form', posts.publishPost, publish({ requestId: '' }), 'request_id'),
  refused(
    'targets that are no IDs',
    posts.publishPost,
    publish({ replyToPostId: '-1', repostOfPostId: 'x' }),
    'reply_to_post_id',
    'repost_of_post_id',
  ),
  refused('eleven media', posts.publishPost, publish({ media: Array(11).fill(image) }), 'media'),
  refused(
    'media without address or type',
    posts.publishPost,
    publish({ media: [image, {}] }),
    'media[1].address',
    'media[1].media_type',
  ),
  refused(
    'media with a type that is none',
    posts.publishPost,
    publish({ media: [{ ...image, mediaType: 'image' }] }),
    'media[0].media_type',
  ),
  refused(
    'a media address with a space',
    posts.publishPost,
    publish({ media: [{ ...image, address: 'a b' }] }),
    'media[0].address',
  ),
  refused(
    'a media description too long',
    posts.publishPost,
    publish({ media: [{ ...image, altText: wave.repeat(1_001) }] }),
    'media[0].alt_text',
  ),
  refused(
    'media of negative and of enormous size',
    posts.publishPost,
    publish({ media: [{ ...image, widthPixels: -1, heightPixels: 100_001 }] }),
    'media[0].width_pixels',
    'media[0].height_pixels',
  ),
  refused(
    'expected version 0',
    posts.updatePost,
    { authorId: 'a', postId: '1', expectedMetaVersion: 0n },
    'expected_meta_version',
  ),
  refused(
    'an expected version beyond 2^53-1',
    posts.updatePost,
    { authorId: 'a', postId: '1', expectedMetaVersion: 2n ** 53n },
    'expected_meta_version',
  ),
  refused(
    'new media of the wrong form',
    posts.updatePost,
    { authorId: 'a', postId: '1', media: { media: [{}] } },
    'media.media[0].address',
    'media.media[0].media_type',
  ),
  refused('a follow of oneself', graph.follow, { followerId: 'a', followeeId: 'a' }, 'followee_id'),
  refused('a block of oneself', graph.block, { blockerId: 'a', blockedId: 'a' }, 'blocked_id'),
  refused('a mute of oneself', graph.mute, { muterId: 'a', mutedId: 'a' }, 'muted_id'),
  refused(
    'oneself in a batch of follows',
    graph.batchFollow,
    { followerId: 'a', followeeIds: ['b', 'a'] },
    'followee_ids[1]',
  ),
  refused('an empty batch of follows', graph.batchFollow, { followerId: 'a' }, 'followee_ids'),
  refused('501 follows', graph.batchFollow, { followerId: 'a', followeeIds: Array(501).fill('b') }, 'followee_ids'),
  refused('a mute that has ended', graph.mute, instant(1n), 'until'),
  refused('a name too long', graph.putAuthor, { authorId: 'a', displayName: 'x'.repeat(101) }, 'display_name'),
  refused(
    'a picture address too long',
    graph.putAuthor,
    { authorId: 'a', avatarAddress: 'x'.repeat(129) },
    'avatar_address',
  ),
  refused('a self-description too long', graph.putAuthor, { authorId: 'a', bio: wave.repeat(501) }, 'bio'),
];

describe('a request is refused for', () => {
  it.each(CASES)('$what', async ({ send, fields }) => {
    for (const client of [grpc, json]) {
      const failure = await failureOf(send(client));
      expect(failure).toMatchObject({ code: 'INVALID_ARGUMENT', reasons: ['INVALID_FIELD'] });
      expect(failure.fields).toEqual(fields);
    }
    expect(door.flows.reached).toEqual([]);
  });

  it('an instant that no calendar has, which only gRPC can send', async () => {
    for (const request of [
      instant(2n ** 60n),
      instant(-1n),
      instant(4_000_000_000n, -1),
      instant(4_000_000_000n, 1_000_000_000),
    ]) {
      expect((await failureOf(grpc.unary(graph.mute, request, { headers }))).fields).toEqual(['until']);
    }
  });

  it('at most twenty fields at once, so that the answer stays small', async () => {
    const postIds = Array(100).fill('x');
    expect(
      (await failureOf(grpc.unary(posts.batchGetPosts, { viewerId: '', postIds }, { headers }))).fields,
    ).toHaveLength(20);
  });

  it.each([
    { what: 'a number in an ID field', body: '{"viewerId":"a","postId":123}' },
    { what: 'a number in a user ID field', body: '{"viewerId":5,"postId":"1"}' },
    { what: 'a number beyond 2^53 in an ID field', body: '{"viewerId":"a","postId":9007199254740993}' },
    { what: 'broken JSON', body: '{"viewerId":' },
    { what: 'a list instead of an object', body: '[]' },
    { what: 'nothing', body: '' },
    { what: 'a field that there is not', body: '{"viewerId":"a","postId":"1","postID":"2"}' },
    {
      what: 'a field that is misspelled, where leaving it out would show a post to everybody',
      method: 'PostService/PublishPost',
      body: '{"authorId":"a","text":"secret","visiblity":"VISIBILITY_PRIVATE"}',
    },
    {
      what: 'a field that is there twice, of which one would be left out',
      method: 'PostService/PublishPost',
      body: '{"authorId":"a","text":"secret","visibility":"VISIBILITY_PRIVATE","visibility":"VISIBILITY_PUBLIC"}',
    },
    {
      what: 'a field by both of its names',
      method: 'PostService/PublishPost',
      body: '{"authorId":"a","author_id":"b","text":"x"}',
    },
    { what: 'something after the message', body: '{"viewerId":"a","postId":"1"}{}' },
    {
      what: 'a visibility that is misspelled',
      method: 'PostService/PublishPost',
      body: '{"authorId":"a","text":"secret","visibility":"VISIBILITY_PRIVAT"}',
    },
  ])('$what in Connect JSON', async ({ body, method = 'PostService/GetPost' }) => {
    const answer = await postJson(method, body);
    expect(answer).toMatchObject({ status: 400, error: { code: 'invalid_argument' }, reasons: ['INVALID_MESSAGE'] });
    expect(door.flows.reached).toEqual([]);
  });

  it('bytes that are no message, in Connect binary', async () => {
    const response = await fetch(`http://127.0.0.1:${door.httpPort}/tributary.v1.PostService/GetPost`, {
      method: 'POST',
      headers: { ...headers, 'content-type': 'application/proto' },
      body: Buffer.from([0xff, 0xff]),
    });
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({ code: 'invalid_argument' });
    expect(door.flows.reached).toEqual([]);
  });

  it('text that is not UTF-8, in whatever form, rather than published with other characters in its place', async () => {
    const body = Buffer.from('{"authorId":"a","text":"caf\xe9"}', 'latin1');
    const refusal = { status: 400, error: { code: 'invalid_argument' }, reasons: ['INVALID_MESSAGE'] };
    expect(await postJson('PostService/PublishPost', body)).toMatchObject(refusal);
    const binary = Buffer.from('\x0a\x01a\x12\x04caf\xe9', 'latin1');
    expect(await postJson('PostService/PublishPost', binary, 'application/proto')).toMatchObject(refusal);
    expect(door.flows.reached).toEqual([]);
  });

  it('half of a surrogate pair, whether the decoder finds it or we do', async () => {
    const answer = await postJson('PostService/PublishPost', '{"authorId":"a","text":"\\ud83c"}');
    expect(answer).toMatchObject({ status: 400, error: { code: 'invalid_argument' }, reasons: ['INVALID_MESSAGE'] });
    expect(() => readFields((fields) => fields.text('text', '\ud83c', 10))).toThrow(
      'text: holds half of a surrogate pair',
    );
  });
});

describe('a request reaches its flow', () => {
  it('at every bound: the largest ID, 5,000 code points outside the basic plane, 100 posts, 500 follows', async () => {
    const postId = String(Number.MAX_SAFE_INTEGER);
    for (const client of [grpc, json]) {
      const single = await client.unary(posts.getPost, { viewerId: 'a', postId }, { headers });
      expect(single.message.view?.post?.postId).toBe('9007199254740991');
      const text = wave.repeat(5_000);
      const published = await client.unary(posts.publishPost, publish({ text }), { headers });
      expect(published.message.post).toMatchObject({ postId: '9007199254740991', text });
      await client.unary(
        posts.batchGetPosts,
        { viewerId: 'a', postIds: Array.from({ length: 100 }, (_, index) => String(index + 1)) },
        { headers },
      );
      await client.unary(
        graph.batchFollow,
        { followerId: 'a', followeeIds: Array.from({ length: 500 }, (_, index) => `f${index}`) },
        { headers },
      );
    }
  });

  it('with its page size brought into range, and repeated posts once', async () => {
    for (const [asked, given] of [
      [0, 50],
      [1, 1],
      [100, 100],
      [101, 100],
      [1_000_000_000, 100],
    ] as const) {
      await json.unary(timeline.getHomeTimeline, { viewerId: 'a', pageSize: asked, pageToken: '!!!' }, { headers });
      expect(door.flows.reached.at(-1)?.input).toEqual({ viewer: 'a', pageSize: given, pageToken: '!!!' });
    }
    await grpc.unary(posts.batchGetPosts, { viewerId: 'a', postIds: ['3', '1', '3'] }, { headers });
    expect(door.flows.reached.at(-1)?.input).toEqual({ viewer: 'a', postIds: [3, 1] });
    const { message } = await grpc.unary(graph.batchFollow, { followerId: 'a', followeeIds: ['c', 'b'] }, { headers });
    expect(message.results.map(({ followeeId, refusal }) => [followeeId, refusal])).toEqual([
      ['c', 1],
      ['b', 0],
    ]);
  });

  it('with absent fields absent', async () => {
    await grpc.unary(posts.updatePost, { authorId: 'a', postId: '7' }, { headers });
    expect(door.flows.reached.at(-1)?.input).toEqual({ author: 'a', postId: 7 });
    await grpc.unary(
      posts.updatePost,
      { authorId: 'a', postId: '7', text: '', media: {}, expectedMetaVersion: 2n },
      { headers },
    );
    expect(door.flows.reached.at(-1)?.input).toEqual({
      author: 'a',
      postId: 7,
      text: '',
      media: [],
      expectedMetaVersion: 2,
    });
    await grpc.unary(posts.publishPost, { authorId: 'a', text: 'x' }, { headers });
    expect(door.flows.reached.at(-1)?.input).toEqual({ author: 'a', text: 'x', media: [], visibility: 'public' });
    await grpc.unary(graph.mute, { muterId: 'a', mutedId: 'b' }, { headers });
    expect(door.flows.reached.at(-1)?.input).toEqual({ muter: 'a', muted: 'b' });
  });

  it('with the tenant of its key', async () => {
    await grpc.unary(timeline.getHomeTimeline, { viewerId: 'a' }, { headers });
    expect(door.flows.reached.at(-1)?.call.tenant).toBe('tenant-a');
  });
});

describe('authors whose IDs are names of an object’s own parts', () => {
  it('reach every client, and nothing is polluted', async () => {
    for (const client of [grpc, json]) {
      const { message } = await client.unary(timeline.getHomeTimeline, { viewerId: ODD_VIEWER }, { headers });
      expect(Object.keys(message.authors).sort()).toEqual([...ODD_AUTHORS].sort());
      for (const author of ODD_AUTHORS) {
        const profile = Object.getOwnPropertyDescriptor(message.authors, author)?.value;
        expect(profile).toMatchObject({ authorId: author, displayName: `The ${author}` });
      }
    }
    await grpc.unary(timeline.getHomeTimeline, { viewerId: '__proto__' }, { headers });
    expect(({} as { displayName?: string }).displayName).toBeUndefined();
    expect(Object.keys(Object.prototype)).toEqual([]);
  });

  it('are there in the JSON as it goes over the wire', async () => {
    const { text } = await postJson('TimelineService/GetHomeTimeline', JSON.stringify({ viewerId: ODD_VIEWER }));
    for (const author of ODD_AUTHORS) expect(text).toContain(`"${author}":{"authorId":"${author}"`);
  });
});

async function postJson(path: string, body: string | Buffer<ArrayBuffer>, contentType = 'application/json') {
  const response = await fetch(`http://127.0.0.1:${door.httpPort}/tributary.v1.${path}`, {
    method: 'POST',
    headers: { ...headers, 'content-type': contentType },
    body,
  });
  const text = await response.text();
  const error = JSON.parse(text) as { code?: string; details?: { type: string; value: string }[] };
  const reasons = (error.details ?? [])
    .filter((detail) => detail.type === 'google.rpc.ErrorInfo')
    .map((detail) => /[A-Z_]{5,}/.exec(Buffer.from(detail.value, 'base64').toString('latin1'))?.[0]);
  return { status: response.status, text, error, reasons };
}
