/** What a page or a follow costs depends on that alone, not on what lies around it: measured in blocks that Postgres touches, which no busy machine changes. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Database } from '../../src/store/postgres/client.ts';
import { createLoadHomeNewer, createLoadHomeOlder } from '../../src/store/postgres/home-pages.ts';
import { loadAuthorPosts } from '../../src/store/postgres/posts.ts';
import { findOverdue } from '../../src/store/postgres/reconcile.ts';
import { POST_ID_MAX, type TenantId } from '../../src/timeline/ids.ts';
import { blocksTouched } from '../harness/blocks-touched.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { userId } from '../harness/service.ts';
import { ids } from './redis/cache-under-test.ts';

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
  await database.sql('VACUUM ANALYZE posts');
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
    expect(await blocksTouched(database, { load, mode, rows: 15 })).toBeLessThan(BLOCKS_MAX);
  }
});

it('whether anything explains what a timeline lacks costs nothing for what others wait for, however much that is', async () => {
  await database.sql("INSERT INTO post_stats (tenant_id, post_id, author_id) VALUES ($1, 1, 'ada')", [TENANT]);
  await database.sql(
    `INSERT INTO outbox (tenant_id, kind, payload)
    SELECT $1, 'follows_changed', jsonb_build_object('followerId', 'reader-' || n) FROM generate_series(1, 60000) n`,
    [TENANT],
  );
  await database.sql('VACUUM ANALYZE outbox');
  const query = { tenant: TENANT, viewer: userId('rita'), postIds: ids(1), settleMs: -1_000 };
  const load = (to: Database) => findOverdue(to, signal, query);
  for (const mode of ['force_custom_plan', 'force_generic_plan'])
    expect(await blocksTouched(database, { load, mode, rows: 1 })).toBeLessThan(BLOCKS_MAX);
  await database.sql(
    `INSERT INTO outbox (tenant_id, kind, payload) VALUES ($1, 'follows_changed', '{"followerId": "rita"}')`,
    [TENANT],
  );
  expect(await blocksTouched(database, { load, mode: 'force_generic_plan', rows: 0 })).toBeLessThan(BLOCKS_MAX);
});

it('a follow is planned once for a connection, and touches no more than one that is planned for itself', async () => {
  await database.sql(
    `INSERT INTO follows (tenant_id, follower_id, followee_id)
    SELECT 'follows', 'reader-' || v, 'author-' || a FROM generate_series(1, 1000) v, generate_series(1, 50) a`,
  );
  await database.sql(
    `INSERT INTO blocks (tenant_id, blocker_id, blocked_id)
    SELECT 'follows', 'reader-' || v, 'enemy-' || a FROM generate_series(1, 500) v, generate_series(1, 20) a`,
  );
  await database.sql('VACUUM ANALYZE follows, blocks');
  const settings = await database.sql("SELECT proconfig AS settings FROM pg_proc WHERE proname = 'start_follows'");
  expect(settings).toEqual([{ settings: ['plan_cache_mode=force_generic_plan'] }]);
  const session = await database.session();
  let followee = 0;
  /** The least of some: the first ones make the plan. */
  async function blocksOfFollow(): Promise<number> {
    const blocks: number[] = [];
    for (let run = 0; run < 5; run += 1) {
      followee += 1;
      const { rows } = await session.query(
        `EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) SELECT * FROM start_follows('follows', 'reader-7', ARRAY['new-${followee}'], 6000)`,
      );
      const { Plan: plan } = rows[0]['QUERY PLAN'][0];
      expect(plan['Actual Rows']).toBe(1);
      blocks.push(plan['Shared Hit Blocks'] + plan['Shared Read Blocks']);
    }
    return Math.min(...blocks);
  }
  const least = { force_generic_plan: Number.POSITIVE_INFINITY, force_custom_plan: Number.POSITIVE_INFINITY };
  // By turns: what is not visible to all yet takes more blocks at first, whoever asks.
  for (let turn = 0; turn < 3; turn += 1) {
    for (const mode of ['force_generic_plan', 'force_custom_plan'] as const) {
      await session.query(`ALTER FUNCTION start_follows SET plan_cache_mode = ${mode}`);
      least[mode] = Math.min(least[mode], await blocksOfFollow());
    }
    await session.query('VACUUM follows');
  }
  await session.end();
  expect(least.force_generic_plan).toBeGreaterThan(0);
  expect(least.force_generic_plan).toBeLessThanOrEqual(least.force_custom_plan * 1.5);
});
