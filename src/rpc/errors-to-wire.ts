/**
 * Owns the mapping of reasons to the wire, for both listeners. Every error that leaves carries exactly one google.rpc.ErrorInfo; what was
 * not thrown on purpose leaves as INTERNAL with a fixed text, so that no SQL, stack or foreign ID can travel in a message.
 *
 * Only UNAVAILABLE is retried by clients on their own; so everything a retry alone can mend is UNAVAILABLE, OVERLOADED included.
 */
import { create } from '@bufbuild/protobuf';
import { anyPack, DurationSchema } from '@bufbuild/protobuf/wkt';
import { type Reason, TributaryError } from '../errors.ts';
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../gen/google/rpc/error_details_pb.ts';
import { type Status, StatusSchema } from '../gen/google/rpc/status_pb.ts';
import { CODE_NAMES, type CodeName } from '../metrics/rpc-metrics.ts';

export const ERROR_DOMAIN = 'tributary.v1';

/** Wrong fields named in one answer: the details travel in a trailer, and trailers are bounded. */
const VIOLATIONS_MAX = 20;
/** Longest message, in characters, for the same reason. */
const MESSAGE_CHARS_MAX = 500;

export function codeOf(reason: Reason): CodeName {
  switch (reason) {
    case 'INVALID_FIELD':
    case 'INVALID_PAGE_TOKEN':
    case 'INVALID_MESSAGE':
      return 'INVALID_ARGUMENT';
    case 'INVALID_API_KEY':
      return 'UNAUTHENTICATED';
    case 'ROLE_REQUIRED':
      return 'PERMISSION_DENIED';
    case 'POST_NOT_FOUND':
    case 'TARGET_NOT_FOUND':
    case 'TENANT_NOT_FOUND':
    case 'SERVICE_NOT_FOUND':
      return 'NOT_FOUND';
    case 'TENANT_EXISTS':
    case 'REQUEST_ID_REUSED':
      return 'ALREADY_EXISTS';
    case 'AUTHOR_SUSPENDED':
    case 'BLOCKED':
    case 'FOLLOW_LIMIT_REACHED':
    case 'POST_KIND_FIXED':
      return 'FAILED_PRECONDITION';
    case 'VERSION_MISMATCH':
      return 'ABORTED';
    case 'MESSAGE_TOO_LARGE':
      return 'RESOURCE_EXHAUSTED';
    case 'UNKNOWN_METHOD':
      return 'UNIMPLEMENTED';
    case 'DATABASE_UNAVAILABLE':
    case 'CACHE_UNAVAILABLE':
    case 'ID_LEASE_UNAVAILABLE':
    case 'OVERLOADED':
    case 'SHUTTING_DOWN':
      return 'UNAVAILABLE';
    case 'DEADLINE_EXCEEDED':
      return 'DEADLINE_EXCEEDED';
    case 'CALL_CANCELLED':
      return 'CANCELLED';
    case 'INTERNAL':
      return 'INTERNAL';
    default:
      return reason satisfies never;
  }
}

/** The error itself where it was thrown on purpose, else an INTERNAL one that keeps it as its cause. */
export function asTributaryError(error: unknown): TributaryError {
  return error instanceof TributaryError ? error : new TributaryError('INTERNAL', { cause: error });
}

/** The google.rpc.Status of an error, details included. `code` stands apart where a framework insists on its own. */
export function statusOf(error: TributaryError, code: CodeName = codeOf(error.reason)): Status {
  const details = [anyPack(ErrorInfoSchema, create(ErrorInfoSchema, { reason: error.reason, domain: ERROR_DOMAIN }))];
  if (error.violations.length > 0) {
    const fieldViolations = error.violations.slice(0, VIOLATIONS_MAX);
    details.push(anyPack(BadRequestSchema, create(BadRequestSchema, { fieldViolations: [...fieldViolations] })));
  }
  if (error.retryAfterMs !== undefined) {
    const retryDelay = durationOf(error.retryAfterMs);
    details.push(anyPack(RetryInfoSchema, create(RetryInfoSchema, { retryDelay })));
  }
  return create(StatusSchema, { code: CODE_NAMES.indexOf(code), message: messageOf(error), details });
}

function durationOf(ms: number) {
  const whole = Math.max(0, Math.ceil(ms));
  return create(DurationSchema, { seconds: BigInt(Math.floor(whole / 1_000)), nanos: (whole % 1_000) * 1_000_000 });
}

/** Texts for faults that others cause: whatever their message says stays in our log. */
function messageOf(error: TributaryError): string {
  switch (error.reason) {
    case 'INTERNAL':
      return 'internal error';
    case 'DATABASE_UNAVAILABLE':
    case 'CACHE_UNAVAILABLE':
      return 'the database cannot be reached now';
    case 'ID_LEASE_UNAVAILABLE':
      return 'no post ID can be minted now';
    default:
      return error.message.slice(0, MESSAGE_CHARS_MAX);
  }
}
