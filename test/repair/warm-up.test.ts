/** Owns what a loss of the cache costs viewers who read lately: nothing to do for them, nor for an operator. And what it must not cost others: readers come first, and nobody is rebuilt who is not about. */

import { Redis } from 'ioredis';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { Completeness } from '../../src/gen/tributary/v1/author_pb.ts';
import { createRecentViewers } from '../../src/repair/recent-viewers.ts';
import { createWarmUp, type WarmUpParts } from '../../src/repair/warm-up.ts';
import { parseTenantId, type TenantId } from '../../src/timeline/ids.ts';
import { eventually, within } from '../harness/eventually.ts';
import { openResidents, type Residents } from '../harness/residents.ts';
import { storeFollowers } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { createTestClock } from '../harness/test-clock.ts';
import { wholeHome } from '../harness/walk.ts';
import { type OwnRedis, startOwnRedis } from '../store/redis/own-redis.ts';

const PATIENT = { timeoutMs: 30_000, everyMs: 50 };
const ACTIVE = Array.from({ length: 60 }, (_, at) => `viewer-${at}`);
const TENANT = parseTenantId('acme') as TenantId;

describe('once the cache has lost what it held', { timeout: 90_000 }, () => {
  let own: OwnRedis;
  let redis: Redis;
  let service: TestService;
  let tenant: TestTenant;
  let residents: Residents;
  beforeAll(async () => {
    own = await startOwnRedis();
    redis = new Redis(own.server.url);
    redis.on('error', () => undefined);
    service = await startTestService({
      env: {
        REDIS_CACHE_URL: own.server.url,
        CACHE_COMMAND_TIMEOUT_MS: '1000',
        WARM_UP_PER_SECOND: '100',
        WARM_UP_VIEWERS_MAX: String(ACTIVE.length),
      },
    });
    tenant = await service.tenant();
    await storeFollowers(service.database, tenant.id, {
      followee: 'ada',
      followers: ['absent', 'forgotten', ...ACTIVE],
    });
    await tenant.cast().play('ada posts 5 times');
    await service.settle();
    await read('forgotten');
    for (let from = 0; from < ACTIVE.length; from += 10)
      await Promise.all(ACTIVE.slice(from, from + 10).map((viewer) => read(viewer)));
    residents = await openResidents(tenant.id, { url: own.server.url });
    // The marks have been seen.
    await eventually(async () => expect(await redis.keys('mark:*')).not.toEqual([]), PATIENT);
  }, 90_000);
  afterAll(async () => {
    await residents?.close();
    redis?.disconnect();
    await service?.stop();
    await own?.stop();
  });

  const read = (viewer: string) => tenant.timeline.getHomeTimeline({ viewerId: viewer });
  async function scraped(series: string): Promise<number> {
    const { body } = await service.service.metrics.exposition();
    const line = body.split('\n').find((each) => each.startsWith(`${series} `));
    return Number(line?.slice(series.length + 1) ?? 0);
  }
  const losses = () => scraped('tributary_cache_losses_total');

  /** Everybody who read lately has a timeline that is ready and right, and nobody else has one. */
  async function expectAllBack(): Promise<void> {
    const { home } = await tenant.oracle('viewer-0');
    const oldestFirst = [...home].reverse();
    await eventually(async () => {
      for (const entries of await residents.entries(ACTIVE)) expect(entries).toEqual(oldestFirst);
      expect(await scraped('tributary_warm_up_waiting_viewers')).toBe(0);
    }, PATIENT);
    expect(await residents.entries(['absent', 'forgotten'])).toEqual([undefined, undefined]);
  }

  it('by a flush, everybody who read lately is ready again without a read, and nobody else; what is posted meanwhile is there', async () => {
    expect(await scraped('tributary_recent_viewers')).toBe(ACTIVE.length);
    await redis.flushall();
    await tenant.cast().play('ada posts "after the flush"');
    await service.settle();
    await eventually(async () => expect(await losses()).toBe(1), PATIENT);
    await expectAllBack();
    expect(await scraped('tributary_warm_ups_total{outcome="rebuilt"}')).toBe(ACTIVE.length);
    expect(service.logLines.filter((line) => line.includes('the cache has lost what it held'))).toHaveLength(1);
  });

  it('by a flush, readers who come meanwhile have whole pages at once', async () => {
    await redis.flushall();
    const { home } = await tenant.oracle('viewer-0');
    for (let from = 0; from < ACTIVE.length; from += 5) {
      const pages = await Promise.all(ACTIVE.slice(from, from + 5).map((viewer) => read(viewer)));
      for (const page of pages) {
        expect(page.entries.map((view) => view.post?.postId)).toEqual(home);
        expect(page.completeness).toBe(Completeness.COMPLETE);
      }
    }
    await eventually(async () => expect(await losses()).toBe(2), PATIENT);
    await expectAllBack();
  });

  it('by a crash and a restart, the same', async () => {
    await own.server.kill();
    await own.server.restart();
    await eventually(async () => expect(await losses()).toBe(3), PATIENT);
    await expectAllBack();
    expect(await wholeHome(tenant, 'viewer-1')).toEqual((await tenant.oracle('viewer-1')).home);
  });

  it('a stop does not wait for those who are left', async () => {
    const lock = await service.database.session();
    await lock.query('BEGIN; LOCK TABLE follows IN ACCESS EXCLUSIVE MODE');
    await redis.flushall();
    await eventually(async () => {
      const held = await service.database.sql(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%first_window%'",
      );
      // At most a quarter of the places for rebuilds.
      expect(held).toHaveLength(2);
    }, PATIENT);
    await within(service.service.stop(), 10_000);
    expect(await redis.keys('tl:*')).toEqual([]);
  });
});

describe('the warm-up', () => {
  const viewer = (at: number) => ({ tenant: TENANT, viewer: userId(`v${at}`) });
  const viewers = (count: number) => Array.from({ length: count }, (_, at) => viewer(at));
  const signal = () => AbortSignal.timeout(5_000);

  /** Three parts of a cache in which nobody is resident until rebuilt. */
  function stage(parts: Partial<WarmUpParts> = {}) {
    const marks = new Map([1, 2, 3].map((part) => [`part-${part}`, 'first']));
    const resident = new Set<string>();
    const rebuilt: string[] = [];
    const told: string[] = [];
    let [running, most, waiting] = [0, 0, 0];
    const runOnce = createWarmUp({
      readMarks: async () => new Map(marks),
      activeViewers: () => viewers(30),
      floors: async (_signal, of) => of.viewers.map((one) => (resident.has(one) ? 0 : undefined)),
      async rebuild(_call, one) {
        running += 1;
        most = Math.max(most, running);
        await Promise.resolve();
        running -= 1;
        rebuilt.push(one);
        resident.add(one);
        return 'rebuilt';
      },
      rebuilding: () => running,
      rebuildsMax: 8,
      isFull: () => true,
      perRound: 10,
      ...parts,
      events: {
        cacheLost: (loss) => told.push(`lost ${loss.parts} ${loss.viewers}`),
        warmedUp: (outcome) => told.push(outcome),
        waiting: (count) => {
          waiting = count;
        },
        finished: () => told.push('finished'),
      },
    });
    const round = () => runOnce(signal());
    return { marks, resident, rebuilt, told, round, runOnce, most: () => most, waiting: () => waiting };
  }
  type Stage = ReturnType<typeof stage>;
  async function lose({ marks, round }: Pick<Stage, 'marks' | 'round'>): Promise<void> {
    await round();
    for (const part of marks.keys()) marks.set(part, 'second');
  }

  it('begins with the latest readers, does so many in a round, and few at once', async () => {
    const one = stage();
    await lose(one);
    const counts: number[] = [];
    for (let rounds = 0; rounds < 4; rounds += 1) {
      await one.round();
      counts.push(one.rebuilt.length);
    }
    expect(counts).toEqual([10, 20, 30, 30]);
    expect(one.rebuilt).toEqual(viewers(30).map((each) => each.viewer));
    expect(one.most()).toBe(2);
    expect(one.told.filter((line) => line !== 'rebuilt')).toEqual(['lost 3 30', 'finished']);
    expect(one.waiting()).toBe(0);
  });

  it('does nothing at the first look, nor while the marks stay, nor for parts that do not answer', async () => {
    const one = stage();
    await one.round();
    one.marks.delete('part-2');
    await one.round();
    one.marks.set('part-2', 'first');
    await one.round();
    expect(one.told).toEqual([]);
  });

  it('rebuilds nobody who is there: where one part was lost, its viewers alone', async () => {
    const one = stage({ perRound: 30 });
    for (const { viewer: name } of viewers(20)) one.resident.add(name);
    await one.round();
    one.marks.set('part-3', 'second');
    await one.round();
    expect(one.rebuilt).toEqual(
      viewers(30)
        .slice(20)
        .map((each) => each.viewer),
    );
    expect(one.told.filter((line) => line === 'ready')).toHaveLength(20);
  });

  it('waits while readers take half of the places, and while anything is short or away', async () => {
    let [busy, full] = [4, true];
    const one = stage({ rebuilding: () => busy, isFull: () => full });
    await lose(one);
    await one.round();
    [busy, full] = [0, false];
    await one.round();
    expect(one.rebuilt).toEqual([]);
    expect(one.waiting()).toBe(30);
    [busy, full] = [3, true];
    await one.round();
    expect(one.rebuilt).toHaveLength(10);
  });

  it('keeps those whom a reader’s rebuild has pushed aside in the middle of a round', async () => {
    let begun = 0;
    const one = stage({
      rebuilding: () => (begun >= 3 ? 8 : 0),
      rebuild: async () => {
        begun += 1;
        return 'rebuilt';
      },
    });
    await lose(one);
    await one.round();
    expect([begun, one.waiting()]).toEqual([3, 27]);
  });

  it('tries again, last, whom it could not rebuild or ask for, a few times', async () => {
    let tries = 0;
    const one = stage({
      activeViewers: () => viewers(2),
      rebuild: async () => {
        tries += 1;
        return 'failed';
      },
      floors: async (_signal, of) =>
        of.viewers.map((name) => (name === 'v0' ? new TributaryError('CACHE_UNAVAILABLE') : undefined)),
    });
    await lose(one);
    for (let rounds = 0; rounds < 10; rounds += 1) await one.round();
    expect(tries).toBe(5);
    expect(one.told.filter((line) => line === 'unknown')).toHaveLength(5);
    expect(one.waiting()).toBe(0);
  });

  it('gives what failed a moment: each is tried once in a round, however few are left', async () => {
    let isWell = false;
    const one = stage({
      activeViewers: () => viewers(3),
      rebuild: async () => (isWell ? 'rebuilt' : 'failed'),
      floors: async (_signal, of) =>
        of.viewers.map((name) => (!isWell && name === 'v0' ? new TributaryError('CACHE_UNAVAILABLE') : undefined)),
    });
    await lose(one);
    await one.round();
    expect(one.told).toEqual(['lost 3 3', 'unknown', 'failed', 'failed']);
    expect(one.waiting()).toBe(3);
    isWell = true;
    await one.round();
    expect(one.told.slice(4)).toEqual(['rebuilt', 'rebuilt', 'rebuilt', 'finished']);
  });

  it('begins anew with who is active when the cache is lost once more', async () => {
    let active = viewers(30);
    const one = stage({ activeViewers: () => active });
    await lose(one);
    await one.round();
    active = viewers(5);
    one.resident.clear();
    one.marks.set('part-1', 'third');
    await one.round();
    expect(one.waiting()).toBe(0);
    expect(one.rebuilt.slice(10)).toEqual(active.map((each) => each.viewer));
  });

  it('ends with its signal', async () => {
    const stopping = new AbortController();
    const one = stage({
      rebuild: (call) => {
        stopping.abort(new Error('stopping'));
        return Promise.reject(call.signal.reason);
      },
    });
    await lose(one);
    await expect(one.runOnce(stopping.signal)).rejects.toThrow('stopping');
  });
});

describe('who read lately', () => {
  const clock = createTestClock();
  beforeEach(() => clock.freeze());
  const names = (recent: ReturnType<typeof createRecentViewers>) => recent.active().map(({ viewer }) => viewer);

  it('is told with the latest first, and nobody whose last read is too long ago', () => {
    const recent = createRecentViewers({ max: 10, activeMs: 1_000, clock });
    for (const name of ['ann', 'ben', 'cyd']) {
      recent.readBy(TENANT, userId(name));
      clock.advance(400);
    }
    expect(names(recent)).toEqual(['cyd', 'ben']);
    recent.readBy(TENANT, userId('ann'));
    expect(names(recent)).toEqual(['ann', 'cyd', 'ben']);
  });

  it('is bounded, whoever comes: those who have not read for longest are forgotten', () => {
    const recent = createRecentViewers({ max: 100, activeMs: 1_000, clock });
    for (let at = 0; at < 100_000; at += 1) recent.readBy(TENANT, userId(`u${at}`));
    expect(recent.count()).toBe(100);
    expect(names(recent)).toEqual(Array.from({ length: 100 }, (_, back) => `u${99_999 - back}`));
  });

  it('is told by tenant', () => {
    const recent = createRecentViewers({ max: 10, activeMs: 1_000, clock });
    recent.readBy(TENANT, userId('ann'));
    recent.readBy(parseTenantId('other') as TenantId, userId('ann'));
    expect(recent.active().map(({ tenant }) => tenant)).toEqual(['other', 'acme']);
  });
});
