/**
 * Owns the clients that the front door has to serve: one form for all of them, so that one suite can ask each the same. A failed call throws a
 * `Failure`, made from what that client's own library shows of the error.
 */

import { Agent } from 'node:http';
import {
  create,
  type DescMessage,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf';
import { anyUnpack } from '@bufbuild/protobuf/wkt';
import { type Code, ConnectError, type Transport } from '@connectrpc/connect';
import {
  createConnectTransport,
  createGrpcTransport,
  createGrpcWebTransport,
  Http2SessionManager,
} from '@connectrpc/connect-node';
import * as grpc from '@grpc/grpc-js';
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../../src/gen/google/rpc/error_details_pb.ts';
import { StatusSchema } from '../../src/gen/google/rpc/status_pb.ts';
import { CODE_NAMES } from '../../src/metrics/rpc-metrics.ts';

export interface Ports {
  readonly grpcPort: number;
  readonly httpPort: number;
}

export interface CallOptions {
  readonly timeoutMs?: number;
  readonly signal?: AbortSignal;
  readonly headers?: Readonly<Record<string, string>>;
}

export interface Answer<Output extends DescMessage> {
  readonly message: MessageShape<Output>;
  /** Value of a response header, as the client shows it. */
  header(name: string): string | undefined;
}

export interface TestClient {
  readonly name: string;
  /** The longest deadline that the client itself can keep. */
  readonly timeoutMaxMs: number;
  unary<Input extends DescMessage, Output extends DescMessage>(
    method: DescMethodUnary<Input, Output>,
    request: MessageInitShape<Input>,
    options?: CallOptions,
  ): Promise<Answer<Output>>;
  close(): void;
}

export class Failure extends Error {
  readonly code: string;
  readonly reasons: readonly string[];
  readonly fields: readonly string[];
  readonly retryAfterMs: number | undefined;

  constructor(facts: {
    code: string;
    message: string;
    reasons: readonly string[];
    fields: readonly string[];
    retryAfterMs: number | undefined;
  }) {
    super(facts.message);
    this.code = facts.code;
    this.reasons = facts.reasons;
    this.fields = facts.fields;
    this.retryAfterMs = facts.retryAfterMs;
  }
}

/** The failure of a call. Throws where it did not fail, or failed in another way. */
export async function failureOf(call: Promise<unknown>): Promise<Failure> {
  try {
    await call;
  } catch (error) {
    if (error instanceof Failure) return error;
    throw error;
  }
  throw new Error('the call was expected to fail');
}

export const CLIENT_NAMES = [
  'grpc-js on the gRPC port',
  'grpc-js on the HTTP port',
  'connect-node gRPC on the gRPC port',
  'connect-node gRPC on the HTTP port',
  'Connect JSON over HTTP/1.1',
  'Connect JSON over HTTP/2',
  'Connect binary over HTTP/1.1',
  'Connect binary over HTTP/2',
  'gRPC-Web over HTTP/1.1',
  'gRPC-Web over HTTP/2',
] as const;
export type ClientName = (typeof CLIENT_NAMES)[number];

export function openClient(name: ClientName, { grpcPort, httpPort }: Ports): TestClient {
  switch (name) {
    case 'grpc-js on the gRPC port':
      return grpcJsClient(name, grpcPort);
    case 'grpc-js on the HTTP port':
      return grpcJsClient(name, httpPort);
    case 'connect-node gRPC on the gRPC port':
      return overHttp2(name, grpcPort, (options) => createGrpcTransport(options));
    case 'connect-node gRPC on the HTTP port':
      return overHttp2(name, httpPort, (options) => createGrpcTransport(options));
    case 'Connect JSON over HTTP/1.1':
      return overHttp1(name, httpPort, (options) => createConnectTransport({ ...options, useBinaryFormat: false }));
    case 'Connect JSON over HTTP/2':
      return overHttp2(name, httpPort, (options) =>
        createConnectTransport({ ...options, httpVersion: '2', useBinaryFormat: false }),
      );
    case 'Connect binary over HTTP/1.1':
      return overHttp1(name, httpPort, (options) => createConnectTransport({ ...options, useBinaryFormat: true }));
    case 'Connect binary over HTTP/2':
      return overHttp2(name, httpPort, (options) =>
        createConnectTransport({ ...options, httpVersion: '2', useBinaryFormat: true }),
      );
    case 'gRPC-Web over HTTP/1.1':
      return overHttp1(name, httpPort, (options) => createGrpcWebTransport(options));
    case 'gRPC-Web over HTTP/2':
      return overHttp2(name, httpPort, (options) => createGrpcWebTransport({ ...options, httpVersion: '2' }));
    default:
      return name satisfies never;
  }
}

function overHttp2(
  name: string,
  port: number,
  make: (options: { baseUrl: string; sessionManager: Http2SessionManager }) => Transport,
): TestClient {
  const baseUrl = `http://127.0.0.1:${port}`;
  const sessionManager = new Http2SessionManager(baseUrl);
  return connectClient(name, make({ baseUrl, sessionManager }), () => sessionManager.abort());
}

function overHttp1(
  name: string,
  port: number,
  make: (options: { baseUrl: string; httpVersion: '1.1'; nodeOptions: { agent: Agent } }) => Transport,
): TestClient {
  const agent = new Agent({ keepAlive: true });
  const transport = make({ baseUrl: `http://127.0.0.1:${port}`, httpVersion: '1.1', nodeOptions: { agent } });
  return connectClient(name, transport, () => agent.destroy());
}

function connectClient(name: string, transport: Transport, close: () => void): TestClient {
  return {
    name,
    // It sets a timer for its deadline, and a longer timer would fire at once.
    timeoutMaxMs: 2 ** 31 - 1,
    close,
    async unary(method, request, options = {}) {
      try {
        const { message, header } = await transport.unary(
          method,
          options.signal,
          options.timeoutMs,
          { ...options.headers },
          request,
        );
        return { message, header: (key) => header.get(key) ?? undefined };
      } catch (error) {
        throw failureFrom(ConnectError.from(error));
      }
    },
  };
}

function failureFrom(error: ConnectError): Failure {
  const retry = error.findDetails(RetryInfoSchema)[0]?.retryDelay;
  return new Failure({
    code: CODE_NAMES[error.code as Code] ?? 'UNKNOWN',
    message: error.rawMessage,
    reasons: error.findDetails(ErrorInfoSchema).map((info) => info.reason),
    fields: error
      .findDetails(BadRequestSchema)
      .flatMap((bad) => bad.fieldViolations.map((violation) => violation.field)),
    retryAfterMs: retry === undefined ? undefined : Number(retry.seconds) * 1_000 + retry.nanos / 1e6,
  });
}

function grpcJsClient(name: string, port: number): TestClient {
  const client = new grpc.Client(`127.0.0.1:${port}`, grpc.credentials.createInsecure(), {
    // A channel of its own for each client, so that closing one does not keep another's connection.
    'grpc.use_local_subchannel_pool': 1,
    'grpc.enable_retries': 0,
  });
  return {
    name,
    timeoutMaxMs: Number.MAX_SAFE_INTEGER,
    close: () => client.close(),
    unary: (method, request, options = {}) =>
      new Promise((resolve, reject) => {
        const metadata = new grpc.Metadata();
        for (const [key, value] of Object.entries(options.headers ?? {})) metadata.set(key, value);
        let headers: grpc.Metadata | undefined;
        const call = client.makeUnaryRequest(
          `/${method.parent.typeName}/${method.name}`,
          (message: MessageShape<typeof method.input>) => Buffer.from(toBinary(method.input, message)),
          (bytes: Buffer) => fromBinary(method.output, bytes),
          create(method.input, request),
          metadata,
          options.timeoutMs === undefined ? {} : { deadline: Date.now() + options.timeoutMs },
          (error, message) => {
            if (error) reject(failureFromGrpc(error));
            else if (message === undefined) reject(new Error('no message'));
            else resolve({ message, header: (key) => headers?.get(key)[0]?.toString() });
          },
        );
        call.on('metadata', (received) => {
          headers = received;
        });
        options.signal?.addEventListener('abort', () => call.cancel());
      }),
  };
}

function failureFromGrpc(error: grpc.ServiceError): Failure {
  const [bytes] = error.metadata.get('grpc-status-details-bin');
  const details = bytes instanceof Buffer ? fromBinary(StatusSchema, bytes).details : [];
  const retry = details.map((any) => anyUnpack(any, RetryInfoSchema)).find((info) => info !== undefined)?.retryDelay;
  return new Failure({
    code: CODE_NAMES[error.code] ?? 'UNKNOWN',
    message: error.details,
    reasons: details.flatMap((any) => anyUnpack(any, ErrorInfoSchema)?.reason ?? []),
    fields: details.flatMap(
      (any) => anyUnpack(any, BadRequestSchema)?.fieldViolations.map((violation) => violation.field) ?? [],
    ),
    retryAfterMs: retry === undefined ? undefined : Number(retry.seconds) * 1_000 + retry.nanos / 1e6,
  });
}
