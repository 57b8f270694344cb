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

/**
 * Blocks of all statements that `load` runs one after the other, each with what the ones before it answered; the least of several runs, as above. Answers what the last run loaded, too.
 */
export async function blocksOfLoad<Result>(
  database: TestDatabase,
  { load, mode }: { readonly load: (to: Database) => Promise<Result>; readonly mode: string },
): Promise<{ readonly blocks: number; readonly statements: readonly string[]; readonly result: Result }> {
  const session = await database.session();
  await session.query(`SET plan_cache_mode = ${mode}`);
  const prepared = new Set<string>();
  let blocks = 0;
  let statements: string[] = [];
  const explained: Pick<Database, 'query'> = {
    async query<Row>(_signal: AbortSignal, { name, text }: Statement, values: readonly unknown[]) {
      if (!prepared.has(name)) await session.query(`PREPARE "${name}" AS ${text}`);
      prepared.add(name);
      const given = values.map((value) => (typeof value === 'number' ? value : `'${value}'`)).join(', ');
      const answer = await session.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE "${name}" (${given})`);
      const plan = answer.rows[0]['QUERY PLAN'][0].Plan;
      blocks += plan['Shared Hit Blocks'] + plan['Shared Read Blocks'];
      statements.push(name);
      return (await session.query(`EXECUTE "${name}" (${given})`)).rows as Row[];
    },
  };
  const runs: { readonly blocks: number; readonly statements: readonly string[]; readonly result: Result }[] = [];
  for (let run = 0; run < RUNS; run += 1) {
    blocks = 0;
    statements = [];
    const result = await load(explained as Database);
    runs.push({ blocks, statements, result });
  }
  await session.end();
  return runs.reduce((least, run) => (run.blocks < least.blocks ? run : least));
}
