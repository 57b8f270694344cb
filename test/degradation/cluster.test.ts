/**
 * Owns what callers meet while a cache cluster changes under a whole service: a master that is lost and comes back empty, a slot that moves, a replica that takes over. By RPC, against the oracle, on one
 * cluster of three masters for all tests of the file; the last one leaves it changed.
 */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { Completeness } from '../../src/gen/tributary/v1/author_pb.ts';
import { createKeys, slotOf } from '../../src/store/redis/keys.ts';
import { refusalFrom } from '../harness/clients.ts';
import { eventually } from '../harness/eventually.ts';
import { type ClusterNode, type RedisCluster, startRedisCluster } from '../harness/redis-cluster.ts';
import { beginSlotMove } from '../harness/redis-slot-move.ts';
import { postIdOf, startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { homePages, walkOlder, wholeHome } from '../harness/walk.ts';

const PATIENT = { timeoutMs: 60_000, everyMs: 50 };
/** Few, so that a slot that moves takes a good part of everything along. */
const SHARDS = 12;
/** A page whose batches wait for a lost master does not come within its deadline. */
const COMMAND_TIMEOUT_MS = 1_000;
const READ_DEADLINE_MS = 2_500;

const READERS_PER_MASTER = 2;
/** More than may be served without the cache and wait for it, and no more than that makes others wait. */
const CROWD = 40;
const AUTHORS = Array.from({ length: 5 }, (_, at) => `author-${at}`);
const POSTS_EACH = 6;

let cluster: RedisCluster;
let service: TestService;
const keys = createKeys(SHARDS);
beforeAll(async () => {
  cluster = await startRedisCluster({ replica: true });
  service = await startTestService({
    env: {
      ...cluster.env,
      TIMELINE_SHARDS: String(SHARDS),
      CACHE_COMMAND_TIMEOUT_MS: String(COMMAND_TIMEOUT_MS),
      READ_DEADLINE_DEFAULT_MS: String(READ_DEADLINE_MS),
      // Parts of ten entries.
      TIMELINE_CAP: '40',
      TIMELINE_TRIM_STRIDE: '10',
      FANOUT_LEASE_MS: '4000',
      DEGRADED_READS_MAX: '1',
    },
  });
});
afterAll(async () => {
  await service?.stop();
  await cluster?.stop();
});

const slotOfHome = (tenant: TestTenant, viewer: string): number => slotOf(keys.timeline(tenant.id, userId(viewer)));
const nodeOfHome = (tenant: TestTenant, viewer: string): ClusterNode => cluster.ownerOf(slotOfHome(tenant, viewer));
const nodeOfPost = (tenant: TestTenant, postId: string): ClusterNode =>
  cluster.ownerOf(slotOf(keys.postMeta(tenant.id, postIdOf(postId))));

async function breakerOfNodes(): Promise<number> {
  const answer = await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`);
  const line = /^tributary_breaker_state\{dependency="cache_node"\} (\d)/m.exec(await answer.text());
  return Number(line?.[1]);
}

interface Stage {
  readonly tenant: TestTenant;
  readonly cast: ReturnType<TestTenant['cast']>;
  /** As many with their homes on each of the masters. */
  readonly readers: readonly string[];
}

/** Readers of all authors, and posts enough for several parts of each timeline, all of them resident and warm. */
async function stage(): Promise<Stage> {
  const tenant = await service.tenant();
  const cast = tenant.cast();
  const names = Array.from({ length: 200 }, (_, at) => `reader-${at}`);
  const byMaster = Map.groupBy(names, (name) => nodeOfHome(tenant, name));
  const readers = [...byMaster.values()].flatMap((some) => some.slice(0, READERS_PER_MASTER));
  expect(readers).toHaveLength(READERS_PER_MASTER * cluster.nodes.length);
  for (const reader of readers) {
    await cast.play(`${reader} follows ${AUTHORS.join(', ')}`);
    await wholeHome(tenant, reader);
  }
  for (const author of AUTHORS) await cast.play(`${author} posts ${POSTS_EACH} times as ${author}-`);
  await service.settle();
  await expectTruth(tenant, readers);
  return { tenant, cast, readers };
}

/** Every home, by its pages, is what the oracle sees; and they all call themselves complete, where that is asked for. */
async function expectTruth(
  tenant: TestTenant,
  readers: readonly string[],
  { complete = true }: { readonly complete?: boolean } = {},
): Promise<void> {
  for (const reader of readers) {
    const { home } = await tenant.oracle(reader);
    const { ids, completeness } = await walked(tenant, reader);
    expect([reader, ids]).toEqual([reader, home]);
    if (complete) expect([reader, completeness]).toEqual([reader, [Completeness.COMPLETE]]);
  }
}

async function walked(tenant: TestTenant, reader: string) {
  const completeness = new Set<number>();
  const spied: Pick<TestTenant, 'timeline'> = {
    timeline: {
      ...tenant.timeline,
      async getHomeTimeline(request) {
        const page = await tenant.timeline.getHomeTimeline(request);
        completeness.add(page.completeness);
        return page;
      },
    },
  };
  const { ids } = await walkOlder(homePages(spied as TestTenant, reader, 20), { pageSize: 20 });
  return { ids, completeness: [...completeness] };
}

const firstPage = (tenant: TestTenant, readers: readonly string[], at: number): Promise<unknown> =>
  tenant.timeline.getHomeTimeline({ viewerId: readers[at % readers.length] as string, pageSize: 1, pageToken: '' });

/** The reason of a call that failed; 'OK' for one that did not. */
async function outcome(call: Promise<unknown>): Promise<string> {
  try {
    await call;
    return 'OK';
  } catch (error) {
    return refusalFrom(error).reason ?? 'no reason';
  }
}

describe('one of three masters', { timeout: 180_000 }, () => {
  it.each(['answers nobody', 'is killed, and comes back empty'])(
    'that %s takes from readers of the others nothing, from its own only the cache; what hides is confirmed or UNAVAILABLE, and all is well when it is back',
    async (how) => {
      const { tenant, cast, readers } = await stage();
      const [, lost] = cluster.nodes as readonly [ClusterNode, ClusterNode, ClusterNode];
      const own = readers.filter((reader) => nodeOfHome(tenant, reader) === lost);
      const others = readers.filter((reader) => !own.includes(reader));
      if (how === 'answers nobody') lost.freeze();
      else await lost.kill();
      try {
        // It is found out by reads, which may be late for it.
        await eventually(async () => {
          await Promise.all(readers.map((reader) => outcome(wholeHome(tenant, reader))));
          expect(await breakerOfNodes()).toBe(2);
        }, PATIENT);
        // Each of these would be late if it waited for the lost one.
        await expectTruth(tenant, others);
        for (const reader of own) expect((await walked(tenant, reader)).completeness).toContain(Completeness.PARTIAL);
        // Postgres serves a few of them at once, and others beside as ever.
        const crowd = await Promise.all(
          Array.from({ length: CROWD }, (_, at) =>
            [own, others].map((some) => outcome(firstPage(tenant, some, at))),
          ).map((pair) => Promise.all(pair)),
        );
        expect(crowd.map(([ofOwn]) => ofOwn)).toContain('OVERLOADED');
        expect(crowd.map(([, ofOthers]) => ofOthers)).not.toContain('OVERLOADED');

        await cast.play(`author-0 posts "while it is away" as late`);
        await eventually(() => expectTruth(tenant, others, { complete: false }), PATIENT);
        const outcomes = await Promise.all(
          readers.map((reader) => outcome(tenant.graph.mute({ muterId: reader, mutedId: 'author-1' }))),
        );
        expect(outcomes).toEqual(readers.map((reader) => (own.includes(reader) ? 'CACHE_UNAVAILABLE' : 'OK')));
        await expectTruth(tenant, others, { complete: false });
      } finally {
        if (how === 'answers nobody') lost.thaw();
        else await lost.restart();
      }
      await eventually(async () => expect(await breakerOfNodes()).toBe(0), PATIENT);
      await service.settle();
      await eventually(() => expectTruth(tenant, readers), PATIENT);
    },
  );
});

describe('a slot that moves to another master, with all that it holds', { timeout: 180_000 }, () => {
  it('costs no caller an error and no page anything, while it moves and after; new posts, follows and deletions hold meanwhile', async () => {
    const { tenant, cast, readers } = await stage();
    const [mover = ''] = readers;
    const slot = slotOfHome(tenant, mover);
    const inSlot = readers.filter((reader) => slotOfHome(tenant, reader) === slot);
    const failures: unknown[] = [];
    const over = new AbortController();
    const load = [mover, readers.at(-1) as string].map(async (reader) => {
      while (!over.signal.aborted) await wholeHome(tenant, reader).catch((error) => failures.push(error));
    });
    const move = await beginSlotMove(cluster, slot);
    const held = async () => (await move.source.client.cluster('GETKEYSINSLOT', slot, 10_000)) as string[];
    try {
      // Nothing has moved, half of it, all of it: and what is not there may be on either side.
      for (const part of ['none', 'half', 'all'] as const) {
        const names = part === 'none' ? [] : (await held()).filter((_, at) => part === 'all' || at % 2 === 0);
        if (names.length > 0) await move.keys(...names);
        await expectTruth(tenant, readers);
        await cast.play(`author-2 posts "meanwhile" as meanwhile-${part}`);
        await cast.play(`${mover} unfollows author-3; author-4 deletes author-4-${part.length}`);
        await expectTruth(tenant, inSlot, { complete: false });
        await cast.play(`${mover} follows author-3`);
      }
    } finally {
      await move.end();
      over.abort();
      await Promise.all(load);
    }
    expect(failures).toEqual([]);
    await service.settle();
    await expectTruth(tenant, readers);
    expect(await move.target.client.exists(keys.timeline(tenant.id, userId(mover)))).toBe(1);
  });
});

describe('a master whose replica takes over', { timeout: 180_000 }, () => {
  it('is followed by clients: writes succeed again, and what the replica lacked, posts and deletions, is brought to it', async () => {
    const { tenant, cast, readers } = await stage();
    const [master] = cluster.nodes as readonly [ClusterNode];
    const { replica } = cluster;
    if (!replica) throw new Error('the cluster has no replica');
    const [reader = ''] = readers;
    const { home, entry } = await tenant.oracle(reader);
    const doomed = home.find((postId) => nodeOfPost(tenant, postId) === master) as string;
    expect(await master.client.wait(1, 20_000)).toBe(1);

    const posting = startPosting(tenant);
    try {
      await eventually(() => expect(posting.posted.length).toBeGreaterThan(5), PATIENT);
      // From now on the replica hears nothing more.
      replica.freeze();
      await master.client.call('CLIENT', 'KILL', 'TYPE', 'replica');
      const lagged = posting.posted.length;
      await tenant.posts.deletePost({ authorId: entry(doomed)?.author ?? '', postId: doomed });
      await eventually(() => expect(posting.posted.length).toBeGreaterThan(lagged + 5), PATIENT);
      await master.kill();
    } finally {
      replica.thaw();
    }
    await eventually(async () => expect(await replica.client.info('replication')).toContain('role:master'), PATIENT);
    await eventually(() => tenant.graph.mute({ muterId: reader, mutedId: 'zoe' }), PATIENT);
    await posting.stop();
    await eventually(
      () => expect(service.logLines.filter((line) => line.includes('took over the cache'))).toHaveLength(1),
      PATIENT,
    );
    await eventually(async () => {
      await service.settle();
      const now = (await tenant.oracle(reader)).home;
      expect(now).toEqual(expect.arrayContaining([...posting.posted]));
      expect(now).not.toContain(doomed);
      await expectTruth(tenant, readers);
    }, PATIENT);
    // Back, it is a replica of the one that took over, and no news.
    await master.restart();
    await eventually(async () => expect(await master.client.info('replication')).toContain('role:slave'), PATIENT);
    await cast.play(`author-0 posts "after"`);
    await service.settle();
    await expectTruth(tenant, readers);
  });
});

/** One post after the other, each tried again until it is answered. */
function startPosting(tenant: TestTenant): { readonly posted: readonly string[]; stop(): Promise<void> } {
  const posted: string[] = [];
  const over = new AbortController();
  const done = (async () => {
    while (!over.signal.aborted) {
      const post = { authorId: 'author-4', text: 'news', requestId: randomUUID() };
      const answer = await eventually(() => tenant.posts.publishPost(post), PATIENT);
      posted.push(answer.post?.postId ?? '');
    }
  })();
  return {
    posted,
    async stop() {
      over.abort();
      await done;
    },
  };
}
