/** Owns the promise that the schema can be taken back: a release that has to go leaves a database that the one before it can use, and that can be brought forward again. */
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { PG_MIGRATE_LOCK_ID, runner } from 'node-pg-migrate';
import type pg from 'pg';
import { beforeEach, describe, expect, it } from 'vitest';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually, within } from '../harness/eventually.ts';
import { startTestService } from '../harness/service.ts';

const DIRECTORY = path.resolve(import.meta.dirname, '../../src/store/postgres/migrations');

/** Columns and indexes of all tables. Those of partitions are named otherwise where they were built beside what ran. */
const SHAPE = `SELECT table_name || '.' || column_name || ' ' || data_type AS part FROM information_schema.columns WHERE table_schema = 'public'
  UNION ALL SELECT regexp_replace(indexdef, 'INDEX posts_[0-9]+_\\w+ ON', 'INDEX ON') FROM pg_indexes WHERE schemaname = 'public' ORDER BY part`;

/** Takes back a migration and all that came after it. */
async function takeBack(database: TestDatabase, name: string): Promise<void> {
  const files = readdirSync(DIRECTORY).sort();
  await runner({
    databaseUrl: database.url,
    dir: DIRECTORY,
    migrationsTable: 'schema_migrations',
    direction: 'down',
    count: files.length - files.findIndex((file) => file.includes(name)),
    log: () => undefined,
  });
}

it('each migration can be taken back and made again, with rows in the tables', async () => {
  const database = await createTestDatabase();
  const shape = async (): Promise<readonly string[]> =>
    (await database.sql<{ part: string }>(SHAPE)).map(({ part }) => part);
  await database.sql(
    "INSERT INTO authors (tenant_id, author_id, fanout_class, class_target) VALUES ('t', 'ada', 'pull', 'pull')",
  );
  await database.sql("INSERT INTO fanout_jobs (tenant_id, post_id, author_id, lane) VALUES ('t', 1, 'ada', 'bulk')");
  const before = await shape();
  await takeBack(database, 'author-classes');
  // Whoever comes before knows nothing of pulling.
  expect(await database.sql('SELECT fanout_class FROM authors')).toEqual([{ fanout_class: 'push' }]);
  await migrate(database.url);
  expect(await shape()).toEqual(before);
  await takeBack(database, 'truth');
  expect(await database.sql("SELECT count(*) AS tables FROM pg_tables WHERE schemaname = 'public'")).toEqual([
    { tables: 1 },
  ]);
  await migrate(database.url);
  expect(await shape()).toEqual(before);
  await database.drop();
});

it('a service that runs publishes and serves pages while an index is built and put in the place of another', {
  timeout: 60_000,
}, async () => {
  const running = await startTestService();
  const { database } = running;
  const tenant = await running.tenant();
  const cast = tenant.cast();
  const holder = await database.session();
  const reader = await database.session();
  try {
    await cast.play('rita follows ada; ada posts "before" as a');
    await takeBack(database, 'live-posts-decided');
    const built = async (): Promise<number> =>
      (
        await database.sql(
          "SELECT 1 FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relname ~ '^posts_[0-9]+_live_decided$' AND i.indisvalid",
        )
      ).length;
    const migrationWaits = async (): Promise<void> => {
      const waits = await database.sql(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tributary-migrate' AND wait_event_type = 'Lock'",
      );
      expect(waits).toHaveLength(1);
    };
    const works = async (label: string): Promise<void> => {
      await within(cast.play(`ada posts "${label}" as ${label}`), 5_000);
      const { entries } = await within(tenant.timeline.getHomeTimeline({ viewerId: 'ada' }), 5_000);
      expect(entries[0]?.post?.postId).toBe(cast.post(label).postId);
    };

    // Somebody's transaction that has written: the build waits for it, and nobody waits for the build.
    await holder.query('BEGIN');
    await holder.query("UPDATE posts SET text = text WHERE author_id = 'ada'");
    const migrating = migrate(database.url);
    await eventually(migrationWaits, { timeoutMs: 20_000 });
    expect(await built()).toBe(0);
    await works('building');

    // And one that reads, before the other ends: the old index does not go while it lasts.
    await reader.query('BEGIN');
    await reader.query('SELECT 1 FROM posts LIMIT 1');
    await holder.query('COMMIT');
    await eventually(async () => expect(await built()).toBe(1), { timeoutMs: 20_000 });
    await eventually(migrationWaits, { timeoutMs: 20_000, everyMs: 5 });
    await works('swapping');
    await reader.query('COMMIT');
    await migrating;
    expect(
      await database.sql("SELECT 1 FROM pg_indexes WHERE indexname = 'posts_live' AND indexdef LIKE '%INCLUDE%'"),
    ).toHaveLength(1);
    // Taken up, not built again.
    expect(
      await database.sql(
        "SELECT 1 FROM pg_inherits WHERE inhparent = 'posts_live'::regclass AND inhrelid::regclass::text LIKE '%live_decided'",
      ),
    ).toHaveLength(1);
    await works('after');
  } finally {
    for (const session of [holder, reader]) await session.query('ROLLBACK');
    await running.stop();
  }
});

it('a process that cannot have the lock of another’s migration gives up after a bound', async () => {
  const database = await createTestDatabase();
  const session = await database.session();
  await session.query('SELECT pg_advisory_lock($1)', [PG_MIGRATE_LOCK_ID]);
  await expect(migrate(database.url, () => undefined, 100)).rejects.toMatchObject({ reason: 'DEADLINE_EXCEEDED' });
  await database.drop();
});

describe('an index that is built beside what runs', { timeout: 60_000 }, () => {
  const INDEX = 'outbox_open_follow_changes';
  let database: TestDatabase;
  beforeEach(async () => {
    database = await createTestDatabase();
    await database.sql("INSERT INTO outbox (tenant_id, kind, payload) VALUES ('t', 'follows_changed', '{}')");
    await takeBack(database, 'open-follow-changes');
    return () => database.drop();
  });

  const isValid = async (): Promise<boolean | undefined> =>
    (
      await database.sql<{ valid: boolean }>(
        'SELECT indisvalid AS valid FROM pg_index WHERE indexrelid = to_regclass($1)',
        [INDEX],
      )
    )[0]?.valid;
  /** The build waits for a transaction that writes, for so long by now. */
  const buildWaits = (forMs: number) =>
    eventually(
      async () => {
        const waits = await database.sql(
          `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tributary-migrate' AND wait_event_type = 'Lock'
            AND query LIKE 'CREATE INDEX%' AND query_start < clock_timestamp() - $1 * interval '1 ms'`,
          [forMs],
        );
        expect(waits).toHaveLength(1);
      },
      { timeoutMs: 20_000 },
    );
  async function startWriting(): Promise<pg.Client> {
    const writer = await database.session();
    await writer.query('BEGIN');
    await writer.query('UPDATE outbox SET attempts = attempts');
    return writer;
  }

  it.each(['with rows', 'without'])('is built anew where a build was broken off, on a table %s', async (rows) => {
    await database.sql(`CREATE INDEX ${INDEX} ON outbox (tenant_id)`);
    await database.sql(`UPDATE pg_index SET indisvalid = false WHERE indexrelid = '${INDEX}'::regclass`);
    if (rows === 'without') await database.sql('DELETE FROM outbox');
    await migrate(database.url);
    expect(await isValid()).toBe(true);
    const [index] = await database.sql<{ indexdef: string }>('SELECT indexdef FROM pg_indexes WHERE indexname = $1', [
      INDEX,
    ]);
    expect(index?.indexdef).toContain('followerId');
  });

  it('neither waits for a process of the version before, which waits for its turn in a statement, nor keeps it waiting', async () => {
    const writer = await startWriting();
    const migrating = migrate(database.url);
    await buildWaits(0);
    const before = await database.session();
    const turn = before
      .query('SELECT pg_advisory_lock($1)', [PG_MIGRATE_LOCK_ID])
      .then(() => before.query('SELECT pg_advisory_unlock($1)', [PG_MIGRATE_LOCK_ID]));
    let isThrough = false;
    const both = Promise.all([turn.then(() => (isThrough = true)), migrating]);
    await eventually(async () => {
      const waits = await database.sql(
        "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
      );
      expect(isThrough || waits.length === 1).toBe(true);
    });
    await writer.query('COMMIT');
    await within(both, 20_000);
    expect(await isValid()).toBe(true);
  });

  it('may take longer than statements of the service may, and wait longer for locks', async () => {
    await database.sql(`ALTER DATABASE ${database.name} SET statement_timeout = '100ms'`);
    await database.sql(`ALTER DATABASE ${database.name} SET lock_timeout = '50ms'`);
    const writer = await startWriting();
    const migrating = migrate(database.url);
    await buildWaits(500);
    await writer.query('COMMIT');
    await migrating;
    expect(await isValid()).toBe(true);
  });

  it('is given up with the start that waits for it', async () => {
    const writer = await startWriting();
    await expect(migrate(database.url, () => undefined, 1_500)).rejects.toMatchObject({ reason: 'DEADLINE_EXCEEDED' });
    await writer.query('COMMIT');
    // Whatever the server has made of it meanwhile, the next start finds its way.
    await migrate(database.url);
    expect(await isValid()).toBe(true);
  });
});
