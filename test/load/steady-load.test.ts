/** Owns the promises of the steady load: calls come whatever becomes of them, and "back" means back for good. */
import { describe, expect, it } from 'vitest';
import { type Sample, secondsUntilBack, startSteadyLoad, stretchOf } from '../../load/bench/steady-load.ts';
import { eventually } from '../harness/eventually.ts';

describe('a steady load', () => {
  it('goes on while calls hang, and counts those it cannot begin as failed', async () => {
    const hang = Promise.withResolvers<void>();
    const load = startSteadyLoad({ perSecond: 500, openMax: 3, call: () => hang.promise });
    await eventually(() => expect(load.samples.length).toBeGreaterThan(5));
    expect(load.samples.every(({ ok }) => !ok)).toBe(true);
    expect([...load.errors.keys()]).toEqual(['not begun: too many are open']);
    hang.resolve();
    await load.stop();
    expect(load.samples.filter(({ ok }) => ok)).toHaveLength(3);
  });

  it('counts errors by their message, and begins none after its stop', async () => {
    const load = startSteadyLoad({ perSecond: 500, openMax: 3, call: () => Promise.reject(new Error('refused')) });
    await eventually(() => expect(load.errors.get('refused')).toBeGreaterThan(2));
    await load.stop();
    const { length } = load.samples;
    await new Promise((resolve) => setImmediate(resolve));
    expect(load.samples).toHaveLength(length);
  });
});

describe('a service', () => {
  /** Ten calls a second for each of the seconds: how long they took, and how many failed. */
  function samplesOf(seconds: readonly { readonly ms: number; readonly failed?: number }[]): readonly Sample[] {
    return seconds.flatMap(({ ms, failed = 0 }, second) =>
      Array.from({ length: 10 }, (_, index) => ({ atMs: second * 1_000 + index * 100, ms, ok: index >= failed })),
    );
  }
  const of = { faultMs: 0, calm: 2, p99MsMax: 50, errorRateMax: 0.01 };

  it.each([
    { what: 'never left', seconds: [{ ms: 5 }, { ms: 5 }, { ms: 5 }], back: 0 },
    { what: 'was slow for two seconds', seconds: [{ ms: 900 }, { ms: 51 }, { ms: 50 }, { ms: 5 }], back: 2 },
    { what: 'failed for one', seconds: [{ ms: 5, failed: 1 }, { ms: 5 }, { ms: 5 }], back: 1 },
    { what: 'failed again', seconds: [{ ms: 5 }, { ms: 5, failed: 10 }, { ms: 5 }, { ms: 5 }], back: 2 },
    { what: 'is good for one second only', seconds: [{ ms: 900 }, { ms: 900 }, { ms: 5 }], back: undefined },
  ])('that $what is back after $back', ({ seconds, back }) => {
    expect(secondsUntilBack(samplesOf(seconds), { ...of, untilMs: seconds.length * 1_000 })).toBe(back);
  });

  it('is not back in a second without calls', () => {
    expect(secondsUntilBack([], { ...of, untilMs: 10_000 })).toBeUndefined();
  });

  it('has the p99 of those that did not fail', () => {
    const samples = Array.from({ length: 100 }, (_, index) => ({ atMs: index, ms: index + 1, ok: true }));
    expect(stretchOf(samples, 0, 100)).toEqual({ count: 100, errorRate: 0, p99Ms: 99 });
    expect(stretchOf(samples, 0, 10).p99Ms).toBe(10);
  });
});
