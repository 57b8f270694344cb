/**
 * Owns what has to reach past the surface of grpc-js: the errors it raises by itself get an ErrorInfo and a record, and a method that it does
 * not know is answered by us. Its version is pinned, and the interop suite fails when one of these stops working.
 */
import type * as grpc from '@grpc/grpc-js';
import { TributaryError } from '../errors.ts';
import { after, type Clock, systemClock } from '../runtime.ts';
import type { CallChain } from './call-chain.ts';
import { foreignErrorOf, type GrpcFailure, grpcFailureFrom } from './grpc-errors.ts';
import { RECEIVE_MAX_MS } from './listener.ts';
import type { Method } from './methods.ts';

/** A deadline this far in the past, in milliseconds, was never one: grpc-js keeps 32 bits of a timeout and takes a very long one for a negative. */
const WRAPPED_MS = 60_000;

/** Milliseconds that are left, by the system's clock, from which grpc-js makes deadlines; undefined without a deadline, Infinity where it is further away than grpc-js can tell. */
export function timeoutOf(deadline: grpc.Deadline): number | undefined {
  const atMs = deadline instanceof Date ? deadline.getTime() : deadline;
  if (!Number.isFinite(atMs)) return undefined;
  const leftMs = atMs - systemClock.nowMs();
  return leftMs < -WRAPPED_MS ? Number.POSITIVE_INFINITY : leftMs;
}

/**
 * Wraps what grpc-js itself sends as a call's end: too large, not inflatable, cut short, deadline passed. It also ends a request that takes
 * too long to arrive, and keeps a very long deadline from being taken for one that has passed.
 */
export function completeForeignErrors(parts: {
  readonly byPath: ReadonlyMap<string, Method>;
  readonly chain: Pick<CallChain, 'refused'>;
  readonly clock: Clock;
}): grpc.ServerInterceptor {
  const { byPath, chain, clock } = parts;
  return (descriptor, call) => {
    const arrivedAtMs = clock.monotonicMs();
    const method = byPath.get(descriptor.path);
    const send = call.sendStatus.bind(call);
    const start = call.start.bind(call);
    let received = false;
    call.sendStatus = (status) => {
      const foreign = foreignErrorOf(status);
      if (foreign === undefined) return send(status);
      if (foreign.code === 'DEADLINE_EXCEEDED' && timeoutOf(call.getDeadline()) === Number.POSITIVE_INFINITY) return;
      // Once the request is there the chain has it, and records it.
      if (!received)
        chain.refused(method, { listener: 'grpc', requestId: '', arrivedAtMs }, foreign.error, foreign.code);
      send(grpcFailureFrom(foreign.error, undefined, foreign.code));
    };
    const cancelTimer = after(RECEIVE_MAX_MS, () => {
      const error = new TributaryError('DEADLINE_EXCEEDED', { message: 'the request took too long to arrive' });
      chain.refused(method, { listener: 'grpc', requestId: '', arrivedAtMs }, error);
      send(grpcFailureFrom(error, undefined));
    });
    call.start = (listener) =>
      start({
        onReceiveMetadata: (metadata) => listener.onReceiveMetadata(metadata),
        onReceiveMessage: (message) => listener.onReceiveMessage(message),
        onReceiveHalfClose() {
          received = true;
          cancelTimer();
          listener.onReceiveHalfClose();
        },
        onCancel() {
          cancelTimer();
          listener.onCancel();
        },
      });
    // An interceptor may hand the call itself on; only its declared type is narrower.
    return call as unknown as grpc.ServerInterceptingCall;
  };
}

interface HandlerLookup {
  _retrieveHandler(path: string): unknown;
}

/** grpc-js answers unknown methods before any interceptor; this gives it a handler for them instead of none. */
export function answerUnknownMethods(
  server: grpc.Server,
  fail: (call: grpc.ServerDuplexStream<Buffer, Buffer>) => GrpcFailure,
): void {
  const lookup = server as unknown as HandlerLookup;
  const find = lookup._retrieveHandler.bind(server);
  const asIs = (bytes: Buffer): Buffer => bytes;
  const unknown = {
    // A stream both ways is answered at once, without waiting for a message.
    type: 'bidi',
    path: '',
    serialize: asIs,
    deserialize: asIs,
    func: (call: grpc.ServerDuplexStream<Buffer, Buffer>) => {
      call.on('error', () => undefined);
      call.emit('error', fail(call));
    },
  };
  lookup._retrieveHandler = (path) => find(path) ?? unknown;
}
