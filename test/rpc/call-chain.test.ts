import { pino } from 'pino';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { Health } from '../../src/gen/grpc/health/v1/health_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { createMetrics, type Metrics } from '../../src/metrics/metrics.ts';
import type { ApiKeys } from '../../src/rpc/api-keys.ts';
import type { Arrival } from '../../src/rpc/arrival.ts';
import { allowedMs, type CallChain, createCallChain } from '../../src/rpc/call-chain.ts';
import { stream, type UnaryMethod, unary } from '../../src/rpc/methods.ts';
import type { Call } from '../../src/runtime.ts';
import { TENANT, testConfig } from './door.ts';

const { getHomeHead } = TimelineService.method;
const wire = { read: (): unknown => ({}), write: (answer: unknown): unknown => answer };

/** Time is the fake timers': nothing here waits for a clock. */
const clock = { nowMs: () => Date.now(), monotonicMs: () => performance.now() };
const anyKey: ApiKeys = { identify: async () => ({ tenant: TENANT, role: 'service' }), lookups: () => 0 };

function chainWith(
  options: {
    readonly apiKeys?: ApiKeys;
    readonly callsInFlightMax?: number;
    readonly lines?: string[];
    readonly metrics?: Metrics;
  } = {},
): CallChain {
  const limits = { ...testConfig(), callsInFlightMax: options.callsInFlightMax ?? 10 };
  const log = pino({ level: 'debug', base: null }, { write: (line: string) => void options.lines?.push(line) });
  return createCallChain({
    limits,
    clock,
    log,
    metrics: options.metrics ?? createMetrics(),
    apiKeys: options.apiKeys ?? anyKey,
  });
}

function arrival(facts: Partial<Arrival> = {}): Arrival {
  return {
    listener: 'grpc',
    requestId: 'r1',
    authorization: undefined,
    arrivedAtMs: clock.monotonicMs(),
    timeoutMs: undefined,
    left: new AbortController().signal,
    ...facts,
  };
}

function reading(handle: (call: Call) => Promise<object>, access: UnaryMethod['access'] = 'service'): UnaryMethod {
  return unary(getHomeHead, { effect: 'read', access }, async (_, call) => handle(call));
}

const deaf = reading(() => new Promise(() => undefined));

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance', 'Date'] });
});
afterEach(() => {
  vi.useRealTimers();
});

describe('the deadline of a call', () => {
  const limits = testConfig({
    READ_DEADLINE_DEFAULT_MS: '1000',
    READ_DEADLINE_MAX_MS: '5000',
    WRITE_DEADLINE_DEFAULT_MS: '3000',
  });
  it.each([
    { effect: 'read' as const, asked: undefined, allowed: 1_000 },
    { effect: 'read' as const, asked: 20, allowed: 20 },
    { effect: 'read' as const, asked: 4_999, allowed: 4_999 },
    { effect: 'read' as const, asked: 9_999_999_999, allowed: 5_000 },
    { effect: 'read' as const, asked: Number.POSITIVE_INFINITY, allowed: 5_000 },
    { effect: 'write' as const, asked: undefined, allowed: 3_000 },
    { effect: 'write' as const, asked: 60_000, allowed: 10_000 },
  ])('of a $effect that asks for $asked ms is $allowed ms', ({ effect, asked, allowed }) => {
    expect(allowedMs(limits, effect, asked)).toBe(allowed);
  });

  it('is kept although the handler ignores its signal, and that handler goes on counting', async () => {
    const chain = chainWith();
    const call = expect(chain.unary(deaf, arrival({ timeoutMs: 200 }), wire)).rejects.toMatchObject({
      reason: 'DEADLINE_EXCEEDED',
    });
    await vi.advanceTimersByTimeAsync(199);
    expect(chain.running()).toBe(1);
    await vi.advanceTimersByTimeAsync(1);
    await call;
    expect(chain.running()).toBe(1);
  });

  it('aborts the signal with its reason, which is the answer whatever the handler throws', async () => {
    let reason: unknown;
    const handler = reading(
      ({ signal }) =>
        new Promise((_, reject) =>
          signal.addEventListener('abort', () => {
            reason = signal.reason;
            reject(new Error('canceling statement due to user request'));
          }),
        ),
    );
    const chain = chainWith();
    const call = expect(chain.unary(handler, arrival({ timeoutMs: 50 }), wire)).rejects.toMatchObject({
      reason: 'DEADLINE_EXCEEDED',
    });
    await vi.advanceTimersByTimeAsync(50);
    await call;
    expect(reason).toMatchObject({ reason: 'DEADLINE_EXCEEDED' });
    expect(chain.running()).toBe(0);
  });

  it('counts from the arrival: a call that waited too long never reaches its handler', async () => {
    const handle = vi.fn(async () => ({}));
    const late = arrival({ timeoutMs: 100, arrivedAtMs: clock.monotonicMs() - 101 });
    await expect(chainWith().unary(reading(handle), late, wire)).rejects.toMatchObject({ reason: 'DEADLINE_EXCEEDED' });
    expect(handle).not.toHaveBeenCalled();
  });

  it('leaves no timer and no listener behind, however the call ends', async () => {
    const left = new AbortController();
    const removed = vi.spyOn(left.signal, 'removeEventListener');
    const chain = chainWith();
    await chain.unary(
      reading(async () => ({})),
      arrival({ left: left.signal }),
      wire,
    );
    await chain
      .unary(
        reading(async () => Promise.reject(new Error('no'))),
        arrival({ left: left.signal }),
        wire,
      )
      .catch(() => undefined);
    expect(vi.getTimerCount()).toBe(0);
    expect(removed).toHaveBeenCalledTimes(2);
  });
});

describe('a call', () => {
  it('ends as cancelled when its caller leaves', async () => {
    const left = new AbortController();
    const call = chainWith().unary(deaf, arrival({ left: left.signal }), wire);
    left.abort();
    await expect(call).rejects.toMatchObject({ reason: 'CALL_CANCELLED' });
    expect(vi.getTimerCount()).toBe(0);
  });

  it('is refused beyond the bound of calls in flight, with a time to retry, and probes are not', async () => {
    const chain = chainWith({ callsInFlightMax: 2 });
    const first = chain.unary(deaf, arrival(), wire).catch(() => undefined);
    const second = chain.unary(deaf, arrival(), wire).catch(() => undefined);
    await expect(chain.unary(deaf, arrival(), wire)).rejects.toMatchObject({ reason: 'OVERLOADED', retryAfterMs: 200 });
    await chain.unary(
      reading(async () => ({}), 'open'),
      arrival(),
      wire,
    );
    chain.abort();
    await Promise.all([first, second]);
  });

  it('that breaks unexpectedly tells its caller nothing of why, and the log everything', async () => {
    const lines: string[] = [];
    const broken = reading(async () => Promise.reject(new Error('SELECT secret FROM api_keys')));
    const error = await chainWith({ lines })
      .unary(broken, arrival(), wire)
      .catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(TributaryError);
    expect(error).toMatchObject({ reason: 'INTERNAL', message: 'INTERNAL' });
    expect(lines).toHaveLength(1);
    expect(JSON.parse(lines[0] ?? '')).toMatchObject({
      level: 50,
      code: 'INTERNAL',
      requestId: 'r1',
      err: { message: 'SELECT secret FROM api_keys' },
    });
  });

  it('of 51 ms is measured as 0.051 s, once, under its method', async () => {
    const metrics = createMetrics();
    const call = chainWith({ metrics })
      .unary(deaf, arrival({ timeoutMs: 51 }), wire)
      .catch(() => undefined);
    await vi.advanceTimersByTimeAsync(51);
    await call;
    const labels = 'method="tributary.v1.TimelineService/GetHomeHead",outcome="failed"';
    const { body } = await metrics.exposition();
    expect(body).toContain(`tributary_rpc_seconds_bucket{le="0.05",${labels}} 0\n`);
    expect(body).toContain(`tributary_rpc_seconds_bucket{le="0.1",${labels}} 1\n`);
    expect(body).toContain(`tributary_rpc_seconds_sum{${labels}} 0.051\n`);
  });

  it('with bytes that are no message is the fault of its caller', async () => {
    const read = (): never => {
      throw new Error('premature EOF');
    };
    await expect(chainWith().unary(deaf, arrival(), { ...wire, read })).rejects.toMatchObject({
      reason: 'INVALID_MESSAGE',
    });
  });

  it('is not decoded before its key is known to be good', async () => {
    const read = vi.fn();
    const apiKeys: ApiKeys = {
      identify: async () => Promise.reject(new TributaryError('INVALID_API_KEY')),
      lookups: () => 0,
    };
    await expect(chainWith({ apiKeys }).unary(deaf, arrival(), { ...wire, read })).rejects.toMatchObject({
      reason: 'INVALID_API_KEY',
    });
    expect(read).not.toHaveBeenCalled();
  });

  it('of a method for administrators needs that role', async () => {
    const chain = chainWith();
    await expect(
      chain.unary(
        reading(async () => ({}), 'admin'),
        arrival(),
        wire,
      ),
    ).rejects.toMatchObject({ reason: 'ROLE_REQUIRED' });
  });

  it('gets the tenant of its key and of nothing else', async () => {
    let seen: Call | undefined;
    const handler = reading(async (call) => {
      seen = call;
      return {};
    });
    await chainWith().unary(handler, arrival(), wire);
    expect(seen?.tenant).toBe(TENANT);
  });
});

describe('a chain that closes', () => {
  it('refuses new calls, is idle when the last one has ended, and fails those that do not end', async () => {
    const chain = chainWith();
    const { promise: answer, resolve } = Promise.withResolvers<object>();
    const quick = chain.unary(
      reading(() => answer),
      arrival(),
      wire,
    );
    const slow = expect(chain.unary(deaf, arrival(), wire)).rejects.toMatchObject({ reason: 'SHUTTING_DOWN' });
    chain.close();
    await expect(chain.unary(deaf, arrival(), wire)).rejects.toMatchObject({
      reason: 'SHUTTING_DOWN',
      retryAfterMs: 200,
    });
    const idle = vi.fn();
    chain.idle().then(idle);
    resolve({});
    await quick;
    expect(idle).not.toHaveBeenCalled();
    chain.abort();
    await slow;
    expect(vi.getTimerCount()).toBe(0);
  });

  it('is idle at once when nothing runs', async () => {
    await chainWith().idle();
  });

  it('ends streams too, and gives up on a stream that outlives its bound', async () => {
    const chain = chainWith();
    const endless = stream(
      Health.method.watch,
      { access: 'open', lifetimeMaxMs: 60_000 },
      async function* (): AsyncIterable<{ status: 1 }> {
        yield { status: 1 };
        await new Promise(() => undefined);
      },
    );
    const requests = (async function* () {})();
    const aged = chain.stream(endless, arrival(), requests);
    expect((await aged.next()).value).toEqual({ status: 1 });
    const agedEnd = expect(aged.next()).rejects.toMatchObject({ reason: 'DEADLINE_EXCEEDED' });
    await vi.advanceTimersByTimeAsync(60_000);
    await agedEnd;

    const open = chain.stream(endless, arrival(), requests);
    await open.next();
    const openEnd = expect(open.next()).rejects.toMatchObject({ reason: 'SHUTTING_DOWN' });
    chain.abort();
    await openEnd;
    expect(vi.getTimerCount()).toBe(0);
  });
});
