import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type ApiKey, type ApiKeys, createApiKeys, type FindApiKey } from '../../src/rpc/api-keys.ts';
import { SERVICE_KEY, TENANT, UNKNOWN_KEY } from './door.ts';

const KEY: ApiKey = { tenant: TENANT, role: 'service' };
const known = `Bearer ${SERVICE_KEY}`;
const unknown = `Bearer ${UNKNOWN_KEY}`;
const never = new AbortController().signal;
const clock = { nowMs: () => Date.now(), monotonicMs: () => performance.now() };

function keysOver(findApiKey: FindApiKey, ttlMs = 10_000): ApiKeys {
  return createApiKeys({ findApiKey, ttlMs, lookupTimeoutMs: 1_000, clock });
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance', 'Date'] });
  // To lru-cache, moment 0 of the monotonic clock means "never stored"; a process is past it before it can store anything.
  vi.advanceTimersByTime(1);
});
afterEach(() => {
  vi.useRealTimers();
});

describe('an API key', () => {
  it('is looked up once for as long as it is trusted, and again after that', async () => {
    const find = vi.fn(async () => KEY);
    const keys = keysOver(find);
    await keys.identify(known, never);
    await vi.advanceTimersByTimeAsync(9_000);
    expect(await keys.identify(known, never)).toEqual(KEY);
    expect(find).toHaveBeenCalledTimes(1);
    await vi.advanceTimersByTimeAsync(2_000);
    await keys.identify(known, never);
    expect(find).toHaveBeenCalledTimes(2);
  });

  it('is looked up every time where nothing may be remembered', async () => {
    const find = vi.fn(async () => KEY);
    const keys = keysOver(find, 0);
    await keys.identify(known, never);
    await keys.identify(known, never);
    expect(find).toHaveBeenCalledTimes(2);
  });

  it('that is unknown is remembered as such, but only for a second', async () => {
    const find = vi.fn<FindApiKey>(async () => undefined);
    const keys = keysOver(find);
    await expect(keys.identify(unknown, never)).rejects.toMatchObject({ reason: 'INVALID_API_KEY' });
    await expect(keys.identify(unknown, never)).rejects.toMatchObject({ reason: 'INVALID_API_KEY' });
    expect(find).toHaveBeenCalledTimes(1);
    find.mockResolvedValue(KEY);
    await vi.advanceTimersByTimeAsync(1_100);
    expect(await keys.identify(unknown, never)).toEqual(KEY);
  });

  it('is looked up once for all who ask at the same time', async () => {
    const { promise, resolve } = Promise.withResolvers<ApiKey>();
    const find = vi.fn(() => promise);
    const keys = keysOver(find);
    const calls = Array.from({ length: 50 }, () => keys.identify(known, never));
    expect(keys.lookups()).toBe(1);
    resolve(KEY);
    expect(await Promise.all(calls)).toHaveLength(50);
    expect(find).toHaveBeenCalledTimes(1);
    expect(keys.lookups()).toBe(0);
  });

  it('is not lost for the others when one caller leaves', async () => {
    const { promise, resolve } = Promise.withResolvers<ApiKey>();
    let lookupSignal: AbortSignal | undefined;
    const keys = keysOver((_, signal) => {
      lookupSignal = signal;
      return promise;
    });
    const leaver = new AbortController();
    const left = keys.identify(known, leaver.signal);
    const stays = keys.identify(known, never);
    leaver.abort(new Error('left'));
    await expect(left).rejects.toThrow('left');
    expect(lookupSignal?.aborted).toBe(false);
    resolve(KEY);
    expect(await stays).toEqual(KEY);
  });

  it('is unavailable, not unknown, while the database fails; and the failure is not remembered', async () => {
    const find = vi.fn<FindApiKey>().mockRejectedValueOnce(new Error('terminating connection')).mockResolvedValue(KEY);
    const keys = keysOver(find);
    await expect(keys.identify(known, never)).rejects.toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
    expect(keys.lookups()).toBe(0);
    expect(await keys.identify(known, never)).toEqual(KEY);
  });

  it('can be asked for again after a lookup that failed before it began', async () => {
    let calls = 0;
    const keys = keysOver(() => {
      calls += 1;
      if (calls === 1) throw new Error('no pool');
      return Promise.resolve(KEY);
    });
    await expect(keys.identify(known, never)).rejects.toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
    expect(await keys.identify(known, never)).toEqual(KEY);
  });

  it('whose lookup never ends is given up, its lookup aborted, and asked for afresh', async () => {
    let aborted: AbortSignal | undefined;
    const find = vi.fn<FindApiKey>().mockImplementationOnce((_, signal) => {
      aborted = signal;
      return new Promise(() => undefined);
    });
    find.mockResolvedValue(KEY);
    const keys = keysOver(find);
    const first = expect(keys.identify(known, never)).rejects.toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
    await vi.advanceTimersByTimeAsync(1_000);
    await first;
    expect(aborted?.aborted).toBe(true);
    expect(await keys.identify(known, never)).toEqual(KEY);
    expect(vi.getTimerCount()).toBe(0);
  });

  it.each([
    undefined,
    '',
    'Bearer',
    `Basic ${SERVICE_KEY}`,
    SERVICE_KEY,
    `Bearer ${SERVICE_KEY}x`,
    `Bearer tk_${'s'.repeat(42)}`,
    `Bearer tk_${'s'.repeat(42)}/`,
    `Bearer xx_${'s'.repeat(43)}`,
    `Bearer ${SERVICE_KEY}, Bearer ${SERVICE_KEY}`,
  ])('of the form %j is refused without a look into the database', async (authorization) => {
    const find = vi.fn(async () => KEY);
    await expect(keysOver(find).identify(authorization, never)).rejects.toMatchObject({ reason: 'INVALID_API_KEY' });
    expect(find).not.toHaveBeenCalled();
  });

  it('that nobody invented is not pushed out by thousands that somebody did', async () => {
    const find = vi.fn<FindApiKey>(async (keyText) => (keyText === SERVICE_KEY ? KEY : undefined));
    const keys = keysOver(find);
    await keys.identify(known, never);
    for (let index = 0; index < 12_000; index += 1) {
      await keys.identify(`Bearer tk_${String(index).padStart(43, '0')}`, never).catch(() => undefined);
    }
    find.mockClear();
    await keys.identify(known, never);
    expect(find).not.toHaveBeenCalled();
  });

  it('cannot make lookups pile up without bound', async () => {
    const keys = keysOver(() => new Promise(() => undefined));
    const settled: Promise<unknown>[] = [];
    for (let index = 0; index < 300; index += 1) {
      settled.push(
        keys.identify(`Bearer tk_${String(index).padStart(43, '0')}`, never).catch((error: unknown) => error),
      );
    }
    expect(keys.lookups()).toBe(256);
    await vi.advanceTimersByTimeAsync(1_000);
    const errors = await Promise.all(settled);
    expect(errors.filter((error) => (error as { reason?: string }).reason === 'OVERLOADED')).toHaveLength(44);
    expect(keys.lookups()).toBe(0);
  });
});
