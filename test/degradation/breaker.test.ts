/** Owns when a breaker opens and closes, and that nobody waits for it. */
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { type Breaker, createBreaker } from '../../src/degradation/breaker.ts';

const UNREACHED = new Error('nobody there');
const ANSWERED = new Error('wrong type');

let breaker: Breaker;
let states: string[];
let isBack: boolean;
let probes: number;
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance', 'Date'] });
  states = [];
  isBack = false;
  probes = 0;
  breaker = createBreaker({
    isFailure: (error) => error === UNREACHED,
    refusal: () => new Error('refused'),
    async probe() {
      probes += 1;
      if (!isBack) throw ANSWERED;
    },
    clock: { nowMs: () => Date.now(), monotonicMs: () => performance.now() },
    changed: (state) => void states.push(state),
  });
});
afterEach(() => {
  breaker.stop();
  vi.useRealTimers();
});

const fail = (error = UNREACHED): Promise<unknown> => breaker.call(() => Promise.reject(error)).catch(String);
async function failFor(ms: number, everyMs = 50, error = UNREACHED): Promise<void> {
  for (let at = 0; at <= ms; at += everyMs) {
    await fail(error);
    await vi.advanceTimersByTimeAsync(everyMs);
  }
}

describe('a breaker', () => {
  it('opens after failures in a row over half a second, and refuses from then on without trying', async () => {
    await failFor(450);
    expect(breaker.isClosed()).toBe(true);
    await fail();
    expect(states).toEqual(['open']);
    const work = vi.fn(async () => 'done');
    await expect(breaker.call(work)).rejects.toThrow('refused');
    await expect(breaker.attempt(work)).rejects.toThrow('refused');
    expect(work).not.toHaveBeenCalled();
  });

  it('stays closed where everything in flight fails together, where one in many succeeds, and where few fail', async () => {
    await Promise.all(Array.from({ length: 500 }, () => fail()));
    await breaker.call(async () => 'done');
    for (let round = 0; round < 5; round += 1) {
      await failFor(400);
      await breaker.call(async () => 'done');
    }
    for (let at = 0; at < 4; at += 1) {
      await fail();
      await vi.advanceTimersByTimeAsync(10_000);
    }
    expect(states).toEqual([]);
  });

  it('takes what was answered for a sign of life, whatever it says', async () => {
    for (let round = 0; round < 5; round += 1) {
      await failFor(400);
      expect(await fail(ANSWERED)).toBe(String(ANSWERED));
    }
    expect(states).toEqual([]);
  });

  it('learns nothing from a connection that could be had, and counts one that could not', async () => {
    for (let at = 0; at <= 500; at += 50) {
      await breaker.attempt(async () => 'from the pool');
      await breaker.attempt(() => Promise.reject(UNREACHED)).catch(String);
      await vi.advanceTimersByTimeAsync(50);
    }
    expect(states).toEqual(['open']);
  });

  it('probes by itself, whatever the clock on the wall does, and closes with the first sign of life', async () => {
    await failFor(550);
    vi.setSystemTime(Date.now() - 86_400_000);
    await vi.advanceTimersByTimeAsync(1_000);
    expect(probes).toBeGreaterThanOrEqual(4);
    expect(probes).toBeLessThanOrEqual(6);
    expect(breaker.isClosed()).toBe(false);
    isBack = true;
    await vi.advanceTimersByTimeAsync(200);
    expect(states.slice(-2)).toEqual(['half_open', 'closed']);
    expect(await breaker.call(async () => 'done')).toBe('done');
    // The count begins anew.
    await failFor(450);
    expect(breaker.isClosed()).toBe(true);
  });

  it('refuses also while a probe is under way, and a probe that nobody answers is over by itself', async () => {
    const hanging = createBreaker({
      isFailure: () => true,
      refusal: () => new Error('refused'),
      probe: () => new Promise(() => undefined),
      clock: { nowMs: () => Date.now(), monotonicMs: () => performance.now() },
      changed: (state) => void states.push(state),
    });
    for (let at = 0; at <= 500; at += 50) {
      await hanging.call(() => Promise.reject(UNREACHED)).catch(String);
      await vi.advanceTimersByTimeAsync(50);
    }
    await vi.advanceTimersByTimeAsync(250);
    expect(states).toEqual(['open', 'half_open']);
    await expect(hanging.call(async () => 'done')).rejects.toThrow('refused');
    await vi.advanceTimersByTimeAsync(10_000);
    expect(states.filter((state) => state === 'half_open').length).toBeGreaterThan(5);
    hanging.stop();
  });

  it('sends no probe once it was stopped', async () => {
    await failFor(550);
    breaker.stop();
    const before = probes;
    await vi.advanceTimersByTimeAsync(5_000);
    expect(probes).toBe(before);
  });
});
