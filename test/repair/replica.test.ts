/**
 * Owns what readers see where rebuilds may read a replica of Postgres: always what the primary says, whatever the replica lacks, is, or does; and that one in step is used.
 */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Completeness } from '../../src/gen/tributary/v1/author_pb.ts';
import { createDatabase, type Database, type Queries } from '../../src/store/postgres/client.ts';
import { type Mark, readCaughtUp, readMark } from '../../src/store/postgres/replica.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import type { Cast } from '../harness/play.ts';
import { type PostgresPair, startPostgresPair } from '../harness/postgres-pair.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

const PATIENT = { timeoutMs: 20_000 };

let pair: PostgresPair;
let database: TestDatabase;
let way: FaultProxy;
let service: TestService;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  pair = await startPostgresPair();
  database = await createTestDatabase(pair.primaryUrl);
  await pair.caughtUp();
  way = await startFaultProxy({ port: pair.replica.port });
  service = await startTestService({
    database,
    env: { DATABASE_REPLICA_URL: way.through(pair.replicaUrl(database.name)) },
  });
}, 60_000);
afterAll(async () => {
  await service?.stop();
  await database?.drop();
  await way?.stop();
  await pair?.stop();
});
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
  await cast.play('rita follows ada; rita follows bob; ada posts 3 times as a; bob posts 2 times as b');
  await service.settle();
  await read();
  return () => cached.close();
});

const read = () => tenant.timeline.getHomeTimeline({ viewerId: 'rita' });

async function scraped(series: string): Promise<number | undefined> {
  const { body } = await service.service.metrics.exposition();
  const line = body.split('\n').find((each) => each.startsWith(`${series} `));
  return line === undefined ? undefined : Number(line.slice(series.length + 1));
}
const readsFrom = async (from: string) => (await scraped(`tributary_snapshot_reads_total{from="${from}"}`)) ?? 0;

const told = (standing: string) => service.logLines.some((line) => line.includes(`"standing":"${standing}"`));
const soon = () => AbortSignal.timeout(20_000);
const POSTS = { name: 'test-posts', text: 'SELECT count(*) AS posts FROM posts WHERE tenant_id = $1' };
const openBoth = () => [open(database.url), open(pair.replicaUrl(database.name))] as const;

/** Loses rita's timeline, and has a reader rebuild it, who must see what the oracle does. */
async function rebuild(): Promise<void> {
  await cached.evict('tl');
  const page = await read();
  const { home } = await tenant.oracle('rita');
  expect(page.entries.map((view) => view.post?.postId)).toEqual(home);
  expect(page.completeness).toBe(Completeness.COMPLETE);
}

/** Rebuilds until the replica gives the snapshot, as it does from the moment on that it has been seen in step. */
const untilReplica = () =>
  eventually(async () => {
    const before = await readsFrom('replica');
    await rebuild();
    expect(await readsFrom('replica')).toBe(before + 1);
  }, PATIENT);

describe('a replica', { timeout: 60_000 }, () => {
  it('in step gives the snapshots of rebuilds, and its lag is told', async () => {
    await pair.caughtUp();
    await untilReplica();
    expect(await cached.entries('rita')).toEqual((await tenant.oracle('rita')).home);
    await eventually(async () => expect(await scraped('tributary_replica_lag_seconds')).toBe(0), PATIENT);
  });

  it('that lags lacks nothing for readers: what was posted, deleted and unfollowed meanwhile is as on the primary, in page and timeline', async () => {
    await untilReplica();
    await pair.pause();
    try {
      const before = await readsFrom('replica');
      await cast.play(
        'ada posts "unseen" as c; ada deletes a2; rita unfollows bob; rita follows zoe; zoe posts "new" as z',
      );
      await service.settle();
      await rebuild();
      expect(await readsFrom('replica')).toBe(before);
      const home = [...cast.ids('z', 'c', 'a3', 'a1')];
      expect(await cached.entries('rita')).toEqual(home);
      expect(await wholeHome(tenant, 'rita')).toEqual(home);
      await eventually(async () => expect(await scraped('tributary_replica_lag_seconds')).toBeGreaterThan(1), PATIENT);
      await eventually(() => expect(told('lagging')).toBe(true), PATIENT);
      await rebuild();
      expect(await readsFrom('primary_lagging')).toBeGreaterThan(0);
    } finally {
      await pair.resume();
    }
    await untilReplica();
  });

  it('that is behind for a moment is waited for', async () => {
    const [primary, replica] = openBoth();
    await pair.pause();
    await cast.play('ada posts "unseen" as c');
    const mark = await readMark(primary, soon());
    const count = async (from: Queries) => from.query<{ posts: number }>(soon(), POSTS, [tenant.id]);
    const reading = readCaughtUp(replica, soon(), { mark, waitMs: 10_000 }, count);
    await pair.resume();
    expect(await reading).toEqual([{ posts: 6 }]);
    await Promise.all([primary.close(), replica.close()]);
  });

  it('that has all there is is in step also where the primary has just begun a new file of its log', async () => {
    const [primary, replica] = openBoth();
    for (let times = 0; times < 3; times += 1) {
      await database.sql('SELECT pg_switch_wal()');
      const mark = await readMark(primary, soon());
      expect(await readCaughtUp(replica, soon(), { mark, waitMs: 3_000 }, async () => mark.lsn)).toBe(mark.lsn);
    }
    await Promise.all([primary.close(), replica.close()]);
  });

  it('that goes silent in the middle costs its readers a moment, and no entry; it is used again when it is back', async () => {
    await untilReplica();
    way.blackhole();
    for (let times = 0; times < 3; times += 1) await rebuild();
    await way.restore();
    await untilReplica();
  });

  it('that is killed and comes back is used again', async () => {
    await untilReplica();
    await pair.replica.kill();
    try {
      await rebuild();
      expect(await readsFrom('primary_away')).toBeGreaterThan(0);
      await eventually(async () => expect(await scraped('tributary_replica_lag_seconds')).toBeUndefined(), PATIENT);
      expect(told('away')).toBe(true);
    } finally {
      await pair.replica.restart();
    }
    await untilReplica();
  });

  it('of another cluster, database or timeline is not read', async () => {
    const [primary, replica] = openBoth();
    const signal = soon();
    const mark = await readMark(primary, signal);
    await pair.caughtUp();
    const give = (other: Partial<Mark>) =>
      readCaughtUp(replica, signal, { mark: { ...mark, ...other }, waitMs: 0 }, async () => 'read');
    expect(await give({})).toBe('read');
    for (const other of [{ system: '1' }, { database: 1 }, { timeline: mark.timeline + 1 }])
      await expect(give(other)).rejects.toMatchObject({ why: 'foreign' });
    await expect(give({ lsn: 'FFFFFFFF/0' })).rejects.toMatchObject({ why: 'lagging' });
    // A role that may do nothing but read, and is told less.
    await database.sql("CREATE ROLE reader LOGIN PASSWORD 'reader'");
    await pair.caughtUp();
    const asReader = (url: string): Database => open(url.replace(/\/\/[^@]*@/, '//reader:reader@'));
    const [plainPrimary, plainReplica] = [asReader(database.url), asReader(pair.replicaUrl(database.name))];
    const seen = await readMark(plainPrimary, signal);
    expect(await readCaughtUp(plainReplica, signal, { mark: seen, waitMs: 10_000 }, async () => 'read')).toBe('read');
    await Promise.all([plainPrimary.close(), plainReplica.close()]);
    // A server that follows nobody, and so is no replica.
    const same = readCaughtUp(primary, signal, { mark, waitMs: 0 }, async () => 'read');
    await expect(same).rejects.toMatchObject({ why: 'foreign' });
    await Promise.all([primary.close(), replica.close()]);
  });

  it('that is promoted is not read any more: its history is its own', async () => {
    await untilReplica();
    const [primary, replica] = openBoth();
    const mark = await readMark(primary, soon());
    const inTheMiddle = readCaughtUp(replica, soon(), { mark, waitMs: 10_000 }, () =>
      pair.onReplica('SELECT pg_promote(true)'),
    );
    await expect(inTheMiddle).rejects.toMatchObject({ why: 'foreign' });
    await Promise.all([primary.close(), replica.close()]);
    await cast.play('ada posts "after" as c; rita unfollows bob');
    await service.settle();
    for (let times = 0; times < 3; times += 1) await rebuild();
    expect(await wholeHome(tenant, 'rita')).toEqual([...cast.ids('c', 'a3', 'a2', 'a1')]);
    await eventually(() => expect(told('foreign')).toBe(true), PATIENT);
    const before = await readsFrom('replica');
    await rebuild();
    expect(await readsFrom('replica')).toBe(before);
    expect(await readsFrom('primary_foreign')).toBeGreaterThan(0);
  });
});

function open(url: string): Database {
  return createDatabase({
    url,
    pool: 'test',
    connectionsMax: 1,
    acquireTimeoutMs: 10_000,
    statementTimeoutMs: 10_000,
    lockTimeoutMs: 10_000,
    waitersMax: 10,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
}
