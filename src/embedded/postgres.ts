// Owns a Postgres server for development and tests: its cluster, password, settings, and the database `tributary`.
// Invariant: reachable on 127.0.0.1 with the generated password only; a cluster is used only if its creation finished.

import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { Client } from 'pg';
import { chooseAccount, giveTo, placeData } from './place.ts';
import { findPostgres } from './postgres-binaries.ts';
import { type EmbeddedServer, endLeftovers, type ServerPlan, startServer } from './server.ts';

export interface PostgresOptions {
  /** Created when it is missing, used as it is otherwise. */
  readonly dataDir: string;
  /** Default: `server.log` in the data folder. */
  readonly logFile?: string;
  /** Settings of postgresql.conf, on top of the ones below. */
  readonly settings?: Readonly<Record<string, string | number | boolean>>;
}

/** User and database alike. */
const name = 'tributary';

const fixedSettings = {
  listen_addresses: '127.0.0.1',
  // No socket file: /tmp would fill with them, and a data folder's path may be longer than a socket's name may be.
  unix_socket_directories: '',
  // Several processes with three pools each, and the tests' own clients.
  max_connections: 200,
  timezone: 'UTC',
  log_timezone: 'UTC',
  log_line_prefix: '%m [%p] %q%a ',
};

/** A database of some 10 MB takes half a second; recovery after a crash under load takes longer. */
const startWaitMs = 30_000;
const connectWaitMs = 5_000;

/** Fast shutdown (open transactions are ended), then without a checkpoint; by force after both. */
const stopSteps: ServerPlan['stopSteps'] = [
  { signal: 'SIGINT', waitMs: 15_000 },
  { signal: 'SIGQUIT', waitMs: 5_000 },
];

const noSuchDatabase = '3D000';

export async function startPostgres(options: PostgresOptions): Promise<EmbeddedServer> {
  const account = chooseAccount();
  const binaries = findPostgres(account);
  const marks = marksOf(placeData(path.resolve(options.dataDir), account));
  const { folder, cluster } = marks;
  const passwordFile = path.join(folder, 'password');
  const settings: Readonly<Record<string, string | number | boolean>> = { ...fixedSettings, ...options.settings };
  const url = (port: number, database = name): string =>
    `postgresql://${name}:${readFileSync(passwordFile, 'utf8').trim()}@127.0.0.1:${port}/${database}`;

  async function prepare(): Promise<void> {
    await giveTo(account, folder);
    if (!existsSync(cluster)) await createCluster();
    // We hold the folder and its earlier server is gone, so this names nobody; Postgres itself would believe it if the
    // number had been given to another process of the same account.
    rmSync(path.join(cluster, 'postmaster.pid'), { force: true });
  }

  async function createCluster(): Promise<void> {
    const unfinished = `${cluster}.unfinished`;
    rmSync(unfinished, { recursive: true, force: true });
    rmSync(passwordFile, { force: true });
    writeFileSync(passwordFile, `${randomBytes(18).toString('hex')}\n`, { mode: 0o600 });
    await giveTo(account, folder);
    const args = [`--pgdata=${unfinished}`, `--username=${name}`, `--pwfile=${passwordFile}`, '--auth=scram-sha-256'];
    args.push('--encoding=UTF8', '--locale=C', '--no-instructions');
    if (settings['fsync'] === 'off') args.push('--no-sync');
    await promisify(execFile)(binaries.initdb, args, {
      cwd: folder,
      env: { PATH: process.env['PATH'] ?? '', LC_ALL: 'C', TZ: 'UTC' },
      ...(account && { uid: account.uid, gid: account.gid }),
    });
    renameSync(unfinished, cluster);
  }

  async function probe({ port }: { readonly port: number }): Promise<void> {
    try {
      await runSql(url(port), 'SELECT 1');
    } catch (error) {
      if (!(error instanceof Error && 'code' in error && error.code === noSuchDatabase)) throw error;
      await runSql(url(port, 'postgres'), `CREATE DATABASE ${name}`);
      await runSql(url(port), 'SELECT 1');
    }
  }

  return startServer({
    ...marks,
    command: binaries.postgres,
    account,
    logFile: options.logFile ?? path.join(folder, 'server.log'),
    port: undefined,
    stopSteps,
    startWaitMs,
    args: (port) => [
      '-D',
      cluster,
      '-p',
      String(port),
      ...Object.entries(settings).flatMap(([key, value]) => ['-c', `${key}=${value}`]),
    ],
    url,
    prepare,
    probe,
  });
}

/** Ends the Postgres that a crashed run left behind in this data folder, if there is one. The caller holds the folder. */
export function endPostgresLeftovers(dataDir: string): Promise<void> {
  return endLeftovers(marksOf(placeData(path.resolve(dataDir), chooseAccount())));
}

/** What a server of this folder is recognised by. */
function marksOf(folder: string) {
  const cluster = path.join(folder, 'cluster');
  const pidFiles = [path.join(cluster, 'postmaster.pid')];
  return { name: 'Postgres', folder, cluster, command: 'postgres', ownArgument: cluster, pidFiles } as const;
}

async function runSql(connectionString: string, sql: string): Promise<void> {
  const client = new Client({ connectionString, connectionTimeoutMillis: connectWaitMs, query_timeout: connectWaitMs });
  // An error between queries would otherwise be thrown at the process.
  client.on('error', () => undefined);
  try {
    await client.connect();
    await client.query(sql);
  } finally {
    await client.end().catch(() => undefined);
  }
}
