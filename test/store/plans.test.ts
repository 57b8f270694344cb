/** What a page costs depends on the page, not on what lies around it: measured in blocks that Postgres touches, which no busy machine changes. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Database, Statement } from '../../src/store/postgres/client.ts';
import {
  createLoadHomeNewer,
  createLoadHomeOlder,
  findWrittenBy,
  loadNewestOf,
} from '../../src/store/postgres/home-pages.ts';
import { loadAuthorPosts } from '../../src/store/postgres/posts.ts';
import { POST_ID_MAX, postIdFrom, type TenantId } from '../../src/timeline/ids.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { userId } from '../harness/service.ts';

const TENANT = 'plans' as TenantId;
const DELETED = 100_000;
/** A page of ten touches some hundred blocks; the deleted posts alone fill more than a thousand. */
const BLOCKS_MAX = 400;

let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase();
  await database.sql(
    `INSERT INTO posts (tenant_id, author_id, post_id, text, visibility, deleted_at)
    SELECT $1, 'ada', id, '', 'public', CASE WHEN id BETWEEN 11 AND ${DELETED} + 10 THEN now() END FROM generate_series(1, ${DELETED} + 20) AS id`,
    [TENANT],
  );
  await database.sql("INSERT INTO follows (tenant_id, follower_id, followee_id) VALUES ($1, 'rita', 'ada')", [TENANT]);
  await database.sql(
    `WITH stats AS (INSERT INTO post_stats (tenant_id, post_id, author_id) SELECT $1, 1000000 + n, 'eve' FROM generate_series(1, ${DELETED}) AS n)
    INSERT INTO posts (tenant_id, author_id, post_id, text, visibility) SELECT $1, 'eve', 1000000 + n, '', 'public' FROM generate_series(1, ${DELETED}) AS n`,
    [TENANT],
  );
  await database.sql('VACUUM ANALYZE posts, post_stats');
});
afterAll(() => database.drop());

const home = { tenant: TENANT, viewer: userId('rita'), limit: 15 };
const signal = new AbortController().signal;

it.each([
  { page: 'home, older', load: (to: Database) => createLoadHomeOlder(to)(signal, { ...home, position: POST_ID_MAX }) },
  { page: 'home, newer', load: (to: Database) => createLoadHomeNewer(to)(signal, { ...home, position: 5 }) },
  {
    page: 'author page',
    load: (to: Database) =>
      loadAuthorPosts(to, signal, { tenant: TENANT, author: userId('ada'), position: POST_ID_MAX, limit: 15 }),
  },
])('100,000 deleted posts in the middle of a page cost it nothing: $page', async ({ load }) => {
  for (const mode of ['force_custom_plan', 'force_generic_plan']) {
    expect(await blocksTouched(load, mode)).toBeLessThan(BLOCKS_MAX);
  }
});

it.each([
  {
    work: 'backfill',
    rows: 801,
    load: (to: Database) => loadNewestOf(to, signal, { tenant: TENANT, author: userId('eve'), above: 0, limit: 801 }),
  },
  {
    work: 'clean-up',
    rows: 432,
    load: (to: Database) =>
      findWrittenBy(to, signal, {
        tenant: TENANT,
        author: userId('eve'),
        postIds: Array.from({ length: 864 }, (_, at) =>
          postIdFrom(at % 2 === 0 ? 1_000_001 + at * 100 : 9_000_000 + at),
        ),
      }),
  },
])('the $work of an author of 100,000 posts touches what a timeline can hold', async ({ load, rows }) => {
  for (const mode of ['force_custom_plan', 'force_generic_plan']) {
    // An entry costs one descent of an index at most.
    expect(await blocksTouched(load, mode, rows)).toBeLessThan(rows * 10);
  }
});

/** Blocks of the statement that `load` would run, planned as a prepared one may be. */
async function blocksTouched(load: (to: Database) => Promise<unknown>, mode: string, rowsFound = 15): Promise<number> {
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
  const { rows } = await session.query(`EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE page (${values})`);
  await session.end();
  const plan = rows[0]['QUERY PLAN'][0].Plan;
  expect(plan['Actual Rows']).toBe(rowsFound);
  return plan['Shared Hit Blocks'] + plan['Shared Read Blocks'];
}
