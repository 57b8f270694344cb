/** Owns the bound on what a follow or its end costs: what the timeline can hold, however many posts the author has. Counted in commands, IDs and rows, never in time. */
import { afterAll, beforeAll, describe, expect, inject, it } from 'vitest';
import type { Database } from '../../src/store/postgres/client.ts';
import { findWrittenBy, loadNewestOf } from '../../src/store/postgres/home-pages.ts';
import { composePostId, postIdFrom } from '../../src/timeline/ids.ts';
import { blocksTouched } from '../harness/blocks-touched.ts';
import { openCached } from '../harness/cached.ts';
import { storePosts } from '../harness/rows.ts';
import { type TestTenant, userId } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';
import { commandsOf, type FollowStage, openFollowStage } from './follow-stage.ts';

const POSTS = 100_000;
const CAP = 800;
/** A call and its event do the same work: a look, IDs in calls of 128, the relation's deletion and its fill. */
const COMMANDS_MAX = 2 * (Math.ceil((CAP + 64) / 128) + 10);
/** IDs of a whole timeline, twice, and what else the commands name. */
const ARGUMENTS_MAX = 2 * (CAP + 64) + COMMANDS_MAX * 10;

let stage: FollowStage;
let tenant: TestTenant;
/** Posts of 1 January 2024 and after, one each second. */
const first = composePostId({ ms: Date.UTC(2024, 0, 1), generator: 106, sequence: 0 });
const SECOND = 4_096 * 1_000;
beforeAll(async () => {
  stage = await openFollowStage();
  tenant = await stage.service.tenant();
  await stage.service.database.sql(
    `WITH stats AS (INSERT INTO post_stats (tenant_id, post_id, author_id) SELECT $1, $2::bigint + n * ${SECOND}::bigint, 'ada' FROM generate_series(1, ${POSTS}) AS n)
    INSERT INTO posts (tenant_id, author_id, post_id, text, visibility) SELECT $1, 'ada', $2::bigint + n * ${SECOND}::bigint, '', 'public' FROM generate_series(1, ${POSTS}) AS n`,
    [tenant.id, first],
  );
  await stage.service.database.sql('VACUUM ANALYZE posts, post_stats');
});
afterAll(() => stage.stop());

/** A viewer's change of the follow by call and by event. */
async function change(viewer: string, how: 'follow' | 'unfollow'): Promise<readonly string[][]> {
  return commandsOf(inject('servers').cacheUrl, tenant.id, async () => {
    await tenant.graph[how]({ followerId: viewer, followeeId: 'ada' });
    await stage.relay(AbortSignal.timeout(20_000));
  });
}

function expectBounded(commands: readonly string[][]): void {
  expect(commands.length).toBeGreaterThan(1);
  expect(commands.length).toBeLessThanOrEqual(COMMANDS_MAX);
  expect(commands.flat().length).toBeLessThanOrEqual(ARGUMENTS_MAX);
}

describe('an author of 100,000 posts', () => {
  it.each([
    { timeline: 'empty', own: 0, newer: false, left: CAP },
    { timeline: 'full of newer posts', own: 1_000, newer: true, left: 0 },
    { timeline: 'full of older posts', own: 1_000, newer: false, left: CAP },
  ])('followed and unfollowed costs no more than a timeline: $timeline', async ({ own, newer, left, timeline }) => {
    const viewer = `viewer-${timeline.replaceAll(' ', '-')}`;
    const base = newer ? first + (POSTS + 10) * SECOND : first - 2_000 * SECOND;
    const cyd = `cyd-${viewer}`;
    await storePosts(
      stage.service.database,
      tenant.id,
      Array.from({ length: own }, (_, at) => ({ author: cyd, postId: base + at * SECOND + own })),
    );
    await tenant.graph.follow({ followerId: viewer, followeeId: cyd });
    await stage.relay(AbortSignal.timeout(20_000));
    const before = await wholeHome(tenant, viewer);
    const cached = openCached(tenant.id);
    const ofAda = async () => (await cached.entries(viewer))?.filter((id) => !before.includes(id)).length;

    expectBounded(await change(viewer, 'follow'));
    expect(await ofAda()).toBe(left);
    expect((await tenant.timeline.getHomeTimeline({ viewerId: viewer, pageSize: 20 })).entries).toHaveLength(20);

    expectBounded(await change(viewer, 'unfollow'));
    expect(await ofAda()).toBe(0);
    expect(await wholeHome(tenant, viewer)).toEqual(before);

    expectBounded(await change(viewer, 'follow'));
    expect(await ofAda()).toBe(left);
    cached.close();
  });

  it('costs a viewer without a timeline three commands for the call, three for its event, and no post', async () => {
    for (const how of ['follow', 'unfollow'] as const) {
      const commands = await change('absent', how);
      expect(commands.map(([name]) => name?.toLowerCase())).not.toContain('zadd');
      expect(commands.length).toBeLessThanOrEqual(6);
    }
  });
});

it.each([
  {
    work: 'backfill',
    rows: 801,
    load: (to: Database) =>
      loadNewestOf(to, AbortSignal.timeout(20_000), { tenant: tenant.id, author: userId('ada'), above: 0, limit: 801 }),
  },
  {
    work: 'clean-up',
    rows: 432,
    load: (to: Database) =>
      findWrittenBy(to, AbortSignal.timeout(20_000), {
        tenant: tenant.id,
        author: userId('ada'),
        postIds: Array.from({ length: 864 }, (_, at) =>
          postIdFrom(at % 2 === 0 ? first + (at + 1) * SECOND : first + at * SECOND + 1),
        ),
      }),
  },
])('the $work of an author of 100,000 posts touches what a timeline can hold', async ({ load, rows }) => {
  for (const mode of ['force_custom_plan', 'force_generic_plan']) {
    // An entry costs one descent of an index at most.
    expect(await blocksTouched(stage.service.database, { load, mode, rows })).toBeLessThan(rows * 10);
  }
});
