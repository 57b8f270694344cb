/**
 * Owns the gRPC port: @grpc/grpc-js in front of the same chain and methods as the HTTP port. Messages cross it as bytes: the chain decodes
 * and encodes them, so that every fault is mapped in one place, and an answer that is encoded already is sent as it is.
 *
 * The port and its sockets are ours, and grpc-js gets a connection once it has begun to speak HTTP/2; so a silent socket is closed, and what
 * is left after a drain can be cut.
 */
import { once } from 'node:events';
import { createServer } from 'node:net';
import { create, fromBinary, toBinary } from '@bufbuild/protobuf';
import * as grpc from '@grpc/grpc-js';
import type { Config } from '../config.ts';
import { TributaryError } from '../errors.ts';
import type { Clock, Random, Runtime } from '../runtime.ts';
import { type Arrival, REQUEST_ID_HEADER, requestIdFrom } from './arrival.ts';
import { type CallChain, decoded } from './call-chain.ts';
import { CONNECTIONS_MAX, createConnections } from './connections.ts';
import { asTributaryError } from './errors-to-wire.ts';
import { grpcFailureFrom } from './grpc-errors.ts';
import { answerUnknownMethods, completeForeignErrors, timeoutOf } from './grpc-foreign.ts';
import {
  CONCURRENT_STREAMS_MAX,
  IDLE_MAX_MS,
  type Listener,
  listenOn,
  SESSION_MEMORY_MAX_MB,
  TCP_KEEPALIVE_MS,
} from './listener.ts';
import type { MethodTable, StreamMethod, UnaryMethod } from './methods.ts';

/** A session is asked for a sign of life this often, and given up when none comes, in milliseconds. */
const PING_EVERY_MS = 60_000;
const PING_ANSWER_MAX_MS = 20_000;

/** Made once: without a reason each abort would make an error with its stack. */
const LEFT = 'the stream is over';

export function createGrpcListener(parts: {
  readonly config: Pick<Config, 'host' | 'grpcPort' | 'connectionAgeMaxMs' | 'drainTimeoutMs' | 'messageBytesMax'>;
  readonly runtime: Runtime;
  readonly table: MethodTable;
  readonly chain: CallChain;
}): Listener {
  const { config, runtime, table, chain } = parts;
  const byPath = new Map(table.methods.map((method) => [`/${method.name}`, method]));
  const server = new grpc.Server({
    interceptors: [completeForeignErrors({ byPath, chain, clock: runtime.clock })],
    'grpc.max_receive_message_length': config.messageBytesMax,
    'grpc.max_concurrent_streams': CONCURRENT_STREAMS_MAX,
    'grpc-node.max_session_memory': SESSION_MEMORY_MAX_MB,
    'grpc.max_connection_age_ms': config.connectionAgeMaxMs,
    'grpc.max_connection_age_grace_ms': config.drainTimeoutMs,
    'grpc.max_connection_idle_ms': IDLE_MAX_MS,
    'grpc.keepalive_time_ms': PING_EVERY_MS,
    'grpc.keepalive_timeout_ms': PING_ANSWER_MAX_MS,
    'grpc.enable_channelz': 0,
  });
  for (const service of table.services) {
    const methods = table.methods.filter((method) => method.descriptor.parent === service);
    server.addService(
      Object.fromEntries(methods.map((method) => [method.descriptor.localName, definitionOf(method)])),
      Object.fromEntries(
        methods.map((method) => [
          method.descriptor.localName,
          method.kind === 'unary' ? unaryHandler(method, chain, runtime) : streamHandler(method, chain, runtime),
        ]),
      ),
    );
  }
  answerUnknownMethods(server, (call) => {
    const { requestId, arrivedAtMs } = arrivalOf(call, runtime, new AbortController().signal);
    const error = new TributaryError('UNKNOWN_METHOD', { message: 'the server has no such method' });
    chain.refused(undefined, { listener: 'grpc', requestId, arrivedAtMs }, error);
    return grpcFailureFrom(error, requestId);
  });

  const injector = server.createConnectionInjector(grpc.ServerCredentials.createInsecure());
  const connections = createConnections();
  const port = createServer({ noDelay: true, keepAlive: true, keepAliveInitialDelay: TCP_KEEPALIVE_MS }, (socket) => {
    connections.take(socket, (protocol) => {
      if (protocol === 'http2') injector.injectConnection(socket);
      else socket.end('HTTP/1.1 505 HTTP Version Not Supported\r\nconnection: close\r\ncontent-length: 0\r\n\r\n');
    });
  });
  port.maxConnections = CONNECTIONS_MAX;

  return {
    start: () => listenOn(port, { port: config.grpcPort, host: config.host }),
    drain() {
      const closed = new Promise<void>((resolve) => port.close(() => resolve()));
      connections.dropSilent();
      server.tryShutdown(() => undefined);
      return closed;
    },
    destroy: () => connections.destroy(),
  };
}

function definitionOf({ name, descriptor }: UnaryMethod | StreamMethod): grpc.MethodDefinition<Buffer, Buffer> {
  const asIs = (bytes: Buffer): Buffer => bytes;
  return {
    path: `/${name}`,
    requestStream: descriptor.methodKind === 'bidi_streaming',
    responseStream: descriptor.methodKind !== 'unary',
    requestSerialize: asIs,
    requestDeserialize: asIs,
    responseSerialize: asIs,
    responseDeserialize: asIs,
  };
}

type Surface = Pick<grpc.ServerUnaryCall<Buffer, Buffer>, 'metadata' | 'getDeadline'>;

function arrivalOf(call: Surface, { clock, random }: { clock: Clock; random: Random }, left: AbortSignal): Arrival {
  return {
    listener: 'grpc',
    requestId: requestIdFrom(firstOf(call.metadata, REQUEST_ID_HEADER), random),
    authorization: firstOf(call.metadata, 'authorization'),
    arrivedAtMs: clock.monotonicMs(),
    timeoutMs: timeoutOf(call.getDeadline()),
    left,
  };
}

function unaryHandler(method: UnaryMethod, chain: CallChain, runtime: Runtime): grpc.handleUnaryCall<Buffer, Buffer> {
  const { input, output } = method.descriptor;
  const write = (answer: unknown): Buffer =>
    bufferOf(answer instanceof Uint8Array ? answer : toBinary(output, create(output, answer as never)));
  return (call, respond) => {
    const left = new AbortController();
    let answered = false;
    // It is said of every call in the end, also of those that were answered, where nobody is there to hear it.
    call.once('cancelled', () => {
      if (!answered) left.abort(LEFT);
    });
    const arrival = arrivalOf(call, runtime, left.signal);
    chain.unary(method, arrival, { read: () => fromBinary(input, call.request), write }).then(
      (answer) => {
        answered = true;
        call.sendMetadata(headersOf(arrival));
        respond(null, answer);
      },
      (error: unknown) => {
        answered = true;
        respond(grpcFailureFrom(asTributaryError(error), arrival.requestId));
      },
    );
  };
}

function streamHandler(
  method: StreamMethod,
  chain: CallChain,
  runtime: Runtime,
): grpc.handleBidiStreamingCall<Buffer, Buffer> {
  const { input, output } = method.descriptor;
  /** Server streams hold their one request; streams both ways are read. */
  async function* requestsOf(
    call: grpc.ServerDuplexStream<Buffer, Buffer> & { readonly request?: Buffer },
  ): AsyncIterable<unknown> {
    const source = method.descriptor.methodKind === 'server_streaming' ? [call.request ?? Buffer.alloc(0)] : call;
    for await (const bytes of source) yield decoded(() => fromBinary(input, bytes as Buffer));
  }
  return (call) => {
    const left = new AbortController();
    call.once('cancelled', () => left.abort(LEFT));
    call.on('error', () => left.abort(LEFT));
    const arrival = arrivalOf(call, runtime, left.signal);
    call.sendMetadata(headersOf(arrival));
    const run = async (): Promise<void> => {
      for await (const answer of chain.stream(method, arrival, requestsOf(call))) {
        const taken = call.write(bufferOf(toBinary(output, create(output, answer as never))));
        // A caller who asks and never reads is asked no further: unread answers would pile up here.
        if (!taken) await once(call, 'drain', { signal: left.signal });
      }
      call.end();
    };
    run().catch((error: unknown) => {
      if (!left.signal.aborted) call.emit('error', grpcFailureFrom(asTributaryError(error), arrival.requestId));
    });
  };
}

function headersOf(arrival: Arrival): grpc.Metadata {
  const headers = new grpc.Metadata();
  headers.set(REQUEST_ID_HEADER, arrival.requestId);
  return headers;
}

function firstOf(metadata: grpc.Metadata, key: string): string | undefined {
  const [value] = metadata.get(key);
  return value === undefined ? undefined : String(value);
}

function bufferOf(bytes: Uint8Array): Buffer {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
