/**
 * Owns what holds of home where some of the authors are pulled: a page is what it would be if they were pushed, whatever of their lists, of the timeline and of what is known of the viewer
 * is there, lost, damaged or being made.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, inject, it } from 'vitest';
import { createPulledLists, type PulledLists } from '../../src/store/redis/pulled-lists.ts';
import { composePostId, positionBeforeMs, postIdFrom } from '../../src/timeline/ids.ts';
import { type Cached, type CachedKind, openCached } from '../harness/cached.ts';
import { eventually } from '../harness/eventually.ts';
import { type Cast, labels } from '../harness/play.ts';
import { storeClass, storeFollowees, storeFollowers, storePosts } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { homePages, walkNewer, walkOlder, wholeHome } from '../harness/walk.ts';
import { type CacheUnderTest, openCache, soon } from '../store/redis/cache-under-test.ts';

const LIST_OPTIONS = { cap: 800, stride: 64, lifeMs: 600_000, rebuildLeaseMs: 5_000 };

let service: TestService;
let under: CacheUnderTest;
let lists: PulledLists;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  // Lists are changed behind the service's back here: copies of them would hide that.
  service = await startTestService({ env: { PROCESS_LIST_MS: '0' } });
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
  lists = createPulledLists(under.cache, under.keys, LIST_OPTIONS);
});
afterAll(async () => {
  await under.close();
  await service.stop();
});
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
});
afterEach(() => cached.close());

const older = async (viewer: string, pageSize: number) =>
  (await walkOlder(homePages(tenant, viewer, pageSize), { pageSize })).ids;
const oracleHome = async (viewer: string, of = tenant) => (await of.oracle(viewer)).home;

async function expectHome(viewer: string, pageSize = 50): Promise<void> {
  expect(await older(viewer, pageSize)).toEqual(await oracleHome(viewer));
}

const follow = (followee: string, ...followers: readonly string[]) =>
  storeFollowers(service.database, tenant.id, { followee, followers });
const pull = (...authors: readonly string[]) =>
  storeClass(service.database, tenant.id, { authors, fanoutClass: 'pull' });

/** Post IDs `everyMs` apart, the newest at `endMs`; a generator of its own for each author. */
const series = (count: number, { endMs, everyMs, generator }: { endMs: number; everyMs: number; generator: number }) =>
  Array.from({ length: count }, (_, at) => composePostId({ ms: endMs - at * everyMs, generator, sequence: 0 }));

/** Posts that only Postgres knows of: fanned out to nobody. */
const write = (author: string, postIds: readonly number[]) =>
  storePosts(
    service.database,
    tenant.id,
    postIds.map((postId) => ({ author, postId })),
  );

/** As publishing by a pulled author does: durable, then in the list where there is one. */
async function publishPulled(author: string, postId: number, epoch = 1): Promise<string> {
  await write(author, [postId]);
  return lists.push(soon(), { tenant: tenant.id, author: userId(author), epoch, postId: postIdFrom(postId) });
}

const listKey = (author: string, epoch = 1) => under.keys.pulledList(tenant.id, userId(author), epoch);
const listEntries = async (author: string) => (await under.raw.zrange(listKey(author), '0', '-1')).slice(0, -1);

async function metric(line: RegExp, of = service): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${of.service.httpPort}/metrics`)).text();
  return text
    .split('\n')
    .filter((each) => line.test(each))
    .reduce((sum, each) => sum + Number(each.split(' ').at(-1)), 0);
}

/** Rita follows ben and cyd, who are pushed, and ada and eve, who are pulled; 12 posts of each, and the pages were read. */
async function scene(): Promise<void> {
  const endMs = Date.now() - 60_000;
  for (const [at, author] of ['ada', 'eve', 'ben', 'cyd'].entries()) {
    await follow(author, 'rita');
    await write(author, series(12, { endMs: endMs - at * 250, everyMs: 1_000, generator: 100 + at }));
  }
  await pull('ada', 'eve');
  await expectHome('rita', 7);
  expect(await cached.entries('rita')).toHaveLength(24);
  expect(await listEntries('ada')).toHaveLength(12);
}

describe('a page with pulled authors', () => {
  it('gives 25 posts of one millisecond, by two pulled authors and three others, once each and in the same order every time', async () => {
    const ms = Date.now() - 60_000;
    for (const [at, author] of ['ada', 'ben', 'cyd', 'dan', 'eve'].entries()) {
      await follow(author, 'rita');
      await write(
        author,
        Array.from({ length: 5 }, (_, sequence) =>
          composePostId({ ms, generator: 100 + ((at * 7) % 5), sequence: sequence * 5 }),
        ),
      );
    }
    await pull('ada', 'dan');
    const runs = [await older('rita', 7), await older('rita', 7), await older('rita', 7)];
    for (const run of runs) expect(run).toEqual(await oracleHome('rita'));
    expect(new Set(runs[0]).size).toBe(25);
    // The pulled ones were merged in: the timeline does not hold them.
    expect(await cached.entries('rita')).toHaveLength(15);
  });

  it('shows what was just published to the list, and counts it as new', async () => {
    await scene();
    const before = await tenant.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 5 });
    const postId = composePostId({ ms: Date.now(), generator: 100, sequence: 0 });
    expect(await publishPulled('ada', postId)).toBe('added');
    const head = await tenant.timeline.getHomeHead({ viewerId: 'rita', sinceToken: before.headToken });
    expect(head).toMatchObject({ newCount: 1, newestPostId: String(postId) });
    const newer = await walkNewer(before.headToken, homePages(tenant, 'rita', 5), { pageSize: 5 });
    expect(newer.ids).toContain(String(postId));
    expect((await homePages(tenant, 'rita', 5)('')).ids[0]).toBe(String(postId));
    await expectHome('rita', 7);
  });

  it('shows once what is pushed and pulled at the same time', async () => {
    await scene();
    await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass: 'both' });
    await cached.evict('pull', 'tl');
    await expectHome('rita', 7);
    expect(await cached.entries('rita')).toHaveLength(36);
    await expectHome('rita', 7);
  });

  it('takes no list of an earlier time for that of now', async () => {
    await scene();
    // Ordinary for a while, and pulled again: nobody kept the first list.
    await write('ada', series(3, { endMs: Date.now(), everyMs: 10, generator: 100 }));
    await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass: 'pull', epoch: 2 });
    await cached.evict('pull');
    await expectHome('rita', 7);
    expect(await under.raw.zcard(listKey('ada', 2))).toBe(16);
  });

  it('is right where the author is pushed again and a reader does not know yet', async () => {
    await scene();
    await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass: 'push' });
    await cast.play('ada posts "pushed" as p1');
    await service.settle();
    expect(await under.raw.exists(under.keys.pulledAuthors(tenant.id, userId('rita')))).toBe(1);
    await expectHome('rita', 7);
  });
});

describe('a walk over the floors', () => {
  const HOUR_MS = 3_600_000;

  it.each([
    { what: '300 entries of two hours, the list 100 of ten minutes', timelineMs: 2 * HOUR_MS, listMs: HOUR_MS / 6 },
    { what: '100 entries of ten minutes, the list 300 of two hours', timelineMs: HOUR_MS / 6, listMs: 2 * HOUR_MS },
  ])(
    'of which the timeline holds $what misses nothing in five hours, down and up',
    { timeout: 120_000 },
    async ({ timelineMs, listMs }) => {
      const endMs = Date.now() - 1_000;
      const everyMs = (heldMs: number) => heldMs / (heldMs > HOUR_MS ? 300 : 100);
      const count = (heldMs: number) => Math.floor((5 * HOUR_MS) / everyMs(heldMs));
      await follow('ben', 'rita');
      await follow('ada', 'rita', 'ruth');
      const empty = await homePages(tenant, 'rita', 100)('');
      await write('ben', series(count(timelineMs), { endMs, everyMs: everyMs(timelineMs), generator: 100 }));
      await write('ada', series(count(listMs), { endMs: endMs - 7, everyMs: everyMs(listMs), generator: 101 }));
      await pull('ada');
      await cached.evictAll();
      await homePages(tenant, 'rita', 100)('');
      const timelineFloor = positionBeforeMs(endMs - timelineMs);
      const listFloor = positionBeforeMs(endMs - listMs);
      const timelines = under.timelines({});
      await timelines.raiseFloor(soon(), { tenant: tenant.id, viewer: userId('rita'), floor: timelineFloor });
      await lists.raiseFloor(soon(), { tenant: tenant.id, author: userId('ada'), epoch: 1, floor: listFloor });
      const held = (ms: number) => (ms > HOUR_MS ? 300 : 100);
      expect((await cached.entries('rita'))?.length).toBeGreaterThanOrEqual(held(timelineMs));
      expect((await cached.entries('rita'))?.length).toBeLessThanOrEqual(held(timelineMs) + 1);
      expect((await listEntries('ada')).length).toBeGreaterThanOrEqual(held(listMs) - 1);

      const home = await oracleHome('rita');
      expect(home.length).toBe(count(timelineMs) + count(listMs));
      const down = await walkOlder(homePages(tenant, 'rita', 100), { pageSize: 100 });
      expect(down.ids).toEqual(home);
      const up = await walkNewer(empty.headToken, homePages(tenant, 'rita', 100), { pageSize: 100 });
      expect(up.ids).toEqual([...home].reverse());
    },
  );

  describe('where timeline and lists hold ten entries', () => {
    let small: TestService;
    beforeAll(async () => {
      small = await startTestService({ env: { TIMELINE_CAP: '10', TIMELINE_TRIM_STRIDE: '3', PROCESS_LIST_MS: '0' } });
    });
    afterAll(() => small.stop());

    it.each([
      { what: 'the pulled author writes ten times as much', pushed: 12, pulled: 120 },
      { what: 'the others write ten times as much', pushed: 120, pulled: 12 },
      { what: 'both write as much', pushed: 60, pulled: 60 },
    ])('misses nothing and repeats nothing: $what', { timeout: 90_000 }, async ({ pushed, pulled }) => {
      const of = await small.tenant();
      const endMs = Date.now() - 1_000;
      const store = (author: string, number: number, generator: number) =>
        storePosts(
          small.database,
          of.id,
          series(number, { endMs, everyMs: 600_000 / number, generator }).map((postId) => ({ author, postId })),
        );
      await store('ben', pushed, 100);
      await store('ada', pulled, 101);
      for (const followee of ['ada', 'ben'])
        await storeFollowers(small.database, of.id, { followee, followers: ['rita', 'ruth'] });
      await storeClass(small.database, of.id, { authors: ['ada'], fanoutClass: 'pull' });
      const home = await oracleHome('rita', of);
      for (const pageSize of [3, 10, 50]) expect(await wholeHome(of, 'rita', pageSize)).toEqual(home);
      // More pushes than it may hold move the floor of the list between two pages.
      const first = await homePages(of, 'rita', 5)('');
      const ids = series(30, { endMs: Date.now(), everyMs: 1, generator: 102 });
      await storePosts(
        small.database,
        of.id,
        ids.map((postId) => ({ author: 'ada', postId })),
      );
      const trimmed = createPulledLists(under.cache, under.keys, { ...LIST_OPTIONS, cap: 10, stride: 3 });
      for (const postId of [...ids].reverse())
        await trimmed.push(soon(), { tenant: of.id, author: userId('ada'), epoch: 1, postId: postIdFrom(postId) });
      const rest = await walkFrom(first.nextPageToken, homePages(of, 'rita', 5));
      expect([...first.ids, ...rest]).toEqual(home);
      expect(await wholeHome(of, 'rita', 7)).toEqual(await oracleHome('rita', of));
    });
  });
});

/** The rest of a walk whose first page was read. */
async function walkFrom(token: string, read: ReturnType<typeof homePages>): Promise<readonly string[]> {
  const ids: string[] = [];
  for (let next = token, pages = 0; next !== ''; pages += 1) {
    expect(pages).toBeLessThan(200);
    const page = await read(next);
    ids.push(...page.ids);
    next = page.nextPageToken;
  }
  return ids;
}

describe('between two pages', () => {
  const losses: readonly (readonly CachedKind[])[] = [
    ['al'],
    ['pull'],
    ['tl'],
    ['rel'],
    ['al', 'pull'],
    ['tl', 'pull'],
    ['tl', 'al', 'pull', 'rel', 'pm', 'pb', 'am', 'ap'],
  ];
  it.each(losses.map((kinds) => ({ kinds })))(
    'what is lost costs no entry and repeats none: $kinds',
    async ({ kinds }) => {
      await scene();
      const walk = await walkOlder(homePages(tenant, 'rita', 7), {
        pageSize: 7,
        between: () => cached.evict(...kinds),
      });
      expect(walk.ids).toEqual(await oracleHome('rita'));
    },
  );
});

describe('the list of a pulled author', () => {
  const arrange: Readonly<Record<string, () => Promise<unknown>>> = {
    absent: () => under.raw.del(listKey('ada')),
    'being built by another process': async () => {
      await under.raw.del(listKey('ada'));
      const of = { tenant: tenant.id, author: userId('ada'), epoch: 1 };
      await lists.begin(soon(), { ...of, token: 'of-the-dead' });
      await lists.push(soon(), {
        ...of,
        postId: postIdFrom(composePostId({ ms: Date.now() - 60_000, generator: 100, sequence: 0 })),
      });
    },
    damaged: () => under.raw.zadd(listKey('ada'), 9e15, 'stranger'),
    'of another type': () => under.raw.set(listKey('ada'), 'stranger'),
    'without its state': () => under.raw.zrem(listKey('ada'), 'r'),
  };

  it.each(Object.keys(arrange))('that is %s is not read as complete, and nothing is missing', async (how) => {
    await scene();
    await arrange[how]?.();
    await expectHome('rita', 7);
  });

  it('is rebuilt once by 200 readers of one process who come at once', async () => {
    const viewers = Array.from({ length: 200 }, (_, at) => `viewer-${at}`);
    const endMs = Date.now() - 60_000;
    await follow('ada', ...viewers);
    await write('ada', series(30, { endMs, everyMs: 1_000, generator: 100 }));
    await pull('ada');
    const read = (viewer: string) =>
      service.service.flows.home.page(tenant.call(), { viewer: userId(viewer), pageSize: 20, pageToken: '' });
    for (let from = 0; from < viewers.length; from += 8) await Promise.all(viewers.slice(from, from + 8).map(read));
    await cached.evict('al');
    const rebuilds = () => metric(/^tributary_rebuild_seconds_count\{.*what="list"/);
    const before = await rebuilds();
    const pages = await Promise.all(viewers.map(read));
    const home = await oracleHome('viewer-0');
    for (const page of pages) {
      expect(page.views.map((view) => String(view.post.meta.postId))).toEqual(home.slice(0, 20));
      expect(page.completeness).toBe('complete');
    }
    expect((await rebuilds()) - before).toBe(1);
  });

  it('loses entries whose posts are gone, as the timeline does', async () => {
    await scene();
    const [gone] = await listEntries('ada');
    await service.database.sql('DELETE FROM posts WHERE tenant_id = $1 AND post_id = $2', [tenant.id, gone]);
    await cached.evict('pm', 'pb');
    await homePages(tenant, 'rita', 50)('');
    await eventually(async () => expect(await listEntries('ada')).toHaveLength(11));
    expect(await listEntries('ada')).not.toContain(gone);
    await expectHome('rita');
  });
});

describe('a change of whom a viewer follows', () => {
  it('an unfollow hides pushed and pulled alike, at once, and a new follow shows both again', async () => {
    await scene();
    await cast.play('rita unfollows ada, ben');
    const left = await older('rita', 7);
    expect(left).toHaveLength(24);
    expect(left).toEqual(await oracleHome('rita'));
    await service.settle();
    await expectHome('rita', 7);
    await cast.play('rita follows ada, ben');
    expect(await older('rita', 7)).toHaveLength(48);
    await expectHome('rita', 7);
    await service.settle();
    await expectHome('rita', 7);
  });

  it('a new follow of a pulled author shows at once, though it was known that there is none', async () => {
    await write('ada', series(5, { endMs: Date.now() - 1_000, everyMs: 100, generator: 100 }));
    await pull('ada');
    expect(await older('rita', 7)).toEqual([]);
    expect(await under.raw.exists(under.keys.pulledAuthors(tenant.id, userId('rita')))).toBe(1);
    await cast.play('rita follows ada');
    expect(await older('rita', 7)).toHaveLength(5);
    await service.settle();
    await expectHome('rita', 7);
    // Nor was it a timeline that the follow had filled.
    await cached.evict('tl');
    await expectHome('rita', 7);
    await cast.play('ada removes follower rita');
    expect(await older('rita', 7)).toEqual([]);
  });

  it('a block by either hides at once, also where relations went cold', async () => {
    await scene();
    await cast.play('rita mutes ada; eve blocks rita');
    expect(await older('rita', 7)).toHaveLength(24);
    await expectHome('rita', 7);
    await cached.evict('rel');
    await expectHome('rita', 7);
    expect(await publishPulled('ada', composePostId({ ms: Date.now(), generator: 100, sequence: 0 }))).toBe('added');
    await cached.evict('rel', 'pull');
    await expectHome('rita', 7);
    await cached.evictAll();
    await expectHome('rita', 7);
    await service.settle();
    await expectHome('rita', 7);
    await cast.play('rita unmutes ada');
    expect(await older('rita', 7)).toHaveLength(37);
  });

  it('deletes who is pulled with every change of a relation, and with the repetition by the outbox', async () => {
    await scene();
    const key = under.keys.pulledAuthors(tenant.id, userId('rita'));
    for (const script of [
      'rita follows dan',
      'rita mutes ben',
      'rita unmutes ben',
      'dan blocks rita',
      'rita unfollows cyd',
    ]) {
      await service.settle();
      await homePages(tenant, 'rita', 5)('');
      expect(await under.raw.exists(key)).toBe(1);
      await cast.play(script);
      expect([script, await under.raw.exists(key)]).toEqual([script, 0]);
      await homePages(tenant, 'rita', 5)('');
      // The event of the call itself, which may be under way: what is put back while it is would be ended with it.
      await service.settle();
      // As if the call had died before its deletion: the event does it.
      await under.raw.set(key, 'v[0,"nobody",1]');
      await service.database.sql(
        "UPDATE outbox SET done_at = NULL, lease_until = NULL WHERE tenant_id = $1 AND kind <> 'post_published'",
        [tenant.id],
      );
      await service.settle();
      expect([script, await under.raw.exists(key)]).toEqual([script, 0]);
    }
    await expectHome('rita', 7);
  });
});

describe('posts of pulled authors', () => {
  it('that were deleted, hidden or of suspended authors are gone at once, and back where they may come back', async () => {
    await follow('ada', 'rita');
    await pull('ada');
    await cast.play('ada posts 6 times as a');
    await service.settle();
    await cached.evict('tl', 'al');
    await expectHome('rita', 4);
    expect(await cached.entries('rita')).toEqual([]);
    const shown = (...some: readonly string[]) => [...cast.ids(...some)].reverse();
    await cast.play('ada deletes a2; moderation hides a3; ada shows a4 to nobody');
    expect(await older('rita', 4)).toEqual(shown('a1', 'a5', 'a6'));
    await cast.play('ada is suspended');
    expect(await older('rita', 4)).toEqual([]);
    await cast.play('ada is restored; moderation clears a3; ada shows a4 to followers');
    expect(await older('rita', 4)).toEqual(shown('a1', 'a3', 'a4', 'a5', 'a6'));
    await service.settle();
    await expectHome('rita', 4);
  });

  it('that are private are in nobody’s list', async () => {
    await follow('ada', 'rita');
    await pull('ada');
    await cast.play('ada posts "mine" to nobody as a1; ada posts "ours" as a2');
    await service.settle();
    await cached.evict('tl', 'al');
    await expectHome('rita');
    expect(await listEntries('ada')).toEqual(cast.ids('a2'));
    expect(await older('ada', 5)).toEqual([...cast.ids(...labels('a', 2))].reverse());
  });
});

describe('a viewer of 5,000 pulled authors', () => {
  it('gets full first pages that are right, from a bounded number of lists and one query for the rest of a page', {
    timeout: 240_000,
  }, async () => {
    const authors = Array.from({ length: 5_000 }, (_, at) => `large-${at}`);
    const endMs = Date.now() - 60_000;
    await storeFollowees(service.database, tenant.id, { follower: 'rita', followees: authors });
    await follow('ben', 'rita');
    await pull(...authors);
    const times = series(8_000, { endMs, everyMs: 400, generator: 100 });
    await storePosts(
      service.database,
      tenant.id,
      // Every third post is by one of the first hundred: some write much, most little.
      times.map((postId, at) => ({ author: `large-${at % 3 === 0 ? at % 100 : (at * 7_919) % 5_000}`, postId })),
    );
    await write('ben', series(200, { endMs, everyMs: 40_000, generator: 101 }));
    const home = await oracleHome('rita');
    const queries = () => metric(/^tributary_pulled_queries_total/);
    const reads = () => metric(/^tributary_cache_reads_total\{.*layer="list"/);
    const fetches = () => metric(/^tributary_pulled_authors_count/);
    const [queriesBefore, readsBefore, fetchesBefore] = [await queries(), await reads(), await fetches()];
    const ids: string[] = [];
    let token = '';
    for (let page = 0; page < 12; page += 1) {
      const { entries, nextPageToken } = await tenant.timeline.getHomeTimeline({
        viewerId: 'rita',
        pageSize: 50,
        pageToken: token,
      });
      expect(entries).toHaveLength(50);
      ids.push(...entries.map((view) => view.post?.postId ?? ''));
      token = nextPageToken;
    }
    expect(ids).toEqual(home.slice(0, 600));
    const fetched = (await fetches()) - fetchesBefore;
    expect(fetched).toBeGreaterThanOrEqual(12);
    expect((await queries()) - queriesBefore).toBe(fetched);
    // 500 lists, and again the eight that were rebuilt.
    expect((await reads()) - readsBefore).toBeLessThanOrEqual(fetched * 508);
  });

  it('and more than may be known by name has them all the same', { timeout: 120_000 }, async () => {
    const authors = Array.from({ length: 5_001 }, (_, at) => `large-${at}`);
    await storeFollowees(service.database, tenant.id, { follower: 'rita', followees: authors });
    await pull(...authors);
    const times = series(60, { endMs: Date.now() - 60_000, everyMs: 400, generator: 100 });
    await storePosts(
      service.database,
      tenant.id,
      times.map((postId, at) => ({ author: `large-${(at * 977) % 5_001}`, postId })),
    );
    await expectHome('rita', 20);
    await expectHome('rita', 20);
  });
});

describe('lists beyond the bound', () => {
  let few: TestService;
  beforeAll(async () => {
    few = await startTestService({
      env: { PULLED_LISTS_MAX: '2', TIMELINE_CAP: '6', TIMELINE_TRIM_STRIDE: '2', PROCESS_LIST_MS: '0' },
    });
  });
  afterAll(() => few.stop());

  it('are not read: two lists and one query give the whole, down and up', async () => {
    const of = await few.tenant();
    const endMs = Date.now() - 60_000;
    const empty = await homePages(of, 'rita', 5)('');
    for (const [at, author] of ['ada', 'ben', 'cyd', 'dan', 'eve'].entries()) {
      await storeFollowers(few.database, of.id, { followee: author, followers: ['rita'] });
      await storePosts(
        few.database,
        of.id,
        series(9, { endMs: endMs - at, everyMs: 1_000, generator: 100 + at }).map((postId) => ({ author, postId })),
      );
    }
    await storeClass(few.database, of.id, { authors: ['ada', 'ben', 'cyd', 'dan'], fanoutClass: 'pull' });
    const looks = openCached(of.id);
    await looks.evictAll();
    looks.close();
    const home = await oracleHome('rita', of);
    for (const pageSize of [1, 4, 50]) expect(await wholeHome(of, 'rita', pageSize)).toEqual(home);
    const up = await walkNewer(empty.headToken, homePages(of, 'rita', 5), { pageSize: 5 });
    expect(up.ids).toEqual([...home].reverse());
    // Most followers first: dan and cyd were stored with the most.
    expect((await under.raw.keys(`al:*:${of.id}:*`)).map((key) => key.split(':').at(-2)).sort()).toEqual([
      'cyd',
      'dan',
    ]);
  });
});
