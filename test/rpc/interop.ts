/**
 * Owns what every client must find the same: one suite, run for each client library, protocol and HTTP version, against whatever service it
 * is pointed at.
 */
import { create, type DescMethodUnary } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { HealthCheckRequestSchema, type HealthCheckResponseSchema } from '../../src/gen/grpc/health/v1/health_pb.ts';
import { GraphService } from '../../src/gen/tributary/v1/graph_service_pb.ts';
import { PostService } from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { CLIENT_NAMES, failureOf, openClient, type Ports, type TestClient } from './clients.ts';

export interface InteropTarget {
  readonly name: string;
  /** Answers with ports and with an API key of the role service. */
  start(): Promise<Ports & { readonly key: string }>;
  stop(): Promise<void>;
  /** A viewer whose home timeline takes until the call's end, where the service can have one. */
  readonly hangingViewer?: string;
  /** Resolves once `count` calls of that viewer run in the service. */
  untilRunning?(count: number): Promise<void>;
}

const { getHomeTimeline } = TimelineService.method;
const { follow, putAuthor } = GraphService.method;
const { publishPost } = PostService.method;

/** A method that no service has, for clients that insist on a descriptor. */
const unknownMethod = {
  ...getHomeTimeline,
  name: 'GetNothing',
  localName: 'getNothing',
} as unknown as DescMethodUnary<typeof HealthCheckRequestSchema, typeof HealthCheckResponseSchema>;

export function describeInterop(target: InteropTarget): void {
  describe.each(CLIENT_NAMES)(`${target.name}, asked by %s`, (clientName) => {
    let client: TestClient;
    let headers: Record<string, string>;

    beforeAll(async () => {
      const { key, ...ports } = await target.start();
      client = openClient(clientName, ports);
      headers = { authorization: `Bearer ${key}` };
    });
    afterAll(async () => {
      client.close();
      await target.stop();
    });

    it('answers a unary call', async () => {
      const request = { authorId: 'interop', displayName: 'Überall 🌊', bio: 'x', protected: true };
      const { message } = await client.unary(putAuthor, request, { headers });
      expect(message.author).toMatchObject({ authorId: 'interop', displayName: 'Überall 🌊', protected: true });
    });

    it('echoes a sane request ID and makes up one else', async () => {
      const own = await client.unary(
        getHomeTimeline,
        { viewerId: 'interop' },
        { headers: { ...headers, 'x-request-id': 'req-1.~_' } },
      );
      expect(own.header('x-request-id')).toBe('req-1.~_');
      const odd = await client.unary(
        getHomeTimeline,
        { viewerId: 'interop' },
        { headers: { ...headers, 'x-request-id': 'no spaces!' } },
      );
      expect(odd.header('x-request-id')).toMatch(/^[0-9a-f]{24}$/);
    });

    it('shows the reason and every wrong field of a refused request', async () => {
      const failure = await failureOf(client.unary(follow, { followerId: 'no spaces', followeeId: '' }, { headers }));
      expect(failure).toMatchObject({ code: 'INVALID_ARGUMENT', reasons: ['INVALID_FIELD'] });
      expect(failure.fields).toEqual(['follower_id', 'followee_id']);
    });

    it('refuses a call without a key, and one with a key that nobody was given', async () => {
      const expected = { code: 'UNAUTHENTICATED', reasons: ['INVALID_API_KEY'] };
      const request = { viewerId: 'interop' };
      expect(await failureOf(client.unary(getHomeTimeline, request))).toMatchObject(expected);
      const unknown = { authorization: `Bearer tk_${'x'.repeat(43)}` };
      expect(await failureOf(client.unary(getHomeTimeline, request, { headers: unknown }))).toMatchObject(expected);
    });

    it('names an unknown method as such', async () => {
      const failure = await failureOf(client.unary(unknownMethod, create(HealthCheckRequestSchema), { headers }));
      expect(failure).toMatchObject({ code: 'UNIMPLEMENTED', reasons: ['UNKNOWN_METHOD'] });
    });

    it('refuses a message that is too large and goes on serving', async () => {
      const text = 'x'.repeat(5 * 1_024 * 1_024);
      const failure = await failureOf(client.unary(publishPost, { authorId: 'interop', text }, { headers }));
      expect(failure).toMatchObject({ code: 'RESOURCE_EXHAUSTED', reasons: ['MESSAGE_TOO_LARGE'] });
      await client.unary(getHomeTimeline, { viewerId: 'interop' }, { headers });
    });

    it('carries 5,000 code points outside the basic plane whole', async () => {
      const request = { authorId: 'interop', text: '🌊'.repeat(5_000) };
      const { message } = await client.unary(publishPost, request, { headers });
      expect(message.post?.text).toBe(request.text);
    });

    it('takes a deadline a month away for one that is as long as it may be', async () => {
      const timeoutMs = Math.min(30 * 24 * 3_600_000, client.timeoutMaxMs);
      await client.unary(getHomeTimeline, { viewerId: 'interop' }, { headers, timeoutMs });
    });

    const { hangingViewer } = target;
    if (hangingViewer === undefined) return;

    it('ends at the deadline', async () => {
      const failure = await failureOf(
        client.unary(getHomeTimeline, { viewerId: hangingViewer }, { headers, timeoutMs: 150 }),
      );
      expect(failure.code).toBe('DEADLINE_EXCEEDED');
    });

    it('hears of it when the caller leaves', async () => {
      const controller = new AbortController();
      const call = failureOf(
        client.unary(getHomeTimeline, { viewerId: hangingViewer }, { headers, signal: controller.signal }),
      );
      await target.untilRunning?.(1);
      controller.abort();
      expect((await call).code).toBe('CANCELLED');
      await target.untilRunning?.(0);
    });
  });
}
