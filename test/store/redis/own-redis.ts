/** Owns a Redis server of one test file, which may stop, kill or set it as it likes. */
import path from 'node:path';
import { startRedis } from '../../../src/embedded/redis.ts';
import type { EmbeddedServer } from '../../../src/embedded/server.ts';
import { removeServers } from '../../../src/embedded/servers.ts';

let made = 0;

export interface OwnRedis {
  readonly server: EmbeddedServer;
  stop(): Promise<void>;
}

/** `args` as on the command line, over the settings of a cache. */
export async function startOwnRedis(...args: readonly string[]): Promise<OwnRedis> {
  made += 1;
  // The name by which the next run finds and removes what a killed one left.
  const folder = path.resolve(import.meta.dirname, `../../../.data/test-${process.pid}-redis-${made}`);
  const server = await startRedis({ role: 'cache', dataDir: path.join(folder, 'cache'), extraArgs: args });
  return {
    server,
    async stop() {
      await server.stop();
      await removeServers(folder);
    },
  };
}
