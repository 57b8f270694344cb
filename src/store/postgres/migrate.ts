/** Owns the schema's history: brings a database to the newest version. Processes that start together wait for each other by an advisory lock. */
import { fileURLToPath } from 'node:url';
import { runner } from 'node-pg-migrate';

const DIRECTORY = fileURLToPath(new URL('./migrations', import.meta.url));

/** Longest wait for another process that migrates, and for each lock on a table, in milliseconds: a start that takes longer had better fail, and be tried again. */
const LOCK_MAX_MS = 600_000;

/** Runs the migrations that are missing, in one transaction each. `log` gets a line for each step. */
export async function migrate(
  databaseUrl: string,
  log: (line: string) => void = () => undefined,
  lockMaxMs = LOCK_MAX_MS,
): Promise<void> {
  await runner({
    databaseUrl: {
      connectionString: databaseUrl,
      application_name: 'tributary-migrate',
      connectionTimeoutMillis: 10_000,
      lock_timeout: lockMaxMs,
      // A server that went away without a word is noticed.
      keepAlive: true,
    },
    dir: DIRECTORY,
    migrationsTable: 'schema_migrations',
    direction: 'up',
    count: Number.POSITIVE_INFINITY,
    advisoryLockMode: 'wait',
    log,
  });
}
