/**
 * Owns the schema's history: brings a database to the newest version while the version before runs on it. Processes that start together wait for each other by an advisory lock.
 *
 * No step holds callers up: large indexes are built beside what runs, and a migration that does not get its locks at once gives up and tries again, since everybody else would queue behind it.
 */
import { fileURLToPath } from 'node:url';
import { PG_MIGRATE_LOCK_ID, runner } from 'node-pg-migrate';
import pg from 'pg';
import { pause, untilAborted } from '../../runtime.ts';
import { buildOnlineIndexes } from './online-indexes.ts';

const DIRECTORY = fileURLToPath(new URL('./migrations', import.meta.url));
const CONNECT_TIMEOUT_MS = 10_000;
/** How long a migration waits for a lock, and all who come after it with it: a part of a read's deadline. */
const LOCK_TIMEOUT_MS = 300;
/** Between two tries, so that what queued meanwhile is through. */
const RETRY_PAUSE_MS = 1_000;
/** Held from the first step to the last, by versions that build indexes beside what runs; any number, as long as it stays. */
const STEPS_LOCK_ID = 4_127_750_833;
/** Between two looks whether another is done. It is asked and not waited for, since a statement that waits has a snapshot, which the building of an index waits for in turn. */
const LOOK_EVERY_MS = 100;
/** Of all, with the wait for another: building indexes over some hundred million rows takes minutes. A start that takes longer had better fail, and be tried again. */
const MIGRATE_MAX_MS = 3_600_000;
/** lock_not_available, deadlock_detected. */
const TRY_AGAIN: ReadonlySet<unknown> = new Set(['55P03', '40P01']);

/** Runs the migrations that are missing, in one transaction each. `log` gets a line for each step. Rejects after `maxMs`. */
export async function migrate(
  databaseUrl: string,
  log: (line: string) => void = () => undefined,
  maxMs = MIGRATE_MAX_MS,
): Promise<void> {
  const signal = AbortSignal.timeout(maxMs);
  const connection = {
    connectionString: databaseUrl,
    application_name: 'tributary-migrate',
    connectionTimeoutMillis: CONNECT_TIMEOUT_MS,
    // A server that went away without a word is noticed.
    keepAlive: true,
    // What the database or the role has for others would end the building of a large index each time. It ends with its start at the latest.
    statement_timeout: maxMs,
    lock_timeout: maxMs,
  };
  const client = new pg.Client(connection);
  // Whatever is asked of it next fails.
  client.on('error', (error) => log(`the connection failed: ${error.message}`));
  await client.connect();
  async function bringUp(): Promise<void> {
    while (!(await isOurs(client, STEPS_LOCK_ID))) await pause(signal, LOOK_EVERY_MS);
    await again(signal, log, () => buildOnlineIndexes(client, signal, log));
    // Not before: versions before wait for this one in a statement, whose snapshot the building of an index would wait for.
    while (!(await isOurs(client, PG_MIGRATE_LOCK_ID))) await pause(signal, LOOK_EVERY_MS);
    await again(signal, log, () =>
      runner({
        databaseUrl: { ...connection, lock_timeout: LOCK_TIMEOUT_MS },
        dir: DIRECTORY,
        migrationsTable: 'schema_migrations',
        direction: 'up',
        count: Number.POSITIVE_INFINITY,
        noLock: true,
        log,
      }),
    );
  }
  try {
    await untilAborted(bringUp(), signal);
  } finally {
    // Ends the locks as well.
    await client.end();
  }
}

async function isOurs(client: pg.Client, lock: number): Promise<boolean> {
  const { rows } = await client.query<{ ours: boolean }>('SELECT pg_try_advisory_lock($1) AS ours', [lock]);
  return rows[0]?.ours === true;
}

async function again(signal: AbortSignal, log: (line: string) => void, act: () => Promise<unknown>): Promise<void> {
  for (;;) {
    try {
      await act();
      return;
    } catch (error) {
      if (!(error instanceof pg.DatabaseError && TRY_AGAIN.has(error.code))) throw error;
      log(`to be tried again: ${error.message}`);
      await pause(signal, RETRY_PAUSE_MS);
    }
  }
}
