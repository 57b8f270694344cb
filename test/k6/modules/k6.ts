/** Stand-in for the module `k6`: only what our scripts use. */
import { addSample, waitMs } from '../host.ts';
import type { Tags } from '../messages.ts';

export function check<T>(value: T, sets: Readonly<Record<string, (value: T) => boolean>>, tags: Tags = {}): boolean {
  const results = Object.entries(sets).map(([name, holds]) => {
    const passes = Boolean(holds(value));
    addSample('checks', passes ? 1 : 0, { ...tags, check: name });
    return passes;
  });
  return results.every((passes) => passes);
}

export function sleep(seconds: number): void {
  waitMs(seconds * 1_000);
}
