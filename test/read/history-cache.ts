/** Owns the cache that random histories play on, and what befalls it: one server, or the masters of a cluster. What is evicted, flushed or ended is so behind the product's back. */
import path from 'node:path';
import { Cluster, Redis } from 'ioredis';
import { startRedis } from '../../src/embedded/redis.ts';
import { eventually } from '../harness/eventually.ts';
import type { ClusterNode, RedisCluster } from '../harness/redis-cluster.ts';

export interface HistoryCache {
  /** For the services. */
  readonly env: Readonly<Record<string, string>>;
  flush(): Promise<unknown>;
  /** One of the tenant's keys of a kind: the `nth`, counted round. */
  evict(prefix: string, tenant: string, nth: number): Promise<void>;
  /** The server, or one master, ends and comes back empty. */
  restart(how: 'stop' | 'kill'): Promise<void>;
  close(): Promise<void>;
}

export async function startHistoryCache(folder: string): Promise<HistoryCache> {
  const server = await startRedis({ role: 'cache', dataDir: path.join(folder, 'cache') });
  const behind = new Redis(server.url, { maxRetriesPerRequest: null });
  behind.on('error', () => undefined);
  return {
    env: { REDIS_CACHE_URL: server.url },
    flush: () => behind.flushall(),
    evict: (prefix, tenant, nth) => evictFrom([behind], behind, `${prefix}*:${tenant}:*`, nth),
    async restart(how) {
      if (how === 'kill') await server.kill();
      await server.restart();
    },
    async close() {
      behind.disconnect();
      await server.stop();
    },
  };
}

/** The cluster stays its owner's. `env`: what the services are told beside where it is. */
export function historyCacheOn(cluster: RedisCluster, env: Readonly<Record<string, string>>): HistoryCache {
  const behind = new Cluster([...cluster.urls]);
  behind.on('error', () => undefined);
  const clients = cluster.nodes.map(({ client }) => client);
  let restarts = 0;
  return {
    env: { ...cluster.env, ...env },
    flush: () => Promise.all(clients.map((client) => client.flushall())),
    evict: (prefix, tenant, nth) => evictFrom(clients, behind, `${prefix}*:${tenant}:*`, nth),
    async restart(how) {
      const node = cluster.nodes[restarts % cluster.nodes.length] as ClusterNode;
      restarts += 1;
      if (how === 'kill') await node.kill();
      await node.restart();
      await eventually(() => node.client.ping());
    },
    close: async () => behind.disconnect(),
  };
}

async function evictFrom(all: readonly Redis[], behind: Redis | Cluster, pattern: string, nth: number): Promise<void> {
  const keys = (await Promise.all(all.map((client) => client.keys(pattern)))).flat().sort();
  const key = keys[nth % Math.max(1, keys.length)];
  if (key !== undefined) await behind.del(key);
}
