/**
 * Owns the measures of the front door. `method` is a registered method or `unknown`, never what a caller typed.
 *
 * Seconds carry the outcome by class and the counter carries the exact code: seconds by code would multiply methods, codes and
 * buckets to more text than one scrape should have.
 */
import { Counter, Gauge, Histogram, type Registry } from 'prom-client';
import { CALL_SECONDS } from './buckets.ts';

export const LISTENERS = ['grpc', 'http'] as const;
export type ListenerName = (typeof LISTENERS)[number];

/** Names of the gRPC status codes. */
export const CODE_NAMES = [
  'OK',
  'CANCELLED',
  'UNKNOWN',
  'INVALID_ARGUMENT',
  'DEADLINE_EXCEEDED',
  'NOT_FOUND',
  'ALREADY_EXISTS',
  'PERMISSION_DENIED',
  'RESOURCE_EXHAUSTED',
  'FAILED_PRECONDITION',
  'ABORTED',
  'OUT_OF_RANGE',
  'UNIMPLEMENTED',
  'INTERNAL',
  'UNAVAILABLE',
  'DATA_LOSS',
  'UNAUTHENTICATED',
] as const;
export type CodeName = (typeof CODE_NAMES)[number];

export interface RpcMetrics {
  /** A call was answered, or its caller left. `method` is `package.Service/Method` as registered, or `unknown`. */
  rpcFinished(call: {
    readonly method: string;
    readonly code: CodeName;
    readonly seconds: number;
    readonly listener: ListenerName;
  }): void;
  /** A request was refused for its fields. */
  fieldRejected(method: string): void;
  /** Hands over what the gauge of calls under way reads at each scrape. */
  watchCallsInFlight(read: () => number): void;
}

export function rpcMetrics(registry: Registry): RpcMetrics {
  const registers = [registry];
  const seconds = new Histogram({
    name: 'tributary_rpc_seconds',
    help: 'Time from the arrival of a call to its answer, by method and class of outcome (ok, refused: by fault of the caller, failed: by ours).',
    labelNames: ['method', 'outcome'],
    buckets: CALL_SECONDS,
    registers,
  });
  const calls = new Counter({
    name: 'tributary_rpc_calls_total',
    help: 'Calls answered, by method, gRPC status code and listener.',
    labelNames: ['method', 'code', 'listener'],
    registers,
  });
  const fields = new Counter({
    name: 'tributary_rejected_fields_total',
    help: 'Requests refused for their fields, by method.',
    labelNames: ['method'],
    registers,
  });
  let readInFlight = (): number => 0;
  new Gauge({
    name: 'tributary_rpc_in_flight_calls',
    help: 'Calls whose handler is running now.',
    registers,
    collect() {
      this.set(readInFlight());
    },
  });
  return {
    rpcFinished({ method, code, seconds: elapsed, listener }) {
      seconds.observe({ method, outcome: classOf(code) }, elapsed);
      calls.inc({ method, code, listener });
    },
    fieldRejected: (method) => fields.inc({ method }),
    watchCallsInFlight(read) {
      readInFlight = read;
    },
  };
}

function classOf(code: CodeName): 'ok' | 'refused' | 'failed' {
  switch (code) {
    case 'OK':
      return 'ok';
    case 'UNKNOWN':
    case 'DEADLINE_EXCEEDED':
    case 'INTERNAL':
    case 'UNAVAILABLE':
    case 'DATA_LOSS':
      return 'failed';
    case 'CANCELLED':
    case 'INVALID_ARGUMENT':
    case 'NOT_FOUND':
    case 'ALREADY_EXISTS':
    case 'PERMISSION_DENIED':
    case 'RESOURCE_EXHAUSTED':
    case 'FAILED_PRECONDITION':
    case 'ABORTED':
    case 'OUT_OF_RANGE':
    case 'UNIMPLEMENTED':
    case 'UNAUTHENTICATED':
      return 'refused';
    default:
      return code satisfies never;
  }
}
