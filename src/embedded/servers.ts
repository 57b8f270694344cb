// Owns the set that `npm start` and the tests run on: one Postgres, one Redis of each role, in one data folder.
// Invariant: all three or none. One owner per data folder at a time.

import { existsSync, mkdirSync } from 'node:fs';
import path from 'node:path';
import { DataInUse, type DataLock, lockData } from './data-lock.ts';
import { removeData } from './place.ts';
import { endPostgresLeftovers, startPostgres } from './postgres.ts';
import { endRedisLeftovers, startRedis } from './redis.ts';
import type { EmbeddedServer } from './server.ts';

export interface Servers {
  readonly postgres: EmbeddedServer;
  readonly cache: EmbeddedServer;
  readonly queue: EmbeddedServer;
  /** Ends all three and gives the data folder back. */
  stop(): Promise<void>;
}

export interface ServersOptions {
  readonly dataDir: string;
  /** For tests: nothing is flushed to the disk, so a power cut may cost the data. A killed server still loses nothing. */
  readonly fast: boolean;
  /** Of the cache, in Redis' notation; the preset of redis.ts otherwise. */
  readonly cacheMemory?: string;
}

/**
 * `synchronous_commit` stays on: an answered commit has then been handed to the kernel, and a test that kills Postgres
 * finds it again. Without fsync that costs next to nothing.
 */
const fastSettings = { fsync: 'off', full_page_writes: 'off' };

/** Rejects with DataInUse when another process runs on the same data folder. */
export async function startServers({ dataDir, fast, cacheMemory }: ServersOptions): Promise<Servers> {
  const folder = path.resolve(dataDir);
  mkdirSync(folder, { recursive: true });
  const lock = lockData(folder);
  const starts = [
    startPostgres({ dataDir: path.join(folder, 'postgres'), settings: fast ? fastSettings : {} }),
    startRedis({
      role: 'cache',
      dataDir: path.join(folder, 'cache'),
      ...(cacheMemory !== undefined && { maxmemory: cacheMemory }),
    }),
    startRedis({ role: 'queue', dataDir: path.join(folder, 'queue') }),
  ] as const;
  try {
    const [postgres, cache, queue] = await Promise.all(starts);
    return { postgres, cache, queue, stop: () => stopAll([postgres, cache, queue], lock) };
  } catch (error) {
    const settled = await Promise.allSettled(starts);
    const started = settled.flatMap((each) => (each.status === 'fulfilled' ? [each.value] : []));
    await stopAll(started, lock);
    throw error;
  }
}

/** Removes a data folder, and the servers a crashed run left in it. Does nothing when somebody runs on it. */
export async function removeServers(dataDir: string): Promise<'removed' | 'in use'> {
  const folder = path.resolve(dataDir);
  if (!existsSync(folder)) return 'removed';
  let lock: DataLock;
  try {
    lock = lockData(folder);
  } catch (error) {
    if (error instanceof DataInUse) return 'in use';
    throw error;
  }
  try {
    await endPostgresLeftovers(path.join(folder, 'postgres'));
    await endRedisLeftovers('cache', path.join(folder, 'cache'));
    await endRedisLeftovers('queue', path.join(folder, 'queue'));
    removeData(folder);
  } finally {
    lock.release();
  }
  return 'removed';
}

async function stopAll(servers: readonly EmbeddedServer[], lock: DataLock): Promise<void> {
  const settled = await Promise.allSettled(servers.map((server) => server.stop()));
  lock.release();
  const failed = settled.find((each) => each.status === 'rejected');
  if (failed !== undefined) throw failed.reason;
}
