/** Owns what walking a home timeline promises: every entry once, none trapped between pages, no page that seems to be the end and is not. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { PUBLISH, publishValues } from '../../src/store/postgres/publish.ts';
import { composePostId, postIdMs } from '../../src/timeline/ids.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { eventually } from '../harness/eventually.ts';
import { type Cast, labels } from '../harness/play.ts';
import { storePosts } from '../harness/rows.ts';
import { postIdOf, startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { authorPages, homePages, walkNewer, walkOlder, wholeHome } from '../harness/walk.ts';

let service: TestService;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(() => service.stop());
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
});
afterEach(() => cached.close());

const newestFirst = (ids: readonly string[]): readonly string[] => [...ids].sort((a, b) => Number(b) - Number(a));
const home = (viewer: string, pageSize: number, pageToken = '') => homePages(tenant, viewer, pageSize)(pageToken);
const older = (viewer: string, pageSize: number) => walkOlder(homePages(tenant, viewer, pageSize), { pageSize });
const newer = (token: string, viewer: string, pageSize: number) =>
  walkNewer(token, homePages(tenant, viewer, pageSize), { pageSize });

async function metric(name: string): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`)).text();
  const samples = text.split('\n').filter((line) => line.startsWith(name));
  return samples.reduce((sum, line) => sum + Number(line.split(' ').at(-1)), 0);
}

/** Consecutive post IDs of one millisecond, ascending; at most 4,096. */
function consecutiveIds(count: number, ms = Date.now() - 60_000): readonly number[] {
  const first = composePostId({ ms, generator: 100, sequence: 0 });
  return Array.from({ length: count }, (_, at) => first + at);
}

describe('walking to older entries', () => {
  it('holds what was there when it began, once each, while new posts arrive; a refresh from the top shows those', async () => {
    await cast.play('rita follows ada; ada posts 30 times as a');
    const walk = await walkOlder(homePages(tenant, 'rita', 10), {
      pageSize: 10,
      between: async (pagesRead) => {
        if (pagesRead === 1) await cast.play('ada posts 3 times as late');
      },
    });
    expect(walk.ids).toEqual(newestFirst(cast.ids(...labels('a', 30))));
    await service.settle();
    expect((await home('rita', 10)).ids.slice(0, 3)).toEqual(newestFirst(cast.ids(...labels('late', 3))));
  });

  it('gives 25 posts of one millisecond by 5 authors once each, in the same order every time', async () => {
    const authors = ['ada', 'ben', 'cyd', 'dan', 'eve'];
    await cast.play(`rita follows ${authors.join(', ')}`);
    const posts = Array.from({ length: 25 }, (_, at) => ({
      author: userId(authors[at % 5] ?? ''),
      text: `post ${at}`,
      publishedAtMs: Date.now(),
    }));
    const ids = await service.service.importPosts(
      tenant.call(),
      posts.map((post) => ({ ...post, publishedAtMs: 1_700_000_000_000 })),
    );
    expect(new Set(ids.map(postIdMs))).toEqual(new Set([1_700_000_000_000]));
    const { home: expected } = await tenant.oracle('rita');
    expect(expected).toHaveLength(25);
    for (let run = 0; run < 3; run += 1) {
      const walk = await older('rita', 7);
      expect(walk.pages.map((page) => page.ids.length)).toEqual([7, 7, 7, 4]);
      expect(walk.ids).toEqual(expected);
    }
  });

  it.each([5, 1])('gives 20 posts with consecutive IDs once each, by %i', async (pageSize) => {
    await cast.play('rita follows ada');
    const ids = consecutiveIds(20);
    await storePosts(
      service.database,
      tenant.id,
      ids.map((postId) => ({ author: 'ada', postId })),
    );
    expect((await older('rita', pageSize)).ids).toEqual([...ids].reverse().map(String));
    for (const author of ['rita', 'ada']) {
      const walk = await walkOlder(authorPages(tenant, author, 'ada', pageSize), { pageSize });
      expect(walk.ids).toEqual([...ids].reverse().map(String));
    }
  });

  it('goes on strictly below the token when the entry it names is deleted, hidden or lost', async () => {
    for (const [round, loss] of ['delete', 'moderate', 'lose', 'evict'].entries()) {
      const author = `ada${round}`;
      const viewer = `rita${round}`;
      await cast.play(`${viewer} follows ${author}; ${author} posts 12 times as ${author}-`);
      const all = newestFirst(cast.ids(...labels(`${author}-`, 12)));
      const first = await home(viewer, 4);
      expect(first.ids).toEqual(all.slice(0, 4));
      const last = `${author}-9`;
      if (loss === 'delete') await cast.play(`${author} deletes ${last}`);
      if (loss === 'moderate') await cast.play(`moderation hides ${last}`);
      if (loss === 'lose') {
        await service.database.sql('DELETE FROM posts WHERE tenant_id = $1 AND post_id = $2', [
          tenant.id,
          cast.post(last).postId,
        ]);
        await cached.evict('pm', 'pb');
      }
      if (loss === 'evict') await cached.evictAll();
      const rest = await walkOlder((token) => home(viewer, 4, token === '' ? first.nextPageToken : token), {
        pageSize: 4,
      });
      expect(rest.ids).toEqual(all.slice(4));
    }
  });

  it('includes an author’s posts from before the follow, and none after the unfollow until the next follow', async () => {
    await cast.play('ada posts 3 times as a; rita follows ada');
    expect(await wholeHome(tenant, 'rita')).toEqual(newestFirst(cast.ids('a1', 'a2', 'a3')));
    await cast.play('rita unfollows ada; ada posts "unseen" as a4');
    expect(await wholeHome(tenant, 'rita')).toEqual([]);
    await cast.play('rita follows ada');
    expect(await wholeHome(tenant, 'rita')).toEqual(newestFirst(cast.ids('a1', 'a2', 'a3', 'a4')));
  });
});

describe('a page of which much is hidden', () => {
  it('is not the end: 60 hidden entries on top of 5 visible ones give exactly those 5', async () => {
    await cast.play('rita follows ada, ben; ben posts 5 times as b; ada posts 60 times as a');
    expect(await wholeHome(tenant, 'rita')).toHaveLength(65);
    // Hidden by the truth, and on the timeline as before.
    await service.database.sql("UPDATE posts SET moderation = 'hidden' WHERE tenant_id = $1 AND author_id = 'ada'", [
      tenant.id,
    ]);
    await cached.evict('pm', 'pb');
    for (const pageSize of [1, 5, 20]) {
      expect(await cached.entries('rita')).toHaveLength(65);
      const walk = await older('rita', pageSize);
      expect(walk.ids).toEqual(newestFirst(cast.ids(...labels('b', 5))));
      const authorWalk = await walkOlder(authorPages(tenant, 'rita', 'ada', pageSize), { pageSize });
      expect(authorWalk.ids).toEqual([]);
    }
  });

  it('ends cleanly after exactly two full pages', async () => {
    await cast.play('rita follows ada; ada posts 40 times as a');
    const walk = await older('rita', 20);
    expect(walk.pages.map((page) => page.ids.length)).toEqual([20, 20]);
    expect(walk.ids).toEqual(newestFirst(cast.ids(...labels('a', 40))));
  });

  it('is full where 60 of the newest 100 entries are by a muted author', async () => {
    await cast.play('rita follows ada, ben; ben posts 40 times as b; ada posts 60 times as a; rita mutes ada');
    const page = await home('rita', 20);
    expect(page.ids).toEqual(newestFirst(cast.ids(...labels('b', 40))).slice(0, 20));
  });

  it('is full or goes on where 90 % of the candidates are muted, and ends only at the true end', async () => {
    await cast.play('rita follows ada, ben; rita mutes ada');
    const ids = consecutiveIds(600);
    await storePosts(
      service.database,
      tenant.id,
      ids.map((postId, at) => ({ author: at % 10 === 0 ? 'ben' : 'ada', postId })),
    );
    const walk = await older('rita', 20);
    expect(walk.ids).toEqual((await tenant.oracle('rita')).home);
    expect(walk.ids).toHaveLength(60);
    for (const page of walk.pages.slice(0, -1)) expect(page.nextPageToken).not.toBe('');
    expect(walk.pages.filter((page) => page.ids.length === 20)).toHaveLength(3);
  });

  it('examines a bounded number of candidates: thousands of hidden entries give empty pages with a token, and then the rest', async () => {
    await cast.play('rita follows ada, ben; rita mutes ada');
    const ids = consecutiveIds(3_003);
    await storePosts(
      service.database,
      tenant.id,
      ids.map((postId, at) => ({ author: at < 3 ? 'ben' : 'ada', postId })),
    );
    const walk = await older('rita', 2);
    expect(walk.ids).toEqual((await tenant.oracle('rita')).home);
    expect(walk.ids).toHaveLength(3);
    expect(walk.pages.length).toBeGreaterThan(2);
  });
});

describe('an entry that cannot be loaded', () => {
  /** Deletes the rows behind the product's back; the cached copies go as an eviction takes them, the entries stay. */
  async function lose(...lost: readonly string[]): Promise<void> {
    await service.database.sql('DELETE FROM posts WHERE tenant_id = $1 AND post_id = ANY ($2)', [
      tenant.id,
      cast.ids(...lost),
    ]);
    await cached.evict('pm', 'pb');
  }
  const missing = () => metric('tributary_missing_entries_total');

  it('is skipped and counted, and the rest of the page is there in order', async () => {
    await cast.play(
      'ben posts "target" as b1; ben posts "other target" as b2; rita posts 9 times as r; rita quotes b1 "look" as q1; rita reposts b2 as p1; rita posts 9 times as s',
    );
    await service.settle();
    expect((await home('rita', 20)).ids).toHaveLength(20);
    await lose('r7', 'b1', 'b2');
    expect(await cached.entries('rita')).toContain(cast.post('r7').postId);
    const before = await missing();
    const page = await tenant.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 20 });
    const expected = newestFirst(cast.ids(...labels('r', 6), 'r8', 'r9', 'q1', ...labels('s', 9)));
    expect(page.entries.map((view) => view.post?.postId)).toEqual(expected);
    expect(page.entries.find((view) => view.post?.postId === cast.post('q1').postId)?.repostOf).toBeUndefined();
    expect(page.nextPageToken).toBe('');
    expect(await missing()).toBeGreaterThan(before);
    expect(expected).toEqual((await tenant.oracle('rita')).home);
  });

  it('is not met again: the first reader who does takes it off the timeline', async () => {
    await cast.play('rita follows ada; ada posts 20 times as a');
    expect(await wholeHome(tenant, 'rita', 20)).toHaveLength(20);
    await lose('a7');
    const kept = newestFirst(cast.ids(...labels('a', 20))).filter((id) => id !== cast.post('a7').postId);
    expect((await home('rita', 20)).ids).toEqual(kept);
    await eventually(async () => expect(await cached.entries('rita')).toEqual(kept));
    const before = await missing();
    expect((await home('rita', 20)).ids).toEqual(kept);
    expect(await missing()).toBe(before);
  });

  it('of a followed author is skipped too', async () => {
    await cast.play('rita follows ada; ada posts 20 times as a; ben posts "t" as t; ada quotes t "q" as q');
    expect(await wholeHome(tenant, 'rita', 5)).toHaveLength(21);
    await lose('a7', 't');
    expect(await wholeHome(tenant, 'rita', 5)).toEqual((await tenant.oracle('rita')).home);
    expect(await wholeHome(tenant, 'rita', 5)).toHaveLength(20);
  });
});

describe('who follows nobody that can be seen', () => {
  it('sees their own posts and never a stranger’s', async () => {
    await cast.play(`
      stranger posts "look at me" as s1; ada posts "gone" as a1; ben posts "blocked" as b1; cyd posts "there" as c1; dan posts "too" as d1
      none posts "mine" as n1
      one follows ada; ada is suspended
      all follows ben; ben blocks all; both follows cyd, dan`);
    await service.database.sql("UPDATE authors SET lifecycle = 'erased' WHERE tenant_id = $1 AND author_id = 'ada'", [
      tenant.id,
    ]);
    await cached.evict('am', 'ap');
    const expected = { nobody: [], none: ['n1'], one: [], all: [], both: ['d1', 'c1'] };
    for (const [viewer, seen] of Object.entries(expected)) {
      for (const pageSize of [1, 50]) expect(await wholeHome(tenant, viewer, pageSize)).toEqual(cast.ids(...seen));
      expect((await tenant.oracle(viewer)).home).toEqual(cast.ids(...seen));
      expect((await tenant.timeline.getHomeHead({ viewerId: viewer })).newCount).toBe(seen.length);
    }
  });
});

describe('walking to newer entries', () => {
  it('gives what came after a page, oldest first, once each, at every page size', async () => {
    await cast.play('rita follows ada; ada posts 5 times as a');
    for (const pageSize of [1, 2, 50]) {
      const { headToken } = await home('rita', 3);
      await cast.play(`ada posts 7 times as by${pageSize}-; rita posts "own" as own${pageSize}`);
      await service.settle();
      const walk = await newer(headToken, 'rita', pageSize);
      expect(walk.ids).toEqual([...cast.ids(...labels(`by${pageSize}-`, 7), `own${pageSize}`)]);
      expect((await newer(walk.headToken, 'rita', pageSize)).ids).toEqual([]);
    }
  });

  it('from the head of an empty timeline gives everything that comes', async () => {
    const { headToken, ids } = await home('rita', 10);
    expect(ids).toEqual([]);
    await cast.play('rita posts "one" as r1; rita posts "two" as r2');
    expect((await newer(headToken, 'rita', 1)).ids).toEqual(cast.ids('r1', 'r2'));
  });

  it('can be repeated with the same token, and gives the same and what came since', async () => {
    await cast.play('rita follows ada; ada posts "0" as a0');
    const { headToken } = await home('rita', 10);
    await cast.play('ada posts "1" as a1');
    await service.settle();
    expect((await newer(headToken, 'rita', 10)).ids).toEqual(cast.ids('a1'));
    await cast.play('ada posts "2" as a2');
    await service.settle();
    expect((await newer(headToken, 'rita', 10)).ids).toEqual(cast.ids('a1', 'a2'));
  });

  it('delivers an entry that was committed late below the head, once', async () => {
    for (const [round, seenFirst] of [0, 1, 5].entries()) {
      const [author, viewer] = [`ada${round}`, `rita${round}`];
      await cast.play(`${viewer} follows ${author}`);
      if (seenFirst > 0) await cast.play(`${author} posts ${seenFirst} times as early${round}-`);
      const slow = await beginPublish(author);
      await cast.play(`${author} posts "quick" as quick${round}`);
      const first = await home(viewer, 50);
      expect(first.ids[0]).toBe(cast.post(`quick${round}`).postId);
      expect(first.ids).not.toContain(slow.postId);
      const poll = await newer(first.headToken, viewer, 50);
      expect(poll.ids).toEqual([]);
      await slow.commit();
      await service.settle();
      const second = await newer(poll.headToken, viewer, 50);
      expect(second.ids).toEqual([slow.postId]);
      expect((await newer(second.headToken, viewer, 50)).ids).toEqual([]);
      expect((await newer(first.headToken, viewer, 1)).ids).toEqual([slow.postId]);
    }
  });

  it('delivers an entry that is committed late in the middle of the walk by the pages that follow', async () => {
    await cast.play('rita follows ada');
    const { headToken } = await home('rita', 10);
    const slow = await beginPublish('ada');
    await cast.play('ada posts 6 times as quick');
    await service.settle();
    const walk = await walkNewer(headToken, homePages(tenant, 'rita', 2), {
      pageSize: 2,
      between: async (pagesRead) => {
        if (pagesRead !== 2) return;
        await slow.commit();
        await service.settle();
      },
    });
    expect(walk.pages.slice(0, 2).flatMap((page) => page.ids)).toEqual(cast.ids(...labels('quick', 4)));
    expect(walk.pages.slice(2).flatMap((page) => page.ids)).toEqual([slow.postId, ...cast.ids('quick5', 'quick6')]);
  });

  it('shows an entry again that was hidden when its page was read, once it may be seen', async () => {
    await cast.play('rita follows ada; ada posts "hidden" as a1; moderation hides a1');
    const { headToken, ids } = await home('rita', 10);
    expect(ids).toEqual([]);
    await cast.play('moderation clears a1');
    await service.settle();
    expect((await newer(headToken, 'rita', 10)).ids).toEqual(cast.ids('a1'));
  });

  it('gives 200 posts by 4 publishers once each while they are written, and the order then stands', async () => {
    const authors = ['ada', 'ben', 'cyd', 'dan'];
    await cast.play(`rita follows ${authors.join(', ')}`);
    const collected: string[] = [];
    let { headToken } = await home('rita', 50);
    let writing = true;
    // At most 20 are under way at once: a token remembers 100 entries, so nothing can be late by more.
    const write = async (): Promise<void> => {
      for (let round = 0; round < 10; round += 1) {
        const publishers = authors.flatMap((author) => Array.from({ length: 5 }, () => author));
        await Promise.all(publishers.map((authorId) => tenant.posts.publishPost({ authorId, text: 'busy' })));
        await service.settle();
      }
    };
    const written = write().finally(() => {
      writing = false;
    });
    for (let last = false; !last; ) {
      last = !writing;
      const walk = await newer(headToken, 'rita', 7);
      collected.push(...walk.ids);
      headToken = walk.headToken;
    }
    await written;
    const { home: expected } = await tenant.oracle('rita');
    expect(expected).toHaveLength(200);
    expect(new Set(collected).size).toBe(collected.length);
    expect(newestFirst(collected)).toEqual(expected);
    for (const pageSize of [7, 50]) expect((await older('rita', pageSize)).ids).toEqual(expected);
  });

  /** A publish whose transaction stays open: its ID is minted now, its commit comes when the test says so. */
  async function beginPublish(author: string): Promise<{ readonly postId: string; commit(): Promise<void> }> {
    const session = await service.database.session();
    const postId = composePostId({ ms: service.clock.nowMs(), generator: 119, sequence: 0 });
    await session.query('BEGIN');
    await session.query(PUBLISH.text, [
      ...publishValues({
        tenant: tenant.id,
        author: userId(author),
        postId,
        text: 'slow',
        media: [],
        plainRepost: false,
        visibility: 'public',
      }),
    ]);
    // The next millisecond, so that whatever is published from here on has a larger ID.
    while (service.clock.nowMs() <= postIdMs(postId)) await session.query('SELECT 1');
    return {
      postId: String(postId),
      async commit() {
        await session.query('COMMIT');
      },
    };
  }
});

describe('the head', () => {
  it('counts what newer pages would show, names the newest entry, and moves on', async () => {
    await cast.play('rita follows ada, ben; ada posts 3 times as a; rita mutes ben; ben posts "muted"');
    const { headToken } = await home('rita', 2);
    await cast.play('ada posts 4 times as n; ben posts "muted too"');
    await service.settle();
    const head = await tenant.timeline.getHomeHead({ viewerId: 'rita', sinceToken: headToken });
    expect(head).toMatchObject({ newCount: 4, newestPostId: cast.post('n4').postId });
    expect((await newer(headToken, 'rita', 50)).ids).toHaveLength(4);
    expect((await tenant.timeline.getHomeHead({ viewerId: 'rita', sinceToken: head.headToken })).newCount).toBe(0);
    await cast.play('ada posts "five" as n5');
    await service.settle();
    expect((await newer(head.headToken, 'rita', 50)).ids).toEqual(cast.ids('n5'));
  });

  it('counts what was committed late below a hundred entries that were shown', async () => {
    const ids = consecutiveIds(107);
    const store = async (some: typeof ids): Promise<void> => {
      const posts = some.map((postId) => ({ author: 'rita', postId }));
      await storePosts(service.database, tenant.id, posts, { fanOut: true });
      await service.settle();
    };
    const late = ids.slice(2, 3);
    const newest = ids.slice(102);
    await store(ids.filter((id) => !late.includes(id) && !newest.includes(id)));
    const { headToken } = await home('rita', 100);
    await store([...late, ...newest]);
    expect((await newer(headToken, 'rita', 50)).ids).toEqual([...late, ...newest].map(String));
    expect((await tenant.timeline.getHomeHead({ viewerId: 'rita', sinceToken: headToken })).newCount).toBe(6);
  });

  it('stops counting at 99, and is empty for an empty timeline', async () => {
    await storePosts(
      service.database,
      tenant.id,
      consecutiveIds(150).map((postId) => ({ author: 'rita', postId })),
    );
    expect((await tenant.timeline.getHomeHead({ viewerId: 'rita' })).newCount).toBe(99);
    expect(await tenant.timeline.getHomeHead({ viewerId: 'nobody' })).toMatchObject({ newCount: 0, newestPostId: '' });
  });
});

describe('what is undone', () => {
  it('a suspended author is gone at once and back at once, targets included', async () => {
    await cast.play(
      'rita follows ada, ben; ada posts 3 times as a; ben reposts a1 as b1; ben replies to a2 "yes" as b2',
    );
    const before = await wholeHome(tenant, 'rita');
    expect(before).toHaveLength(5);
    await cast.play('ada is suspended');
    expect(await wholeHome(tenant, 'rita')).toEqual(cast.ids('b2'));
    await cast.play('ada is restored');
    expect(await wholeHome(tenant, 'rita')).toEqual(before);
  });

  it('a mute that is ended gives back what it hid', async () => {
    await cast.play('rita follows ada, ben; ada posts 2 times as a; ben quotes a1 "see" as b1');
    const before = await wholeHome(tenant, 'rita');
    await cast.play('rita mutes ada');
    expect(await wholeHome(tenant, 'rita')).toEqual([]);
    await cast.play('rita unmutes ada');
    expect(await wholeHome(tenant, 'rita')).toEqual(before);
  });

  it('a mute with an end is over at that end, on every instance, with nothing that runs for it', async () => {
    await cast.play('rita follows ada; ada posts 2 times as a');
    const before = await wholeHome(tenant, 'rita');
    await cast.play('rita mutes ada for 10 minutes');
    const other = await startTestService({
      database: service.database,
      clock: service.clock,
      env: { TRIBUTARY_ROLE: 'api' },
    });
    try {
      const look = (instance: TestService) =>
        instance.service.flows.home.page(tenant.call(), { viewer: userId('rita'), pageSize: 50, pageToken: '' });
      const onBoth = async (): Promise<readonly number[]> =>
        Promise.all([service, other].map(async (instance) => (await look(instance)).views.length));
      service.clock.advance(599_000);
      expect(await onBoth()).toEqual([0, 0]);
      service.clock.advance(1_001);
      expect(await onBoth()).toEqual([2, 2]);
      expect(await wholeHome(tenant, 'rita')).toEqual(before);
      expect((await tenant.graph.getRelationship({ viewerId: 'rita', otherId: 'ada' })).muting).toBe(false);
    } finally {
      service.clock.step(-600_001);
      await other.stop();
    }
  });
});

it('a walk of an author list ends at the end and shows what home would not: authors who are not followed', async () => {
  await cast.play('ada posts 5 times as a');
  for (const pageSize of [1, 2, 5, 50]) {
    const walk = await walkOlder(authorPages(tenant, 'rita', 'ada', pageSize), { pageSize });
    expect(walk.ids).toEqual(newestFirst(cast.ids(...labels('a', 5))));
  }
  expect(postIdOf(cast.post('a1').postId)).toBeLessThan(postIdOf(cast.post('a5').postId));
});
