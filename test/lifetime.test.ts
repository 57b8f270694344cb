/** One signal ends a process in order, whenever it comes; a second one ends it at once. */
import { EventEmitter } from 'node:events';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { runUntilTold } from '../src/lifetime.ts';
import { createTestLog } from './harness/service.ts';

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
});
afterEach(() => {
  vi.useRealTimers();
});

type Start = Parameters<typeof runUntilTold>[0]['start'];

function live(start: Start) {
  const signals = new EventEmitter();
  const exits: number[] = [];
  const ended = runUntilTold({
    start,
    process: { on: (name, listener) => signals.on(name, listener), exit: (code) => exits.push(code) },
    clock: { monotonicMs: () => performance.now() },
    log: createTestLog([]),
  });
  ended.catch(() => undefined);
  return { signals, exits, ended };
}

describe('a process that serves', () => {
  it.each(['SIGTERM', 'SIGINT'])('stops in order at %s, and is not held up by what is left open', async (signal) => {
    let stops = 0;
    const stop = async (): Promise<void> => {
      stops += 1;
    };
    const { signals, exits, ended } = live(async () => ({ stop }));
    await Promise.resolve();
    expect(stops).toBe(0);
    signals.emit(signal);
    await ended;
    expect(stops).toBe(1);
    expect(exits).toEqual([]);
    vi.advanceTimersByTime(1_000);
    expect(exits).toEqual([0]);
  });

  it('stops in order where it finds that it must not go on, and ends with the reason', async () => {
    const found = Promise.withResolvers<Error>();
    let stops = 0;
    const stop = async (): Promise<void> => {
      stops += 1;
    };
    const { exits, ended } = live(async () => ({ stop, unfit: found.promise }));
    const reason = new Error('not with this cache');
    found.resolve(reason);
    await expect(ended).rejects.toBe(reason);
    expect(stops).toBe(1);
    vi.advanceTimersByTime(1_000);
    expect(exits).toEqual([1]);
  });

  it('takes the signals of a terminal and of npm, which come together, for one', async () => {
    const { promise, resolve } = Promise.withResolvers<void>();
    const { signals, exits, ended } = live(async () => ({ stop: () => promise }));
    signals.emit('SIGINT');
    signals.emit('SIGINT');
    expect(exits).toEqual([]);
    resolve();
    await ended;
  });

  it.each([
    { signal: 'SIGTERM', code: 143 },
    { signal: 'SIGINT', code: 130 },
  ])('ends at once at a second $signal, with $code', async ({ signal, code }) => {
    const { signals, exits } = live(async () => ({ stop: () => new Promise(() => undefined) }));
    signals.emit('SIGTERM');
    vi.advanceTimersByTime(1_000);
    signals.emit(signal);
    expect(exits).toEqual([code]);
  });

  it('ends with 1 where something could not be stopped, even if that holds it up', async () => {
    const { signals, exits, ended } = live(async () => ({ stop: () => Promise.reject(new Error('stuck')) }));
    signals.emit('SIGTERM');
    await expect(ended).rejects.toThrow('stuck');
    vi.advanceTimersByTime(1_000);
    expect(exits).toEqual([1]);
  });
});

describe('a process that is still starting', () => {
  it('is stopped when it has started', async () => {
    let stops = 0;
    const { promise, resolve } = Promise.withResolvers<void>();
    const { signals, ended } = live(async (signal) => {
      await promise;
      expect(signal.aborted).toBe(true);
      return {
        async stop() {
          stops += 1;
        },
      };
    });
    signals.emit('SIGTERM');
    resolve();
    await ended;
    expect(stops).toBe(1);
  });

  it('ends with 0 where it gave up because of the signal', async () => {
    const { signals, exits, ended } = live(
      (signal) => new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(signal.reason))),
    );
    signals.emit('SIGTERM');
    await ended;
    vi.advanceTimersByTime(1_000);
    expect(exits).toEqual([0]);
  });

  it('ends with 1, and says why, where it cannot start', async () => {
    const { exits, ended } = live(() => Promise.reject(new Error('the port is taken')));
    await expect(ended).rejects.toThrow('the port is taken');
    vi.advanceTimersByTime(1_000);
    expect(exits).toEqual([1]);
  });
});
