/** Owns what other processes and other callers see of a rebuild that is held up, or killed, with its snapshot loaded and nothing stored. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { Completeness } from '../../src/gen/tributary/v1/author_pb.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { type Clients, connectClients } from '../harness/clients.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually, within } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import type { Cast } from '../harness/play.ts';
import { type RoleProcess, startRole } from '../harness/role-process.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

/** Over only when a test says so. */
const ENV = { REBUILD_LEASE_MS: '60000', REBUILD_WAIT_MS: '50' };
/** Little beside the lease. */
const AT_ONCE_MS = 5_000;
const PATIENT = { timeoutMs: 20_000, everyMs: 20 };

let database: TestDatabase;
let living: TestService;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
let rows: FaultProxy;
let held: RoleProcess;
let clients: Clients;
beforeEach(async () => {
  database = await createTestDatabase();
  living = await startTestService({ database, env: ENV });
  tenant = await living.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
  await cast.play('rita follows ada; ada posts 5 times as a');
  await living.settle();
  rows = await startFaultProxy({ port: Number(new URL(database.url).port) });
});
afterEach(async () => {
  clients.close();
  await held.kill();
  await rows.stop();
  cached.close();
  await living.stop();
  await database.drop();
});

/** Another process, and what it answers to a read of rita's home whose snapshot Postgres has given and nobody has received. */
async function holdRebuild(): Promise<{ readonly page: Promise<readonly string[]> }> {
  held = await startRole('api', { ...database, url: rows.through(database.url) }, ENV);
  clients = connectClients({ protocol: 'grpc', ...held, key: tenant.key });
  // The key is known from here on.
  await clients.timeline.getHomeTimeline({ viewerId: 'ruth' });
  // So is whom rita follows: what Postgres is asked next is the snapshot.
  await read();
  await cached.evict('tl');
  rows.holdAnswers();
  const [now] = await database.sql<{ at: Date }>('SELECT clock_timestamp() AS at');
  const page = clients.timeline
    .getHomeTimeline({ viewerId: 'rita' })
    .then(({ entries }) => entries.map((view) => view.post?.postId ?? ''));
  page.catch(() => undefined);
  // Begun: pushes land in it, and it holds nothing.
  await eventually(async () => expect(await cached.entries('rita')).toEqual([]), PATIENT);
  await eventually(async () => {
    const answered = await database.sql(
      `SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'tributary-requests'
       AND state = 'idle' AND query_start > $1`,
      [now?.at],
    );
    expect(answered).toHaveLength(1);
  }, PATIENT);
  return { page };
}

const read = () => tenant.timeline.getHomeTimeline({ viewerId: 'rita' });

describe('a process that is killed while it rebuilds', { timeout: 60_000 }, () => {
  it('leaves readers elsewhere a full page at once, and a ready timeline after its lease', async () => {
    const { page } = await holdRebuild();
    await held.kill();
    await expect(page).rejects.toMatchObject({ code: expect.anything() });

    const home = [...cast.ids('a5', 'a4', 'a3', 'a2', 'a1')];
    const first = await within(read(), AT_ONCE_MS);
    expect(first.entries.map((view) => view.post?.postId)).toEqual(home);
    expect(first.completeness).toBe(Completeness.PARTIAL);
    await cast.play('ada posts "meanwhile" as b');
    await living.settle();
    expect((await read()).completeness).toBe(Completeness.PARTIAL);
    // What is pushed while nobody rebuilds it is kept for whoever does.
    await cached.ageRebuild('rita');
    await eventually(async () => expect((await read()).completeness).toBe(Completeness.COMPLETE), PATIENT);
    const all = [cast.post('b').postId, ...home];
    expect(await cached.entries('rita')).toEqual(all);
    expect(await wholeHome(tenant, 'rita')).toEqual(all);
  });
});

describe('a delete between the snapshot of a rebuild and its storing', { timeout: 60_000 }, () => {
  it('is not undone: the post is on no page, neither of that reader nor of the next, and leaves the timeline', async () => {
    const { page } = await holdRebuild();
    await cast.play('ada deletes a3');
    await rows.restore();
    const left = [...cast.ids('a5', 'a4', 'a2', 'a1')];
    expect(await page).toEqual(left);
    expect(await wholeHome(tenant, 'rita')).toEqual(left);
    await eventually(async () => expect(await cached.entries('rita')).toEqual(left), PATIENT);
  });
});
