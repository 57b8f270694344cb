/**
 * Owns what every benchmark gets: servers of its own in a folder of its own, bounds for its rounds, and a way to say how far it is.
 * Invariant: when `withServers` settles, its servers have ended and its folder is gone, however the work ended.
 */
import { randomBytes } from 'node:crypto';
import { mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type Config, configFrom } from '../../src/config.ts';
import { removeData } from '../../src/embedded/place.ts';
import { type Servers, startServers } from '../../src/embedded/servers.ts';
import type { BenchResult } from './result.ts';

export interface BenchOptions {
  readonly rounds: number;
  readonly roundMs: number;
  /** How large the run is, in what `Bench.size` says; absent for benchmarks without. */
  readonly size?: number;
  readonly report: (line: string) => void;
  /** Aborts on Ctrl-C. */
  readonly signal: AbortSignal;
}

/** What a file of a benchmark exports as `bench`. */
export interface Bench {
  /** Where the run can be made smaller or larger. */
  readonly size?: { readonly of: string; readonly preset: number; readonly min: number; readonly max: number };
  run(options: BenchOptions): Promise<BenchResult>;
}

/** Servers with the settings of production: what is answered has been flushed. `cacheMemory`: of the cache, in Redis' notation. */
export function withServers<Result>(
  work: (servers: Servers, folder: string) => Promise<Result>,
  options: { readonly cacheMemory?: string } = {},
): Promise<Result> {
  return withFolder(async (folder) => {
    const servers = await startServers({ dataDir: folder, fast: false, ...options });
    try {
      return await work(servers, folder);
    } finally {
      await servers.stop();
    }
  });
}

/** A folder for servers. What root's servers keep outside of it (src/embedded/place.ts) goes with it. */
export async function withFolder<Result>(work: (folder: string) => Promise<Result>): Promise<Result> {
  const folder = await mkdtemp(path.join(tmpdir(), 'tributary-bench-'));
  try {
    return await work(folder);
  } finally {
    removeData(folder);
  }
}

/** A service on free ports of this machine's loopback, quiet, with whatever a benchmark wants otherwise. */
export function benchConfig(servers: Servers, settings: Readonly<Record<string, string>> = {}): Config {
  return configFrom(benchEnvironment(servers, settings));
}

/** For runs that measure how fast and not how soon: a machine that others load must not have calls given up that only wait for their turn. */
export const PATIENT: Readonly<Record<string, string>> = {
  DATABASE_ACQUIRE_TIMEOUT_MS: '30000',
  DATABASE_STATEMENT_TIMEOUT_MS: '30000',
  CACHE_COMMAND_TIMEOUT_MS: '10000',
  CACHE_CONNECT_TIMEOUT_MS: '10000',
};

/** Large authors stay in the bulk lane here, which is what is measured, instead of being pulled. */
export const PUSHED: Readonly<Record<string, string>> = {
  AUTHOR_PULL_UP: '1000000000',
  AUTHOR_PULL_DOWN: '999999999',
  AUTHOR_CLASS_EVERY_MS: '600000',
};

/** The same as environment variables, for a service in a process of its own. */
export function benchEnvironment(
  servers: Servers,
  settings: Readonly<Record<string, string>> = {},
): Readonly<Record<string, string>> {
  return {
    DATABASE_URL: servers.postgres.url,
    REDIS_CACHE_URL: servers.cache.url,
    REDIS_QUEUE_URL: servers.queue.url,
    TRIBUTARY_HOST: '127.0.0.1',
    TRIBUTARY_GRPC_PORT: '0',
    TRIBUTARY_HTTP_PORT: '0',
    PAGE_TOKEN_KEYS: randomBytes(32).toString('base64'),
    LOG_LEVEL: 'warn',
    // Timelines are filled with entries of posts that there are not.
    RECONCILE_PER_MINUTE: '0',
    // A flush between two contenders is no loss to be made good beside the next.
    WARM_UP_PER_SECOND: '0',
    ...settings,
  };
}
