/** What a page costs depends on the page, not on what lies around it: measured in blocks that Postgres touches, which no busy machine changes. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Database } from '../../src/store/postgres/client.ts';
import { createLoadHomeNewer, createLoadHomeOlder } from '../../src/store/postgres/home-pages.ts';
import { loadAuthorPosts } from '../../src/store/postgres/posts.ts';
import { POST_ID_MAX, type TenantId } from '../../src/timeline/ids.ts';
import { blocksTouched } from '../harness/blocks-touched.ts';
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
