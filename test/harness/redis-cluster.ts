/**
 * Owns a Redis Cluster of three masters for tests, with a replica of the first where one is asked for. Invariant: all nodes or none; a run that was killed leaves nothing that the next one does not
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
  /** SIGKILL: what it held is gone. */
  kill(): Promise<void>;
  /** Comes back under its own name, empty. Resolves when it answers, which is before the others have noticed. */
  restart(): Promise<void>;
}

export interface RedisCluster {
  readonly urls: readonly string[];
  /** What a service is told of it. */
  readonly env: Readonly<Record<string, string>>;
  /** The masters, in the order of their slots. */
  readonly nodes: readonly ClusterNode[];
  /** Of the first master, where one was asked for. */
  readonly replica: ClusterNode | undefined;
  /** The master that a slot was given to at the start, or last. */
  ownerOf(slot: number): ClusterNode;
  /** Notes that a slot has another owner now. */
  gave(slot: number, node: ClusterNode): void;
  /** Resolves when every node that runs calls the cluster whole. */
  whole(): Promise<void>;
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

export async function startRedisCluster({
  replica: wantsReplica = false,
}: {
  readonly replica?: boolean;
} = {}): Promise<RedisCluster> {
  made += 1;
  const count = wantsReplica ? MASTERS + 1 : MASTERS;
  const folders = Array.from({ length: count }, (_, index) =>
    path.join(home, `test-${process.pid}-cluster-${made}-${index}`),
  );
  const servers: EmbeddedServer[] = [];
  const clients: Redis[] = [];
  const given = new Map<number, ClusterNode>();

  async function stop(): Promise<void> {
    for (const client of clients) client.disconnect();
    await Promise.allSettled(servers.map((server) => server.stop()));
    for (const folder of folders) await removeServers(folder);
  }

  try {
    servers.push(...(await Promise.all(folders.map((folder) => startNode(path.join(folder, 'cache'))))));
    clients.push(...servers.map(({ url }) => watched(new Redis(url))));
    await join(servers, clients);
    const all = await Promise.all(
      servers.map(async (server, index) =>
        nodeOf(server, clients[index] as Redis, await idOf(clients[index] as Redis)),
      ),
    );
    const nodes = all.slice(0, MASTERS);
    const replica = all[MASTERS];
    if (replica) await follow(replica, nodes[0] as ClusterNode);
    const urls = servers.map(({ url }) => url);
    return {
      urls,
      env: { REDIS_CACHE_URL: urls.join(','), REDIS_CACHE_CLUSTER: 'true' },
      nodes,
      replica,
      ownerOf: (slot) => given.get(slot) ?? (nodes[Math.floor((slot * MASTERS) / SLOTS)] as ClusterNode),
      gave: (slot, node) => void given.set(slot, node),
      whole: () => whole(clients, count),
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** A node that a test ends is no fault of the test. */
function watched(client: Redis): Redis {
  return client.on('error', () => undefined);
}

function nodeOf(server: EmbeddedServer, client: Redis, id: string): ClusterNode {
  const { url, port } = server;
  return {
    url,
    port,
    client,
    id,
    freeze: () => void process.kill(server.pid, 'SIGSTOP'),
    thaw: () => void process.kill(server.pid, 'SIGCONT'),
    kill: () => server.kill(),
    restart: () => server.restart(),
  };
}

async function idOf(client: Redis): Promise<string> {
  return String(await client.cluster('MYID'));
}

async function follow(replica: ClusterNode, master: ClusterNode): Promise<void> {
  // A primary waits five seconds for further replicas otherwise.
  await master.client.config('SET', 'repl-diskless-sync-delay', 0);
  await replica.client.cluster('REPLICATE', master.id);
  await eventually(
    async () => {
      if (!(await replica.client.info('replication')).includes('master_link_status:up'))
        throw new Error('the replica is not in step yet');
    },
    { timeoutMs: 20_000, everyMs: 50 },
  );
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

async function join(servers: readonly EmbeddedServer[], clients: readonly Redis[]): Promise<void> {
  const [first] = clients;
  if (first === undefined) throw new Error('a cluster has nodes');
  // Epochs that differ from the start spare the nodes an election over who goes first.
  for (const [index, client] of clients.entries()) {
    await client.cluster('SET-CONFIG-EPOCH', index + 1);
    if (index < MASTERS) await client.call('CLUSTER', 'ADDSLOTSRANGE', lowSlot(index), lowSlot(index + 1) - 1);
  }
  for (const { port } of servers.slice(1)) await first.cluster('MEET', '127.0.0.1', port);
  await whole(clients, clients.length);
}

function whole(clients: readonly Redis[], nodes: number): Promise<void> {
  return eventually(
    async () => {
      for (const client of clients) {
        const info = String(await client.cluster('INFO'));
        for (const line of ['cluster_state:ok', `cluster_known_nodes:${nodes}`, `cluster_slots_ok:${SLOTS}`]) {
          if (!info.includes(`${line}\r\n`)) throw new Error(`no ${line} yet`);
        }
      }
    },
    { timeoutMs: 20_000, everyMs: 50 },
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
