/** Requests of any size and inflation cost a bounded amount of memory, and the calls beside them nothing. */
import { connect as connectHttp2 } from 'node:http2';
import { gzipSync } from 'node:zlib';
import { create, toBinary } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import {
  BatchGetPostsRequestSchema,
  PostService,
  PublishPostRequestSchema,
} from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { failureOf, openClient, type TestClient } from './clients.ts';
import { SERVICE_KEY, startDoor, type TestDoor } from './door.ts';

const authorization = `Bearer ${SERVICE_KEY}`;
const MIB = 1_024 * 1_024;
/** What one refused request may leave in memory: well above a message of 1 MiB, far below what it would inflate to. */
const RISE_MAX_BYTES = 60 * MIB;

/** 300 MiB of zeroes in some 300 KiB: compressed once, sent to each protocol. */
const bomb = gzipSync(Buffer.alloc(300 * MIB), { level: 9 });

let door: TestDoor;
let bystander: TestClient;
let rssBefore = 0;
beforeAll(async () => {
  door = await startDoor();
  bystander = openClient('grpc-js on the gRPC port', door);
});
afterAll(async () => {
  bystander.close();
  await door.frontDoor.stop();
});
beforeEach(async () => {
  await bystander.unary(TimelineService.method.getHomeTimeline, { viewerId: 'a' }, { headers: { authorization } });
  rssBefore = process.memoryUsage().rss;
});
afterEach(async () => {
  expect(process.memoryUsage().rss - rssBefore).toBeLessThan(RISE_MAX_BYTES);
  expect(door.flows.reached.filter(({ flow }) => flow !== 'page')).toEqual([]);
  await bystander.unary(TimelineService.method.getHomeTimeline, { viewerId: 'a' }, { headers: { authorization } });
});

describe('a request that inflates to 300 MiB', () => {
  it.each([
    { protocol: 'Connect binary', contentType: 'application/proto', encoding: 'content-encoding' },
    { protocol: 'Connect JSON', contentType: 'application/json', encoding: 'content-encoding' },
  ])('is refused by $protocol', async ({ contentType, encoding }) => {
    for (let round = 0; round < 5; round += 1) {
      const response = await fetch(`http://127.0.0.1:${door.httpPort}/tributary.v1.PostService/PublishPost`, {
        method: 'POST',
        headers: { authorization, 'content-type': contentType, [encoding]: 'gzip' },
        body: bomb,
      });
      const error = (await response.json()) as { code: string; details: { value: string }[] };
      expect(error.code).toBe('resource_exhausted');
      expect(Buffer.from(error.details[0]?.value ?? '', 'base64').toString('latin1')).toContain('MESSAGE_TOO_LARGE');
    }
  });

  it.each([{ port: 'gRPC' }, { port: 'HTTP' }])('is refused by gRPC on the $port port', async ({ port }) => {
    for (let round = 0; round < 5; round += 1) {
      const trailers = await sendGrpc(port === 'gRPC' ? door.grpcPort : door.httpPort, bomb, { compressed: true });
      expect(trailers['grpc-status']).toBe('8');
      expect(Buffer.from(trailers['grpc-status-details-bin'] ?? '', 'base64').toString('latin1')).toContain(
        'MESSAGE_TOO_LARGE',
      );
    }
  });
});

describe('a request of 5 MiB', () => {
  it.each([{ port: 'gRPC' }, { port: 'HTTP' }])(
    'is refused by gRPC on the $port port before it is read',
    async ({ port }) => {
      const body = toBinary(
        PublishPostRequestSchema,
        create(PublishPostRequestSchema, { authorId: 'a', text: 'x'.repeat(5 * MIB) }),
      );
      const trailers = await sendGrpc(port === 'gRPC' ? door.grpcPort : door.httpPort, body, { compressed: false });
      expect(trailers['grpc-status']).toBe('8');
    },
  );
});

describe('a message that cannot be inflated', () => {
  it.each([{ port: 'gRPC' }, { port: 'HTTP' }])(
    'is the fault of its caller by gRPC on the $port port',
    async ({ port }) => {
      for (const body of [Buffer.from('this is no gzip'), bomb.subarray(0, 1_000)]) {
        const trailers = await sendGrpc(port === 'gRPC' ? door.grpcPort : door.httpPort, body, { compressed: true });
        expect(trailers['grpc-status']).toBe('3');
        expect(Buffer.from(trailers['grpc-status-details-bin'] ?? '', 'base64').toString('latin1')).toContain(
          'INVALID_MESSAGE',
        );
      }
    },
  );
});

describe('a list of 100,000 entries', () => {
  it('is refused for its length, by both protocols', async () => {
    const postIds = Array(100_000).fill('1');
    expect(toBinary(BatchGetPostsRequestSchema, create(BatchGetPostsRequestSchema, { postIds })).length).toBeLessThan(
      MIB,
    );
    for (const name of ['grpc-js on the gRPC port', 'Connect binary over HTTP/1.1'] as const) {
      const client = openClient(name, door);
      const failure = await failureOf(
        client.unary(PostService.method.batchGetPosts, { viewerId: 'a', postIds }, { headers: { authorization } }),
      );
      expect(failure).toMatchObject({ code: 'INVALID_ARGUMENT', fields: ['post_ids'] });
      client.close();
    }
  });
});

describe('a caller who asks by reflection and reads no answer', () => {
  it.each([{ port: 'gRPC' }, { port: 'HTTP' }])('is asked no further on the $port port', async ({ port }) => {
    const session = connectHttp2(`http://127.0.0.1:${port === 'gRPC' ? door.grpcPort : door.httpPort}`);
    session.on('error', () => undefined);
    const stream = session.request({
      ':method': 'POST',
      ':path': '/grpc.reflection.v1.ServerReflection/ServerReflectionInfo',
      'content-type': 'application/grpc',
      te: 'trailers',
    });
    stream.on('error', () => undefined);
    // Each question of some thirty bytes has an answer of some twenty kilobytes.
    const symbol = Buffer.from('tributary.v1.PostService');
    const question = Buffer.concat([Buffer.from([0, 0, 0, 0, symbol.length + 2, 0x22, symbol.length]), symbol]);
    let taken = 0;
    const ask = (): void => {
      stream.write(Buffer.concat(Array(100).fill(question)), () => {
        taken += 100;
        if (taken < 40_000) ask();
      });
    };
    ask();
    for (let before = -1; taken > before; await new Promise((resolve) => setTimeout(resolve, 500))) before = taken;
    expect(taken).toBeLessThan(40_000);
    session.destroy();
  });
});

/** One gRPC call by hand; the answer is its trailers. */
function sendGrpc(
  port: number,
  message: Uint8Array,
  options: { readonly compressed: boolean },
): Promise<Record<string, string>> {
  const head = Buffer.alloc(5);
  head.writeUInt8(options.compressed ? 1 : 0, 0);
  head.writeUInt32BE(message.length, 1);
  return new Promise((resolve, reject) => {
    const session = connectHttp2(`http://127.0.0.1:${port}`);
    session.on('error', reject);
    const stream = session.request({
      ':method': 'POST',
      ':path': '/tributary.v1.PostService/PublishPost',
      'content-type': 'application/grpc',
      'grpc-encoding': 'gzip',
      te: 'trailers',
      authorization,
    });
    let received: Record<string, string> = {};
    const take = (headers: object): void => {
      if ('grpc-status' in headers) received = headers as Record<string, string>;
    };
    stream.on('response', take);
    stream.on('trailers', take);
    // Once it has refused, the server may reset the stream while we still send.
    stream.on('error', () => undefined);
    stream.on('close', () => {
      session.destroy();
      resolve(received);
    });
    stream.resume();
    stream.end(Buffer.concat([head, message]));
  });
}
