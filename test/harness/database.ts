/**
 * Owns the databases of test files. Each file gets a database of its own, cloned from a migrated template, and drops it at its end;
 * so no test sees another's rows, sessions or locks. The template is made once, by whoever comes first, and bears a hash of the
 * migrations: a server that is kept between runs never hands out an old one.
 */
import { createHash, randomUUID } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import pg from 'pg';
import { inject } from 'vitest';
import { migrate } from '../../src/store/postgres/migrate.ts';

const MIGRATIONS = path.join(import.meta.dirname, '../../src/store/postgres/migrations');
/** Any number, the same in every process: one template is made at a time, and no clone while one is made. */
const TEMPLATE_LOCK = 7_355_608;

export interface TestDatabase {
  readonly url: string;
  readonly name: string;
  /** Runs one statement behind the product's back. A bigint comes as a number; one too large for it throws. */
  sql<Row extends pg.QueryResultRow = pg.QueryResultRow>(text: string, values?: readonly unknown[]): Promise<Row[]>;
  /** A session of its own, for locks and open transactions; ended by `drop` at the latest. */
  session(): Promise<pg.Client>;
  drop(): Promise<void>;
}

/** On the server of the run, or on another. */
export async function createTestDatabase(postgresUrl = inject('servers').postgresUrl): Promise<TestDatabase> {
  const name = `test_${randomUUID().replaceAll('-', '')}`;
  await asOwner(postgresUrl, async (owner) => {
    const template = await ensureTemplate(owner, postgresUrl);
    await owner.query(`CREATE DATABASE ${name} TEMPLATE ${template}`);
  });

  const url = withDatabase(postgresUrl, name);
  const pool = new pg.Pool({ connectionString: url, max: 4, types: exactNumbers(), application_name: 'test' });
  // A test may end every session of the database, this pool's too; the next query opens a new one.
  pool.on('error', () => undefined);
  const sessions: pg.Client[] = [];

  return {
    url,
    name,
    async sql<Row extends pg.QueryResultRow>(text: string, values: readonly unknown[] = []) {
      return (await pool.query<Row>(text, [...values])).rows;
    },
    async session() {
      const client = new pg.Client({ connectionString: url, types: exactNumbers(), application_name: 'test' });
      client.on('error', () => undefined);
      await client.connect();
      sessions.push(client);
      return client;
    },
    async drop() {
      await Promise.allSettled(sessions.map((client) => client.end()));
      await pool.end();
      await asOwner(postgresUrl, (owner) => owner.query(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`));
    },
  };
}

async function ensureTemplate(owner: pg.Client, postgresUrl: string): Promise<string> {
  const template = `template_${migrationsHash()}`;
  const known = await owner.query('SELECT 1 FROM pg_database WHERE datname = $1', [template]);
  if (known.rowCount === 1) return template;
  const draft = `${template}_draft`;
  await owner.query(`DROP DATABASE IF EXISTS ${draft} WITH (FORCE)`);
  await owner.query(`CREATE DATABASE ${draft}`);
  await migrate(withDatabase(postgresUrl, draft));
  await owner.query(`ALTER DATABASE ${draft} RENAME TO ${template}`);
  return template;
}

function migrationsHash(): string {
  const hash = createHash('sha256');
  for (const file of readdirSync(MIGRATIONS).sort())
    hash.update(file).update(readFileSync(path.join(MIGRATIONS, file)));
  return hash.digest('hex').slice(0, 16);
}

async function asOwner<T>(postgresUrl: string, act: (owner: pg.Client) => Promise<T>): Promise<T> {
  const owner = new pg.Client({ connectionString: postgresUrl });
  await owner.connect();
  try {
    await owner.query('SELECT pg_advisory_lock($1)', [TEMPLATE_LOCK]);
    return await act(owner);
  } finally {
    // Ends the lock as well.
    await owner.end();
  }
}

function withDatabase(url: string, name: string): string {
  const parsed = new URL(url);
  parsed.pathname = `/${name}`;
  return parsed.toString();
}

/** Post IDs fit a number by design; a test that met a larger bigint must not go on with a rounded one. */
function exactNumbers(): pg.CustomTypesConfig {
  const types = new pg.TypeOverrides();
  types.setTypeParser(pg.types.builtins.INT8, (text) => {
    const value = Number(text);
    if (!Number.isSafeInteger(value)) throw new RangeError(`bigint out of a number's reach: ${text}`);
    return value;
  });
  return types;
}
