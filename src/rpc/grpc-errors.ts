/** Owns errors on the gRPC listener: a reason in, a gRPC status with `grpc-status-details-bin` out. */
import { toBinary } from '@bufbuild/protobuf';
import { Metadata, type ServerInterceptingCall } from '@grpc/grpc-js';
import { TributaryError } from '../errors.ts';
import { StatusSchema } from '../gen/google/rpc/status_pb.ts';
import { CODE_NAMES, type CodeName } from '../metrics/rpc-metrics.ts';
import { REQUEST_ID_HEADER } from './arrival.ts';
import { statusOf } from './errors-to-wire.ts';
import { reasonOfForeignError } from './foreign-errors.ts';

const DETAILS_TRAILER = 'grpc-status-details-bin';

type SentStatus = Parameters<ServerInterceptingCall['sendStatus']>[0];

export interface GrpcFailure {
  readonly code: number;
  readonly details: string;
  readonly metadata: Metadata;
}

export function grpcFailureFrom(error: TributaryError, requestId: string | undefined, code?: CodeName): GrpcFailure {
  const status = statusOf(error, code);
  const metadata = new Metadata();
  metadata.set(DETAILS_TRAILER, Buffer.from(toBinary(StatusSchema, status)));
  if (requestId !== undefined) metadata.set(REQUEST_ID_HEADER, requestId);
  return { code: status.code, details: status.message, metadata };
}

/** The error that grpc-js raised by itself; undefined for a status that is OK or ours. */
export function foreignErrorOf(
  status: SentStatus,
): { readonly error: TributaryError; readonly code: CodeName } | undefined {
  const code = CODE_NAMES[status.code ?? 2] ?? 'UNKNOWN';
  if (code === 'OK' || (status.metadata?.get(DETAILS_TRAILER).length ?? 0) > 0) return undefined;
  // Before a handler runs, grpc-js says INTERNAL to what only the caller can have got wrong; our handlers never fail without details.
  const known = reasonOfForeignError(code, false);
  return { error: new TributaryError(known.reason, { message: known.message }), code: known.code };
}
