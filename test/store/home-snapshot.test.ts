/** Owns what a rebuild reads: exactly the posts that belong on the timeline, on every shape of follow list, and no more work than that takes. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import { loadSnapshot } from '../../src/store/postgres/home-snapshot.ts';
import type { TenantId } from '../../src/timeline/ids.ts';
import { blocksOfLoad } from '../harness/blocks-touched.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { userId } from '../harness/service.ts';

/** 700 busy authors write in turns; 700 silent ones, and 5,000 silent ones of one post each, wrote long before. Of the busy ones' posts some are gone, hidden or private, and some authors are pulled. */
const TENANT = 'snapshots' as TenantId;
const BUSY_POSTS = 70_000;
const SEED = `
WITH written AS (
  SELECT 'busy' || lpad((n % 700)::text, 4, '0') AS author, 10000000 + n AS post_id, n FROM generate_series(1, ${BUSY_POSTS}) n
  UNION ALL SELECT 'mute' || lpad((n % 700)::text, 4, '0'), 1000000 + n, n FROM generate_series(1, 7000) n
  UNION ALL SELECT 'rare' || lpad(n::text, 4, '0'), 2000000 + n, n FROM generate_series(1, 5000) n
  UNION ALL SELECT 'rita', 10000000 + ${BUSY_POSTS} - n * 40, 0 FROM generate_series(1, 20) n
)
INSERT INTO posts (tenant_id, author_id, post_id, text, visibility, moderation, deleted_at)
SELECT $1, author, post_id, '', CASE WHEN n % 11 = 5 OR author = 'rita' THEN 'private' WHEN n % 3 = 1 THEN 'followers' ELSE 'public' END,
  CASE n % 13 WHEN 6 THEN 'hidden' WHEN 7 THEN 'sensitive' ELSE 'clear' END, CASE WHEN n % 17 = 4 THEN now() END
FROM written ORDER BY post_id`;

const VIEWERS = {
  'few, busy': `SELECT 'busy' || lpad(n::text, 4, '0') FROM generate_series(0, 199) n`,
  'few, silent': `SELECT 'mute' || lpad(n::text, 4, '0') FROM generate_series(0, 199) n`,
  'five silent': `SELECT 'mute' || lpad(n::text, 4, '0') FROM generate_series(0, 4) n`,
  'many, busy': `SELECT 'busy' || lpad(n::text, 4, '0') FROM generate_series(0, 699) n`,
  'many, silent': `SELECT 'mute' || lpad(n::text, 4, '0') FROM generate_series(0, 699) n`,
  'very many, silent': `SELECT 'rare' || lpad(n::text, 4, '0') FROM generate_series(1, 5000) n`,
  'many, one of them busy': `SELECT 'rare' || lpad(n::text, 4, '0') FROM generate_series(1, 900) n UNION ALL SELECT 'busy0001'`,
  'very many, and all busy ones': `SELECT 'rare' || lpad(n::text, 4, '0') FROM generate_series(1, 5000) n UNION ALL SELECT 'busy' || lpad(n::text, 4, '0') FROM generate_series(0, 699) n`,
  nobody: `SELECT 'ghost'`,
} as const;
type Shape = keyof typeof VIEWERS;
const SHAPES = Object.keys(VIEWERS) as Shape[];
const viewerOf = (shape: Shape): string => `to-${shape.replaceAll(/\W+/g, '-')}`;

let database: TestDatabase;
let product: Database;
beforeAll(async () => {
  database = await createTestDatabase();
  await database.sql(SEED, [TENANT]);
  // A neighbour whose posts are newer than all of ours.
  await database.sql(
    "INSERT INTO posts (tenant_id, author_id, post_id, text, visibility) SELECT 'snapshots2', 'busy0001', 20000000 + n, '', 'public' FROM generate_series(1, 3000) n",
  );
  await database.sql(
    `INSERT INTO self_entries (tenant_id, viewer_id, post_id)
     SELECT $1, author_id, post_id FROM posts WHERE tenant_id = $1 AND author_id = 'rita' AND deleted_at IS NULL`,
    [TENANT],
  );
  await database.sql(
    `INSERT INTO authors (tenant_id, author_id, fanout_class) SELECT $1, 'busy' || lpad(n::text, 4, '0'), CASE n % 3 WHEN 0 THEN 'pull' WHEN 1 THEN 'both' ELSE 'push' END
     FROM generate_series(0, 60) n`,
    [TENANT],
  );
  for (const shape of SHAPES) await follow(viewerOf(shape), VIEWERS[shape]);
  await follow('rita', VIEWERS['many, busy']);
  await database.sql("UPDATE follows SET ended_at = now() WHERE followee_id IN ('busy0100', 'mute0003', 'rare0100')");
  await database.sql('VACUUM ANALYZE posts');
  await database.sql('VACUUM ANALYZE follows');
  await database.sql('VACUUM ANALYZE authors');
  product = createDatabase({
    url: database.url,
    pool: 'snapshots',
    connectionsMax: 1,
    acquireTimeoutMs: 10_000,
    statementTimeoutMs: 10_000,
    lockTimeoutMs: 10_000,
    waitersMax: 10,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
});
afterAll(async () => {
  await product.close();
  await database.drop();
});

const follow = (viewer: string, whom: string) =>
  database.sql(
    `INSERT INTO follows (tenant_id, follower_id, followee_id) SELECT $1, $2, w.who FROM (${whom}) AS w (who)`,
    [TENANT, viewer],
  );
const soon = (): AbortSignal => AbortSignal.timeout(20_000);
const snapshot = (viewer: string, cap: number, from: Database = product) =>
  loadSnapshot(from, soon(), { tenant: TENANT, viewer: userId(viewer), cap });

/** In words of its own: all posts at once, sorted. */
async function expected(
  viewer: string,
  cap: number,
): Promise<{ readonly postIds: readonly number[]; readonly floor: number }> {
  const rows = await database.sql<{ post_id: number }>(
    `SELECT post_id FROM posts p WHERE tenant_id = $1 AND deleted_at IS NULL AND (
      author_id = $2 OR visibility IN ('public', 'followers') AND moderation IN ('clear', 'sensitive')
      AND EXISTS (SELECT 1 FROM follows f WHERE f.tenant_id = $1 AND f.follower_id = $2 AND f.followee_id = p.author_id AND f.ended_at IS NULL)
      AND coalesce((SELECT fanout_class FROM authors a WHERE a.tenant_id = $1 AND a.author_id = p.author_id), 'push') IN ('push', 'both')
    ) ORDER BY post_id DESC LIMIT $3`,
    [TENANT, viewer, cap + 1],
  );
  const ids = rows.map((row) => row.post_id);
  return { postIds: ids.slice(0, cap), floor: ids.length > cap ? (ids[cap - 1] ?? 0) - 1 : 0 };
}

describe('the snapshot of a timeline', () => {
  it.each(SHAPES)('holds the newest posts of whom the viewer follows, up to the cap: %s', async (shape) => {
    for (const cap of [2, 100, 800, 2_000]) {
      expect(await snapshot(viewerOf(shape), cap)).toEqual(await expected(viewerOf(shape), cap));
    }
  });

  it('holds the viewer’s own posts, private ones too, wherever they lie among the others', async () => {
    for (const cap of [100, 800, 2_000]) {
      const found = await snapshot('rita', cap);
      expect(found).toEqual(await expected('rita', cap));
      expect(found.postIds.some((id) => (10_000_000 + BUSY_POSTS - id) % 40 === 0)).toBe(true);
    }
  });

  it('holds no post twice where the first statement ends and the second goes on', async () => {
    const [last] = await database.sql<{ author_id: string; post_id: number }>(
      `UPDATE posts SET deleted_at = NULL, visibility = 'public', moderation = 'clear'
       WHERE tenant_id = $1 AND post_id = (SELECT post_id FROM posts WHERE tenant_id = $1 ORDER BY post_id DESC OFFSET 511 LIMIT 1)
       RETURNING author_id, post_id`,
      [TENANT],
    );
    await follow('mute0001', `${VIEWERS['many, silent']} WHERE n <> 1 UNION ALL SELECT '${last?.author_id}'`);
    await database.sql(
      `INSERT INTO self_entries (tenant_id, viewer_id, post_id)
       SELECT $1, author_id, post_id FROM posts WHERE tenant_id = $1 AND author_id = 'mute0001' AND deleted_at IS NULL`,
      [TENANT],
    );
    const found = await snapshot('mute0001', 800);
    expect(found).toEqual(await expected('mute0001', 800));
    expect(found.postIds).toContain(last?.post_id);
    expect(new Set(found.postIds).size).toBe(800);
  });

  it('is the same with 2,000 mutes, and costs the same', async () => {
    const viewer = viewerOf('many, silent');
    const load = (to: Database) => snapshot(viewer, 800, to);
    const before = await blocksOfLoad(database, { load, mode: 'force_generic_plan' });
    await database.sql(
      `INSERT INTO mutes (tenant_id, muter_id, muted_id) SELECT $1, $2, who FROM (
        SELECT 'mute' || lpad(n::text, 4, '0') AS who FROM generate_series(0, 699) n
        UNION ALL SELECT 'rare' || lpad(n::text, 4, '0') FROM generate_series(1, 1300) n) AS them`,
      [TENANT, viewer],
    );
    const after = await blocksOfLoad(database, { load, mode: 'force_generic_plan' });
    expect(after.result).toEqual(before.result);
    expect(after.statements).toEqual(before.statements);
    expect(after.blocks).toBeLessThanOrEqual(before.blocks + 10);
  });
});

/**
 * What it takes: three blocks or four for a descent by author, one for some dozens of rows by time. With four posts of each for a first look, whatever the number of follows, the few busy ones would take 927.
 */
const COSTS: readonly { readonly shape: Shape; readonly ways: RegExp; readonly blocksMax: number }[] = [
  { shape: 'few, busy', ways: /^by-time by-author$/, blocksMax: 650 },
  { shape: 'few, silent', ways: /^by-time by-author$/, blocksMax: 750 },
  { shape: 'five silent', ways: /^by-time by-author$/, blocksMax: 60 },
  { shape: 'many, busy', ways: /^by-time$/, blocksMax: 300 },
  { shape: 'many, silent', ways: /^by-time by-author$/, blocksMax: 2_500 },
  { shape: 'very many, silent', ways: /^by-time by-author$/, blocksMax: 15_000 },
  { shape: 'many, one of them busy', ways: /^by-time by-author$/, blocksMax: 3_000 },
  { shape: 'very many, and all busy ones', ways: /^by-time$/, blocksMax: 300 },
];

describe('what the snapshot costs', () => {
  it.each(COSTS)('stays near what the page takes: $shape', async ({ shape, ways, blocksMax }) => {
    for (const mode of ['force_custom_plan', 'force_generic_plan']) {
      const load = (to: Database) => snapshot(viewerOf(shape), 800, to);
      const { blocks, statements } = await blocksOfLoad(database, { load, mode });
      expect(statements.map((name) => name.replace('home-snapshot-', '')).join(' ')).toMatch(ways);
      expect(blocks).toBeLessThan(blocksMax);
    }
  });
});
