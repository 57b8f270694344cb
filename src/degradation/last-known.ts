/**
 * Owns what was last known of things that every call needs, for the time when Postgres is away and they cannot be asked for: who holds an API key. Without it no rung of the ladder would last
 * longer than the key is cached.
 *
 * Invariant: an answer of Postgres always wins, and one that says "there is none" is the end of what was known. What is remembered is used only while the breaker says that Postgres is away.
 */
import { LRUCache } from 'lru-cache';
import type { Clock } from '../runtime.ts';

/** What `load` gives; where it fails while Postgres is away, what it gave last for this name. Throws what `load` threw where nothing is known. */
export type LastKnown<Value> = (name: string, load: () => Promise<Value | undefined>) => Promise<Value | undefined>;

/** Some two hundred bytes each. */
const KNOWN_MAX = 10_000;

export function createLastKnown<Value extends object>(parts: {
  readonly hasDatabase: () => boolean;
  /** How long something is remembered that Postgres has not confirmed again; 0 remembers nothing. */
  readonly lifeMs: number;
  readonly clock: Clock;
}): LastKnown<Value> {
  const { hasDatabase, lifeMs, clock } = parts;
  const known = new LRUCache<string, Value>({
    max: KNOWN_MAX,
    // lru-cache takes 0 for "for ever".
    ttl: Math.max(lifeMs, 1),
    ttlResolution: 0,
    perf: { now: () => clock.monotonicMs() },
  });
  return async function lastKnown(name, load) {
    try {
      const value = await load();
      if (value === undefined) known.delete(name);
      else if (lifeMs > 0) known.set(name, value);
      return value;
    } catch (error) {
      const value = hasDatabase() ? undefined : known.get(name);
      if (value === undefined) throw error;
      return value;
    }
  };
}
