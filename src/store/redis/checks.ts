/**
 * Owns what is asked of a cache Redis before it is used: it must keep nothing on disk, and should hold a timeline in its compact form. A cache that
 * was restored from the past would show what was hidden since, and no token could tell.
 */
import { TributaryError } from '../../errors.ts';
import type { Cache } from './client.ts';

/** Refused at start-up: running on it would break a promise. */
export class CacheRefused extends Error {
  override readonly name = 'CacheRefused';
}

const ENTRIES_SETTING = 'zset-max-listpack-entries';
const COVERAGE_SETTING = 'cluster-require-full-coverage';

/**
 * Warnings for the log, none where all is well. Throws CacheRefused where the cache keeps a snapshot or an append-only file, and CACHE_UNAVAILABLE where it does not
 * answer. A server that tells nobody its settings, as managed ones do, gets a warning. Looks at each master of a cluster.
 */
export async function checkCache(
  cache: Cache,
  { cap, stride }: { readonly cap: number; readonly stride: number },
  signal: AbortSignal,
): Promise<readonly string[]> {
  await cache.ready(signal);
  const neededEntries = cap + stride + 1;
  const unknown = (setting: string, needed: string): string =>
    `the cache Redis does not tell its setting "${setting}"; it must be ${needed}`;

  const [snapshots, appendOnly, entries, clustered, coverage] = await Promise.all([
    settingsOf(cache, 'save', signal),
    settingsOf(cache, 'appendonly', signal),
    settingsOf(cache, ENTRIES_SETTING, signal),
    settingsOf(cache, 'cluster-enabled', signal),
    settingsOf(cache, COVERAGE_SETTING, signal),
  ]);
  const snapshot = snapshots?.find((value) => value !== '');
  if (snapshot !== undefined) {
    throw new CacheRefused(
      `the cache Redis keeps snapshots (save "${snapshot}"): restored from one it would show what was hidden since. Set save "" and start again.`,
    );
  }
  if (appendOnly?.some((value) => value !== 'no')) {
    throw new CacheRefused(
      'the cache Redis keeps an append-only file: restored from it it would show what was hidden since. Set appendonly no and start again.',
    );
  }

  const warnings: string[] = [];
  if (!snapshots?.length) warnings.push(unknown('save', 'empty'));
  if (!appendOnly?.length) warnings.push(unknown('appendonly', '"no"'));
  if (!entries?.length) warnings.push(unknown(ENTRIES_SETTING, `at least ${neededEntries}`));
  const fewest = Math.min(...(entries ?? []).map(Number));
  if (fewest < neededEntries) {
    warnings.push(
      `the cache Redis has ${ENTRIES_SETTING} ${fewest}, timelines need ${neededEntries} (cap ${cap} + stride ${stride} + 1): beyond it each takes some six times the memory`,
    );
  }
  if (clustered?.includes('yes') && coverage?.includes('yes')) {
    warnings.push(
      `the cache Redis has ${COVERAGE_SETTING} yes: when one node is lost, the others answer nobody either. Set it to no`,
    );
  }
  return warnings;
}

/** Undefined where the server refuses to say. */
async function settingsOf(cache: Cache, name: string, signal: AbortSignal): Promise<readonly string[] | undefined> {
  try {
    return await cache.settings(signal, name);
  } catch (error) {
    if (error instanceof TributaryError && isRefusal(error.cause)) return undefined;
    throw error;
  }
}

/** CONFIG renamed or disabled, or not allowed to this user. */
function isRefusal(cause: unknown): boolean {
  return cause instanceof Error && /unknown command|NOPERM|not allowed|disabled/i.test(cause.message);
}
