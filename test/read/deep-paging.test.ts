/**
 * Owns what holds of walks that leave what timelines and lists hold: older pages go on below every floor, newer ones come up across it, oldest first, and what a badge counts is what they
 * then show; whatever comes late, is deleted, trimmed or lost between two pages.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, inject, it } from 'vitest';
import { Completeness } from '../../src/gen/tributary/v1/author_pb.ts';
import { composePostId, postIdMs } from '../../src/timeline/ids.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { eventually } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import { type Cast, labels } from '../harness/play.ts';
import { storeClass, storeFollows, storePosts } from '../harness/rows.ts';
import { postIdOf, startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { authorPages, homePages, walkNewer, walkOlder, wholeHome } from '../harness/walk.ts';

const PAGE_SIZES = [1, 5, 20, 100];
const CAP = 20;
const HOUR_MS = 3_600_000;
const MINUTE_MS = 60_000;

let service: TestService;
/** Between the service and its cache. */
let proxy: FaultProxy;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  const { cacheUrl } = inject('servers');
  proxy = await startFaultProxy({ port: Number(new URL(cacheUrl).port) });
  service = await startTestService({
    env: { TIMELINE_CAP: String(CAP), TIMELINE_TRIM_STRIDE: '4', REDIS_CACHE_URL: proxy.through(cacheUrl) },
  });
});
afterAll(async () => {
  await service.stop();
  await proxy.stop();
});
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
});
afterEach(() => cached.close());

const home = (pageSize: number, pageToken = '') => homePages(tenant, 'rita', pageSize)(pageToken);
const older = (pageSize: number) => walkOlder(homePages(tenant, 'rita', pageSize), { pageSize });
const newer = (token: string, pageSize: number) => walkNewer(token, homePages(tenant, 'rita', pageSize), { pageSize });
const head = (sinceToken: string) => tenant.timeline.getHomeHead({ viewerId: 'rita', sinceToken });
const oracleHome = async () => (await tenant.oracle('rita')).home;
const ascending = (ids: readonly string[]): readonly string[] => [...ids].sort((a, b) => Number(a) - Number(b));

/** Post IDs `everyMs` apart, oldest first, the first at `fromMs`. */
const series = (
  count: number,
  { fromMs, everyMs, generator }: { fromMs: number; everyMs: number; generator: number },
) => Array.from({ length: count }, (_, at) => composePostId({ ms: fromMs + at * everyMs, generator, sequence: 0 }));

async function store(author: string, postIds: readonly number[], { fanOut = false } = {}): Promise<readonly string[]> {
  const posts = postIds.map((postId) => ({ author, postId }));
  await storePosts(service.database, tenant.id, posts, { fanOut });
  if (fanOut) await service.settle();
  return postIds.map(String);
}

/** Fanned out, and on home: an instance may take its time to look at a list anew. */
async function arrive(author: string, ...postIds: readonly number[]): Promise<readonly string[]> {
  const ids = await store(author, postIds, { fanOut: true });
  await eventually(async () => expect(await wholeHome(tenant, 'rita')).toEqual(expect.arrayContaining([...ids])));
  return ids;
}

/** As if nobody had read for long: nothing is cached, and then what a first reader brings. An instance may take its time to look at a list anew. */
async function comeBack(): Promise<void> {
  await cached.evictAll();
  const due = await oracleHome();
  await eventually(async () => expect(await wholeHome(tenant, 'rita')).toEqual(due));
}

/** Rita follows ben, who is pushed, and ada, who is pulled. */
async function follow(): Promise<void> {
  await storeFollows(service.database, tenant.id, [
    ['rita', 'ben'],
    ['rita', 'ada'],
  ]);
  await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass: 'pull' });
}

/** Five entries were there when rita looked, five hours ago; 90 have come since, of which timeline and list hold 20 each. */
async function missed(): Promise<{ readonly token: string; readonly ids: readonly string[] }> {
  await follow();
  const fromMs = service.clock.nowMs() - 5 * HOUR_MS;
  await store('ben', series(5, { fromMs: fromMs - HOUR_MS, everyMs: MINUTE_MS, generator: 100 }));
  const { headToken } = await home(5);
  const bens = await store('ben', series(60, { fromMs, everyMs: 5 * MINUTE_MS, generator: 100 }));
  const adas = await store('ada', series(30, { fromMs: fromMs + 7, everyMs: 10 * MINUTE_MS, generator: 101 }));
  await comeBack();
  expect(await cached.entries('rita')).toHaveLength(CAP);
  return { token: headToken, ids: ascending([...bens, ...adas]) };
}

describe('a walk across the floors', () => {
  it.each(PAGE_SIZES)('by %i gives every entry once, down and up', async (pageSize) => {
    await follow();
    const { headToken } = await home(1);
    const fromMs = service.clock.nowMs() - 3 * HOUR_MS;
    await store('ben', series(50, { fromMs, everyMs: MINUTE_MS, generator: 100 }));
    await store('ada', series(40, { fromMs: fromMs + HOUR_MS, everyMs: MINUTE_MS, generator: 101 }));
    await comeBack();
    const expected = await oracleHome();
    expect(expected).toHaveLength(90);
    expect((await older(pageSize)).ids).toEqual(expected);
    expect(await cached.entries('rita')).toHaveLength(CAP);
    expect((await newer(headToken, pageSize)).ids).toEqual([...expected].reverse());
  });
});

describe('a walk during which the cache goes and comes', () => {
  it('gives every entry once, down and up, wherever each page came from', async () => {
    const { token, ids } = await missed();
    const turns = [() => proxy.reset(), () => proxy.refuse(), () => undefined, () => proxy.restore(), () => undefined];
    const between = async (pagesRead: number): Promise<void> => void (await turns[pagesRead % turns.length]?.());
    const all = await oracleHome();
    const down = await walkOlder(homePages(tenant, 'rita', 9), { pageSize: 9, between });
    await proxy.restore();
    expect(down.ids).toEqual(all);
    const up = await walkNewer(token, homePages(tenant, 'rita', 9), { pageSize: 9, between });
    await proxy.restore();
    expect(up.ids).toEqual(ids);
    // What the outage left is no less than before.
    await eventually(async () => expect((await home(5)).ids).toEqual(all.slice(0, 5)));
    expect((await older(20)).ids).toEqual(all);
  });
});

describe('posts of one millisecond on both sides of a floor', () => {
  it.each([1, 5, 20])('come once each, in strict order, down and up by %i', async (pageSize) => {
    await follow();
    const { headToken } = await home(1);
    const first = composePostId({ ms: service.clock.nowMs() - HOUR_MS, generator: 100, sequence: 0 });
    const ids = Array.from({ length: 48 }, (_, at) => first + at);
    for (const [at, author] of ['ada', 'ben'].entries())
      await store(
        author,
        ids.filter((_, index) => index % 2 === at),
      );
    await comeBack();
    const expected = [...ids].reverse().map(String);
    expect((await older(pageSize)).ids).toEqual(expected);
    expect(await cached.entries('rita')).toHaveLength(CAP);
    expect((await newer(headToken, pageSize)).ids).toEqual(ids.map(String));
  });
});

describe('posts that are imported with old dates', () => {
  it('are where they belong on timelines and lists that are there: above the floor, on it and below', async () => {
    await follow();
    const fromMs = service.clock.nowMs() - 2 * HOUR_MS;
    for (const author of ['ben', 'ada'])
      await store(author, series(40, { fromMs, everyMs: MINUTE_MS, generator: author === 'ada' ? 100 : 101 }));
    const { headToken } = await home(5);
    const before = await oracleHome();
    const imported = await service.service.importPosts(
      tenant.call(),
      ['ada', 'ben'].flatMap((author) =>
        [0, 1, 5, 19, 20, 21, 30, 39, 40, 45].map((minutes) => ({
          author: userId(author),
          text: `${minutes} minutes`,
          publishedAtMs: fromMs + minutes * MINUTE_MS - 1,
        })),
      ),
    );
    await service.settle();
    const after = await oracleHome();
    expect(after).toHaveLength(before.length + imported.length);
    await eventually(async () => expect((await older(7)).ids).toEqual(after));
    for (const pageSize of [20, 100]) expect((await older(pageSize)).ids).toEqual(after);
    // To whoever polls, new is what is newer than what they had seen, or as little older as a newer page looks back.
    expect((await newer(headToken, 5)).ids).toEqual(ascending(imported.map(String)).slice(-6));
  });
});

describe('what was missed since a token of hours ago', () => {
  it('is counted, and comes oldest first without a hole, by every page size; then there is nothing more', async () => {
    const { token, ids } = await missed();
    expect(await head(token)).toMatchObject({ newCount: 90, newestPostId: ids.at(-1) });
    for (const pageSize of PAGE_SIZES) {
      const walk = await newer(token, pageSize);
      expect(walk.ids).toEqual(ids);
      expect(walk.ids).toEqual(ascending(walk.ids));
      expect((await newer(walk.headToken, pageSize)).ids).toEqual([]);
      expect((await head(walk.headToken)).newCount).toBe(0);
    }
    // From the middle of the walk the rest is counted.
    const { headToken } = await home(20, token);
    expect((await head(headToken)).newCount).toBe(70);
  });

  it('comes once each while entries come late and new, are deleted, trimmed and lost between the pages', async () => {
    const { token, ids } = await missed();
    const seen: string[] = [];
    const late: string[] = [];
    const remove = async (postId = ''): Promise<void> => {
      const [row] = await service.database.sql<{ author_id: string }>(
        'SELECT author_id FROM post_stats WHERE tenant_id = $1 AND post_id = $2',
        [tenant.id, postId],
      );
      await tenant.posts.deletePost({ authorId: row?.author_id ?? '', postId });
    };
    const newestSeen = (): string => seen.at(-1) ?? '';
    const unseen = (): readonly string[] => ids.filter((id) => Number(id) > Number(newestSeen()));
    /** Ten seconds older than the newest entry seen: within what a newer page looks back. */
    const lateMs = (): number => postIdMs(postIdOf(newestSeen())) - 10_000;
    const comesLate = async (author: string): Promise<void> => {
      late.push(...(await arrive(author, composePostId({ ms: lateMs(), generator: 102, sequence: 0 }))));
    };
    const deleted: string[] = [];
    const happenings: Readonly<Record<number, () => Promise<unknown>>> = {
      1: () => comesLate('ben'),
      2: () => remove(newestSeen()),
      3: async () => {
        deleted.push(...unseen().slice(1, 3));
        for (const postId of deleted) await remove(postId);
      },
      4: () => comesLate('ada'),
      // The floor of the timeline rises over where the walk is.
      5: async () => {
        const nowMs = service.clock.nowMs();
        late.push(...(await arrive('ben', ...series(30, { fromMs: nowMs - 60, everyMs: 1, generator: 103 }))));
        expect((await cached.entries('rita'))?.length).toBeLessThanOrEqual(CAP + 4);
      },
      6: () => cached.evictAll(),
      7: () => cached.evict('al', 'pull'),
    };
    const read = async (pageToken: string) => {
      const page = await home(7, pageToken);
      seen.push(...page.ids);
      return page;
    };
    const walk = await walkNewer(token, read, {
      pageSize: 7,
      between: async (pagesRead) => happenings[pagesRead]?.(),
    });
    expect(ascending(walk.ids)).toEqual(ascending([...ids, ...late].filter((id) => !deleted.includes(id))));
    expect(late).toHaveLength(32);
    expect((await newer(walk.headToken, 7)).ids).toEqual([]);
  });

  it('is all found, and the walk ends, where it lies between hundreds that are hidden and came in the same moments', async () => {
    await storeFollows(service.database, tenant.id, [
      ['rita', 'ada'],
      ['rita', 'ben'],
    ]);
    await cast.play('rita mutes ada');
    const { headToken } = await home(1);
    const fromMs = service.clock.nowMs() - HOUR_MS;
    await store('ada', series(900, { fromMs, everyMs: 10, generator: 100 }));
    const bens = await store('ben', series(4, { fromMs: fromMs + 5, everyMs: 2_998, generator: 101 }));
    await cached.evictAll();
    // So many lie above the oldest of them that the head may stop before it, and then says so.
    const { newCount, newestPostId, completeness } = await head(headToken);
    expect(newestPostId).toBe(bens.at(-1));
    if (completeness !== Completeness.PARTIAL) expect(newCount).toBe(bens.length);
    expect(newCount).toBeLessThanOrEqual(bens.length);
    for (const pageSize of [1, 20]) expect((await newer(headToken, pageSize)).ids).toEqual(bens);
  });

  it.each(['deleted', 'hidden', 'lost', 'evicted with everything else'])(
    'is what is newer than the entry the token names, also where that is %s',
    async (how) => {
      await cast.play('rita follows ada; ada posts 4 times as a');
      const { headToken, ids } = await home(2);
      expect(ids[0]).toBe(cast.post('a4').postId);
      if (how === 'deleted') await cast.play('ada deletes a4');
      if (how === 'hidden') await cast.play('moderation hides a4');
      if (how === 'lost')
        await service.database.sql('DELETE FROM posts WHERE tenant_id = $1 AND post_id = $2', [tenant.id, ids[0]]);
      if (how === 'lost') await cached.evict('pm', 'pb');
      if (how.startsWith('evicted')) await cached.evictAll();
      await cast.play('ada posts 3 times as b');
      await service.settle();
      for (const pageSize of [1, 5]) expect((await newer(headToken, pageSize)).ids).toEqual(cast.ids('b1', 'b2', 'b3'));
      expect((await head(headToken)).newCount).toBe(3);
    },
  );
});

describe('the number of new entries', () => {
  it('is what newer pages then show, from tokens of every kind of page, after every kind of change', async () => {
    await storeClass(service.database, tenant.id, { authors: ['cyd'], fanoutClass: 'pull' });
    const tokens = [(await home(5)).headToken];
    await cast.play(
      'rita follows ada, ben, cyd; ada posts 8 times as a; cyd posts 8 times as c; ben reposts a1 as b1; rita posts "mine" as r1',
    );
    await service.settle();
    const first = await home(5);
    const second = await home(5, first.nextPageToken);
    const walk = await older(5);
    tokens.push(first.headToken, second.headToken, walk.pages.at(-1)?.headToken ?? '', (await head('')).headToken);
    await cast.play(
      'ada posts 3 times as d; cyd posts 3 times as e; ben quotes d1 "look" as q1; rita posts "too" as r2',
    );
    await service.settle();
    const middle = await home(2, first.headToken);
    tokens.push(middle.headToken);

    for (const change of [
      'ben reposts e1 as b2; ben posts "for nobody" to nobody',
      'ada deletes d2; moderation hides e2',
      'rita mutes ada',
      'rita unmutes ada; cyd is suspended',
      'cyd is restored; rita unfollows ben; ada shows d3 to nobody',
      'ada blocks rita',
    ]) {
      await cast.play(change);
      await service.settle();
      const newest = (await oracleHome())[0];
      for (const [at, token] of tokens.entries()) {
        await eventually(async () => {
          const { ids } = await newer(token, 5);
          const { newCount, newestPostId, headToken } = await head(token);
          expect([change, at, newCount, newestPostId]).toEqual([change, at, ids.length, newest]);
          expect((await head(headToken)).newCount).toBe(0);
        });
      }
    }
  });

  it.each([98, 99, 100])('of %i new ones is that number, up to 99', async (count) => {
    const { headToken } = await home(1);
    await store('rita', series(count, { fromMs: service.clock.nowMs() - HOUR_MS, everyMs: 50, generator: 100 }));
    await cached.evictAll();
    expect((await head(headToken)).newCount).toBe(Math.min(99, count));
    expect((await newer(headToken, 20)).ids).toHaveLength(count);
  });

  it('finds the few that may be seen below hundreds that may not', async () => {
    await storeFollows(service.database, tenant.id, [
      ['rita', 'ada'],
      ['rita', 'ben'],
    ]);
    const { headToken } = await home(1);
    const fromMs = service.clock.nowMs() - HOUR_MS;
    const bens = await store('ben', series(5, { fromMs, everyMs: 1, generator: 100 }));
    await store('ada', series(400, { fromMs: fromMs + 10, everyMs: 1, generator: 100 }));
    await cast.play('rita mutes ada');
    await cached.evictAll();
    expect(await head(headToken)).toMatchObject({ newCount: 5, newestPostId: bens.at(-1) });
    expect((await newer(headToken, 20)).ids).toEqual(bens);
  });
});

describe('a page of which the newest are all hidden', () => {
  it.each([
    { what: 'by a muted author who is pulled', pageSize: 20, hidden: 60, visible: 40, fanoutClass: 'pull' },
    { what: 'to the last of a hundred, pushed', pageSize: 100, hidden: 100, visible: 1, fanoutClass: 'push' },
    { what: 'to the last of a hundred, pulled', pageSize: 100, hidden: 100, visible: 1, fanoutClass: 'pull' },
  ] as const)('$what is full, or has what there is', async ({ pageSize, hidden, visible, fanoutClass }) => {
    await storeFollows(service.database, tenant.id, [
      ['rita', 'ada'],
      ['rita', 'ben'],
    ]);
    await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass });
    const fromMs = service.clock.nowMs() - HOUR_MS;
    const bens = await store('ben', series(visible, { fromMs, everyMs: 1, generator: 100 }));
    await store('ada', series(hidden, { fromMs: fromMs + 100, everyMs: 1, generator: 101 }));
    await cast.play('rita mutes ada');
    const page = await home(pageSize);
    expect(page.ids).toEqual([...bens].reverse().slice(0, pageSize));
    expect(page.nextPageToken === '').toBe(visible <= pageSize);
    expect((await older(pageSize)).ids).toEqual([...bens].reverse());
    expect((await head('')).newCount).toBe(visible);
    const list = authorPages(tenant, 'rita', 'ada', pageSize);
    expect((await walkOlder(list, { pageSize })).ids).toEqual([]);
  });
});

describe('a post that comes several ways', () => {
  it.each(PAGE_SIZES)(
    'is an entry each time: itself, and every repost of it, wherever pages by %i end',
    async (pageSize) => {
      await storeClass(service.database, tenant.id, { authors: ['cyd'], fanoutClass: 'pull' });
      await cast.play('rita follows ada, ben, cyd');
      const { headToken } = await home(pageSize);
      await cast.play(`ada posts "the post" as post; ben reposts post as b1; cyd reposts post as c1; ada posts 4 times as a
      ben reposts post as b2; cyd quotes post "look" as q1; rita reposts post as r1; ben reposts b1 as b3`);
      await service.settle();
      const around = ['b1', 'c1', 'b2', 'q1', 'r1', 'b3'];
      const all = cast.ids('post', 'b1', 'c1', ...labels('a', 4), 'b2', 'q1', 'r1', 'b3');
      await eventually(async () => expect(await wholeHome(tenant, 'rita')).toHaveLength(all.length));
      expect((await older(pageSize)).ids).toEqual([...all].reverse());
      expect((await newer(headToken, pageSize)).ids).toEqual(all);
      expect((await head(headToken)).newCount).toBe(all.length);
      const { entries } = await tenant.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 100 });
      const inside = entries.flatMap((view) => (view.repostOf ? [[view.post?.postId, view.repostOf.postId]] : []));
      expect(inside).toEqual([...around].reverse().map((label) => cast.ids(label, 'post')));

      // One repost less is one entry less; without the post nothing but the quote is left of them.
      await cast.play('ben deletes b1');
      expect((await older(pageSize)).ids).toEqual([...all].reverse().filter((id) => id !== cast.post('b1').postId));
      await cast.play('ada deletes post');
      expect((await older(pageSize)).ids).toEqual([...cast.ids(...labels('a', 4), 'q1')].reverse());
    },
  );
});
