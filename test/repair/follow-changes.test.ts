/** Owns what a timeline holds after follows changed quickly, many at once, and under events that come late, twice and in any order: what the last change says. */
import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, beforeAll, beforeEach, describe, expect, inject, it } from 'vitest';
import { createAfterChange } from '../../src/repair/after-change.ts';
import { createCleanEnded } from '../../src/repair/clean-ended.ts';
import { createFollowEntries, type EntriesOutcome, type FollowEntries } from '../../src/repair/follow-entries.ts';
import { systemClock } from '../../src/runtime.ts';
import { loadUncleanedFollows } from '../../src/store/postgres/ended-follows.ts';
import { loadFollowStates } from '../../src/store/postgres/graph.ts';
import { findWrittenBy, loadNewestOf } from '../../src/store/postgres/home-pages.ts';
import { composePostId, type PostId } from '../../src/timeline/ids.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import type { Cast } from '../harness/play.ts';
import { storePosts } from '../harness/rows.ts';
import { type TestTenant, userId } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';
import { commandsOf, type FollowStage, openFollowStage } from './follow-stage.ts';

const RITA = userId('rita');
const ADA = userId('ada');
const RELAYS = 8;

let stage: FollowStage;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  stage = await openFollowStage();
});
afterAll(() => stage.stop());
beforeEach(async () => {
  tenant = await stage.service.tenant();
  cast = tenant.cast();
  cached?.close();
  cached = openCached(tenant.id);
});
afterAll(() => cached.close());

const soon = (): AbortSignal => AbortSignal.timeout(20_000);
const home = (viewer: string) => wholeHome(tenant, viewer);
const oracleHome = async (viewer: string) => (await tenant.oracle(viewer)).home;

/** Events handled by many relays at once until none is left, and fan-out done. */
async function drain(): Promise<void> {
  const signal = soon();
  await Promise.all(Array.from({ length: RELAYS }, () => stage.relay(signal, { disturbed: true })));
  await stage.service.settle();
}

async function toggle(times: number): Promise<void> {
  for (let turn = 0; turn < times; turn += 1) {
    const pair = { followerId: 'rita', followeeId: 'ada' };
    await (turn % 2 === 0 ? tenant.graph.follow(pair) : tenant.graph.unfollow(pair));
  }
}

let moment = 0;
/** One post of each author, one after the other, in no timeline yet. */
async function store(authors: readonly string[]): Promise<readonly string[]> {
  moment += 1;
  const first = composePostId({ ms: Date.now() - 3_600_000 + moment * 1_000, generator: 105, sequence: 0 });
  const posts = authors.map((author, at) => ({ author, postId: first + at }));
  await storePosts(stage.service.database, tenant.id, posts);
  return posts.map(({ postId }) => String(postId)).reverse();
}

let ofBen: readonly string[];
let ofAda: readonly string[];
/** A reader with a resident timeline of three entries, and an author with posts. */
async function arrange(): Promise<void> {
  await cast.play('rita follows ben');
  ofBen = await store(Array.from({ length: 3 }, () => 'ben'));
  ofAda = await store(Array.from({ length: 20 }, () => 'ada'));
  await drain();
  await home('rita');
  expect(await cached.entries('rita')).toEqual(ofBen);
}

describe('fifty changes of one follow in a moment', () => {
  it.each([1, 2, 3])(
    'that end without it leave nothing over, whatever order eight relays handle them in: round %i',
    async () => {
      await arrange();
      const signal = soon();
      const relays = Array.from({ length: RELAYS }, async () => {
        while (!signal.aborted && (await stage.openEvents()) === 0) await pause(5);
        await stage.relay(signal, { disturbed: true });
      });
      await toggle(50);
      await Promise.all(relays);
      await drain();
      expect((await tenant.graph.getRelationship({ viewerId: 'rita', otherId: 'ada' })).following).toBe(false);
      await cast.play('ada posts "after" as late');
      await drain();
      expect(await cached.entries('rita')).toEqual(ofBen);
      expect(await home('rita')).toEqual(await oracleHome('rita'));
    },
  );

  it.each([1, 2, 3])('that end with it leave the author’s posts there, once each: round %i', async () => {
    await arrange();
    const signal = soon();
    const relays = Array.from({ length: RELAYS }, async () => {
      while (!signal.aborted && (await stage.openEvents()) === 0) await pause(5);
      await stage.relay(signal, { disturbed: true });
    });
    await toggle(51);
    await Promise.all(relays);
    await cast.play('ada posts "after" as late');
    await drain();
    const expected = await oracleHome('rita');
    expect(expected).toHaveLength(24);
    expect(await cached.entries('rita')).toEqual(expected);
    expect(await home('rita')).toEqual(expected);
  });
});

describe('an event that a later change has overtaken', () => {
  const changes: string[] = [];
  let isCleaned = true;
  const afterChange = () =>
    createAfterChange({
      forget: async () => void changes.push('forgotten'),
      entries: {
        begun: async (_call, _viewer, authors) => void (authors.length > 0 && changes.push(`begun ${authors}`)),
        backfill: async () => undefined,
        cleanUp: async (_call, _viewer, author) => changes.push(`cleaned ${author}`) > 0 && isCleaned,
      },
      loadFollowStates: (call, follower, followees) =>
        loadFollowStates(stage.database, call.signal, { tenant: call.tenant, follower, followees }),
    });
  const event = (followeeIds: readonly string[], versions?: readonly string[]) => ({
    kind: 'follows_changed' as const,
    payload: { followerId: 'rita', followeeIds, ...(versions && { versions }) },
  });
  beforeEach(() => {
    changes.length = 0;
  });

  it('leaves everything to the event of that change', async () => {
    await cast.play('rita follows ada, cyd; rita unfollows ada; rita follows ada; rita unfollows cyd');
    const handle = afterChange();
    for (const [versions, expected] of [
      [['1', '1'], []],
      [['2', '1'], []],
      [['3', '1'], ['begun ada']],
      [['1', '2'], ['cleaned cyd']],
      [
        ['3', '2'],
        ['begun ada', 'cleaned cyd'],
      ],
    ] as const) {
      changes.length = 0;
      await handle(tenant.call(), event(['ada', 'cyd'], versions));
      expect(changes).toEqual(expected.length === 0 ? [] : ['forgotten', ...expected]);
    }
  });

  it('is done again where its clean-up was not decided', async () => {
    await cast.play('rita follows cyd; rita unfollows cyd');
    isCleaned = false;
    await expect(afterChange()(tenant.call(), event(['cyd'], ['2']))).rejects.toThrow();
    isCleaned = true;
    await afterChange()(tenant.call(), event(['cyd'], ['2']));
  });

  it('does what the truth says where it is of before events had versions', async () => {
    await cast.play('rita follows ada, cyd; rita unfollows cyd');
    await afterChange()(tenant.call(), event(['ada', 'cyd']));
    expect(changes).toEqual(['forgotten', 'begun ada', 'cleaned cyd']);
  });

  it('carries the versions of its changes, also where a block made them', async () => {
    await cast.play('rita follows ada; ada follows rita; rita unfollows ada; rita follows ada; ada blocks rita');
    const events = await stage.service.database.sql<{ payload: unknown }>(
      "SELECT payload FROM outbox WHERE tenant_id = $1 AND kind = 'follows_changed' ORDER BY event_id",
      [tenant.id],
    );
    const change = (followerId: string, followeeId: string, version: string) => ({
      payload: { followerId, followeeIds: [followeeId], versions: [version] },
    });
    expect(events).toEqual([
      change('rita', 'ada', '1'),
      change('ada', 'rita', '1'),
      change('rita', 'ada', '2'),
      change('rita', 'ada', '3'),
      change('ada', 'rita', '2'),
      change('rita', 'ada', '4'),
    ]);
  });
});

/** Follow entries of a process that is held up: after the author's posts were loaded, and after the relation was. */
function heldEntries(held: {
  readonly afterPosts?: () => Promise<void>;
  readonly afterRelation?: () => Promise<void>;
}): {
  entries: FollowEntries;
  outcomes: EntriesOutcome[];
} {
  const { cache, database } = stage;
  const outcomes: EntriesOutcome[] = [];
  const of = { tenant: tenant.id };
  const entries = createFollowEntries({
    timelines: cache.timelines,
    clock: systemClock,
    cap: 800,
    entriesMax: 1_664,
    follows: async (call, follower, author) =>
      (await loadFollowStates(database, call.signal, { ...of, follower, followees: [author] })).get(author)?.active ??
      false,
    async loadRelation(call, viewer, author) {
      const relation = (await cache.people.loadRelations(call, viewer, [author])).get(author);
      await held.afterRelation?.();
      return relation;
    },
    async loadNewestPushedOf(call, query) {
      const found = await loadNewestOf(database, call.signal, { ...of, ...query });
      await held.afterPosts?.();
      return found;
    },
    findWrittenBy: (call, author, postIds) => findWrittenBy(database, call.signal, { ...of, author, postIds }),
    events: { followEntriesChanged: ({ outcome }) => outcomes.push(outcome) },
  });
  return { entries, outcomes };
}

describe('a backfill that the end of its follow overtakes', () => {
  it('takes back what it brought, although the clean-up was over before', async () => {
    await arrange();
    await cast.play('rita follows ada');
    const { entries, outcomes } = heldEntries({
      afterPosts: async () => {
        await cast.play('rita unfollows ada');
        await drain();
        expect(await cached.entries('rita')).toHaveLength(3);
      },
    });
    await entries.backfill(tenant.call(), RITA, ADA);
    expect(outcomes).toEqual(['done', 'undone']);
    expect(await cached.entries('rita')).toHaveLength(3);
  });

  it('keeps it where the follow has begun anew', async () => {
    await arrange();
    await cast.play('rita follows ada');
    const { entries } = heldEntries({
      afterPosts: async () => {
        await cast.play('rita unfollows ada; rita follows ada');
        await drain();
      },
    });
    await entries.backfill(tenant.call(), RITA, ADA);
    expect(await cached.entries('rita')).toEqual(await oracleHome('rita'));
  });
});

describe('an ended follow', () => {
  const uncleaned = async (): Promise<number> =>
    (
      await stage.service.database.sql<{ count: number }>(
        'SELECT count(*)::int AS count FROM follows WHERE tenant_id = $1 AND ended_at IS NOT NULL AND cleaned_at IS NULL',
        [tenant.id],
      )
    )[0]?.count ?? -1;
  /** As if everything of its time were over. */
  const settle = () =>
    stage.service.database.sql(
      "UPDATE follows SET ended_at = ended_at - interval '1 hour' WHERE tenant_id = $1 AND ended_at IS NOT NULL",
      [tenant.id],
    );
  async function cleanEnded(): Promise<void> {
    while (await stage.cache.cleanEnded(soon()));
  }
  const push = (postId: string) =>
    stage.cache.timelines.push(soon(), { tenant: tenant.id, postId: Number(postId) as PostId, viewers: [RITA] });

  it('is cleaned once more after what was under way at its end: a late push leaves nothing over', async () => {
    await arrange();
    await cast.play('rita follows ada; rita unfollows ada');
    await drain();
    // A worker had read the follow before its end.
    await push(ofAda[0] ?? '');
    expect(await cached.entries('rita')).toHaveLength(4);
    expect(await home('rita')).toHaveLength(3);
    await cleanEnded();
    expect(await uncleaned()).toBe(1);
    await settle();
    await cleanEnded();
    expect([await cached.entries('rita'), await uncleaned()]).toEqual([await oracleHome('rita'), 0]);
  });

  it('is cleaned up although others forget the relation meanwhile, and not at all where they always do', async () => {
    await arrange();
    await cast.play('rita follows ada; rita unfollows ada');
    await push(ofAda[0] ?? '');
    const forget = () => stage.cache.forget(tenant.call(), { relations: [[RITA, ADA]] });
    const always = heldEntries({ afterRelation: forget });
    expect(await always.entries.cleanUp(tenant.call(), RITA, ADA)).toBe(false);
    expect(always.outcomes).toEqual(['undecided']);
    expect(await cached.entries('rita')).toContain(ofAda[0]);
    const turns = [forget].values();
    const once = heldEntries({ afterRelation: async () => turns.next().value?.() });
    expect(await once.entries.cleanUp(tenant.call(), RITA, ADA)).toBe(true);
    expect(await cached.entries('rita')).toEqual(ofBen);
  });

  it('stays in the queue while it cannot be cleaned, and holds up none behind it', async () => {
    await stage.service.database.sql(
      `INSERT INTO follows (tenant_id, follower_id, followee_id, version, ended_at)
      SELECT $1, 'viewer-' || n, 'ada', 2, now() - interval '1 day' + n * interval '1 second' FROM generate_series(1, 450) AS n`,
      [tenant.id],
    );
    const looked: string[] = [];
    const marked = new Set<string>();
    let stuck = (viewer: string): boolean => Number(viewer.split('-')[1]) <= 200;
    const runOnce = createCleanEnded({
      async loadUncleaned(signal, query) {
        const rows = await loadUncleanedFollows(stage.database, signal, query);
        return rows.filter((row) => row.tenant === tenant.id && !marked.has(row.follower));
      },
      async cleanUp(_call, viewer) {
        looked.push(viewer);
        if (stuck(viewer) && viewer.endsWith('7')) throw new Error('on purpose');
        return !stuck(viewer);
      },
      markCleaned: async (_signal, follows) => {
        for (const { follower } of follows) marked.add(follower);
      },
      settledMs: 60_000,
      failed: () => undefined,
    });
    // A round in which something failed does not go on at once.
    for (let round = 1; round <= 3; round += 1) await runOnce(soon());
    expect([looked.length, new Set(looked).size, marked.size]).toEqual([450, 450, 250]);
    stuck = () => false;
    while (await runOnce(soon()));
    expect([looked.length, marked.size]).toEqual([650, 450]);
  });

  it('that began anew is not marked by a look at the one before, and is in the queue again once it ends', async () => {
    await arrange();
    await cast.play('rita follows ada; rita unfollows ada');
    await settle();
    await cleanEnded();
    expect(await uncleaned()).toBe(0);
    await cast.play('rita follows ada');
    await drain();
    expect(await cached.entries('rita')).toHaveLength(23);
    await cast.play('rita unfollows ada');
    expect(await uncleaned()).toBe(1);
    await settle();
    await cleanEnded();
    expect([(await cached.entries('rita'))?.length, await uncleaned()]).toEqual([3, 0]);
  });
});

it('work on timelines and events by kind are measured in seconds, and entries counted', async () => {
  const figure = async (series: string): Promise<number> => {
    const { body } = await stage.metrics.exposition();
    const line = body.split('\n').find((each) => each.startsWith(`${series} `));
    return Number(line?.split(' ').at(-1) ?? 0);
  };
  const series = [
    'tributary_follow_entries_seconds_count{work="backfill",outcome="done"}',
    'tributary_backfilled_entries_total',
    'tributary_follow_entries_seconds_count{work="clean_up",outcome="done"}',
    'tributary_cleaned_entries_total{why="unfollowed"}',
    'tributary_outbox_event_seconds_count{kind="follows_changed"}',
  ];
  const figures = (): Promise<readonly number[]> => Promise.all(series.map(figure));
  await arrange();
  const before = await figures();
  await cast.play('rita follows ada');
  await stage.relay(soon());
  await cast.play('rita unfollows ada');
  await stage.relay(soon());
  const risen = (await figures()).map((value, at) => value - (before[at] ?? 0));
  expect(risen).toEqual([1, 20, 1, 20, 2]);
});

describe('five hundred follows at once', () => {
  const AUTHORS = Array.from({ length: 500 }, (_, at) => `author-${String(at).padStart(3, '0')}`);

  it('show all their posts, also where a rebuild had read the follows before them; their event drops the timeline, no more', async () => {
    await arrange();
    await store(AUTHORS.slice(0, 20));
    const { timelines } = stage.cache;
    const of = { tenant: tenant.id, viewer: RITA };
    // A rebuild that has its snapshot and has not stored it yet.
    await timelines.drop(soon(), of);
    await timelines.begin(soon(), { ...of, token: 'slow' });
    const before = (await oracleHome('rita')).map((id) => Number(id) as PostId);
    const { results } = await tenant.graph.batchFollow({ followerId: 'rita', followeeIds: AUTHORS });
    expect(results.map(({ followeeId, refusal }) => `${followeeId} ${refusal}`)).toEqual(
      AUTHORS.map((id) => `${id} 0`),
    );
    expect(await timelines.addOlder(soon(), { ...of, token: 'slow', postIds: before })).toBe(false);
    expect(await timelines.commit(soon(), { ...of, token: 'slow', floor: 0 })).toBe(false);
    expect(await home('rita')).toEqual(await oracleHome('rita'));
    expect(await oracleHome('rita')).toHaveLength(23);
    const commands = await commandsOf(inject('servers').cacheUrl, tenant.id, () => stage.relay(soon()));
    // Facts are forgotten one by one; beside that the timeline is dropped, not filled 500 times.
    expect(commands.filter(([name]) => name?.toLowerCase() !== 'hdel').length).toBeLessThanOrEqual(2);
    await drain();
    expect(await home('rita')).toEqual(await oracleHome('rita'));
    expect(await cached.entries('rita')).toEqual(await oracleHome('rita'));
  });
});
