/**
 * Owns a primary of Postgres and a replica that streams from it, both of its own: what is stopped, paused or promoted here is nobody else's. The replica is made by a low-level base backup, since the
 * programs that come with the project are the server and `initdb` alone.
 */
import { cpSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import pg from 'pg';
import { chooseAccount, giveTo, placeData } from '../../src/embedded/place.ts';
import { startPostgres } from '../../src/embedded/postgres.ts';
import { findPostgres } from '../../src/embedded/postgres-binaries.ts';
import { type EmbeddedServer, startServer } from '../../src/embedded/server.ts';
import { removeServers } from '../../src/embedded/servers.ts';
import { eventually } from './eventually.ts';

export interface PostgresPair {
  /** Of the primary's cluster; databases are made there. */
  readonly primaryUrl: string;
  readonly replica: EmbeddedServer;
  /** The replica's address of a database of the primary. */
  replicaUrl(database: string): string;
  /** One statement on the replica, as an operator. */
  onReplica<Row extends pg.QueryResultRow>(text: string): Promise<Row[]>;
  /** The replica goes on receiving the log, and applies no more of it. */
  pause(): Promise<void>;
  resume(): Promise<void>;
  /** Resolves when the replica has applied all that the primary has written by now, or was about to. */
  caughtUp(): Promise<void>;
  stop(): Promise<void>;
}

/** Both alike: a replica must have as many connections as its primary. Nothing of it has to survive the machine. */
const SETTINGS = {
  fsync: 'off',
  wal_level: 'replica',
  wal_keep_size: '512MB',
  shared_buffers: '32MB',
  max_connections: 100,
};
const START_MAX_MS = 30_000;
const home = path.resolve(import.meta.dirname, '../../.data');
let made = 0;

export async function startPostgresPair(): Promise<PostgresPair> {
  made += 1;
  const [primaryFolder, replicaFolder] = ['primary', 'replica'].map((name) =>
    path.join(home, `test-${process.pid}-pg-${made}-${name}`),
  ) as [string, string];
  const ends: (() => Promise<unknown>)[] = [];
  async function stop(): Promise<void> {
    for (const end of ends.reverse()) await end();
    for (const folder of [replicaFolder, primaryFolder]) await removeServers(folder);
  }

  try {
    const primary = await startPostgres({ dataDir: path.join(primaryFolder, 'postgres'), settings: SETTINGS });
    ends.push(() => primary.stop());
    const owner = await connect(primary.url);
    ends.push(() => owner.end());
    const replica = await startReplica(
      primary,
      path.join(primaryFolder, 'postgres'),
      path.join(replicaFolder, 'postgres'),
      owner,
    );
    ends.push(() => replica.stop());

    async function onReplica<Row extends pg.QueryResultRow>(text: string): Promise<Row[]> {
      const client = await connect(replica.url);
      try {
        return (await client.query<Row>(text)).rows;
      } finally {
        await client.end();
      }
    }
    const patient = { timeoutMs: START_MAX_MS };
    return {
      primaryUrl: primary.url,
      replica,
      onReplica,
      replicaUrl(database) {
        const url = new URL(replica.url);
        url.pathname = `/${database}`;
        return url.toString();
      },
      async pause() {
        await onReplica('SELECT pg_wal_replay_pause()');
        await eventually(async () => {
          const [row] = await onReplica<{ state: string }>('SELECT pg_get_wal_replay_pause_state() AS state');
          if (row?.state !== 'paused') throw new Error(`replay is ${row?.state}`);
        }, patient);
      },
      resume: async () => void (await onReplica('SELECT pg_wal_replay_resume()')),
      async caughtUp() {
        const { rows } = await owner.query<{ lsn: string }>('SELECT pg_current_wal_insert_lsn()::text AS lsn');
        await eventually(async () => {
          const [row] = await onReplica<{ done: boolean }>(
            `SELECT pg_last_wal_replay_lsn() >= '${rows[0]?.lsn}' AS done`,
          );
          if (!row?.done) throw new Error('the replica is behind');
        }, patient);
      },
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function startReplica(
  primary: EmbeddedServer,
  from: string,
  to: string,
  owner: pg.Client,
): Promise<EmbeddedServer> {
  const account = chooseAccount();
  const folder = placeData(to, account);
  const cluster = path.join(folder, 'cluster');
  const { password } = new URL(primary.url);
  await owner.query("SELECT pg_backup_start('replica', true)");
  const source = path.join(placeData(from, account), 'cluster');
  const left = new Set(['pg_wal', 'postmaster.pid', 'postmaster.opts'].map((name) => path.join(source, name)));
  cpSync(source, cluster, { recursive: true, filter: (file) => !left.has(file) });
  const { rows } = await owner.query<{ labelfile: string }>('SELECT labelfile FROM pg_backup_stop(false)');
  mkdirSync(path.join(cluster, 'pg_wal'), { mode: 0o700 });
  writeFileSync(path.join(cluster, 'backup_label'), rows[0]?.labelfile ?? '');
  writeFileSync(path.join(cluster, 'standby.signal'), '');
  const conninfo = `host=127.0.0.1 port=${primary.port} user=tributary password=${password}`;
  const settings = {
    ...SETTINGS,
    listen_addresses: '127.0.0.1',
    unix_socket_directories: '',
    primary_conninfo: conninfo,
  };
  const url = (port: number): string => primary.url.replace(`:${primary.port}/`, `:${port}/`);
  return startServer({
    name: 'Postgres replica',
    folder,
    command: findPostgres(account).postgres,
    ownArgument: cluster,
    pidFiles: [path.join(cluster, 'postmaster.pid')],
    account,
    logFile: path.join(folder, 'server.log'),
    port: undefined,
    stopSteps: [{ signal: 'SIGINT', waitMs: 10_000 }],
    startWaitMs: START_MAX_MS,
    args: (port) => [
      '-D',
      cluster,
      '-p',
      String(port),
      ...Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]),
    ],
    url,
    prepare: () => giveTo(account, folder),
    async probe({ port }) {
      await (await connect(url(port))).end();
    },
  });
}

async function connect(connectionString: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString });
  client.on('error', () => undefined);
  await client.connect();
  return client;
}
