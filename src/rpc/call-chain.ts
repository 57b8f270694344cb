/**
 * Owns what happens round every handler, on both listeners and once: admission, deadline, key, decoding, encoding, one measure and one
 * log line. What leaves is an answer or a TributaryError, promptly at the deadline even where a handler ignores its signal.
 *
 * A handler that ignores its signal goes on counting as in flight until it settles: the bound is on work, not on answers.
 */
import { TributaryError } from '../errors.ts';
import type { Metrics } from '../metrics/metrics.ts';
import type { CodeName } from '../metrics/rpc-metrics.ts';
import type { Call, Clock, Log } from '../runtime.ts';
import type { ApiKey, ApiKeys } from './api-keys.ts';
import type { Arrival } from './arrival.ts';
import { type CallSignal, openCallSignal } from './call-signal.ts';
import { asTributaryError, codeOf } from './errors-to-wire.ts';
import { type Effect, type Method, NO_TENANT, type StreamMethod, type UnaryMethod } from './methods.ts';
import { type CallPriority, priorityOf } from './priority.ts';

export interface CallChain {
  /** `read` decodes the request; what it throws is the caller's fault. `write` turns the handler's answer into the listener's form. */
  unary<Answer>(
    method: UnaryMethod,
    arrival: Arrival,
    wire: { readonly read: () => unknown; readonly write: (answer: unknown) => Answer },
  ): Promise<Answer>;
  stream(method: StreamMethod, arrival: Arrival, requests: AsyncIterable<unknown>): AsyncGenerator<unknown, void, void>;
  /** Records a call that a listener answered without the chain; `method` is undefined where there is no such method. */
  refused(
    method: Method | undefined,
    arrival: Pick<Arrival, 'listener' | 'requestId' | 'arrivedAtMs'>,
    error: TributaryError,
    code?: CodeName,
  ): void;
  /** Handlers that run now, streams apart. */
  running(): number;
  /** From now on calls are refused as SHUTTING_DOWN. */
  close(): void;
  /** Resolves once no handler runs. */
  idle(): Promise<void>;
  /** Ends all calls and streams that are still open, as SHUTTING_DOWN. */
  abort(): void;
}

export interface CallLimits {
  readonly deadlines: {
    readonly readDefaultMs: number;
    readonly readMaxMs: number;
    readonly writeDefaultMs: number;
    readonly writeMaxMs: number;
  };
  readonly callsInFlightMax: number;
}

/** Streams serve probes and tools alone, so few are needed. */
const STREAMS_MAX = 1_000;
const RETRY_AFTER_MS = 200;
const UNKNOWN_METHOD = 'unknown';

export function createCallChain(parts: {
  readonly limits: CallLimits;
  readonly clock: Clock;
  readonly log: Log;
  readonly metrics: Pick<Metrics, 'rpcFinished' | 'fieldRejected' | 'watchCallsInFlight'>;
  readonly apiKeys: ApiKeys;
  /** Throws OVERLOADED where load says that a call of this priority is not to be served. Without it only the bound on calls in flight refuses. */
  readonly admit?: (priority: CallPriority) => void;
}): CallChain {
  const { limits, clock, log, metrics, apiKeys } = parts;
  const calls = new Set<CallSignal>();
  const streams = new Set<CallSignal>();
  const waitingForIdle = new Set<() => void>();
  let closed = false;
  metrics.watchCallsInFlight(() => calls.size);

  function elapsedMs(arrival: Pick<Arrival, 'arrivedAtMs'>): number {
    return clock.monotonicMs() - arrival.arrivedAtMs;
  }

  function record(
    method: Method | undefined,
    arrival: Pick<Arrival, 'listener' | 'requestId' | 'arrivedAtMs'>,
    end: { error?: TributaryError; code?: CodeName; tenant?: string },
  ): void {
    const seconds = Math.max(0, elapsedMs(arrival)) / 1_000;
    const code = end.code ?? (end.error === undefined ? 'OK' : codeOf(end.error.reason));
    const name = method?.name ?? UNKNOWN_METHOD;
    metrics.rpcFinished({ method: name, code, seconds, listener: arrival.listener });
    if (end.error?.reason === 'INVALID_FIELD') metrics.fieldRejected(name);
    const line = {
      requestId: arrival.requestId,
      method: name,
      listener: arrival.listener,
      code,
      reason: end.error?.reason,
      tenant: end.tenant,
      seconds,
    };
    // That calls are sent elsewhere is how a stop goes: there is nothing to be mended.
    const isFault = code === 'INTERNAL' || (code === 'UNAVAILABLE' && end.error?.reason !== 'SHUTTING_DOWN');
    if (isFault) {
      log[code === 'INTERNAL' ? 'error' : 'warn']({ ...line, err: end.error?.cause ?? end.error }, 'call failed');
    } else if (method?.access === 'open') log.debug(line, 'call');
    else log.info(line, 'call');
  }

  function admit(method: Method): void {
    if (closed) throw shuttingDown();
    // Probes are answered under any load: a busy process that seems dead would be killed for being busy.
    const full =
      method.kind === 'stream'
        ? streams.size >= STREAMS_MAX
        : method.access !== 'open' && calls.size >= limits.callsInFlightMax;
    if (full)
      throw new TributaryError('OVERLOADED', { message: 'too many calls are in flight', retryAfterMs: RETRY_AFTER_MS });
  }

  async function identify(method: Method, arrival: Arrival, signal: AbortSignal): Promise<ApiKey | undefined> {
    if (method.access === 'open') return undefined;
    const key = await apiKeys.identify(arrival.authorization, signal);
    if (method.access === 'admin' && key.role !== 'admin') {
      throw new TributaryError('ROLE_REQUIRED', { message: 'the call needs a key with the role admin' });
    }
    return key;
  }

  function leave(open: CallSignal): void {
    calls.delete(open);
    if (calls.size > 0) return;
    for (const resolve of waitingForIdle) resolve();
    waitingForIdle.clear();
  }

  return {
    async unary(method, arrival, wire) {
      let tenant: string | undefined;
      let open: CallSignal | undefined;
      try {
        admit(method);
        const call = openCallSignal({
          remainingMs: allowedMs(limits, method.effect, arrival.timeoutMs) - elapsedMs(arrival),
          left: arrival.left,
        });
        open = call;
        if (call.signal.aborted) throw call.signal.reason;
        calls.add(call);
        const work = (async () => {
          const key = await identify(method, arrival, call.signal);
          tenant = key?.tenant;
          const request = decoded(wire.read);
          call.signal.throwIfAborted();
          parts.admit?.(priorityOf(method, request));
          const answer = await method.handle(request, {
            tenant: key?.tenant ?? NO_TENANT,
            signal: call.signal,
          } satisfies Call);
          return wire.write(answer);
        })();
        const done = (): void => leave(call);
        work.then(done, done);
        const answer = await Promise.race([work, call.ended]);
        record(method, arrival, tenant === undefined ? {} : { tenant });
        return answer;
      } catch (thrown) {
        const error = asTributaryError(thrown);
        record(method, arrival, tenant === undefined ? { error } : { error, tenant });
        // Of several things at once that it waited for the others may still run, and nobody waits for them.
        open?.end(error);
        throw error;
      } finally {
        open?.close();
      }
    },

    async *stream(method, arrival, requests) {
      let open: CallSignal | undefined;
      let answers: AsyncIterator<unknown> | undefined;
      let failure: TributaryError | undefined;
      try {
        admit(method);
        const allowed = Math.min(
          arrival.timeoutMs ?? Number.POSITIVE_INFINITY,
          method.lifetimeMaxMs ?? Number.POSITIVE_INFINITY,
        );
        open = openCallSignal({
          remainingMs: Number.isFinite(allowed) ? allowed - elapsedMs(arrival) : undefined,
          left: arrival.left,
        });
        streams.add(open);
        await identify(method, arrival, open.signal);
        answers = method.handle(requests, open.signal)[Symbol.asyncIterator]();
        for (;;) {
          const next = await Promise.race([answers.next(), open.ended]);
          if (next.done === true) return;
          yield next.value;
        }
      } catch (thrown) {
        failure = asTributaryError(thrown);
        throw failure;
      } finally {
        if (open !== undefined) {
          failure ??= open.signal.aborted ? asTributaryError(open.signal.reason) : undefined;
          open.end(new TributaryError('CALL_CANCELLED', { message: 'the stream is over' }));
          streams.delete(open);
        }
        // Not waited for: a handler that ignores its signal must not hold the answer back.
        answers?.return?.()?.catch(() => undefined);
        record(method, arrival, failure === undefined ? {} : { error: failure });
      }
    },

    refused: (method, arrival, error, code) =>
      record(method, arrival, code === undefined ? { error } : { error, code }),
    running: () => calls.size,
    close() {
      closed = true;
    },
    idle() {
      return calls.size === 0 ? Promise.resolve() : new Promise((resolve) => waitingForIdle.add(resolve));
    },
    abort() {
      for (const open of [...calls, ...streams]) open.end(shuttingDown());
    },
  };
}

/** Milliseconds that a call may take: what the caller allows, at most the maximum of its kind. */
export function allowedMs(limits: CallLimits, effect: Effect, asked: number | undefined): number {
  const { readDefaultMs, readMaxMs, writeDefaultMs, writeMaxMs } = limits.deadlines;
  return effect === 'read'
    ? Math.min(asked ?? readDefaultMs, readMaxMs)
    : Math.min(asked ?? writeDefaultMs, writeMaxMs);
}

/** What `read` makes of a caller's bytes. Throws INVALID_MESSAGE where it fails: that is the caller's fault. */
export function decoded(read: () => unknown): unknown {
  try {
    return read();
  } catch (error) {
    throw new TributaryError('INVALID_MESSAGE', {
      message: 'the request is not a valid message of its type',
      cause: error,
    });
  }
}

function shuttingDown(): TributaryError {
  return new TributaryError('SHUTTING_DOWN', { message: 'the server is stopping', retryAfterMs: RETRY_AFTER_MS });
}
