/** Owns the measure of what a statement costs: blocks that Postgres touches, which no busy machine changes. */
import { expect } from 'vitest';
import type { Database, Statement } from '../../src/store/postgres/client.ts';
import type { TestDatabase } from './database.ts';

/**
 * The least of several runs is what the statement itself costs: Postgres counts the blocks of its own catalogs too, which a session reads anew whenever others' changes of any schema on the server
 * overran it (some 400 blocks).
 */
const RUNS = 5;

/** Blocks of the statement that `load` would run, planned as a prepared one may be (`plan_cache_mode`). It must find as many rows as it is said to. */
export async function blocksTouched(
  database: TestDatabase,
  {
    load,
    mode,
    rows,
  }: { readonly load: (to: Database) => Promise<unknown>; readonly mode: string; readonly rows: number },
): Promise<number> {
  let asked: { readonly statement: Statement; readonly values: readonly unknown[] } | undefined;
  const recorder: Pick<Database, 'query'> = {
    async query(_signal, statement, values) {
      asked = { statement, values };
      return [];
    },
  };
  await load(recorder as Database);
  const session = await database.session();
  await session.query(`SET plan_cache_mode = ${mode}`);
  await session.query(`PREPARE page AS ${asked?.statement.text}`);
  const values = asked?.values
    .map((value) => (Array.isArray(value) ? `'{${value}}'` : typeof value === 'number' ? value : `'${value}'`))
    .join(', ');
  const blocks: number[] = [];
  for (let run = 0; run < RUNS; run += 1) {
    const explained = await session.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE page (${values})`);
    const plan = explained.rows[0]['QUERY PLAN'][0].Plan;
    expect(plan['Actual Rows']).toBe(rows);
    blocks.push(plan['Shared Hit Blocks'] + plan['Shared Read Blocks']);
  }
  await session.end();
  return Math.min(...blocks);
}
