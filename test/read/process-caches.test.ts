/**
 * Owns what readers notice of the copies that each process keeps: an author meets their own post at once, a follower of a pulled author a second late at most, and nobody what was hidden before they
 * asked, on whatever instance. And that a badge says what the list then shows.
 */
import { fromBinary } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { PostSchema } from '../../src/gen/tributary/v1/post_pb.ts';
import { composePostId } from '../../src/timeline/ids.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { eventually } from '../harness/eventually.ts';
import type { Cast } from '../harness/play.ts';
import { storeClass, storeFollowers, storePosts } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { homePages, walkNewer } from '../harness/walk.ts';

let service: TestService;
let other: TestService;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  service = await startTestService();
  other = await startTestService({ database: service.database, clock: service.clock, env: { TRIBUTARY_ROLE: 'api' } });
});
afterAll(async () => {
  await other.stop();
  await service.stop();
});
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
});
afterEach(() => cached.close());

async function homeOn(instance: TestService, viewer: string): Promise<readonly string[]> {
  const page = await instance.service.flows.home.page(tenant.call(), {
    viewer: userId(viewer),
    pageSize: 50,
    pageToken: '',
  });
  return page.views.map(({ post }) => String(post.meta.postId));
}

async function metric(instance: TestService, line: RegExp): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${instance.service.httpPort}/metrics`)).text();
  const found = text.split('\n').filter((each) => line.test(each));
  return found.reduce((sum, each) => sum + Number(each.split(' ').at(-1)), 0);
}

/** Ada is pulled, posts and follows herself in nobody's list; rita and ruth follow her. Both instances have read. */
async function scene(): Promise<void> {
  await cast.play('rita follows ada; ruth follows ada; ada posts 3 times as a');
  await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass: 'pull' });
  await service.settle();
  for (const instance of [service, other]) {
    for (const viewer of ['ada', 'rita', 'ruth']) expect(await homeOn(instance, viewer)).toHaveLength(3);
  }
}

describe('with a second-old list of a pulled author in every process', () => {
  it('the author meets their own post at once, on every instance; followers on the one that published it too, on others soon', async () => {
    await scene();
    // Until this is over no copy ends.
    service.clock.freeze();
    try {
      for (const viewer of ['rita', 'ada']) for (const instance of [service, other]) await homeOn(instance, viewer);
      await cast.play('ada posts "new" as new');
      const post = cast.post('new').postId;
      for (const instance of [service, other]) expect((await homeOn(instance, 'ada'))[0]).toBe(post);
      expect((await homeOn(service, 'rita'))[0]).toBe(post);
      expect(await homeOn(other, 'rita')).not.toContain(post);
      service.clock.advance(1_001);
      expect((await homeOn(other, 'rita'))[0]).toBe(post);
    } finally {
      service.clock.thaw({ catchUp: true });
    }
  });

  it('what is deleted, blocked, muted or unfollowed is gone with the next read, on every instance', async () => {
    await scene();
    const both = async (viewer: string) => Promise.all([service, other].map((instance) => homeOn(instance, viewer)));
    await cast.play('ada deletes a2');
    const left = [...cast.ids('a1', 'a3')].reverse();
    expect(await both('rita')).toEqual([left, left]);
    await cast.play('ada shows a3 to nobody');
    expect(await both('rita')).toEqual([cast.ids('a1'), cast.ids('a1')]);
    await cast.play('rita mutes ada; ada blocks ruth');
    expect(await both('rita')).toEqual([[], []]);
    expect(await both('ruth')).toEqual([[], []]);
    await cast.play('rita unmutes ada');
    expect(await both('rita')).toEqual([cast.ids('a1'), cast.ids('a1')]);
    await cast.play('rita unfollows ada');
    expect(await both('rita')).toEqual([[], []]);
  });

  it('an edited text is shown with the next read, on every instance', async () => {
    await scene();
    await cast.play('ada edits a3 "changed"');
    for (const instance of [service, other]) {
      const page = await instance.service.flows.home.page(tenant.call(), {
        viewer: userId('rita'),
        pageSize: 1,
        pageToken: '',
      });
      expect(fromBinary(PostSchema, page.views[0]?.post.body ?? new Uint8Array()).text).toBe('changed');
    }
  });
});

it('200 readers on two instances, at the moment a pulled author posts, load the post twice at most, and all agree', async () => {
  const viewers = Array.from({ length: 200 }, (_, at) => `viewer-${at}`);
  await storeFollowers(service.database, tenant.id, { followee: 'ada', followers: viewers });
  await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass: 'pull' });
  await cast.play('ada posts 3 times as a');
  await service.settle();
  const instances = [service, other];
  const on = (at: number) => instances[at % 2] as TestService;
  for (let from = 0; from < viewers.length; from += 20)
    await Promise.all(viewers.slice(from, from + 20).map((viewer, at) => homeOn(on(at), viewer)));
  const loads = async () => {
    const counts = await Promise.all(
      instances.map((instance) => metric(instance, /^tributary_cache_loads_total\{layer="post"\}/)),
    );
    return counts.reduce((sum, count) => sum + count, 0);
  };
  await cast.play('ada posts "hot" as hot');
  service.clock.advance(1_001);
  // An edit takes the meta out of the cache, and no process has the new body: as if nobody had read any of them yet.
  const before = await loads();
  await cast.play('ada edits hot "hotter"; ada edits a1 "1"; ada edits a2 "2"; ada edits a3 "3"');
  const pages = await Promise.all(viewers.map((viewer, at) => homeOn(on(at), viewer)));
  for (const page of pages) expect(page).toEqual((await tenant.oracle('viewer-0')).home);
  expect((await loads()) - before).toBeLessThanOrEqual(2 * 4);
});

describe('a badge', () => {
  it('counts what the newer walk after it shows, whatever was muted, blocked, deleted, followed or came late', async () => {
    await cast.play(
      'rita follows ada, ben, cyd; ada posts 5 times as a; ben posts 5 times as b; cyd posts 5 times as c',
    );
    await storeClass(service.database, tenant.id, { authors: ['cyd'], fanoutClass: 'pull' });
    await service.settle();
    let seed = 7;
    const random = (below: number): number => {
      seed = (seed * 48_271) % 2_147_483_647;
      return seed % below;
    };
    const AUTHORS = ['ada', 'ben', 'cyd'];
    let made = 0;
    for (let round = 0; round < 12; round += 1) {
      const { headToken } = await homePages(tenant, 'rita', 1 + random(20))('');
      const labels: string[] = [];
      for (let act = 0; act < 6; act += 1) {
        const who = AUTHORS[random(3)] as string;
        const what = random(8);
        made += 1;
        if (what < 3) {
          await cast.play(`${who} posts "x" as x${made}`);
          labels.push(`${who} x${made}`);
        } else if (what === 3 && labels.length > 0) {
          const [by, label] = (labels.splice(random(labels.length), 1)[0] as string).split(' ');
          await cast.play(`${by} deletes ${label}`);
        } else if (what === 4) await cast.play(`rita mutes ${who}`);
        else if (what === 5) await cast.play(`rita unmutes ${who}`);
        else if (what === 6) await cast.play(`rita unfollows ${who}; rita follows ${who}`);
        else {
          const postId = composePostId({
            ms: service.clock.nowMs() - 2_000 - random(2_000),
            generator: 100 + round,
            sequence: act,
          });
          await storePosts(service.database, tenant.id, [{ author: who === 'cyd' ? 'ada' : who, postId }], {
            fanOut: true,
          });
        }
      }
      await service.settle();
      const head = await tenant.timeline.getHomeHead({ viewerId: 'rita', sinceToken: headToken });
      const walk = await walkNewer(headToken, homePages(tenant, 'rita', 1 + random(9)), { pageSize: 100 });
      expect({ round, count: head.newCount }).toEqual({ round, count: Math.min(99, walk.ids.length) });
      const [newest] = (await homePages(tenant, 'rita', 1)('')).ids;
      expect(head.newestPostId).toBe(newest ?? '');
    }
  });

  it('counts to 99 and no further', async () => {
    await cast.play('rita follows ada');
    const { headToken } = await homePages(tenant, 'rita', 10)('');
    const first = composePostId({ ms: service.clock.nowMs() - 1_000, generator: 100, sequence: 0 });
    await storePosts(
      service.database,
      tenant.id,
      Array.from({ length: 120 }, (_, at) => ({ author: 'ada', postId: first + at })),
    );
    await cached.evict('tl');
    await eventually(async () => {
      const head = await tenant.timeline.getHomeHead({ viewerId: 'rita', sinceToken: headToken });
      expect(head).toMatchObject({ newCount: 99, newestPostId: String(first + 119) });
    });
  });
});
