/** What probes and tools rely on: health, reflection, and `buf curl` without a schema. */
import { execFile } from 'node:child_process';
import path from 'node:path';
import { promisify } from 'node:util';
import { fromBinary } from '@bufbuild/protobuf';
import { FileDescriptorProtoSchema } from '@bufbuild/protobuf/wkt';
import { Code, ConnectError, createClient, type Transport } from '@connectrpc/connect';
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
  Http2SessionManager,
} from '@connectrpc/connect-node';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { BadRequestSchema, ErrorInfoSchema } from '../../src/gen/google/rpc/error_details_pb.ts';
import { Health } from '../../src/gen/grpc/health/v1/health_pb.ts';
import { ServerReflection } from '../../src/gen/grpc/reflection/v1/reflection_pb.ts';
import { ServerReflection as ServerReflectionAlpha } from '../../src/gen/grpc/reflection/v1alpha/reflection_pb.ts';
import { SERVICE_KEY, startDoor, type TestDoor } from './door.ts';

const root = path.resolve(import.meta.dirname, '../..');
const run = promisify(execFile);

let door: TestDoor;
const managers: Http2SessionManager[] = [];
beforeAll(async () => {
  door = await startDoor();
});
afterAll(async () => {
  for (const manager of managers) manager.abort();
  await door.frontDoor.stop();
});

function options(port: number): { baseUrl: string; sessionManager: Http2SessionManager } {
  const baseUrl = `http://127.0.0.1:${port}`;
  const sessionManager = new Http2SessionManager(baseUrl);
  managers.push(sessionManager);
  return { baseUrl, sessionManager };
}

const TRANSPORTS: readonly { readonly name: string; readonly open: () => Transport }[] = [
  { name: 'gRPC on the gRPC port', open: () => createGrpcTransport(options(door.grpcPort)) },
  { name: 'gRPC on the HTTP port', open: () => createGrpcTransport(options(door.httpPort)) },
  { name: 'Connect over HTTP/2', open: () => createConnectTransport({ ...options(door.httpPort), httpVersion: '2' }) },
  { name: 'gRPC-Web over HTTP/2', open: () => createGrpcWebTransport({ ...options(door.httpPort), httpVersion: '2' }) },
];

describe.each(TRANSPORTS)('by $name', ({ open }) => {
  it('health answers for the server and for each service, without a key', async () => {
    const health = createClient(Health, open());
    for (const service of ['', 'tributary.v1.TimelineService', 'grpc.health.v1.Health']) {
      expect((await health.check({ service })).status).toBe(1);
    }
    const error = await health.check({ service: 'no.Such' }).catch((thrown: unknown) => ConnectError.from(thrown));
    expect(error).toMatchObject({ code: Code.NotFound });
    expect((error as ConnectError).findDetails(ErrorInfoSchema)).toMatchObject([{ reason: 'SERVICE_NOT_FOUND' }]);
  });

  it('health tells services that only read from those that change something, whose readiness is another', async () => {
    const health = createClient(Health, open());
    const statusOf = async (service: string) => (await health.check({ service })).status;
    door.setReady('for pages');
    try {
      for (const service of ['', 'tributary.v1.TimelineService', 'grpc.health.v1.Health'])
        expect(await statusOf(service)).toBe(1);
      for (const service of ['tributary.v1.PostService', 'tributary.v1.GraphService'])
        expect(await statusOf(service)).toBe(2);
    } finally {
      door.setReady(true);
    }
  });

  it('health follows readiness, answers at once, and says each change once', async () => {
    const health = createClient(Health, open());
    const leave = new AbortController();
    const seen: number[] = [];
    const ended = (async () => {
      for await (const { status } of health.watch({ service: 'tributary.v1.PostService' }, { signal: leave.signal })) {
        seen.push(status);
        if (seen.length === 1) {
          door.setReady(false);
          expect((await health.check({})).status).toBe(2);
        }
        if (seen.length === 2) {
          // A change to the same state is none.
          door.setReady(false);
          door.setReady(true);
        }
        if (seen.length === 3) leave.abort();
      }
    })();
    await expect(ended).rejects.toMatchObject({ code: Code.Canceled });
    expect(seen).toEqual([1, 2, 1]);
  });

  it('a watch of a service that the server does not have says so and stays', async () => {
    const health = createClient(Health, open());
    const leave = new AbortController();
    const iterator = health.watch({ service: 'no.Such' }, { signal: leave.signal })[Symbol.asyncIterator]();
    expect((await iterator.next()).value).toMatchObject({ status: 3 });
    leave.abort();
    await expect(iterator.next()).rejects.toMatchObject({ code: Code.Canceled });
  });

  it.each([
    { version: 'v1', service: ServerReflection },
    { version: 'v1alpha', service: ServerReflectionAlpha },
  ])('reflection $version tells services, files with their imports, and what it does not know', async ({ service }) => {
    // Both versions have one shape; only their names differ.
    const reflection = createClient(service as typeof ServerReflection, open());
    const questions = [
      { messageRequest: { case: 'listServices', value: '' } },
      { messageRequest: { case: 'fileContainingSymbol', value: 'tributary.v1.GraphService.Mute' } },
      { messageRequest: { case: 'fileByFilename', value: 'google/protobuf/timestamp.proto' } },
      { messageRequest: { case: 'fileContainingSymbol', value: 'tributary.v1.VISIBILITY_PUBLIC' } },
      { messageRequest: { case: 'fileContainingSymbol', value: 'tributary.v1.Nothing' } },
      { messageRequest: { case: 'allExtensionNumbersOfType', value: 'tributary.v1.Post' } },
      {
        messageRequest: {
          case: 'fileContainingExtension',
          value: { containingType: 'tributary.v1.Post', extensionNumber: 1 },
        },
      },
      {},
    ] as const;
    const answers = [];
    for await (const answer of reflection.serverReflectionInfo(
      (async function* () {
        yield* questions;
      })(),
    )) {
      answers.push(answer.messageResponse);
    }
    const [services, graph, timestamp, value, nothing, extensions, extension, empty] = answers;
    expect(services?.case === 'listServicesResponse' && services.value.service.map(({ name }) => name)).toEqual([
      'grpc.health.v1.Health',
      'grpc.reflection.v1.ServerReflection',
      'grpc.reflection.v1alpha.ServerReflection',
      'tributary.v1.GraphService',
      'tributary.v1.PostService',
      'tributary.v1.TimelineService',
    ]);
    expect(filesIn(graph)).toEqual([
      'tributary/v1/graph_service.proto',
      'google/protobuf/timestamp.proto',
      'tributary/v1/author.proto',
    ]);
    expect(filesIn(timestamp)).toEqual(['google/protobuf/timestamp.proto']);
    expect(filesIn(value)[0]).toBe('tributary/v1/post.proto');
    expect(nothing).toMatchObject({ case: 'errorResponse', value: { errorCode: 5 } });
    expect(extensions).toMatchObject({ case: 'allExtensionNumbersResponse', value: { extensionNumber: [] } });
    expect(extension).toMatchObject({ case: 'errorResponse', value: { errorCode: 5 } });
    expect(empty).toMatchObject({ case: 'errorResponse', value: { errorCode: 3 } });
  });
});

describe.each([{ port: 'grpcPort' }, { port: 'httpPort' }] as const)(
  'buf curl against $port, by reflection',
  ({ port }) => {
    it('calls GetHomeTimeline', async () => {
      const { stdout } = await bufCurl(['-d', '{"viewer_id":"alice","page_size":3}'], SERVICE_KEY);
      expect(JSON.parse(stdout)).toMatchObject({
        entries: [{ post: { authorId: 'alice' } }],
        completeness: 'COMPLETENESS_COMPLETE',
      });
    });

    it('shows the reason of a refusal', async () => {
      const refused = await bufCurl(['-d', '{"viewer_id":""}'], SERVICE_KEY).catch(
        (error: { stderr: string }) => error,
      );
      const error = JSON.parse(refused.stderr) as { code: string; details: { type: string; value: string }[] };
      expect(error.code).toBe('invalid_argument');
      expect(error.details.map(({ type }) => type)).toEqual(['google.rpc.ErrorInfo', 'google.rpc.BadRequest']);
      const [info, bad] = error.details.map(({ value }) => Buffer.from(value, 'base64'));
      expect(fromBinary(ErrorInfoSchema, info ?? Buffer.alloc(0)).reason).toBe('INVALID_FIELD');
      expect(fromBinary(BadRequestSchema, bad ?? Buffer.alloc(0)).fieldViolations).toMatchObject([
        { field: 'viewer_id' },
      ]);
    });

    function bufCurl(args: readonly string[], key: string): Promise<{ stdout: string; stderr: string }> {
      const url = `http://127.0.0.1:${door[port]}/tributary.v1.TimelineService/GetHomeTimeline`;
      const fixed = [
        'curl',
        '--http2-prior-knowledge',
        '--protocol',
        'grpc',
        url,
        '-H',
        `authorization: Bearer ${key}`,
      ];
      return run(path.join(root, 'node_modules/.bin/buf'), [...fixed, ...args], { cwd: root, timeout: 20_000 });
    }
  },
);

interface ReflectionAnswer {
  readonly case?: string | undefined;
  readonly value?: unknown;
}

function filesIn(answer: ReflectionAnswer | undefined): readonly string[] {
  if (answer?.case !== 'fileDescriptorResponse') throw new Error('not files');
  const { fileDescriptorProto } = answer.value as { fileDescriptorProto: Uint8Array[] };
  return fileDescriptorProto.map((bytes) => fromBinary(FileDescriptorProtoSchema, bytes).name);
}
