/** Owns the rebuild of a timeline against what may happen while it runs: pushes, deletions, evictions, deaths and failures between the snapshot and its storing. */
import { afterAll, beforeAll, beforeEach, describe, expect, inject, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { createOpenHomeSource } from '../../src/read/candidates.ts';
import { createReadResidentHome } from '../../src/read/resident-home.ts';
import {
  createForcedRebuild,
  createRebuild,
  type RebuildOutcome,
  type RebuildParts,
  type RebuildReason,
} from '../../src/repair/rebuild.ts';
import { type Call, systemClock, systemRandom } from '../../src/runtime.ts';
import type { Snapshot } from '../../src/store/postgres/home-snapshot.ts';
import { createReadHomeEntries } from '../../src/store/redis/home-entries.ts';
import type { Timelines } from '../../src/store/redis/timelines.ts';
import { POST_ID_MAX, type PostId, type TenantId, type UserId } from '../../src/timeline/ids.ts';
import { eventually, within } from '../harness/eventually.ts';
import { startFaultProxy } from '../harness/fault-proxy.ts';
import { createTestClock } from '../harness/test-clock.ts';
import {
  type CacheUnderTest,
  ids,
  newTenant,
  newToken,
  openCache,
  soon,
  user,
} from '../store/redis/cache-under-test.ts';

const RITA = user('rita');
const LEASE_MS = 400;

let under: CacheUnderTest;
let timelines: Timelines;
let tenant: TenantId;
let outcomes: RebuildOutcome[];
let joins: number;
beforeAll(async () => {
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
  timelines = under.timelines({ cap: 5, stride: 2, rebuildLeaseMs: LEASE_MS });
});
afterAll(() => under.close());
beforeEach(() => {
  tenant = newTenant();
  outcomes = [];
  joins = 0;
});

const call = (timeoutMs?: number): Call => ({ tenant, signal: soon(timeoutMs) });
const snapshot = (...postIds: readonly number[]): Snapshot => ({ postIds: ids(...postIds), floor: 0 });

type Viewer = { readonly viewer: UserId };
type RebuildOf = (of: Call, viewer: UserId, reason: RebuildReason) => Promise<RebuildOutcome>;

/** One process that rebuilds. */
function rebuilder(
  loadSnapshot: RebuildParts<Viewer>['loadSnapshot'],
  parts: Partial<RebuildParts<Viewer>> = {},
): RebuildOf {
  const rebuild = createRebuild<Viewer>({
    clock: systemClock,
    sets: timelines,
    nameOf: ({ viewer }) => viewer,
    loadSnapshot,
    newToken,
    random: systemRandom,
    leaseMs: LEASE_MS,
    concurrencyMax: 4,
    events: {
      rebuilt: ({ outcome }) => outcomes.push(outcome),
      joined: () => {
        joins += 1;
      },
      failed: () => undefined,
    },
    ...parts,
  });
  return (of, viewer, reason) => rebuild(of, { viewer }, reason);
}

/** Something that is begun and held: `reached` when it was asked for, `open` to let it go on. */
function barrier<Value>(): { reached: Promise<void>; open: (value: Value) => void; pass: () => Promise<Value> } {
  const asked = Promise.withResolvers<void>();
  const held = Promise.withResolvers<Value>();
  return {
    reached: asked.promise,
    open: held.resolve,
    pass: () => {
      asked.resolve();
      return held.promise;
    },
  };
}

const look = (count = 100) =>
  timelines.page(soon(), { tenant, viewer: RITA, direction: 'older', position: POST_ID_MAX, count });
const push = (postId: number) => timelines.push(soon(), { tenant, postId: postId as PostId, viewers: [RITA] });
const ready = (postIds: readonly number[], floor = 0) => ({ state: 'ready', floor, ids: postIds });

describe('between the snapshot and its storing', () => {
  it('a push is not lost', async () => {
    const held = barrier<Snapshot>();
    const rebuilding = rebuilder(held.pass)(call(), RITA, 'absent');
    await held.reached;
    expect(await look()).toMatchObject({ state: 'building' });
    expect(await push(40)).toEqual(['added']);
    held.open(snapshot(30, 20, 10));
    expect(await rebuilding).toBe('rebuilt');
    expect(await look()).toEqual(ready([40, 30, 20, 10]));
  });

  it('pushes beyond the cap leave nothing claimed that is not there', async () => {
    const held = barrier<Snapshot>();
    const rebuilding = rebuilder(held.pass)(call(), RITA, 'absent');
    await held.reached;
    for (const postId of [41, 42, 43, 44, 45, 46, 47, 48]) await push(postId);
    held.open(snapshot(30, 20, 10));
    expect(await rebuilding).toBe('rebuilt');
    const page = await look();
    // Eight pushes: the eighth trims to five, and the floor is the newest trimmed.
    expect(page).toEqual(ready([48, 47, 46, 45, 44, 43], 42));
  });

  it('an eviction voids the rebuild, and what is pushed then creates nothing', async () => {
    const held = barrier<Snapshot>();
    const rebuilding = rebuilder(held.pass)(call(), RITA, 'absent');
    await held.reached;
    await timelines.drop(soon(), { tenant, viewer: RITA });
    expect(await push(40)).toEqual(['absent']);
    held.open(snapshot(30, 20, 10));
    expect(await rebuilding).toBe('lost');
    expect(await look()).toEqual({ state: 'absent' });
  });

  it('an eviction and a new rebuild elsewhere leave the old one nothing to store', async () => {
    const held = barrier<Snapshot>();
    const rebuilding = rebuilder(held.pass)(call(), RITA, 'absent');
    await held.reached;
    await timelines.drop(soon(), { tenant, viewer: RITA });
    const elsewhere = barrier<Snapshot>();
    const second = rebuilder(elsewhere.pass)(call(), RITA, 'absent');
    await elsewhere.reached;
    // What the first loaded is older than what fell between the two.
    held.open(snapshot(30, 20, 10));
    expect(await rebuilding).toBe('lost');
    expect(await look()).toMatchObject({ state: 'building' });
    elsewhere.open(snapshot(40, 30, 20, 10));
    expect(await second).toBe('rebuilt');
    expect(await look()).toEqual(ready([40, 30, 20, 10]));
  });

  it('a forced rebuild starts over', async () => {
    const held = barrier<Snapshot>();
    const rebuilding = rebuilder(held.pass)(call(), RITA, 'absent');
    await held.reached;
    const rebuild = rebuilder(async () => snapshot(50));
    const forced = createForcedRebuild<Viewer>({
      sets: timelines,
      rebuild: (of, { viewer }, reason) => rebuild(of, viewer, reason),
    });
    expect(await forced(call(), { viewer: RITA })).toBe('rebuilt');
    held.open(snapshot(30));
    expect(await rebuilding).toBe('lost');
    expect(await look()).toEqual(ready([50]));
  });

  it('a forced rebuild waits for whoever came first after it had dropped the timeline', async () => {
    const held = barrier<Snapshot>();
    const elsewhere = rebuilder(held.pass);
    let first: Promise<RebuildOutcome> | undefined;
    const here = rebuilder(async () => snapshot(50));
    const forced = createForcedRebuild<Viewer>({
      sets: timelines,
      async rebuild(of, { viewer }, reason) {
        first ??= elsewhere(call(), RITA, 'absent');
        await held.reached;
        const outcome = await here(of, viewer, reason);
        held.open(snapshot(40));
        return outcome;
      },
    });
    expect(await forced(call(), { viewer: RITA })).toBe('ready');
    expect(outcomes).toEqual(['busy', 'rebuilt', 'ready']);
    expect(await first).toBe('rebuilt');
    expect(await look()).toEqual(ready([40]));
  });
});

describe('a process that dies while it rebuilds', () => {
  it('holds others up for its lease and no longer; pushes of that time are kept', async () => {
    await timelines.begin(soon(), { tenant, viewer: RITA, token: 'of-the-dead' });
    await push(40);
    const other = rebuilder(async () => snapshot(30));
    expect(await other(call(), RITA, 'absent')).toBe('busy');
    await eventually(async () => expect(await other(call(), RITA, 'absent')).toBe('rebuilt'));
    expect(await look()).toEqual(ready([40, 30]));
  });

  it('leaves its readers a page from Postgres that says it is partial, and a ready timeline after the lease', async () => {
    await timelines.begin(soon(), { tenant, viewer: RITA, token: 'of-the-dead' });
    const rebuild = rebuilder(async () => snapshot(30));
    const empty = { entries: [], targets: new Map() };
    let fromPostgres = 0;
    const open = createOpenHomeSource({
      readResident: createReadResidentHome({
        readEntries: createReadHomeEntries(under.cache, under.keys, { cap: 5, lifeMs: 60_000, tokenLifeMs: 3_000 }),
        pulledFacts: { fill: async () => ['won'] },
        loadPulled: async () => ({ authors: [], tooMany: false }),
        newToken,
        rebuild: async (of, viewer) => {
          const outcome = await rebuild(of, viewer, 'absent');
          return outcome === 'busy' ? 'busy' : outcome === 'overloaded' || outcome === 'failed' ? 'refused' : 'done';
        },
        waitMs: 50,
        events: { timelineRead: () => undefined, pulledRead: () => undefined, pulledFilled: () => undefined },
      }),
      readPulled: async () => ({ lists: [] }),
      loadOlder: async () => {
        fromPostgres += 1;
        return empty;
      },
      loadNewer: async () => empty,
      removeDead: () => undefined,
      events: { pulledAuthors: () => undefined },
    });
    const first = open(call(), RITA);
    await within(
      first.older(POST_ID_MAX, 10, () => undefined),
      LEASE_MS * 5,
    );
    expect({ partial: first.partial(), fromPostgres }).toEqual({ partial: true, fromPostgres: 1 });
    await eventually(async () => {
      const later = open(call(), RITA);
      await later.older(POST_ID_MAX, 10, () => undefined);
      expect(later.partial()).toBe(false);
    });
    expect(await look()).toEqual(ready([30]));
  });

  it('and wakes up after another has finished changes nothing', async () => {
    const held = barrier<Snapshot>();
    // Its own bound has passed long ago; only the token stands in its way.
    const sleeper = rebuilder(held.pass, { leaseMs: 20_000 })(call(), RITA, 'absent');
    await held.reached;
    const other = rebuilder(async () => snapshot(50, 40));
    await eventually(async () => expect(await other(call(), RITA, 'absent')).toBe('rebuilt'));
    held.open(snapshot(30, 20, 10));
    expect(await sleeper).toBe('lost');
    expect(await look()).toEqual(ready([50, 40]));
  });
});

describe('readers who come at once', () => {
  it('share one rebuild in a process, and one of many processes does it', async () => {
    let loads = 0;
    const held = barrier<Snapshot>();
    const load = (): Promise<Snapshot> => {
      loads += 1;
      return held.pass();
    };
    const processes = [rebuilder(load), rebuilder(load)];
    const asked = processes.flatMap((rebuild) => Array.from({ length: 100 }, () => rebuild(call(), RITA, 'absent')));
    await held.reached;
    held.open(snapshot(10));
    const answers = await Promise.all(asked);
    expect(loads).toBe(1);
    expect(joins).toBe(198);
    expect(new Set(answers)).toEqual(new Set(['rebuilt', 'busy']));
  });

  it('for more viewers than may be rebuilt at once are told so, and nothing is left behind', async () => {
    const held = barrier<Snapshot>();
    const rebuild = rebuilder(held.pass, { concurrencyMax: 2 });
    const viewers = Array.from({ length: 10 }, (_, at) => user(`viewer-${at}`));
    const asked = viewers.map((viewer) => rebuild(call(), viewer, 'absent'));
    await held.reached;
    held.open(snapshot(10));
    const answers = await Promise.all(asked);
    expect(answers.filter((outcome) => outcome === 'overloaded')).toHaveLength(6);
    for (const viewer of viewers) expect(['rebuilt', 'ready']).toContain(await rebuild(call(), viewer, 'absent'));
  });

  it('may leave, without ending it for the others', async () => {
    const held = barrier<Snapshot>();
    const rebuild = rebuilder(held.pass);
    const leaving = new AbortController();
    const first = rebuild({ tenant, signal: leaving.signal }, RITA, 'absent');
    const second = rebuild(call(), RITA, 'absent');
    await held.reached;
    leaving.abort();
    await expect(first).rejects.toThrow();
    held.open(snapshot(10));
    expect(await second).toBe('rebuilt');
  });
});

describe('a load that fails', () => {
  it('is tried anew after a moment, and 200 failures leave nothing under way', async () => {
    let broken = true;
    const rebuild = rebuilder(async () => {
      if (broken) throw new TributaryError('DATABASE_UNAVAILABLE', { message: 'away' });
      return snapshot(10);
    });
    expect(await rebuild(call(), RITA, 'absent')).toBe('failed');
    const viewers = Array.from({ length: 200 }, (_, at) => user(`viewer-${at}`));
    for (const viewer of viewers) expect(['failed', 'overloaded']).toContain(await rebuild(call(), viewer, 'absent'));
    broken = false;
    await eventually(async () => expect(await rebuild(call(), RITA, 'absent')).toBe('rebuilt'));
    expect(joins).toBe(0);
    expect(await look()).toEqual(ready([10]));
  });

  it('or never ends is given up with the lease, and the next one does it', async () => {
    let asked = 0;
    const rebuild = rebuilder(() => {
      asked += 1;
      return asked === 1 ? new Promise<Snapshot>(() => undefined) : Promise.resolve(snapshot(10));
    });
    expect(await within(rebuild(call(), RITA, 'absent'), LEASE_MS * 10)).toBe('failed');
    await eventually(async () => expect(await rebuild(call(), RITA, 'absent')).toBe('rebuilt'));
  });

  it('keeps its readers from trying at once, for less than a second, and leaves no lease behind', async () => {
    const clock = createTestClock();
    clock.freeze();
    let broken = true;
    const loads: { readonly viewer: UserId; readonly atMs: number }[] = [];
    const rebuild = rebuilder(
      async (_signal, { viewer }) => {
        loads.push({ viewer, atMs: clock.monotonicMs() });
        if (broken) throw new TributaryError('DATABASE_UNAVAILABLE', { message: 'away' });
        return snapshot(10);
      },
      // A lease that was left behind would never be over.
      { clock, leaseMs: 60_000, concurrencyMax: 8 },
    );
    const viewers = Array.from({ length: 8 }, (_, at) => user(`viewer-${at}`));
    const readers = () =>
      Promise.all(viewers.flatMap((viewer) => [1, 2, 3].map(() => rebuild(call(), viewer, 'absent'))));
    const awayFromMs = clock.monotonicMs();
    while (clock.monotonicMs() < awayFromMs + 3_000) {
      for (const outcome of await readers()) expect(['failed', 'cooling_down']).toContain(outcome);
      clock.advance(50);
    }
    for (const viewer of viewers) {
      const times = loads.filter((load) => load.viewer === viewer).map(({ atMs }) => atMs);
      expect(times.length).toBeGreaterThan(2);
      for (const from of times)
        expect(times.filter((atMs) => atMs >= from && atMs < from + 1_000).length).toBeLessThanOrEqual(2);
    }
    // Not all at the same moments.
    expect(new Set(loads.map(({ atMs }) => atMs)).size).toBeGreaterThan(6);

    broken = false;
    clock.advance(1_000);
    expect(new Set(await readers())).toEqual(new Set(['rebuilt']));
  });

  it('to hear that it may begin is begun anew by the same process at once, and by no other before the lease is over', async () => {
    const clock = createTestClock();
    clock.freeze();
    const proxy = await startFaultProxy({ port: Number(new URL(inject('servers').cacheUrl).port) });
    const shaky = await openCache(
      { urls: [proxy.through(inject('servers').cacheUrl)], cluster: false },
      { commandTimeoutMs: 150 },
    );
    try {
      const sets = shaky.timelines({ cap: 5, stride: 2, rebuildLeaseMs: 60_000 });
      const rebuild = rebuilder(async () => snapshot(10), { clock, sets, leaseMs: 60_000 });
      // The script is known there: what is kept back is the answer to `begin` and to nothing else.
      expect(await rebuild(call(), user('ruth'), 'absent')).toBe('rebuilt');
      proxy.holdAnswers();
      expect(await rebuild(call(), RITA, 'absent')).toBe('failed');
      expect(await look()).toMatchObject({ state: 'building' });
      await push(40);
      await proxy.restore();

      const patient = under.timelines({ cap: 5, stride: 2, rebuildLeaseMs: 60_000 });
      expect(await rebuilder(async () => snapshot(10), { sets: patient })(call(), RITA, 'absent')).toBe('busy');
      clock.advance(1_000);
      await eventually(async () => {
        expect(await rebuild(call(), RITA, 'absent')).toBe('rebuilt');
      });
      expect(await look()).toEqual(ready([40, 10]));
    } finally {
      await proxy.restore();
      await shaky.close();
      await proxy.stop();
    }
  });

  it('does not hold up a forced rebuild', async () => {
    let broken = true;
    const rebuild = rebuilder(async () => {
      if (broken) throw new TributaryError('DATABASE_UNAVAILABLE', { message: 'away' });
      return snapshot(10);
    });
    expect(await rebuild(call(), RITA, 'absent')).toBe('failed');
    broken = false;
    expect(await rebuild(call(), RITA, 'absent')).toBe('cooling_down');
    expect(await rebuild(call(), RITA, 'forced')).toBe('rebuilt');
  });
});
