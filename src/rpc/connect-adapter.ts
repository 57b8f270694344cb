/**
 * Owns the way from a Node request to the chain and back, for Connect (JSON and binary), gRPC-Web and gRPC on the HTTP port. Framing is
 * connect-node's; deadlines, errors and records are ours.
 *
 * connect-node's own adapter is not used: it rejects a deadline that is too long instead of clamping it, lets a malformed Host header
 * throw out of the request handler, which ends the process, and leaves no place to complete its errors.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { fromBinary } from '@bufbuild/protobuf';
import { createConnectRouter, createContextKey, createContextValues, type HandlerContext } from '@connectrpc/connect';
import {
  compressionGzip,
  universalRequestFromNodeRequest,
  universalResponseToNodeResponse,
} from '@connectrpc/connect-node';
import { TributaryError } from '../errors.ts';
import type { Clock, Log, Random } from '../runtime.ts';
import { type Arrival, connectTimeoutMs, grpcTimeoutMs, REQUEST_ID_HEADER, requestIdFrom } from './arrival.ts';
import type { CallChain } from './call-chain.ts';
import {
  completeResponse,
  connectErrorFrom,
  errorFormOf,
  errorResponse,
  type NameForeignError,
} from './connect-errors.ts';
import { asTributaryError, statusOf } from './errors-to-wire.ts';
import { reasonOfForeignError } from './foreign-errors.ts';
import type { Method, MethodTable } from './methods.ts';

/** Of HTTP/1 or, by Node's compatible interface, of HTTP/2. */
export type NodeRequest = IncomingMessage;
export type NodeResponse = ServerResponse;

/** True where the request was for a method, or tried to be. */
export type ConnectAdapter = (request: NodeRequest, response: NodeResponse) => boolean;

interface CallState {
  readonly arrival: Arrival;
  /** Whether the chain has taken the call, and so records it. */
  begun: boolean;
}

const stateKey = createContextKey<CallState | undefined>(undefined);
/** Nothing of a request is left out or read as something else without a word. */
const JSON_OPTIONS = {
  // A field or a value that is misspelled: a post that was to be private would be public.
  ignoreUnknownFields: false,
  // Bytes that are no UTF-8: a decoder by itself puts U+FFFD in their place. connect-node takes it, and leaves it out of its type.
  textDecoder: new TextDecoder('utf-8', { fatal: true }),
};
const RPC_CONTENT_TYPE = /^application\/(?:grpc|connect\+|proto\b|json\b)/;
const RPC_PATH = /^\/[^/]+\/[^/]+$/;

export function createConnectAdapter(parts: {
  readonly table: MethodTable;
  readonly chain: CallChain;
  readonly messageBytesMax: number;
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
}): ConnectAdapter {
  const { table, chain, messageBytesMax, clock, random, log } = parts;
  const router = createConnectRouter({
    readMaxBytes: messageBytesMax,
    acceptCompression: [compressionGzip],
    // Answers are never compressed: they are small, and gzip doubles what they cost.
    compressMinBytes: Number.MAX_SAFE_INTEGER,
    jsonOptions: JSON_OPTIONS,
  });
  const byPath = new Map<string, { readonly method: Method; readonly handler: (typeof router.handlers)[number] }>();
  for (const method of table.methods) {
    router.rpc(method.descriptor, implementationOf(method, chain) as never);
    const handler = router.handlers.at(-1);
    if (handler !== undefined) byPath.set(`/${method.name}`, { method, handler });
  }

  async function answer(request: NodeRequest, response: NodeResponse, path: string): Promise<void> {
    const arrivedAtMs = clock.monotonicMs();
    const requestId = requestIdFrom(headerOf(request, REQUEST_ID_HEADER), random);
    const arrived = { listener: 'http', requestId, arrivedAtMs } as const;
    const found = byPath.get(path);
    const form = errorFormOf(headerOf(request, 'content-type') ?? '');
    if (found === undefined) {
      const error = new TributaryError('UNKNOWN_METHOD', { message: 'the server has no such method' });
      chain.refused(undefined, arrived, error);
      const header = new Headers({ [REQUEST_ID_HEADER]: requestId });
      await universalResponseToNodeResponse(errorResponse(statusOf(error), form, header), response);
      return;
    }
    const contextValues = createContextValues();
    const universal = universalRequestFromNodeRequest(request, response, undefined, contextValues);
    const timeoutMs = takeTimeout(universal.header);
    const authorization = universal.header.get('authorization') ?? undefined;
    const state: CallState = {
      arrival: { ...arrived, authorization, timeoutMs, left: universal.signal },
      begun: false,
    };
    contextValues.set(stateKey, state);
    const nameForeign: NameForeignError = (code, text) => {
      const known = reasonOfForeignError(code, state.begun);
      // connect-node says which field of the caller's own message it could not read.
      const message = code === 'INVALID_ARGUMENT' && text !== '' ? `${known.message}: ${text}` : known.message;
      const error = new TributaryError(known.reason, { message });
      if (!state.begun) chain.refused(found.method, arrived, error, known.code);
      return statusOf(error, known.code);
    };
    const completed = await completeResponse(await found.handler(universal), form, nameForeign);
    const header = new Headers(completed.header);
    header.set(REQUEST_ID_HEADER, requestId);
    await universalResponseToNodeResponse({ ...completed, header }, response);
  }

  return (request, response) => {
    const path = (request.url ?? '').split('?', 1)[0] ?? '';
    const isRpc = RPC_CONTENT_TYPE.test(headerOf(request, 'content-type') ?? '') && RPC_PATH.test(path);
    if (!byPath.has(path) && !isRpc) return false;
    answer(request, response, path).catch((error: unknown) => {
      // The caller has left, or sent something that cannot be told apart from noise.
      log.debug({ err: error }, 'a request ended without an answer');
      if (!response.headersSent) response.writeHead(400);
      response.end();
    });
    return true;
  };
}

function implementationOf(method: Method, chain: CallChain) {
  const begin = (context: HandlerContext): Arrival => {
    const state = context.values.get(stateKey);
    if (state === undefined) throw new Error('a call came past the adapter');
    state.begun = true;
    return state.arrival;
  };
  if (method.kind === 'unary') {
    const { output } = method.descriptor;
    return async (request: unknown, context: HandlerContext): Promise<unknown> => {
      const write = (answer: unknown): unknown => (answer instanceof Uint8Array ? fromBinary(output, answer) : answer);
      try {
        return await chain.unary(method, begin(context), { read: () => request, write });
      } catch (error) {
        throw connectErrorFrom(asTributaryError(error));
      }
    };
  }
  return async function* (input: unknown, context: HandlerContext): AsyncIterable<unknown> {
    const requests =
      method.descriptor.methodKind === 'server_streaming' ? once(input) : (input as AsyncIterable<unknown>);
    try {
      yield* chain.stream(method, begin(context), requests);
    } catch (error) {
      throw connectErrorFrom(asTributaryError(error));
    }
  };
}

/** Takes the deadline out of the headers, so that the chain alone keeps it; a malformed one stays, for connect-node to refuse. */
function takeTimeout(header: Headers): number | undefined {
  for (const [key, read] of [
    ['connect-timeout-ms', connectTimeoutMs],
    ['grpc-timeout', grpcTimeoutMs],
  ] as const) {
    const timeoutMs = read(header.get(key) ?? '');
    if (timeoutMs === undefined) continue;
    header.delete(key);
    return timeoutMs;
  }
  return undefined;
}

function headerOf(request: NodeRequest, name: string): string | undefined {
  const value = request.headers[name];
  return Array.isArray(value) ? value[0] : value;
}

async function* once(value: unknown): AsyncIterable<unknown> {
  yield value;
}
