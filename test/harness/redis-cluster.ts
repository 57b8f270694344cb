/**
 * Owns a Redis Cluster of three masters for tests, without replicas. Invariant: all three or none; a run that was killed leaves nothing that the next one does not
 * remove, since each node lives in a folder of the name that the global set-up looks for.
 *
 * Put together by commands, as redis-cli would, which not every machine has.
 */
import net from 'node:net';
import path from 'node:path';
import { Redis } from 'ioredis';
import { startRedis } from '../../src/embedded/redis.ts';
import type { EmbeddedServer } from '../../src/embedded/server.ts';
import { removeServers } from '../../src/embedded/servers.ts';
import { eventually } from './eventually.ts';

export interface ClusterNode {
  readonly url: string;
  readonly port: number;
  /** As the cluster calls it. */
  readonly id: string;
  /** Speaks to this node alone. */
  readonly client: Redis;
  /** SIGSTOP: it keeps its port, its connections and its memory, and answers nobody. */
  freeze(): void;
  thaw(): void;
}

export interface RedisCluster {
  readonly urls: readonly string[];
  /** The masters, in the order of their slots. */
  readonly nodes: readonly ClusterNode[];
  /** The master that slots are given to at the start. */
  ownerOf(slot: number): ClusterNode;
  stop(): Promise<void>;
}

const MASTERS = 3;
const SLOTS = 16_384;
/** The bus of a node listens this far above its port. Both stay below the ports of outgoing connections. */
const BUS_OFFSET = 10_000;
const PORTS_FROM = 12_000;
const PORTS_TO = 19_900;
const PORTS_TRIED_MAX = 50;
const STARTS_TRIED_MAX = 3;

const home = path.resolve(import.meta.dirname, '../../.data');
let made = 0;

export async function startRedisCluster(): Promise<RedisCluster> {
  made += 1;
  const folders = Array.from({ length: MASTERS }, (_, index) =>
    path.join(home, `test-${process.pid}-cluster-${made}-${index}`),
  );
  const servers: EmbeddedServer[] = [];
  const clients: Redis[] = [];

  async function stop(): Promise<void> {
    for (const client of clients) client.disconnect();
    await Promise.allSettled(servers.map((server) => server.stop()));
    for (const folder of folders) await removeServers(folder);
  }

  try {
    for (const folder of folders) servers.push(await startNode(path.join(folder, 'cache')));
    clients.push(...servers.map(({ url }) => new Redis(url)));
    const nodes = await join(servers, clients);
    return {
      urls: servers.map(({ url }) => url),
      nodes,
      ownerOf: (slot) => nodes[Math.floor((slot * MASTERS) / SLOTS)] as ClusterNode,
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function startNode(dataDir: string): Promise<EmbeddedServer> {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await startRedis({
        role: 'cache',
        dataDir,
        port: await pickPort(),
        // As the service asks for it: a node that is lost must not silence the others.
        extraArgs: [
          ...['--cluster-enabled', 'yes', '--cluster-node-timeout', '2000'],
          ...['--cluster-require-full-coverage', 'no'],
        ],
      });
    } catch (error) {
      // A port that was free may be taken a moment later.
      if (attempt === STARTS_TRIED_MAX) throw error;
    }
  }
}

async function join(servers: readonly EmbeddedServer[], clients: readonly Redis[]): Promise<readonly ClusterNode[]> {
  const [first] = clients;
  if (first === undefined) throw new Error('a cluster has nodes');
  // Epochs that differ from the start spare the nodes an election over who goes first.
  for (const [index, client] of clients.entries()) {
    await client.cluster('SET-CONFIG-EPOCH', index + 1);
    await client.call('CLUSTER', 'ADDSLOTSRANGE', lowSlot(index), lowSlot(index + 1) - 1);
  }
  for (const { port } of servers.slice(1)) await first.cluster('MEET', '127.0.0.1', port);
  await eventually(
    async () => {
      for (const client of clients) {
        const info = String(await client.cluster('INFO'));
        for (const line of ['cluster_state:ok', `cluster_known_nodes:${MASTERS}`, `cluster_slots_ok:${SLOTS}`]) {
          if (!info.includes(`${line}\r\n`)) throw new Error(`no ${line} yet`);
        }
      }
    },
    { timeoutMs: 20_000, everyMs: 50 },
  );
  return Promise.all(
    clients.map(async (client, index) => {
      const { url, port, pid } = servers[index] as EmbeddedServer;
      return {
        url,
        port,
        client,
        id: String(await client.cluster('MYID')),
        freeze: () => void process.kill(pid, 'SIGSTOP'),
        thaw: () => void process.kill(pid, 'SIGCONT'),
      };
    }),
  );
}

/** First slot of a master: the first s with floor(s · masters / slots) = index. */
function lowSlot(index: number): number {
  return Math.ceil((index * SLOTS) / MASTERS);
}

async function pickPort(): Promise<number> {
  for (let tried = 0; tried < PORTS_TRIED_MAX; tried += 1) {
    const port = PORTS_FROM + Math.floor(Math.random() * (PORTS_TO - PORTS_FROM));
    if ((await isFree(port)) && (await isFree(port + BUS_OFFSET))) return port;
  }
  throw new Error(`no two free ports ${BUS_OFFSET} apart among ${PORTS_TRIED_MAX} tried`);
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const listener = net.createServer();
    listener.once('error', () => resolve(false));
    listener.listen({ host: '127.0.0.1', port, exclusive: true }, () => listener.close(() => resolve(true)));
  });
}
