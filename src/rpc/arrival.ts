/**
 * Owns what a listener knows of a call before anything was decided: who asks, until when, under which request ID. Both listeners
 * read headers here, so that a header means the same on each.
 */
import type { ListenerName } from '../metrics/rpc-metrics.ts';
import type { Random } from '../runtime.ts';

export interface Arrival {
  readonly listener: ListenerName;
  readonly requestId: string;
  readonly authorization: string | undefined;
  /** When the call arrived, by the monotonic clock; deadlines count from here. */
  readonly arrivedAtMs: number;
  /** What the caller allows, in milliseconds; undefined where the caller does not say. */
  readonly timeoutMs: number | undefined;
  /** Aborts when the caller leaves. */
  readonly left: AbortSignal;
}

export const REQUEST_ID_HEADER = 'x-request-id';
const REQUEST_ID_FORM = /^[A-Za-z0-9_.~-]{1,64}$/;
const GENERATED_BYTES = 12;

/** The caller's request ID where it is a sane one, else a new one. */
export function requestIdFrom(header: string | undefined, random: Random): string {
  if (header !== undefined && REQUEST_ID_FORM.test(header)) return header;
  return random.bytes(GENERATED_BYTES).toString('hex');
}

// The protocols allow 8 and 10 digits; client libraries send more for deadlines that are far away, and mean no harm.
const GRPC_TIMEOUT_FORM = /^(\d{1,20})([HMSmun])$/;
const CONNECT_TIMEOUT_FORM = /^\d{1,20}$/;
const UNIT_MS: Readonly<Record<string, number>> = { H: 3_600_000, M: 60_000, S: 1_000, m: 1, u: 1e-3, n: 1e-6 };

/** Milliseconds of a `grpc-timeout` header; undefined where it is not one. */
export function grpcTimeoutMs(header: string): number | undefined {
  const match = GRPC_TIMEOUT_FORM.exec(header);
  const unit = UNIT_MS[match?.[2] ?? ''];
  return match === null || unit === undefined ? undefined : Number(match[1]) * unit;
}

/** Milliseconds of a `connect-timeout-ms` header; undefined where it is not one. */
export function connectTimeoutMs(header: string): number | undefined {
  return CONNECT_TIMEOUT_FORM.test(header) ? Number(header) : undefined;
}
