import { anyUnpack } from '@bufbuild/protobuf/wkt';
import { describe, expect, it } from 'vitest';
import { REASONS, TributaryError } from '../../src/errors.ts';
import { BadRequestSchema, ErrorInfoSchema, RetryInfoSchema } from '../../src/gen/google/rpc/error_details_pb.ts';
import { CODE_NAMES } from '../../src/metrics/rpc-metrics.ts';
import { asTributaryError, codeOf, statusOf } from '../../src/rpc/errors-to-wire.ts';
import { reasonOfForeignError } from '../../src/rpc/foreign-errors.ts';

const SECRET = 'duplicate key value violates unique constraint "posts_pkey" (tenant-b, 47)';

describe('an error on the wire', () => {
  it.each(REASONS)('%s has one code, one ErrorInfo and no cause', (reason) => {
    const status = statusOf(new TributaryError(reason, { cause: new Error(SECRET) }));
    const infos = status.details.flatMap((detail) => anyUnpack(detail, ErrorInfoSchema) ?? []);
    expect(infos).toMatchObject([{ reason, domain: 'tributary.v1' }]);
    expect(CODE_NAMES[status.code]).toBe(codeOf(reason));
    expect(status.code).not.toBe(0);
    expect(JSON.stringify(status, (_, value) => (typeof value === 'bigint' ? String(value) : value))).not.toContain(
      'posts_pkey',
    );
  });

  it.each(['INTERNAL', 'DATABASE_UNAVAILABLE', 'ID_LEASE_UNAVAILABLE'] as const)(
    '%s says nothing that came from outside, even where its message does',
    (reason) => {
      expect(statusOf(new TributaryError(reason, { message: SECRET })).message).not.toContain('posts_pkey');
    },
  );

  it('that nobody threw on purpose is INTERNAL and keeps its cause for the log', () => {
    const cause = new Error(SECRET);
    expect(asTributaryError(cause)).toMatchObject({ reason: 'INTERNAL', cause });
    expect(asTributaryError('a string').reason).toBe('INTERNAL');
  });

  it('that a retry alone can mend is UNAVAILABLE, the one code that clients retry', () => {
    expect(REASONS.filter((reason) => codeOf(reason) === 'UNAVAILABLE')).toEqual([
      'DATABASE_UNAVAILABLE',
      'CACHE_UNAVAILABLE',
      'ID_LEASE_UNAVAILABLE',
      'OVERLOADED',
      'SHUTTING_DOWN',
    ]);
  });

  it('carries wrong fields and the time to retry', () => {
    const violations = Array.from({ length: 40 }, (_, index) => ({ field: `f[${index}]`, description: 'wrong' }));
    const status = statusOf(new TributaryError('INVALID_FIELD', { violations, retryAfterMs: 1_500.2 }));
    const bad = status.details.flatMap((detail) => anyUnpack(detail, BadRequestSchema)?.fieldViolations ?? []);
    expect(bad).toHaveLength(20);
    const retry = status.details.flatMap((detail) => anyUnpack(detail, RetryInfoSchema)?.retryDelay ?? []);
    expect(retry).toMatchObject([{ seconds: 1n, nanos: 501_000_000 }]);
  });

  it('stays small enough for a trailer', () => {
    expect(statusOf(new TributaryError('INVALID_FIELD', { message: 'x'.repeat(100_000) })).message).toHaveLength(500);
  });
});

describe('an error that a framework raised', () => {
  it('before the call began is the fault of the caller, after that ours', () => {
    expect(reasonOfForeignError('INTERNAL', false)).toMatchObject({
      reason: 'INVALID_MESSAGE',
      code: 'INVALID_ARGUMENT',
    });
    expect(reasonOfForeignError('INTERNAL', true)).toMatchObject({ reason: 'INTERNAL', code: 'INTERNAL' });
  });
});
