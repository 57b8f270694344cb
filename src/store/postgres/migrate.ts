/** Owns the schema's history: brings a database to the newest version. Processes that start together wait for each other by an advisory lock. */
import { fileURLToPath } from 'node:url';
import { runner } from 'node-pg-migrate';

const DIRECTORY = fileURLToPath(new URL('./migrations', import.meta.url));

/** Runs the migrations that are missing, in one transaction each. `log` gets a line for each step. */
export async function migrate(databaseUrl: string, log: (line: string) => void = () => undefined): Promise<void> {
  await runner({
    databaseUrl: {
      connectionString: databaseUrl,
      application_name: 'tributary-migrate',
      connectionTimeoutMillis: 10_000,
    },
    dir: DIRECTORY,
    migrationsTable: 'schema_migrations',
    direction: 'up',
    count: Number.POSITIVE_INFINITY,
    advisoryLockMode: 'wait',
    log,
  });
}
