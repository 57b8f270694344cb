import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Redis } from 'ioredis';
import { Client } from 'pg';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { chooseAccount, placeData, projectRoot } from '../../src/embedded/place.ts';
import { startPostgres } from '../../src/embedded/postgres.ts';
import { isRunning, listDescendants, signalProcess } from '../../src/embedded/processes.ts';
import { startRedis } from '../../src/embedded/redis.ts';
import type { EmbeddedServer } from '../../src/embedded/server.ts';
import { removeServers, startServers } from '../../src/embedded/servers.ts';
import { eventually } from '../harness/eventually.ts';
import type { OwnerReport } from './owner.ts';

/** Durability as in a test run: without it a commit waits for the disk. */
const fast = { fsync: 'off' };

/** A server that ends in order writes what it holds first, and has 15 s before it is ended by force. */
const patience = { timeoutMs: 25_000 };

let dataDir: string;
/** What a failed test would leave running. */
let started: { stop(): Promise<void> }[];

beforeEach(() => {
  const home = path.join(projectRoot, '.data');
  mkdirSync(home, { recursive: true });
  // Named after this process, as a run's own folder is: should it be killed, the next run removes it.
  dataDir = mkdtempSync(path.join(home, `test-${process.pid}-`));
  // The servers' account may enter it; mkdtemp makes folders for their owner alone.
  chmodSync(dataDir, 0o755);
  started = [];
});

afterEach(async () => {
  await Promise.all(started.map((server) => server.stop()));
  // An owner that was killed a moment ago may still hold it.
  for (const folder of [dataDir, secondDir()]) {
    await eventually(async () => expect(await removeServers(folder)).toBe('removed'), patience);
  }
});

function secondDir(): string {
  return `${dataDir}-2`;
}

function keep<T extends { stop(): Promise<void> }>(server: T): T {
  started.push(server);
  return server;
}

async function query(server: EmbeddedServer, sql: string): Promise<readonly Record<string, unknown>[]> {
  const client = new Client({ connectionString: server.url });
  await client.connect();
  try {
    return (await client.query(sql)).rows;
  } finally {
    await client.end();
  }
}

async function ask<T>(server: EmbeddedServer, question: (redis: Redis) => Promise<T>): Promise<T> {
  const redis = new Redis(server.url, { maxRetriesPerRequest: 0 });
  try {
    return await question(redis);
  } finally {
    redis.disconnect();
  }
}

async function configOf(server: EmbeddedServer, names: readonly string[]): Promise<Record<string, unknown>> {
  return ask(server, async (redis) => {
    const pairs = await Promise.all(
      names.map(async (name) => [name, (await configGet(redis, name)).get(name)] as const),
    );
    return Object.fromEntries(pairs);
  });
}

/** CONFIG GET answers with a list or a map, depending on the protocol. */
async function configGet(redis: Redis, name: string): Promise<ReadonlyMap<string, unknown>> {
  const answer: unknown = await redis.config('GET', name);
  if (Array.isArray(answer)) return new Map([[String(answer[0]), answer[1]]]);
  return new Map(Object.entries(answer as Record<string, unknown>));
}

describe('Postgres', () => {
  it('serves UTF-8 text in byte order, with the settings it was given', async () => {
    const server = keep(await startPostgres({ dataDir, settings: { ...fast, work_mem: '7MB' } }));
    const [row] = await query(
      server,
      `SELECT current_database() AS database, current_setting('server_encoding') AS encoding,
              (SELECT datcollate FROM pg_database WHERE datname = current_database()) AS collation,
              current_setting('max_connections') AS connections, current_setting('fsync') AS fsync,
              current_setting('work_mem') AS work_mem, current_setting('TimeZone') AS timezone,
              current_setting('listen_addresses') AS addresses, current_setting('unix_socket_directories') AS sockets`,
    );
    expect(row).toEqual({
      database: 'tributary',
      encoding: 'UTF8',
      collation: 'C',
      connections: '200',
      fsync: 'off',
      work_mem: '7MB',
      timezone: 'UTC',
      addresses: '127.0.0.1',
      sockets: '',
    });
  });

  it('refuses a wrong password', async () => {
    const server = keep(await startPostgres({ dataDir, settings: fast }));
    const url = new URL(server.url);
    url.password = 'guessed';
    const client = new Client({ connectionString: url.href });
    await expect(client.connect()).rejects.toThrow(/password authentication failed/);
  });

  it('keeps its data from one start to the next, and does not create the cluster again', async () => {
    const first = keep(await startPostgres({ dataDir, settings: fast }));
    await query(first, 'CREATE TABLE kept (x int)');
    const [before] = await query(first, 'SELECT system_identifier::text AS id FROM pg_control_system()');
    await first.stop();
    const second = keep(await startPostgres({ dataDir, settings: fast }));
    expect(await query(second, 'SELECT count(*)::int AS rows FROM kept')).toEqual([{ rows: 0 }]);
    expect(await query(second, 'SELECT system_identifier::text AS id FROM pg_control_system()')).toEqual([before]);
  });

  it('comes back on the same port with every answered commit after a crash', async () => {
    const server = keep(await startPostgres({ dataDir, settings: fast }));
    await query(server, 'CREATE TABLE kept AS SELECT 1 AS x');
    const { port, pid } = server;
    const processes = [pid, ...listDescendants(pid)];
    await server.kill();
    expect(processes.filter(isRunning)).toEqual([]);
    await server.restart();
    expect(server.port).toBe(port);
    expect(server.pid).not.toBe(pid);
    expect(await query(server, 'SELECT x FROM kept')).toEqual([{ x: 1 }]);
  });

  it('says what Postgres logged when it cannot start', async () => {
    const start = startPostgres({ dataDir, settings: { ...fast, shared_buffers: 'plenty' } });
    await expect(start).rejects.toThrow(
      /Postgres ended during its start.*invalid value for parameter "shared_buffers"/s,
    );
    // And gives the folder back.
    keep(await startPostgres({ dataDir, settings: fast }));
  });

  it('starts over a process ID that a crash left behind and that belongs to another process by now', async () => {
    const server = keep(await startPostgres({ dataDir, settings: fast }));
    await server.kill();
    await server.stop();
    const file = path.join(placeData(dataDir, chooseAccount()), 'cluster', 'postmaster.pid');
    const [, ...rest] = readFileSync(file, 'utf8').split('\n');
    const stranger = fork(path.join(import.meta.dirname, 'stranger.ts'), { execArgv: [] });
    try {
      await once(stranger, 'message');
      writeFileSync(file, [stranger.pid, ...rest].join('\n'));
      const again = keep(await startPostgres({ dataDir, settings: fast }));
      expect(await query(again, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
      expect(stranger.exitCode ?? stranger.signalCode).toBeNull();
    } finally {
      stranger.kill('SIGKILL');
    }
  });
});

describe('Redis', () => {
  const names = ['save', 'appendonly', 'maxmemory-policy', 'zset-max-listpack-entries', 'bind', 'protected-mode'];

  it('as the cache keeps nothing on disk and may evict anything', async () => {
    const server = keep(await startRedis({ role: 'cache', dataDir, maxmemory: '64mb' }));
    expect(await configOf(server, [...names, 'maxmemory'])).toEqual({
      save: '',
      appendonly: 'no',
      'maxmemory-policy': 'allkeys-lru',
      'zset-max-listpack-entries': '2165',
      bind: '127.0.0.1',
      'protected-mode': 'yes',
      maxmemory: String(64 * 1024 * 1024),
    });
    await ask(server, (redis) => redis.set('key', 'value'));
    await server.restart();
    expect(await ask(server, (redis) => redis.get('key'))).toBeNull();
  });

  it('as the queue keeps everything and evicts nothing', async () => {
    const server = keep(await startRedis({ role: 'queue', dataDir }));
    expect(await configOf(server, names)).toMatchObject({
      save: '',
      appendonly: 'yes',
      'maxmemory-policy': 'noeviction',
    });
    await ask(server, (redis) => redis.set('key', 'value'));
    const { port } = server;
    await server.restart();
    expect(server.port).toBe(port);
    expect(await ask(server, (redis) => redis.get('key'))).toBe('value');
    await server.kill();
    await server.restart();
    expect(await ask(server, (redis) => redis.get('key'))).toBe('value');
  });

  it('takes the port and the arguments it is given, and says so when the port is taken', async () => {
    const first = keep(await startRedis({ role: 'cache', dataDir, extraArgs: ['--timeout', '77'] }));
    expect(await configOf(first, ['timeout'])).toEqual({ timeout: '77' });
    const second = startRedis({ role: 'cache', dataDir: secondDir(), port: first.port });
    await expect(second).rejects.toThrow(/Redis \(cache\) .*Address already in use/s);
  });
});

describe('the set of servers', () => {
  function startOwner(): { readonly owner: ChildProcess; readonly report: Promise<OwnerReport> } {
    // A group of its own, as in a terminal; not vitest's flags.
    const owner = fork(path.join(import.meta.dirname, 'owner.ts'), [dataDir], { execArgv: [], detached: true });
    started.push({
      stop: async () => {
        if (owner.exitCode === null && owner.signalCode === null) owner.kill('SIGKILL');
      },
    });
    const report = Promise.race([
      once(owner, 'message').then(([message]) => message as OwnerReport),
      once(owner, 'exit').then(() => Promise.reject(new Error('the owner ended early'))),
    ]);
    return { owner, report };
  }

  /** The servers, the processes they started, and the guards above them. */
  function listAll(owner: ChildProcess, servers: readonly number[]): readonly number[] {
    return [...new Set([...listDescendants(owner.pid ?? 0), ...servers])];
  }

  it('leaves nothing running when its owner is killed, and starts again from what is there', async () => {
    const { owner, report } = startOwner();
    const { pids } = await report;
    const all = listAll(owner, pids);
    expect(all.length).toBeGreaterThan(6);
    expect(pids.every(isRunning)).toBe(true);

    owner.kill('SIGKILL');
    await eventually(() => expect(all.filter(isRunning)).toEqual([]), patience);

    const servers = keep(await startServers({ dataDir, fast: true }));
    expect(await query(servers.postgres, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
  });

  it('leaves nothing running when a whole process group is interrupted, as by Ctrl-C', async () => {
    const { owner, report } = startOwner();
    const all = listAll(owner, (await report).pids);
    signalProcess(-(owner.pid ?? 0), 'SIGINT');
    await eventually(() => expect(all.filter(isRunning)).toEqual([]), patience);
  });

  it('ends what a run left behind whose guards were killed with it', async () => {
    const { owner, report } = startOwner();
    const { pids } = await report;
    const guards = listAll(owner, pids).filter((pid) => pids.some((server) => listDescendants(pid).includes(server)));
    expect(guards.length).toBe(3);
    // The owner first, stopped so that it cannot end the servers whose guards die.
    signalProcess(owner.pid ?? 0, 'SIGSTOP');
    for (const guard of guards) signalProcess(guard, 'SIGKILL');
    owner.kill('SIGKILL');
    await eventually(() => expect([...guards, owner.pid ?? 0].filter(isRunning)).toEqual([]), patience);
    expect(pids.every(isRunning)).toBe(true);

    const servers = keep(await startServers({ dataDir, fast: true }));
    expect(pids.filter(isRunning)).toEqual([]);
    expect(await query(servers.postgres, 'SELECT 1 AS one')).toEqual([{ one: 1 }]);
  });

  it('ends a server whose guard was killed under it', async () => {
    const servers = keep(await startServers({ dataDir, fast: true }));
    const { pid } = servers.cache;
    const guard = listDescendants(process.pid).find((each) => listDescendants(each).includes(pid));
    signalProcess(guard ?? 0, 'SIGKILL');
    await eventually(() => expect(isRunning(pid)).toBe(false), patience);
    await servers.cache.restart();
    expect(await ask(servers.cache, (redis) => redis.ping())).toBe('PONG');
  });

  it('tells a second owner who has the folder, and lets it in once the first has ended', async () => {
    const { owner, report } = startOwner();
    await report;
    const second = startServers({ dataDir, fast: true });
    await expect(second).rejects.toThrow(new RegExp(`${dataDir} is in use by process ${owner.pid} .*Stop that first`));
    expect(await removeServers(dataDir)).toBe('in use');

    owner.send('stop');
    await once(owner, 'exit');
    keep(await startServers({ dataDir, fast: true }));
  });

  it('keeps its data where its account can enter, however closed the folder above is', async () => {
    chmodSync(dataDir, 0o700);
    const servers = keep(await startServers({ dataDir, fast: true }));
    await query(servers.postgres, 'CREATE TABLE kept (x int)');
    await ask(servers.queue, (redis) => redis.set('key', 'value'));
    await servers.stop();

    const again = keep(await startServers({ dataDir, fast: true }));
    expect(await query(again.postgres, 'SELECT count(*)::int AS rows FROM kept')).toEqual([{ rows: 0 }]);
    expect(await ask(again.queue, (redis) => redis.get('key'))).toBe('value');
    await again.stop();

    const place = placeData(path.join(dataDir, 'postgres'), chooseAccount());
    expect(place.startsWith(projectRoot)).toBe(chooseAccount() === undefined);
    expect(await removeServers(dataDir)).toBe('removed');
    expect(existsSync(place)).toBe(false);
  });

  it('removes the folder with everything in it', async () => {
    const servers = keep(await startServers({ dataDir, fast: true }));
    await servers.stop();
    expect(readdirSync(dataDir)).not.toEqual([]);
    expect(await removeServers(dataDir)).toBe('removed');
    expect(existsSync(dataDir)).toBe(false);
  });
});
