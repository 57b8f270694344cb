/** What a log line may hold, what randomness is, how long work goes on that was told to end, and that a wait has one end. */
import { getEventListeners } from 'node:events';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { createLog, systemRandom, untilAborted, withGrace } from '../src/runtime.ts';

it('an error of Postgres is logged without the rows and parameters that it quotes', () => {
  const lines: string[] = [];
  const log = createLog('info', { write: (line) => void lines.push(line) });
  const error = Object.assign(new Error('a rule was broken'), {
    code: '23514',
    constraint: 'posts_check',
    detail: 'Failing row contains (ada, dear diary).',
    where: "unnamed portal with parameters: $1 = 'dear diary'",
  });
  log.error({ err: error }, 'call failed');
  expect(JSON.parse(lines[0] ?? '')).toMatchObject({
    err: { type: 'Error', message: 'a rule was broken', code: '23514', constraint: 'posts_check' },
  });
  expect(lines.join()).not.toContain('diary');
});

it('random bytes are as many as were asked for, and no portion comes twice', () => {
  for (const length of [0, 1, 9, 12, 16, 17, 32, 5_000]) expect(systemRandom.bytes(length)).toHaveLength(length);
  const portions = Array.from({ length: 2_000 }, () => systemRandom.bytes(9));
  const kept = portions.map((bytes) => bytes.toString('hex'));
  expect(new Set(kept).size).toBe(portions.length);
  // Nobody else writes into what was given out.
  systemRandom.bytes(16).fill(0);
  expect(portions.map((bytes) => bytes.toString('hex'))).toEqual(kept);
});

describe('work with a grace', () => {
  beforeEach(() => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
  });
  afterEach(() => {
    vi.useRealTimers();
  });

  it('does not begin after an abort, has its time from an abort on, and leaves no timer behind', async () => {
    await expect(withGrace(AbortSignal.abort(), 100, async () => 'begun')).rejects.toMatchObject({
      reason: 'CALL_CANCELLED',
    });
    const stop = new AbortController();
    let seen: AbortSignal | undefined;
    const hanging = withGrace(stop.signal, 100, (signal) => {
      seen = signal;
      return untilAborted(new Promise(() => undefined), signal);
    });
    hanging.catch(() => undefined);
    vi.advanceTimersByTime(1_000);
    stop.abort();
    vi.advanceTimersByTime(99);
    expect(seen?.aborted).toBe(false);
    vi.advanceTimersByTime(1);
    expect(seen?.aborted).toBe(true);
    await expect(hanging).rejects.toMatchObject({ reason: 'CALL_CANCELLED' });

    const quick = new AbortController();
    expect(await withGrace(quick.signal, 100, async () => quick.abort())).toBeUndefined();
    expect(vi.getTimerCount()).toBe(0);
  });
});

describe('a wait that an abort may end', () => {
  const listeners = (signal: AbortSignal): number => getEventListeners(signal, 'abort').length;

  it('ends with the abort where that was first, also where the work has ended and nobody has heard of it yet', async () => {
    const stop = new AbortController();
    const work = Promise.withResolvers<string>();
    const lookedAfter = vi.fn();
    const waiting = untilAborted(work.promise, stop.signal, lookedAfter);
    work.resolve('a connection');
    stop.abort();
    await expect(waiting).rejects.toMatchObject({ reason: 'CALL_CANCELLED' });
    expect(lookedAfter).toHaveBeenCalledTimes(1);
    expect(listeners(stop.signal)).toBe(0);
  });

  it.each(['resolve', 'reject'] as const)('ends with the work that %ss, and hears no abort after that', async (how) => {
    const stop = new AbortController();
    const work = Promise.withResolvers<string>();
    const lookedAfter = vi.fn();
    const waiting = untilAborted(work.promise, stop.signal, lookedAfter).then(
      (value) => `resolve ${value}`,
      (error) => `reject ${error}`,
    );
    expect(listeners(stop.signal)).toBe(1);
    work[how]('end');
    expect(await waiting).toBe(`${how} end`);
    expect(listeners(stop.signal)).toBe(0);
    stop.abort();
    expect(lookedAfter).not.toHaveBeenCalled();
  });

  it('leaves no rejection that nobody handles, where the work fails later', async () => {
    const work = Promise.withResolvers<string>();
    const waiting = untilAborted(work.promise, AbortSignal.abort());
    await expect(waiting).rejects.toMatchObject({ reason: 'CALL_CANCELLED' });
    const unhandled = vi.fn();
    process.on('unhandledRejection', unhandled);
    work.reject(new Error('late'));
    await new Promise((resolve) => setImmediate(resolve));
    process.off('unhandledRejection', unhandled);
    expect(unhandled).not.toHaveBeenCalled();
  });
});
