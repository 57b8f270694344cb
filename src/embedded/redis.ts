// Owns a Redis (or Valkey) server for development and tests, in one of the two roles of the design.
// Invariant: the cache role keeps nothing on disk (a cache restored from the past would lie) and may evict anything; the
// queue role keeps every job and refuses writes rather than evict.

import { execFile } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import { promisify } from 'node:util';
import { findRedisServer } from './install.mjs';
import { chooseAccount, giveTo, placeData } from './place.ts';
import { type EmbeddedServer, endLeftovers, type ServerPlan, startServer } from './server.ts';

export type RedisRole = 'cache' | 'queue';

export interface RedisOptions {
  readonly role: RedisRole;
  /** Created when it is missing, used as it is otherwise. */
  readonly dataDir: string;
  /** In Redis' notation. Default 512mb, plenty for development and small beside any machine of today. */
  readonly maxmemory?: string;
  /** Default: a free one. */
  readonly port?: number;
  /** On top of everything else, as on the command line: `['--timeout', '5']`. */
  readonly extraArgs?: readonly string[];
}

/** A timeline is one listpack up to its cap (2,000 at most), a stride of 64 and the state member; 100 to spare. */
const listpackEntriesMax = 2_000 + 64 + 1 + 100;

/** The first with `zset-max-listpack-entries` by that name; every Valkey has it. */
const versionMin = 7;

const startWaitMs = 15_000;
const probeWaitMs = 2_000;

/** Redis writes the end of its append-only file first. */
const stopSteps: ServerPlan['stopSteps'] = [{ signal: 'SIGTERM', waitMs: 10_000 }];

const settingsOf: Readonly<Record<RedisRole, readonly string[]>> = {
  cache: ['appendonly no', 'maxmemory-policy allkeys-lru'],
  queue: ['appendonly yes', 'appendfsync everysec', 'maxmemory-policy noeviction'],
};

export async function startRedis(options: RedisOptions): Promise<EmbeddedServer> {
  const { role, maxmemory = '512mb', extraArgs = [] } = options;
  const command = findRedisServer();
  if (command === undefined) {
    throw new Error('No redis-server or valkey-server on PATH; install Redis 7 or set TRIBUTARY_REDIS_SERVER');
  }
  await checkVersion(command);
  const account = chooseAccount();
  const marks = marksOf(role, placeData(path.resolve(options.dataDir), account));
  const { folder, ownArgument: configFile } = marks;

  async function prepare(): Promise<void> {
    const lines = [
      'bind 127.0.0.1',
      'protected-mode yes',
      'daemonize no',
      // The title would replace the command line, by which a server that was left behind is recognised.
      'set-proc-title no',
      'logfile ""',
      'tcp-backlog 128',
      `dir ${JSON.stringify(folder)}`,
      'save ""',
      `zset-max-listpack-entries ${listpackEntriesMax}`,
      `maxmemory ${maxmemory}`,
      ...settingsOf[role],
    ];
    writeFileSync(configFile, `${lines.join('\n')}\n`);
    await giveTo(account, folder);
  }

  return startServer({
    ...marks,
    command,
    account,
    logFile: path.join(folder, 'server.log'),
    port: options.port,
    stopSteps,
    startWaitMs,
    args: (port) => [configFile, '--port', String(port), ...extraArgs],
    url: (port) => `redis://127.0.0.1:${port}`,
    prepare,
    probe,
  });
}

/** Ends the Redis that a crashed run left behind in this data folder, if there is one. The caller holds the folder. */
export function endRedisLeftovers(role: RedisRole, dataDir: string): Promise<void> {
  return endLeftovers(marksOf(role, placeData(path.resolve(dataDir), chooseAccount())));
}

/** What a server of this folder is recognised by. */
function marksOf(role: RedisRole, folder: string) {
  const ownArgument = path.join(folder, 'redis.conf');
  return { name: `Redis (${role})`, folder, command: findRedisServer() ?? 'redis-server', ownArgument, pidFiles: [] };
}

async function checkVersion(command: string): Promise<void> {
  const { stdout } = await promisify(execFile)(command, ['--version']);
  const version = /v=(\d+)\.\S+/.exec(stdout);
  if (version === null || Number(version[1]) < versionMin) {
    throw new Error(`${command} is ${version?.[0] ?? 'of an unknown version'}; Redis ${versionMin} or newer is needed`);
  }
}

/**
 * PONG, from the very process that was started: on a clash of ports it would be a stranger's. The protocol's inline form
 * is enough for this, and keeps a client with reconnects of its own out of the start-up.
 */
async function probe({ port, pid }: { readonly port: number; readonly pid: number }): Promise<void> {
  const answer = await new Promise<string>((resolve, reject) => {
    const socket = net.connect({ host: '127.0.0.1', port });
    let text = '';
    socket.setTimeout(probeWaitMs, () => socket.destroy(new Error('no answer to PING')));
    socket.setEncoding('utf8');
    socket.on('data', (chunk: string) => {
      text += chunk;
    });
    socket.once('error', reject);
    socket.once('close', () => resolve(text));
    socket.write('PING\r\nINFO server\r\nQUIT\r\n');
  });
  if (!answer.startsWith('+PONG')) throw new Error(`PING was answered with ${answer.slice(0, 80).trim()}`);
  if (!answer.includes(`process_id:${pid}\r\n`)) throw new Error('another Redis answers on this port');
}
