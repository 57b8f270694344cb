/**
 * Owns telling whether the cache still is the one that it was: a mark in each of its parts, which anybody sets where there is none, and which is another one after a flush or a restart. Processes compare it
 * with what they saw last; that it is there says nothing, since another process may have set it anew. Looked at all the time, marks are the last keys that a cache evicts by use; one that is evicted
 * all the same costs a look at who is there.
 */
import type { Cache } from './client.ts';
import type { Keys } from './keys.ts';

/** The marks that could be read, by key: parts that do not answer are left out. `fresh` becomes the mark of parts that have none. */
export async function readMarks(
  cache: Cache,
  keys: Keys,
  signal: AbortSignal,
  fresh: string,
): Promise<ReadonlyMap<string, string>> {
  const names = keys.marks;
  const results = await cache.runEach(signal, 'mark', names, [fresh]);
  return new Map(
    names.flatMap((name, index) => {
      const result = results[index];
      return result && 'value' in result ? [[name, String(result.value)] as const] : [];
    }),
  );
}
