/**
 * Owns what every benchmark gets: servers of its own in a folder of its own, bounds for its rounds, and a way to say how far it is.
 * Invariant: when `withServers` settles, its servers have ended and its folder is gone, however the work ended.
 */
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type Config, configFrom } from '../../src/config.ts';
import { type Servers, startServers } from '../../src/embedded/servers.ts';
import type { BenchResult } from './result.ts';

export interface BenchOptions {
  readonly rounds: number;
  readonly roundMs: number;
  readonly report: (line: string) => void;
  /** Aborts on Ctrl-C. */
  readonly signal: AbortSignal;
}

/** What a file of a benchmark exports as `bench`. */
export interface Bench {
  run(options: BenchOptions): Promise<BenchResult>;
}

/** Servers with the settings of production: what is answered has been flushed. */
export async function withServers<Result>(work: (servers: Servers) => Promise<Result>): Promise<Result> {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'tributary-bench-'));
  try {
    const servers = await startServers({ dataDir, fast: false });
    try {
      return await work(servers);
    } finally {
      await servers.stop();
    }
  } finally {
    await rm(dataDir, { recursive: true, force: true });
  }
}

/** A service on free ports of this machine's loopback, quiet, with whatever a benchmark wants otherwise. */
export function benchConfig(servers: Servers, settings: Readonly<Record<string, string>> = {}): Config {
  return configFrom({
    DATABASE_URL: servers.postgres.url,
    REDIS_CACHE_URL: servers.cache.url,
    REDIS_QUEUE_URL: servers.queue.url,
    TRIBUTARY_HOST: '127.0.0.1',
    TRIBUTARY_GRPC_PORT: '0',
    TRIBUTARY_HTTP_PORT: '0',
    PAGE_TOKEN_KEYS: randomBytes(32).toString('base64'),
    LOG_LEVEL: 'warn',
    ...settings,
  });
}
