/**
 * Owns a primary and its replica, behind one address that leads to the primary of the moment, as a managed Redis has it: a failover takes new connections along, and leaves those that are
 * open with a server that takes no more writes.
 */
import path from 'node:path';
import { Redis } from 'ioredis';
import { type RedisRole, startRedis } from '../../src/embedded/redis.ts';
import type { EmbeddedServer } from '../../src/embedded/server.ts';
import { removeServers } from '../../src/embedded/servers.ts';
import { eventually } from './eventually.ts';
import { startFaultProxy } from './fault-proxy.ts';

export interface RedisPair {
  /** For the service. */
  readonly url: string;
  readonly replicaUrl: string;
  /** Resolves when the replica has all that the primary has. */
  caughtUp(): Promise<void>;
  /** From now on the replica hears nothing more of the primary. */
  lag(): void;
  /** Promotes the replica, leads new connections to it, and then makes the old primary its replica. */
  failOver(): Promise<void>;
  stop(): Promise<void>;
}

const SYNC_MAX_MS = 20_000;
const home = path.resolve(import.meta.dirname, '../../.data');
let made = 0;

export async function startRedisPair(role: RedisRole): Promise<RedisPair> {
  made += 1;
  const folders = ['primary', 'replica'].map((name) => path.join(home, `test-${process.pid}-pair-${made}-${name}`));
  const ends: (() => unknown)[] = [];
  const servers: EmbeddedServer[] = [];

  async function stop(): Promise<void> {
    for (const end of ends) await end();
    await Promise.allSettled(servers.map((server) => server.stop()));
    for (const folder of folders) await removeServers(folder);
  }

  async function startOne(folder: string | undefined, extraArgs: readonly string[]): Promise<EmbeddedServer> {
    const server = await startRedis({ role, dataDir: path.join(folder ?? home, role), extraArgs });
    servers.push(server);
    return server;
  }

  try {
    // A primary waits five seconds for further replicas otherwise.
    const primary = await startOne(folders[0], ['--repl-diskless-sync-delay', '0']);
    const link = await startFaultProxy({ port: primary.port });
    ends.push(() => link.stop());
    const replica = await startOne(folders[1], ['--replicaof', `127.0.0.1 ${link.port}`]);
    const address = await startFaultProxy({ port: primary.port });
    ends.push(() => address.stop());
    const [first, second] = [new Redis(primary.url), new Redis(replica.url)];
    ends.push(
      () => first.disconnect(),
      () => second.disconnect(),
    );
    await eventually(
      async () => {
        if (!(await second.info('replication')).includes('master_link_status:up')) throw new Error('not in step yet');
      },
      { timeoutMs: SYNC_MAX_MS },
    );

    return {
      url: address.through(primary.url),
      replicaUrl: replica.url,
      async caughtUp() {
        if ((await first.wait(1, SYNC_MAX_MS)) !== 1) throw new Error('the replica does not follow');
      },
      lag: () => link.blackhole(),
      async failOver() {
        await second.replicaof('NO', 'ONE');
        address.retarget(replica.port);
        await first.replicaof('127.0.0.1', replica.port);
      },
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}
