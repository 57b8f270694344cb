/**
 * Owns the building of indexes over large tables beside a service that runs: before the migrations that bring them, outside of any transaction, with writers and readers going on. The migration itself then
 * finds its work done: over a partitioned table it takes up what the partitions have, elsewhere it says IF NOT EXISTS. A build that was broken off leaves an invalid index, which is built anew.
 *
 * A table without rows needs none of this. Whoever adds an index on such a table later adds it here as well.
 */
import type pg from 'pg';
import { throwIfAborted } from '../../runtime.ts';

interface OnlineIndex {
  /** The migration that brings it. */
  readonly migration: string;
  readonly table: 'posts' | 'follows' | 'authors' | 'outbox';
  /** Of a partitioned table it is what the names of the partitions' indexes end in. */
  readonly name: string;
  /** As the migration has it, columns as they are before it. */
  readonly on: string;
}

const ONLINE_INDEXES: readonly OnlineIndex[] = [
  {
    migration: '1700000001000_live-posts',
    table: 'posts',
    name: 'live',
    on: '(tenant_id, author_id, post_id) WHERE deleted_at IS NULL',
  },
  {
    migration: '1700000003500_pulled-authors',
    table: 'authors',
    name: 'authors_pulled',
    on: "(tenant_id, author_id) WHERE fanout_class <> 'push'",
  },
  {
    migration: '1700000005000_follows',
    table: 'follows',
    name: 'follows_uncleaned',
    on: '(ended_at) WHERE ended_at IS NOT NULL AND cleaned_at IS NULL',
  },
  {
    migration: '1700000008000_class-changes',
    table: 'authors',
    name: 'authors_by_class_change',
    on: '(class_changed_at) WHERE class_changed_at IS NOT NULL',
  },
  {
    migration: '1700000009500_live-posts-decided',
    table: 'posts',
    name: 'live_decided',
    on: '(tenant_id, author_id, post_id) INCLUDE (visibility, moderation) WHERE deleted_at IS NULL',
  },
  {
    migration: '1700000009800_open-follow-changes',
    table: 'outbox',
    name: 'outbox_open_follow_changes',
    on: "(tenant_id, (payload->>'followerId')) WHERE done_at IS NULL AND kind = 'follows_changed'",
  },
];

/** Builds those whose migrations are still to come. Throws where one could not be built now, such as after a deadlock; what was built stays. */
export async function buildOnlineIndexes(
  client: pg.Client,
  signal: AbortSignal,
  log: (line: string) => void,
): Promise<void> {
  const made = await client.query("SELECT to_regclass('schema_migrations') IS NOT NULL AS made");
  if (made.rows[0]?.made !== true) return;
  const { rows } = await client.query<{ name: string }>('SELECT name FROM schema_migrations');
  const known = new Set(rows.map(({ name }) => name));
  for (const index of ONLINE_INDEXES) {
    if (known.has(index.migration)) continue;
    for (const { table, name } of await placesOf(client, index)) {
      throwIfAborted(signal);
      await build(client, { table, name, on: index.on }, log);
    }
  }
}

/** A table, or each of its partitions; none where there is no such table yet. Names are safe: they are our own migrations'. */
async function placesOf(
  client: pg.Client,
  { table, name }: OnlineIndex,
): Promise<readonly { readonly table: string; readonly name: string }[]> {
  const { rows } = await client.query<{ part: string }>(
    // The tree of a table that has no partitions is empty: not even the table stands in it.
    `SELECT relname AS part FROM pg_class
     WHERE relkind = 'r' AND (oid = to_regclass($1) OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass($1))))`,
    [table],
  );
  return rows.map(({ part }) => ({ table: part, name: part === table ? name : `${part}_${name}` }));
}

async function build(
  client: pg.Client,
  { table, name, on }: { readonly table: string; readonly name: string; readonly on: string },
  log: (line: string) => void,
): Promise<void> {
  const { rows } = await client.query<{ valid: boolean }>(
    'SELECT indisvalid AS valid FROM pg_index WHERE indexrelid = to_regclass($1)',
    [name],
  );
  if (rows[0]?.valid === true) return;
  // Also where the rows have gone since: the migration would take it for made.
  if (rows[0]) await client.query(`DROP INDEX CONCURRENTLY ${name}`);
  const some = await client.query(`SELECT 1 FROM ${table} LIMIT 1`);
  if (some.rowCount === 0) return;
  log(`building ${name} beside what runs`);
  await client.query(`CREATE INDEX CONCURRENTLY ${name} ON ${table} ${on}`);
}
