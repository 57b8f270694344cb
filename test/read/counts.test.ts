/**
 * Owns what readers see of a post's counters, on every surface: what the rows say where it is known, nothing where it is not, and never less than none. A page does without them where they
 * cannot be had.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Completeness } from '../../src/gen/tributary/v1/author_pb.ts';
import type { PostView } from '../../src/gen/tributary/v1/post_pb.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { type Clients, PROTOCOLS } from '../harness/clients.ts';
import { eventually } from '../harness/eventually.ts';
import type { Cast } from '../harness/play.ts';
import { storePosts } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';

let service: TestService;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  // Without copies in the process: a page shows what Redis and Postgres say.
  service = await startTestService({ env: { PROCESS_LIST_MS: '0' } });
});
afterAll(() => service.stop());
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
});
afterEach(() => cached.close());

interface Shown {
  readonly reposts: bigint | undefined;
  readonly replies: bigint | undefined;
}

interface Read {
  readonly surface: string;
  readonly completeness: Completeness;
  readonly views: readonly PostView[];
}

async function readAll(clients: Clients, postId: string): Promise<readonly Read[]> {
  const viewerId = 'rita';
  const [home, list, batch, single] = await Promise.all([
    clients.timeline.getHomeTimeline({ viewerId, pageSize: 100 }),
    clients.posts.listAuthorPosts({ viewerId, authorId: 'ada', pageSize: 100 }),
    clients.posts.batchGetPosts({ viewerId, postIds: [postId] }),
    clients.posts.getPost({ viewerId, postId }),
  ]);
  return [
    { surface: 'home', completeness: home.completeness, views: home.entries },
    { surface: 'list', completeness: list.completeness, views: list.entries },
    { surface: 'batch', completeness: batch.completeness, views: batch.views },
    { surface: 'single', completeness: single.completeness, views: single.view ? [single.view] : [] },
  ];
}

/** What every surface shows of a label's counters, by both protocols; it must be the same. */
async function countsOf(label: string): Promise<Shown> {
  const { postId } = cast.post(label);
  const reads = (await Promise.all(PROTOCOLS.map((protocol) => readAll(tenant.by[protocol], postId)))).flat();
  const shown = reads.map(({ surface, views }): Shown & { readonly surface: string } => {
    const view = views.find(({ post }) => post?.postId === postId);
    if (!view) throw new Error(`${surface} does not show ${label}`);
    return { surface, reposts: view.counts?.reposts, replies: view.counts?.replies };
  });
  const [first] = shown;
  expect(shown).toEqual(shown.map(({ surface }) => ({ ...first, surface })));
  return { reposts: first?.reposts, replies: first?.replies };
}

/** The same, of no copy: how long one may be shown is not this file's concern. */
async function freshCountsOf(label: string): Promise<Shown> {
  await cached.evictAll();
  return countsOf(label);
}

/** As the rows have it. */
async function rowsOf(label: string): Promise<Shown> {
  const [row] = await service.database.sql<{ reposts: string; replies: string }>(
    `SELECT count(*) FILTER (WHERE repost_of_post_id = $2)::text AS reposts, count(*) FILTER (WHERE reply_to_post_id = $2)::text AS replies
    FROM posts WHERE tenant_id = $1 AND deleted_at IS NULL`,
    [tenant.id, cast.post(label).postId],
  );
  return { reposts: BigInt(row?.reposts ?? -1), replies: BigInt(row?.replies ?? -1) };
}

const setTotals = (label: string, totals: string) =>
  service.database.sql(`UPDATE post_stats SET ${totals} WHERE tenant_id = $1 AND post_id = $2`, [
    tenant.id,
    cast.post(label).postId,
  ]);

it('equals the rows once everything is folded, after every reply, repost, quote and deletion, also while many come at once', async () => {
  await cast.play('rita follows ada; ada posts "the post" as post');
  const seen: Shown[] = [];
  for (const script of [
    'ben replies to post "yes" as r1; cyd replies to post "no" as r2; ben reposts post as p1; cyd quotes post "look" as q1',
    'ben deletes r1; dan reposts p1 as p2',
    'cyd deletes r2; cyd deletes q1; ben deletes p1; dan deletes p2',
  ]) {
    await cast.play(script);
    const rows = await rowsOf('post');
    await eventually(async () => {
      const counts = await freshCountsOf('post');
      seen.push(counts);
      expect(counts).toEqual(rows);
    });
  }
  const busy = Array.from({ length: 30 }, (_, at) => `fan-${at}`);
  const made = await Promise.all(
    busy.map((authorId) => tenant.posts.publishPost({ authorId, text: '', repostOfPostId: cast.post('post').postId })),
  );
  const undone = made
    .slice(0, 20)
    .map(({ post }, at) => tenant.posts.deletePost({ authorId: busy[at] ?? '', postId: post?.postId ?? '' }));
  await Promise.all(undone);
  await eventually(async () => {
    const counts = await freshCountsOf('post');
    seen.push(counts);
    expect(counts).toEqual({ reposts: 10n, replies: 0n });
  });
  for (const { reposts = 0n, replies = 0n } of seen) expect([reposts >= 0n, replies >= 0n]).toEqual([true, true]);
});

describe('a counter that is not known', () => {
  it('is absent, not zero, and the other one is there', async () => {
    await cast.play('rita follows ada');
    const postId = 4_096_000;
    await storePosts(service.database, tenant.id, [{ author: 'ada', postId }]);
    cast.adopt('post', { postId: String(postId), author: 'ada' });
    expect(await freshCountsOf('post')).toEqual({ reposts: undefined, replies: undefined });
    await setTotals('post', 'reposts = 7');
    await eventually(async () => expect(await freshCountsOf('post')).toEqual({ reposts: 7n, replies: undefined }));
  });

  it('is nothing less than none, whatever a total says', async () => {
    await cast.play('rita follows ada; ada posts "the post" as post');
    await setTotals('post', 'reposts = -3, replies = 0');
    await eventually(async () => expect(await freshCountsOf('post')).toEqual({ reposts: 0n, replies: 0n }));
  });

  it('since counters cannot be read, is left out of a page that has all the rest, and is back afterwards', async () => {
    await cast.play(
      'rita follows ada; ada posts "the post" as post; ben replies to post "yes" as reply; ada quotes post "see" as quote',
    );
    await eventually(async () => expect((await freshCountsOf('post')).replies).toBe(1n));
    await service.database.sql('ALTER TABLE post_stats RENAME COLUMN reposts TO out_of_reach');
    await cached.evictAll();
    try {
      const postId = cast.post('post').postId;
      for (const protocol of PROTOCOLS) {
        for (const { surface, completeness, views } of await readAll(tenant.by[protocol], postId)) {
          const expected = surface === 'home' || surface === 'list' ? cast.ids('quote', 'post') : [postId];
          expect([surface, views.map(({ post }) => post?.postId)]).toEqual([surface, expected]);
          expect([surface, views.map(({ counts }) => counts)]).toEqual([surface, expected.map(() => undefined)]);
          expect([surface, completeness]).toEqual([surface, Completeness.REDUCED]);
        }
      }
    } finally {
      await service.database.sql('ALTER TABLE post_stats RENAME COLUMN out_of_reach TO reposts');
    }
    await eventually(async () => expect((await freshCountsOf('post')).replies).toBe(1n));
  });
});
