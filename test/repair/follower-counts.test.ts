/** Owns the promise of follower counts: equal to the rows once folded, never negative on the way, changed twice by nothing, and in nobody's way. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { runAdmin } from '../../src/admin.ts';
import { createRecountFollowers } from '../../src/repair/recount-followers.ts';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import { findNextCounted, foldCounterDeltas, recountFollowers } from '../../src/store/postgres/counters.ts';
import type { TenantId } from '../../src/timeline/ids.ts';
import { eventually } from '../harness/eventually.ts';
import { storeFollowers } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';

let service: TestService;
let tenant: TestTenant;
let database: Database;
beforeAll(async () => {
  // No aggregator but the ones that tests run.
  service = await startTestService({ env: { TRIBUTARY_ROLE: 'api' } });
  database = createDatabase({
    ...service.config.database,
    url: service.config.databaseUrl,
    pool: 'aggregator',
    connectionsMax: 4,
    lockTimeoutMs: 10_000,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
});
afterAll(async () => {
  await Promise.all([database.close(), service.stop()]);
});
beforeEach(async () => {
  tenant = await service.tenant();
  await service.database.sql('DELETE FROM counter_deltas');
});

const soon = (): AbortSignal => AbortSignal.timeout(20_000);
const viewers = (count: number, from = 0) => Array.from({ length: count }, (_, at) => `viewer-${from + at}`);
const follow = (followerId: string, followeeId = 'ada') => tenant.graph.follow({ followerId, followeeId });
const unfollow = (followerId: string, followeeId = 'ada') => tenant.graph.unfollow({ followerId, followeeId });

async function fold(most = 5_000): Promise<void> {
  while ((await foldCounterDeltas(database, soon(), most)) > 0);
}

async function count(author = 'ada'): Promise<number | undefined> {
  const [row] = await service.database.sql<{ follower_count: number }>(
    'SELECT follower_count FROM authors WHERE tenant_id = $1 AND author_id = $2',
    [tenant.id, author],
  );
  return row?.follower_count;
}

async function rows(author = 'ada'): Promise<number> {
  const [row] = await service.database.sql<{ count: number }>(
    'SELECT count(*)::int AS count FROM follows WHERE tenant_id = $1 AND followee_id = $2 AND ended_at IS NULL',
    [tenant.id, author],
  );
  return row?.count ?? -1;
}

describe('a follower count', () => {
  it('under follows and ends of follows by many at once is never negative, and equals the rows once folded', {
    timeout: 60_000,
  }, async () => {
    const samples: number[] = [];
    let ended = false;
    const aggregator = (async () => {
      while (!ended) {
        await Promise.all([foldCounterDeltas(database, soon(), 7), foldCounterDeltas(database, soon(), 7)]);
        samples.push((await count()) ?? 0);
      }
    })();
    const waiting = viewers(200).values();
    async function change(): Promise<void> {
      for (const viewer of waiting) {
        await follow(viewer);
        const number = Number(viewer.split('-')[1]);
        if (number % 2 === 0) await unfollow(viewer);
        if (number % 4 === 0) await Promise.all([follow(viewer), follow(viewer)]);
        if (number % 8 === 0) await Promise.all([unfollow(viewer), unfollow(viewer)]);
      }
    }
    await Promise.all(Array.from({ length: 32 }, change));
    ended = true;
    await aggregator;
    await fold();
    expect(await rows()).toBe(125);
    expect(await count()).toBe(125);
    expect(samples.length).toBeGreaterThan(10);
    expect(Math.min(...samples)).toBeGreaterThanOrEqual(0);
  });

  it('is no row that a follow waits for: while somebody holds it, follows and their ends are answered', async () => {
    await follow('first');
    await fold();
    const holder = await service.database.session();
    await holder.query('BEGIN');
    await holder.query('SELECT 1 FROM authors WHERE tenant_id = $1 AND author_id = $2 FOR UPDATE', [tenant.id, 'ada']);
    await Promise.all(viewers(100).map((viewer) => follow(viewer)));
    await Promise.all(viewers(40).map((viewer) => unfollow(viewer)));
    await tenant.graph.block({ blockerId: 'ada', blockedId: 'viewer-99' });
    await holder.query('ROLLBACK');
    await fold();
    expect([await count(), await rows()]).toEqual([60, 60]);
  });

  it('is not changed by an aggregator that dies before it has committed; the next one counts each change once', async () => {
    await Promise.all(viewers(20).map((viewer) => follow(viewer)));
    await fold();
    await Promise.all(viewers(20, 20).map((viewer) => follow(viewer)));
    const holder = await service.database.session();
    await holder.query('BEGIN');
    await holder.query('SELECT 1 FROM authors WHERE tenant_id = $1 AND author_id = $2 FOR UPDATE', [tenant.id, 'ada']);
    // It has taken the changes away and waits for the total.
    const dying = foldCounterDeltas(database, soon(), 5_000).then(
      () => 'folded',
      () => 'died',
    );
    await eventually(async () => {
      const killed = await service.database.sql(
        `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'tributary-aggregator' AND wait_event_type = 'Lock'`,
      );
      expect(killed).toHaveLength(1);
    });
    expect(await dying).toBe('died');
    await holder.query('ROLLBACK');
    expect(await count()).toBe(20);
    await fold();
    await fold();
    expect([await count(), await rows()]).toEqual([40, 40]);
  });

  it('of one author whom 20 calls at once unfollow is down by one', async () => {
    await follow('rita');
    await follow('ruth');
    await fold();
    await Promise.all(Array.from({ length: 20 }, () => unfollow('rita')));
    await fold();
    expect([await count(), await rows()]).toEqual([1, 1]);
  });
});

describe('a recount', () => {
  const recount = (author = 'ada') => recountFollowers(database, soon(), { tenant: tenant.id, author: userId(author) });

  it('puts a wrong count right, once, also where many recount at once and follows change meanwhile', async () => {
    await Promise.all(viewers(30).map((viewer) => follow(viewer)));
    await fold();
    await service.database.sql('UPDATE authors SET follower_count = 1000 WHERE tenant_id = $1', [tenant.id]);
    const work = [
      ...viewers(30, 30).map((viewer) => follow(viewer)),
      ...viewers(10).map((viewer) => unfollow(viewer)),
      ...Array.from({ length: 10 }, () => recount()),
      fold(3),
      fold(4),
    ];
    await Promise.all(work);
    await fold();
    expect([await count(), await rows()]).toEqual([50, 50]);
    expect(await recount()).toEqual({ followers: 50, correction: 0 });
    await fold();
    expect(await count()).toBe(50);
  });

  it('waits for one of the same author that has not committed, and does not correct again', async () => {
    await storeFollowers(service.database, tenant.id, { followee: 'ada', followers: viewers(5) });
    const session = await service.database.session();
    await session.query('BEGIN');
    await session.query("SELECT pg_advisory_xact_lock(hashtextextended('recount ada ' || $1, 0))", [tenant.id]);
    await session.query(
      "INSERT INTO counter_deltas (tenant_id, counter, author_id, delta) VALUES ($1, 'followers', 'ada', 5)",
      [tenant.id],
    );
    let ended = false;
    const second = recount().finally(() => {
      ended = true;
    });
    await eventually(async () => {
      const waiting = await service.database.sql(
        "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
      );
      if (!ended && waiting.length === 0) throw new Error('neither ended nor waiting');
    });
    await session.query('COMMIT');
    expect(await second).toEqual({ followers: 5, correction: 0 });
  });

  it('counts follows that no counter ever heard of, and changes that are not folded', async () => {
    await storeFollowers(service.database, tenant.id, { followee: 'ben', followers: viewers(12) });
    await follow('rita', 'ben');
    expect(await recount('ben')).toEqual({ followers: 13, correction: 12 });
    expect(await recount('nobody')).toEqual({ followers: 0, correction: 0 });
    await fold();
    expect([await count('ben'), await count('nobody')]).toEqual([13, undefined]);
  });

  it('of all authors stops when its time is up, says where, and goes on from there', async () => {
    const authors = Array.from({ length: 9 }, (_, at) => `author-${at}`);
    for (const followee of authors) {
      await storeFollowers(service.database, tenant.id, { followee, followers: viewers(3) });
    }
    await service.database.sql('INSERT INTO authors (tenant_id, author_id, follower_count) VALUES ($1, $2, 5)', [
      tenant.id,
      'author-9-without-followers',
    ]);
    // Each look at the clock is a second later than the one before.
    let seconds = 0;
    const walk = createRecountFollowers({
      clock: {
        nowMs: () => Date.now(),
        monotonicMs: () => {
          seconds += 1;
          return seconds * 1_000;
        },
      },
      recount: (call, author) => recountFollowers(database, call.signal, { tenant: call.tenant, author }),
      findNextCounted: (call, after) => findNextCounted(database, call.signal, { tenant: call.tenant, after }),
    });
    expect(await walk(tenant.call(), { after: '' }, 4_000)).toEqual({
      authors: 4,
      corrected: 4,
      stoppedAfter: 'author-3',
    });
    expect(await walk(tenant.call(), { after: userId('author-3') }, 60_000)).toEqual({ authors: 6, corrected: 6 });
    expect(await walk(tenant.call(), { after: '' }, 60_000)).toEqual({ authors: 10, corrected: 0 });
    await fold();
    for (const author of authors) expect(await count(author)).toBe(3);
    expect(await count('author-9-without-followers')).toBe(0);
  });

  it('is a verb of operators, for one author and for all, and refuses a tenant that is not there', async () => {
    await storeFollowers(service.database, tenant.id, { followee: 'ada', followers: viewers(4) });
    await storeFollowers(service.database, tenant.id, { followee: 'ben', followers: viewers(2) });
    const env = {
      DATABASE_URL: service.config.databaseUrl,
      REDIS_CACHE_URL: service.config.cache.urls[0] ?? '',
    };
    const lines: string[] = [];
    const admin = (...args: readonly string[]) =>
      runAdmin(['recount-followers', ...args], env, (line) => lines.push(line));
    await admin('--tenant', tenant.id, '--author', 'ada');
    await admin('--tenant', tenant.id);
    await admin('--tenant', tenant.id, '--after', 'ada');
    expect(lines).toEqual([
      '1 authors counted, 1 put right',
      '2 authors counted, 1 put right',
      '1 authors counted, 0 put right',
    ]);
    await expect(admin('--tenant', 'no-such-tenant' as TenantId)).rejects.toMatchObject({ reason: 'TENANT_NOT_FOUND' });
    await fold();
    expect([await count('ada'), await count('ben')]).toEqual([4, 2]);
  });
});
