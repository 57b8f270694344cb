/** Owns the promise that the schema can be taken back: a release that has to go leaves a database that the one before it can use, and that can be brought forward again. */
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { PG_MIGRATE_LOCK_ID, runner } from 'node-pg-migrate';
import { expect, it } from 'vitest';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { createTestDatabase } from '../harness/database.ts';

const DIRECTORY = path.resolve(import.meta.dirname, '../../src/store/postgres/migrations');

/** Columns and indexes of all tables. */
const SHAPE = `SELECT table_name || '.' || column_name || ' ' || data_type AS part FROM information_schema.columns WHERE table_schema = 'public'
  UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY part`;

it('each migration can be taken back and made again, with rows in the tables', async () => {
  const database = await createTestDatabase();
  const shape = async (): Promise<readonly string[]> =>
    (await database.sql<{ part: string }>(SHAPE)).map(({ part }) => part);
  await database.sql(
    "INSERT INTO authors (tenant_id, author_id, fanout_class, class_target) VALUES ('t', 'ada', 'pull', 'pull')",
  );
  await database.sql("INSERT INTO fanout_jobs (tenant_id, post_id, author_id, lane) VALUES ('t', 1, 'ada', 'bulk')");
  const before = await shape();
  const back = (count: number): Promise<unknown> =>
    runner({
      databaseUrl: database.url,
      dir: DIRECTORY,
      migrationsTable: 'schema_migrations',
      direction: 'down',
      count,
      log: () => undefined,
    });
  const files = readdirSync(DIRECTORY).sort();
  await back(files.length - files.findIndex((file) => file.includes('author-classes')));
  // Whoever comes before knows nothing of pulling.
  expect(await database.sql('SELECT fanout_class FROM authors')).toEqual([{ fanout_class: 'push' }]);
  await migrate(database.url);
  expect(await shape()).toEqual(before);
  await back(Number.POSITIVE_INFINITY);
  expect(await database.sql("SELECT count(*) AS tables FROM pg_tables WHERE schemaname = 'public'")).toEqual([
    { tables: 1 },
  ]);
  await migrate(database.url);
  expect(await shape()).toEqual(before);
  await database.drop();
});

it('a process that cannot have the lock of another’s migration gives up after a bound', async () => {
  const database = await createTestDatabase();
  const session = await database.session();
  await session.query('SELECT pg_advisory_lock($1)', [PG_MIGRATE_LOCK_ID]);
  await expect(migrate(database.url, () => undefined, 100)).rejects.toThrow(/lock timeout/);
  await database.drop();
});
