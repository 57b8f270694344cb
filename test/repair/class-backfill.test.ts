/** Owns the promise of the way down: every resident follower gets the author's posts back, whatever happens to those who do it, and no timeline claims what it does not hold. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { type ClassBackfillParts, createClassBackfill } from '../../src/repair/class-backfill.ts';
import { systemClock } from '../../src/runtime.ts';
import * as backfills from '../../src/store/postgres/class-backfills.ts';
import { loadFollowerPage } from '../../src/store/postgres/fanout-jobs.ts';
import { loadNewestOf } from '../../src/store/postgres/home-pages.ts';
import { POST_ID_MAX, type PostId } from '../../src/timeline/ids.ts';
import { eventually } from '../harness/eventually.ts';
import { storePosts } from '../harness/rows.ts';
import { type FanoutStage, followers, openStage, soon, user } from '../write/fanout-stage.ts';

const ALL = followers(35);
/** Every third is not resident. */
const RESIDENT = ALL.filter((_, index) => index % 3 !== 0);

let stage: FanoutStage;
let pages: { readonly viewers: number; readonly entries: number }[];
let dropped: number;
beforeEach(async () => {
  stage = await openStage();
  pages = [];
  dropped = 0;
  await stage.arrange({ author: 'ada', followers: ALL, resident: [...RESIDENT, 'stranger'] });
  await storePosts(stage.rows, stage.tenant, [
    ...[10, 20, 30, 40].map((postId) => ({ author: 'ada', postId })),
    { author: 'ada', postId: 50, visibility: 'private' },
  ]);
  await goDown();
});
afterEach(() => stage.close());

async function goDown(): Promise<void> {
  await stage.rows.sql(
    `INSERT INTO authors (tenant_id, author_id, fanout_class, class_target, class_changed_at) VALUES ($1, 'ada', 'both', 'push', now() - interval '1 hour')
    ON CONFLICT (tenant_id, author_id) DO UPDATE SET fanout_class = 'both', class_target = 'push', class_changed_at = now() - interval '1 minute',
      backfill_cursor = '', backfill_finished = false, backfill_lease_until = NULL`,
    [stage.tenant],
  );
}

function backfill(parts: Partial<ClassBackfillParts> = {}): (signal: AbortSignal) => Promise<boolean> {
  const { database } = stage;
  return createClassBackfill({
    backfills: {
      claim: (signal, input) => backfills.claimBackfill(database, signal, input),
      advance: (signal, page) => backfills.advanceBackfill(database, signal, page),
      release: (signal, page) => backfills.releaseBackfill(database, signal, page),
    },
    loadFollowers: (signal, query) => loadFollowerPage(database, signal, query),
    loadNewestOf: (signal, query) => loadNewestOf(database, signal, query),
    timelines: stage.timelines,
    clock: systemClock,
    cap: 800,
    followerPage: 10,
    waitMs: 1_000,
    leaseMs: 30_000,
    events: {
      pageBackfilled: (page) => pages.push(page),
      timelineDropped: () => {
        dropped += 1;
      },
    },
    ...parts,
  });
}

async function state(): Promise<{ readonly cursor: string; readonly finished: boolean; readonly leased: boolean }> {
  const [row] = await stage.rows.sql<{ cursor: string; finished: boolean; leased: boolean }>(
    `SELECT backfill_cursor AS cursor, backfill_finished AS finished, coalesce(backfill_lease_until > clock_timestamp(), false) AS leased
    FROM authors WHERE tenant_id = $1`,
    [stage.tenant],
  );
  if (!row) throw new Error('no such author');
  return row;
}

async function expectAllGiven(): Promise<void> {
  for (const viewer of RESIDENT) expect(await stage.entries(viewer)).toEqual([10, 20, 30, 40]);
}

const page = (viewer: string) =>
  stage.timelines.page(soon(), {
    tenant: stage.tenant,
    viewer: user(viewer),
    direction: 'older',
    position: POST_ID_MAX,
    count: 1_000,
  });

it('gives every resident follower what followers may see, makes nobody resident, and ends', async () => {
  const runOnce = backfill();
  expect(await runOnce(soon())).toBe(true);
  await expectAllGiven();
  for (const viewer of ALL.filter((each) => !RESIDENT.includes(each)))
    expect(await stage.entries(viewer)).toBeUndefined();
  expect(await stage.entries('stranger')).toEqual([]);
  expect(await state()).toMatchObject({ finished: true });
  expect(pages.reduce((sum, { viewers }) => sum + viewers, 0)).toBe(RESIDENT.length);
  expect(pages.reduce((sum, { entries }) => sum + entries, 0)).toBe(RESIDENT.length * 4);
  expect(await runOnce(soon())).toBe(false);
});

it('waits its time first', async () => {
  expect(await backfill({ waitMs: 7_200_000 })(soon())).toBe(false);
  expect(await stage.entries('f001')).toEqual([]);
});

it('gives back the lease after some pages, for the next round to go on from there', async () => {
  const runOnce = backfill({ followerPage: 1 });
  expect(await runOnce(soon())).toBe(true);
  expect(await state()).toEqual({ cursor: ALL[7], finished: false, leased: false });
  while (await runOnce(soon()));
  await expectAllGiven();
});

it('fills what is being built, and the rebuild keeps it although its snapshot did not have it', async () => {
  const of = { tenant: stage.tenant, viewer: user('f000'), token: 'building' };
  await stage.timelines.begin(soon(), of);
  await stage.timelines.addOlder(soon(), { ...of, postIds: [35 as PostId] });
  await backfill()(soon());
  await stage.timelines.commit(soon(), { ...of, floor: 0 });
  expect(await page('f000')).toEqual({ state: 'ready', floor: 0, ids: [40, 35, 30, 20, 10] });
});

it('brings nothing from below a floor, and raises the floor where the author has more than fit', async () => {
  const low = { tenant: stage.tenant, viewer: user('f001'), token: 'arranged' };
  await stage.timelines.drop(soon(), low);
  await stage.timelines.begin(soon(), low);
  await stage.timelines.commit(soon(), { ...low, floor: 20 });
  const other = { tenant: stage.tenant, viewer: user('f002') };
  await stage.timelines.addOlder(soon(), { ...other, postIds: [5 as PostId, 45 as PostId] });
  await backfill({ cap: 3 })(soon());
  expect(await page('f001')).toEqual({ state: 'ready', floor: 20, ids: [40, 30] });
  expect(await page('f002')).toEqual({ state: 'ready', floor: 19, ids: [45, 40, 30, 20] });
});

it('given twice is given once', async () => {
  await backfill()(soon());
  await stage.rows.sql("UPDATE authors SET backfill_cursor = '', backfill_finished = false");
  await backfill()(soon());
  await expectAllGiven();
});

describe('one who does it', () => {
  it('and is killed leaves the rest to another, from the checkpoint, when the lease is over', async () => {
    const hung = Promise.withResolvers<void>();
    const never = new Promise<never>(() => undefined);
    let calls = 0;
    const dying = backfill({
      leaseMs: 400,
      timelines: {
        ...stage.timelines,
        floors: (signal, of) => {
          calls += 1;
          if (calls < 3) return stage.timelines.floors(signal, of);
          hung.resolve();
          return never;
        },
      },
    });
    // Nothing more is ever heard of it.
    void dying(soon());
    await hung.promise;
    expect(await state()).toEqual({ cursor: ALL[19], finished: false, leased: true });
    const started: string[] = [];
    const another = backfill({
      loadFollowers: (signal, query) => {
        started.push(query.after);
        return loadFollowerPage(stage.database, signal, query);
      },
    });
    await eventually(async () => {
      await another(soon());
      expect(await state()).toMatchObject({ finished: true });
    });
    expect(started[0]).toBe(ALL[19]);
    await expectAllGiven();
  });

  it('is alone at it: who comes meanwhile finds nothing to do', async () => {
    const held = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    const first = backfill({
      loadFollowers: async (signal, query) => {
        begun.resolve();
        await held.promise;
        return loadFollowerPage(stage.database, signal, query);
      },
    })(soon());
    await begun.promise;
    expect(await backfill()(soon())).toBe(false);
    held.resolve();
    expect(await first).toBe(true);
    await expectAllGiven();
  });

  it('stops where the author has turned round, and what comes after begins anew', async () => {
    let calls = 0;
    const turned = backfill({
      loadFollowers: async (signal, query) => {
        calls += 1;
        // Up and down again: it looks the same, but for when it began.
        if (calls === 2) await goDown();
        return loadFollowerPage(stage.database, signal, query);
      },
    });
    expect(await turned(soon())).toBe(true);
    expect(calls).toBe(2);
    expect(await state()).toMatchObject({ cursor: '', finished: false });
    expect(await backfill()(soon())).toBe(true);
    expect(await state()).toMatchObject({ finished: true });
  });

  it('and is told to stop gives the lease back at once', async () => {
    const stop = new AbortController();
    const stopping = backfill({
      loadFollowers: (signal) => {
        stop.abort();
        return Promise.reject(signal.reason);
      },
    });
    await expect(stopping(stop.signal)).rejects.toBeDefined();
    expect(await state()).toMatchObject({ leased: false });
  });
});

describe('a timeline that does not take the posts', () => {
  const refused = new TributaryError('CACHE_UNAVAILABLE', { message: 'away' });
  const refusing = (name: string, parts: Partial<ClassBackfillParts['timelines']> = {}) => ({
    ...stage.timelines,
    addOlder: ((signal, of) =>
      of.viewer === name
        ? Promise.reject(refused)
        : stage.timelines.addOlder(signal, of)) as typeof stage.timelines.addOlder,
    ...parts,
  });

  it('is dropped, to be rebuilt by its next reader, and holds nobody up', async () => {
    await backfill({ timelines: refusing('f004') })(soon());
    expect(await state()).toMatchObject({ finished: true });
    expect(await stage.entries('f004')).toBeUndefined();
    expect(await stage.entries('f005')).toEqual([10, 20, 30, 40]);
    expect(dropped).toBe(1);
  });

  it('nor lets itself be dropped holds the checkpoint back', async () => {
    const away = refusing('f004', { drop: () => Promise.reject(refused) });
    await expect(backfill({ timelines: away })(soon())).rejects.toBe(refused);
    expect(await state()).toEqual({ cursor: '', finished: false, leased: false });
    await backfill()(soon());
    await expectAllGiven();
  });
});
