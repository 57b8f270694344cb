/**
 * Owns the ambient things: time, randomness, the log, the shutdown signal. Everything else gets them as arguments, so that tests own
 * time. `Call` is what a request carries down to every store: whose data, and until when.
 */
import { randomBytes, randomFillSync } from 'node:crypto';
import { type DestinationStream, type Logger, type LoggerOptions, pino } from 'pino';
import { TributaryError } from './errors.ts';
import type { TenantId } from './timeline/ids.ts';

export interface Clock {
  /** Wall clock, in milliseconds since the Unix epoch; may step either way. */
  nowMs(): number;
  /** Milliseconds since some moment; never steps. */
  monotonicMs(): number;
}

export interface Random {
  /** Evenly distributed in [0, 1). */
  fraction(): number;
  bytes(length: number): Buffer;
}

export type Log = Logger;

export interface Runtime {
  readonly clock: Clock;
  readonly random: Random;
  readonly log: Log;
}

/** What every call into a flow carries. */
export interface Call {
  readonly tenant: TenantId;
  /** Aborts at the deadline, when the caller leaves, or when the process stops: every outside wait ends with it. */
  readonly signal: AbortSignal;
}

/** A longer one would fire at once. */
const TIMER_MAX_MS = 2 ** 31 - 1;

export const systemClock: Clock = {
  nowMs: () => Date.now(),
  monotonicMs: () => performance.now(),
};

/** Asking the system costs a microsecond or more whatever the length, and a page takes half a dozen tokens. What is longer may be a secret, and is asked for by itself. */
const POOLED_BYTES_MAX = 16;
const POOL_BYTES = 4_096;
const pool = Buffer.alloc(POOL_BYTES);
let poolAt = POOL_BYTES;

/** From the system's source, in portions. Nothing is given out twice. */
function pooledBytes(length: number): Buffer {
  if (length > POOLED_BYTES_MAX) return randomBytes(length);
  if (poolAt + length > POOL_BYTES) {
    randomFillSync(pool);
    poolAt = 0;
  }
  poolAt += length;
  return Buffer.from(pool.subarray(poolAt - length, poolAt));
}

export const systemRandom: Random = {
  fraction: () => Math.random(),
  bytes: pooledBytes,
};

/**
 * Runs `task` once after `ms` milliseconds, at most some 24.8 days (what a timer can hold); the function that is returned takes it back.
 * Does not keep the process alive.
 */
export function after(ms: number, task: () => void): () => void {
  const timer = setTimeout(task, Math.min(Math.max(ms, 0), TIMER_MAX_MS));
  timer.unref();
  return () => clearTimeout(timer);
}

/** Runs `task` once everything that has arrived by now has been begun: at the end of this turn of the event loop. */
export function atEndOfTurn(task: () => void): void {
  setImmediate(task);
}

/**
 * What the work resolves to, or the reason of the abort as soon as that comes; `onAbort` then looks after the work. One of the two, never both:
 * a connection that was handed over and taken back would serve two callers.
 */
export function untilAborted<Result>(
  work: Promise<Result>,
  signal: AbortSignal,
  onAbort: () => void = () => undefined,
): Promise<Result> {
  return new Promise((resolve, reject) => {
    const abort = (): void => {
      onAbort();
      reject(abortError(signal));
    };
    const settled = (): void => signal.removeEventListener('abort', abort);
    if (signal.aborted) abort();
    else signal.addEventListener('abort', abort, { once: true });
    work.finally(settled).then(resolve, reject);
  });
}

/** Ends after `ms` milliseconds, or rejects with the reason of the abort. */
export function pause(signal: AbortSignal, ms: number): Promise<void> {
  return untilAborted(new Promise<void>((resolve) => void after(ms, resolve)), signal);
}

/**
 * Runs work that an abort must not cut off in its middle: from then on it has `ms` more. For what takes hold of something in one statement: where that is cut off, nobody knows that it is held,
 * and it stays so for its whole lease.
 */
export async function withGrace<Result>(
  signal: AbortSignal,
  ms: number,
  work: (signal: AbortSignal) => Promise<Result>,
): Promise<Result> {
  throwIfAborted(signal);
  const ending = new AbortController();
  let cancelEnd = (): void => undefined;
  const endSoon = (): void => {
    cancelEnd = after(ms, () => ending.abort(signal.reason));
  };
  signal.addEventListener('abort', endSoon, { once: true });
  try {
    return await work(ending.signal);
  } finally {
    signal.removeEventListener('abort', endSoon);
    cancelEnd();
  }
}

export function throwIfAborted(signal: AbortSignal): void {
  if (signal.aborted) throw abortError(signal);
}

/** The reason of an abort as one of ours. */
export function abortError(signal: AbortSignal): TributaryError {
  const reason: unknown = signal.reason;
  if (reason instanceof TributaryError) return reason;
  const timedOut = reason instanceof Error && reason.name === 'TimeoutError';
  return new TributaryError(timedOut ? 'DEADLINE_EXCEEDED' : 'CALL_CANCELLED', { cause: reason });
}

/** JSON lines, on stdout by default. Keys that may hold secrets are struck out wherever they appear one level down. */
export function createLog(level: string, to: DestinationStream = pino.destination(1)): Log {
  const options: LoggerOptions = {
    level,
    base: null,
    timestamp: pino.stdTimeFunctions.isoTime,
    formatters: { level: (label) => ({ level: label }) },
    redact: {
      paths: ['authorization', '*.authorization', 'password', '*.password', 'key', '*.key', 'text', '*.text'],
      censor: '[redacted]',
    },
    serializers: { err: errorToLog },
  };
  return pino(options, to);
}

/** Without the fields in which Postgres quotes rows and parameters: post text is in none of our logs. */
function errorToLog(error: Error): Record<string, unknown> {
  const { detail: _detail, where: _where, internalQuery: _query, ...facts } = pino.stdSerializers.err(error);
  return facts;
}

export function systemRuntime(level: string): Runtime {
  return { clock: systemClock, random: systemRandom, log: createLog(level) };
}
