/** Owns the closed list of reasons for which a call can fail. Knows nothing of RPC: `rpc/` maps a reason to the wire, once. */

export const REASONS = [
  'INVALID_FIELD',
  'INVALID_PAGE_TOKEN',
  'INVALID_MESSAGE',
  'INVALID_API_KEY',
  'ROLE_REQUIRED',
  'POST_NOT_FOUND',
  'TARGET_NOT_FOUND',
  'TENANT_NOT_FOUND',
  'SERVICE_NOT_FOUND',
  'TENANT_EXISTS',
  'REQUEST_ID_REUSED',
  'AUTHOR_SUSPENDED',
  'BLOCKED',
  'FOLLOW_LIMIT_REACHED',
  'POST_KIND_FIXED',
  'VERSION_MISMATCH',
  'MESSAGE_TOO_LARGE',
  'UNKNOWN_METHOD',
  'DATABASE_UNAVAILABLE',
  'CACHE_UNAVAILABLE',
  'ID_LEASE_UNAVAILABLE',
  'OVERLOADED',
  'SHUTTING_DOWN',
  'DEADLINE_EXCEEDED',
  'CALL_CANCELLED',
  'INTERNAL',
] as const;
export type Reason = (typeof REASONS)[number];

export interface FieldViolation {
  /** Path of the field as the API spells it, such as `media[2].alt_text`. */
  readonly field: string;
  readonly description: string;
}

export interface ErrorFacts {
  /** For developers; holds no SQL, no stack and no ID that the caller did not send. */
  readonly message?: string;
  readonly violations?: readonly FieldViolation[];
  /** When a retry may help, in milliseconds. */
  readonly retryAfterMs?: number;
  readonly cause?: unknown;
}

/** The one error that flows and stores throw on purpose. Anything else that reaches the front door is an INTERNAL fault of ours. */
export class TributaryError extends Error {
  readonly reason: Reason;
  readonly violations: readonly FieldViolation[];
  readonly retryAfterMs: number | undefined;

  constructor(reason: Reason, facts: ErrorFacts = {}) {
    super(facts.message ?? reason, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.name = 'TributaryError';
    this.reason = reason;
    this.violations = facts.violations ?? [];
    this.retryAfterMs = facts.retryAfterMs;
  }
}

export function invalidField(field: string, description: string): TributaryError {
  return new TributaryError('INVALID_FIELD', {
    message: `${field}: ${description}`,
    violations: [{ field, description }],
  });
}

/** How a call ended, for measures. `refused`: by fault of the caller. `unavailable`: a retry may help. `failed`: our fault. */
export const OUTCOMES = ['ok', 'refused', 'unavailable', 'failed'] as const;
export type Outcome = (typeof OUTCOMES)[number];

const UNAVAILABLE_REASONS: ReadonlySet<Reason> = new Set([
  'DATABASE_UNAVAILABLE',
  'CACHE_UNAVAILABLE',
  'ID_LEASE_UNAVAILABLE',
  'OVERLOADED',
  'SHUTTING_DOWN',
  'DEADLINE_EXCEEDED',
]);

export function outcomeOf(error: unknown): Exclude<Outcome, 'ok'> {
  if (!(error instanceof TributaryError) || error.reason === 'INTERNAL') return 'failed';
  return UNAVAILABLE_REASONS.has(error.reason) ? 'unavailable' : 'refused';
}
