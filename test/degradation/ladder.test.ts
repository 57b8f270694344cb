/** Owns the ladder as callers and operators see it: down and up again, rung by rung, with nothing shown on any of them that is hidden. */
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport } from '@connectrpc/connect-node';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { isSpared, levelOf } from '../../src/degradation/ladder.ts';
import { Health } from '../../src/gen/grpc/health/v1/health_pb.ts';
import { refusalOf } from '../harness/clients.ts';
import { eventually } from '../harness/eventually.ts';
import type { Cast } from '../harness/play.ts';
import { storeClass } from '../harness/rows.ts';
import { wholeHome } from '../harness/walk.ts';
import { completenessOf, idsOf, type OutageStage, openOutageStage } from './outage-stage.ts';

const KEY_CACHE_MS = 1_000;
const OUTAGE_MS = 3_600_000;

let stage: OutageStage;
let cast: Cast;
beforeAll(async () => {
  stage = await openOutageStage({
    TIMELINE_CAP: '20',
    TIMELINE_TRIM_STRIDE: '1',
    FACT_LOAD_LEASE_MS: '200',
    API_KEY_CACHE_MS: String(KEY_CACHE_MS),
    API_KEY_OUTAGE_MS: String(OUTAGE_MS),
    COUNTS_LIFE_MS: '100',
    // What the process keeps would be known, whatever is evicted.
    PROCESS_BODY_BYTES: '0',
    PROCESS_PROFILE_BYTES: '0',
    PROCESS_LIST_MS: '0',
  });
  cast = stage.tenant.cast();
  await cast.play(`
    rita follows ada, ben, mia, sue, pam
    ada posts 3 times as a; ben posts "quoted" as b; mia posts 2 times as m; pam posts 2 times as p; sue posts "s" as s
    ada posts "private" to nobody as secret
    ada reposts b; ada replies to b "yes" as reply
    rita posts "own" as own
    rita mutes mia; sue blocks rita
    ben follows ada; cyd follows ada
  `);
  await stage.tenant.graph.putAuthor({ authorId: 'ada', displayName: 'Ada' });
  await storeClass(stage.database, stage.tenant.id, { authors: ['pam'], fanoutClass: 'pull' });
  await stage.service.settle();
  // Counts are folded a moment later.
  await eventually(async () => expect(await look()).toMatchObject({ counted: true }));
});
afterAll(() => stage.close());

/** All is back, and every fact of the viewer's newest page is cached. */
async function wholeAndCached(viewer = 'rita'): Promise<void> {
  await Promise.all([stage.redis.restore(), stage.postgres.restore()]);
  await eventually(async () => {
    const before = await notFound();
    const page = await look(viewer);
    expect(page).toMatchObject({ completeness: 'COMPLETE' });
    expect(page.all || page.next !== '').toBe(true);
    expect(await notFound()).toBe(before);
  });
}
beforeEach(() => wholeAndCached());

/** Reads of the cache that found nothing. */
function notFound(): Promise<number> {
  const layers = ['timeline', 'list', 'pulled', 'post', 'author', 'relation', 'body', 'profile'];
  const results = ['miss', 'loading', 'error', 'absent', 'building'];
  return stage.scraped(
    ...layers.flatMap((layer) =>
      results.map((result) => `tributary_cache_reads_total{layer="${layer}",result="${result}"}`),
    ),
  );
}

async function look(viewer = 'rita') {
  const page = await stage.home(viewer);
  const { home } = await stage.tenant.oracle(viewer);
  // Whatever is away.
  expect(home).toEqual(expect.arrayContaining([...idsOf(page)]));
  return {
    completeness: completenessOf(page),
    ids: idsOf(page),
    all: idsOf(page).length === home.length,
    counted: page.entries.some((view) => view.counts !== undefined),
    named: page.authors['ada']?.displayName,
    retry: page.retryDelay !== undefined,
    next: page.nextPageToken,
    head: page.headToken,
  };
}

const levels = ['full', 'reduced', 'stale', 'partial', 'unavailable'];
const level = async (): Promise<string | undefined> => levels[await stage.scraped('tributary_degradation_level')];

/** Until the breaker has noticed. */
async function away(...dependencies: readonly ('cache' | 'database')[]): Promise<void> {
  for (const dependency of dependencies) await stage[dependency === 'cache' ? 'redis' : 'postgres'].refuse();
  await eventually(async () => {
    await stage.home('rita').catch(() => undefined);
    for (const dependency of dependencies)
      expect(await stage.scraped(`tributary_breaker_state{dependency="${dependency}"}`)).toBeGreaterThan(0);
  });
}

it('takes its level from what is away', () => {
  const at = (cache: boolean, database: boolean, spared = false) => levelOf({ cache, database, spared });
  expect([at(true, true), at(true, true, true), at(true, false), at(false, true), at(false, false)]).toEqual(levels);
  expect([at(true, false, true), at(false, true, true)]).toEqual(['stale', 'partial']);
});

it('leaves counters out under load, and takes them back when there is much less of it', () => {
  const seen: boolean[] = [];
  for (const pressure of [0.1, 0.29, 0.3, 0.9, 0.2, 0.15, 0.14, 0.29])
    seen.push(isSpared(pressure, seen.at(-1) ?? false));
  expect(seen).toEqual([false, false, true, true, true, true, false, false]);
});

describe('the way down and up again', () => {
  it('is one that balancers see: ready for pages without Postgres, for nothing without both', async () => {
    const health = createClient(
      Health,
      createGrpcTransport({ baseUrl: `http://127.0.0.1:${stage.service.service.grpcPort}` }),
    );
    const serving = async () => ({
      readyz: (await fetch(`http://127.0.0.1:${stage.service.service.httpPort}/readyz`)).status,
      pages: (await health.check({ service: 'tributary.v1.TimelineService' })).status,
      writes: (await health.check({ service: 'tributary.v1.PostService' })).status,
    });
    await eventually(async () => expect(await serving()).toEqual({ readyz: 200, pages: 1, writes: 1 }));
    await stage.postgres.refuse();
    await eventually(async () => expect(await serving()).toEqual({ readyz: 200, pages: 1, writes: 2 }));
    await stage.redis.refuse();
    await eventually(async () => expect(await serving()).toEqual({ readyz: 503, pages: 2, writes: 2 }));
    await stage.postgres.restore();
    await eventually(async () => expect(await serving()).toEqual({ readyz: 200, pages: 1, writes: 1 }));
  });

  it('without the cache: bounded pages from Postgres, PARTIAL and right, and full ones once it is back', async () => {
    expect(await look()).toMatchObject({ all: true, counted: true, named: 'Ada' });
    expect(await level()).toBe('full');
    await away('cache');
    expect(await look()).toMatchObject({ completeness: 'PARTIAL', all: true, counted: true, named: 'Ada' });
    expect(await level()).toBe('partial');
    expect(await wholeHome(stage.tenant, 'rita', 3)).toEqual((await stage.tenant.oracle('rita')).home);
    // What hides is durable, not confirmed, and holds by itself later.
    await expect(cast.play('rita mutes ben')).rejects.toThrow();
    expect((await look()).ids).not.toContain(cast.post('b').postId);
    await stage.redis.restore();
    await eventually(async () => expect(await look()).toMatchObject({ completeness: 'COMPLETE', all: true }));
    expect(await level()).toBe('full');
    await eventually(() => cast.play('rita unmutes ben'));
    const lines = stage.service.logLines.join('\n');
    expect(lines).toMatch(/"dependency":"cache","state":"open".*"msg":"breaker changed"/);
    expect(lines).toContain('"from":"full","to":"partial","msg":"the level of degradation changed"');
  });

  it('without Postgres: what the cache holds, counters left out', async () => {
    await away('database');
    expect(await look()).toMatchObject({ completeness: 'REDUCED', all: true, counted: false, named: 'Ada' });
    expect(await level()).toBe('stale');
    await stage.postgres.restore();
    await eventually(async () => expect(await look()).toMatchObject({ completeness: 'COMPLETE', counted: true }));
    expect(await level()).toBe('full');
  });

  it('without both: an empty page that says so, with a delay, and tokens that lead to all of it later', async () => {
    await away('cache', 'database');
    const page = await look();
    expect(page).toMatchObject({ completeness: 'UNAVAILABLE', ids: [], retry: true });
    expect(await level()).toBe('unavailable');
    const again = await stage.home('rita', page.next);
    expect(completenessOf(again)).toBe('UNAVAILABLE');
    const newer = await stage.home('rita', page.head);
    expect(completenessOf(newer)).toBe('UNAVAILABLE');
    await Promise.all([stage.redis.restore(), stage.postgres.restore()]);
    const { home } = await stage.tenant.oracle('rita');
    await eventually(async () => {
      expect(idsOf(await stage.home('rita', again.nextPageToken))).toEqual(home);
      expect(idsOf(await stage.home('rita', newer.nextPageToken))).toEqual(home.toReversed());
    });
  });
});

describe('without Postgres, a key', () => {
  it('that is known goes on opening what it did, longer than it is cached; one that is not is not told from one that cannot be looked up', async () => {
    const other = await stage.service.tenant();
    await other.timeline.getHomeTimeline({ viewerId: 'rita' });
    const fresh = await stage.service.tenant();
    await away('database');
    stage.service.clock.advance(KEY_CACHE_MS + 1);
    expect(await look()).toMatchObject({ completeness: 'REDUCED', all: true });
    expect(await refusalOf(fresh.timeline.getHomeTimeline({ viewerId: 'rita' }))).toMatchObject({
      reason: 'DATABASE_UNAVAILABLE',
    });
    await stage.postgres.restore();
    await stage.database.sql('UPDATE api_keys SET revoked_at = now() WHERE tenant_id = $1', [other.id]);
    await eventually(async () => expect((await look()).completeness).toBe('COMPLETE'));
    stage.service.clock.advance(KEY_CACHE_MS + 1);
    expect(await refusalOf(other.timeline.getHomeTimeline({ viewerId: 'rita' }))).toMatchObject({
      reason: 'INVALID_API_KEY',
    });
    await away('database');
    stage.service.clock.advance(KEY_CACHE_MS + 1);
    expect(await refusalOf(other.timeline.getHomeTimeline({ viewerId: 'rita' }))).toMatchObject({
      reason: 'DATABASE_UNAVAILABLE',
    });
    stage.service.clock.advance(OUTAGE_MS + 1);
    expect(await refusalOf(stage.home('rita'))).toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
    // On the wall it is as late as before: nobody mints ahead of the time.
    stage.service.clock.step(-(3 * (KEY_CACHE_MS + 1) + OUTAGE_MS + 1));
  });
});

describe('without Postgres, what is not known', () => {
  it.each([
    { gone: 'ap', what: 'profiles are left out', expected: { completeness: 'REDUCED', all: true, named: undefined } },
    { gone: 'pull', what: 'of pulled authors makes the page stale', expected: { completeness: 'STALE', named: 'Ada' } },
    { gone: 'al', what: 'of a pulled author’s list makes the page stale', expected: { completeness: 'STALE' } },
  ] as const)('$gone: $what', async ({ gone, expected }) => {
    await away('database');
    await stage.cached.evict(gone);
    const page = await look();
    expect(page).toMatchObject(expected);
    expect(page.ids).toEqual(expect.arrayContaining([...cast.ids('a1', 'a2', 'a3', 'own')]));
  });

  it.each([
    { gone: 'rel', what: 'relations hide all but one’s own' },
    { gone: 'am', what: 'states of authors hide all' },
    { gone: 'pm', what: 'meta of posts hides all' },
    { gone: 'pb', what: 'bodies hide all' },
  ] as const)('$gone: $what, and nothing is forgotten for that', async ({ gone }) => {
    const before = await stage.cached.entries('rita');
    await away('database');
    await stage.cached.evict(gone);
    const page = await look();
    expect(page).toMatchObject({ completeness: 'STALE', ids: gone === 'rel' ? cast.ids('own') : [] });
    await expect(stage.tenant.posts.getPost({ viewerId: 'rita', postId: cast.post('a1').postId })).rejects.toThrow(
      /database/,
    );
    await wholeAndCached();
    expect(await stage.cached.entries('rita')).toEqual(before);
  });

  it('of a timeline that is not there makes the page empty, and it says so', async () => {
    await away('database');
    await stage.cached.evict('tl');
    expect(await look()).toMatchObject({ completeness: 'UNAVAILABLE', ids: [], retry: true });
    await stage.postgres.restore();
    // Nobody waits for the lease of a rebuild that could not end.
    await eventually(async () => expect(await look()).toMatchObject({ completeness: 'COMPLETE', all: true }), {
      timeoutMs: 3_000,
    });
  });

  it('below what a timeline holds is not the end', async () => {
    await cast.play('tom follows zoe; zoe posts 40 times as z');
    await stage.service.settle();
    await wholeAndCached('tom');
    const { home } = await stage.tenant.oracle('tom');
    await away('database');
    const page = await look('tom');
    expect(page.completeness).toBe('STALE');
    expect(page.ids.length).toBeGreaterThan(0);
    expect(home.slice(0, page.ids.length)).toEqual(page.ids);
    const below = await stage.home('tom', page.next);
    expect([completenessOf(below), below.entries]).toEqual(['UNAVAILABLE', []]);
    await stage.postgres.restore();
    await eventually(async () =>
      expect(idsOf(await stage.home('tom', below.nextPageToken))).toEqual(home.slice(page.ids.length)),
    );
  });
});
