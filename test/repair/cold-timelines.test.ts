/** Owns what readers and operators of a running service see of rebuilds: many readers of one cold timeline, very long follow lists, a rebuild that Postgres cuts off, one that an operator asks for. */
import { spawn } from 'node:child_process';
import path from 'node:path';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Completeness } from '../../src/gen/tributary/v1/author_pb.ts';
import { composePostId } from '../../src/timeline/ids.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { type Clients, connectClients } from '../harness/clients.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually, within } from '../harness/eventually.ts';
import type { Cast } from '../harness/play.ts';
import { storeFollowees, storePosts } from '../harness/rows.ts';
import { environmentOf, startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

const ENV = { TIMELINE_CAP: '20' };
const READERS_EACH = 100;
const YEAR_MS = 365 * 86_400_000;
const MAIN = path.resolve(import.meta.dirname, '../../src/main.ts');

let database: TestDatabase;
let services: readonly [TestService, TestService];
let service: TestService;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  database = await createTestDatabase();
  service = await startTestService({ database, env: ENV });
  services = [service, await startTestService({ database, env: { ...ENV, TRIBUTARY_ROLE: 'api' } })];
});
afterAll(async () => {
  for (const one of services ?? []) await one.stop();
  await database.drop();
});
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
  return () => cached.close();
});

const read = (clients: Clients = tenant) => clients.timeline.getHomeTimeline({ viewerId: 'rita', pageSize: 10 });

/** Rebuilds of timelines that stored one, in both processes. */
async function countRebuilds(): Promise<number> {
  let sum = 0;
  for (const one of services) {
    const { body } = await one.service.metrics.exposition();
    for (const line of body.matchAll(
      /^tributary_rebuild_seconds_count\{what="timeline",.*outcome="rebuilt"\} (\d+)$/gm,
    ))
      sum += Number(line[1]);
  }
  return sum;
}

describe('a cold timeline', { timeout: 60_000 }, () => {
  it('that 200 readers of two processes ask for at once is rebuilt once or twice, and each of them gets the page', async () => {
    await cast.play('rita follows ada; ada posts 5 times as a');
    await service.settle();
    const everywhere = services.map((one) => connectClients({ protocol: 'grpc', ...portsOf(one), key: tenant.key }));
    for (const clients of everywhere) await read(clients);
    await cached.evict('tl');
    const before = await countRebuilds();
    const pages = await Promise.all(
      everywhere.flatMap((clients) => Array.from({ length: READERS_EACH }, () => read(clients))),
    );
    for (const clients of everywhere) clients.close();
    const home = [...cast.ids('a5', 'a4', 'a3', 'a2', 'a1')];
    for (const page of pages) expect(page.entries.map((view) => view.post?.postId)).toEqual(home);
    const rebuilds = (await countRebuilds()) - before;
    expect(rebuilds).toBeGreaterThanOrEqual(1);
    expect(rebuilds).toBeLessThanOrEqual(2);
  });

  it('of 5,000 followees who have been silent for a year, 2,000 of them muted, is rebuilt in a read, whatever others write', async () => {
    const silent = Array.from({ length: 5_000 }, (_, at) => `silent${at}`);
    const busy = Array.from({ length: 6_000 }, (_, at) => ({ author: `busy${at % 50}`, sinceMs: at * 1_000 }));
    const nowMs = service.clock.nowMs();
    const at = (ms: number, sequence: number) => composePostId({ ms, generator: 0, sequence: sequence % 32 });
    await storePosts(database, tenant.id, [
      ...silent.map((author, n) => ({ author, postId: at(nowMs - YEAR_MS - n * 60_000, n) })),
      ...busy.map(({ author, sinceMs }, n) => ({ author, postId: at(nowMs - 60_000 - sinceMs, n) })),
    ]);
    await storeFollowees(database, tenant.id, { follower: 'rita', followees: silent });
    await storeFollowees(database, tenant.id, { follower: 'ruth', followees: silent.slice(0, 5) });
    await database.sql(
      "INSERT INTO mutes (tenant_id, muter_id, muted_id) SELECT $1, 'rita', 'silent' || n FROM generate_series(0, 4999) n WHERE n % 5 IN (1, 3)",
      [tenant.id],
    );
    const before = await countRebuilds();
    const page = await read();
    expect(page.completeness).toBe(Completeness.COMPLETE);
    expect(page.entries.map((view) => view.post?.postId)).toEqual((await tenant.oracle('rita')).home.slice(0, 10));
    const few = await tenant.timeline.getHomeTimeline({ viewerId: 'ruth' });
    expect(few.completeness).toBe(Completeness.COMPLETE);
    expect(few.entries.map((view) => view.post?.postId)).toEqual((await tenant.oracle('ruth')).home);
    expect((await countRebuilds()) - before).toBe(2);
    // Muted posts have their entries: what is hidden is decided when it is read.
    expect((await cached.entries('rita'))?.length).toBe(20);
  });
});

describe('a rebuild that Postgres cuts off', { timeout: 60_000 }, () => {
  it('gives its reader a page that says it is partial, and no error; a later reader has it complete', async () => {
    await cast.play('rita follows ada; ada posts 5 times as a');
    await service.settle();
    await read();
    await cached.evict('tl');
    const lock = await database.session();
    await lock.query('BEGIN');
    // Who is pulled is known; the next statement is the snapshot's.
    await lock.query('LOCK TABLE follows IN ACCESS EXCLUSIVE MODE');
    const reading = read();
    reading.catch(() => undefined);
    await eventually(async () => {
      // As a statement time-out ends it.
      const cut = await database.sql<{ cut: boolean }>(
        `SELECT pg_cancel_backend(pid) AS cut FROM pg_stat_activity
         WHERE datname = current_database() AND wait_event_type = 'Lock' AND query LIKE '%first_window AS MATERIALIZED%'`,
      );
      expect(cut).toEqual([{ cut: true }]);
    });
    await lock.query('COMMIT');
    const page = await reading;
    expect(page.completeness).toBe(Completeness.PARTIAL);
    const home = [...cast.ids('a5', 'a4', 'a3', 'a2', 'a1')];
    expect(page.entries.map((view) => view.post?.postId)).toEqual(home);
    await eventually(async () => expect((await read()).completeness).toBe(Completeness.COMPLETE), {
      timeoutMs: 10_000,
    });
    expect(await wholeHome(tenant, 'rita')).toEqual(home);
  });
});

describe('npm run admin -- rebuild', { timeout: 60_000 }, () => {
  async function admin(
    ...args: readonly string[]
  ): Promise<{ readonly code: number | null; readonly out: string; readonly err: string }> {
    const child = spawn(process.execPath, [MAIN, 'admin', ...args], {
      env: { ...environmentOf(database, ENV), PATH: process.env['PATH'] ?? '' },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let out = '';
    let err = '';
    child.stdout.on('data', (text) => {
      out += text;
    });
    child.stderr.on('data', (text) => {
      err += text;
    });
    const ended = Promise.withResolvers<number | null>();
    child.once('close', ended.resolve);
    return { code: await within(ended.promise, 40_000), out, err };
  }

  it('replaces what is wrong, says what is there now, and ends with 0', async () => {
    await cast.play('rita follows ada; ada posts 3 times as a');
    await service.settle();
    await read();
    await cached.corrupt('rita', { without: cast.post('a2').postId });
    expect(await cached.entries('rita')).toHaveLength(2);
    const done = await admin('rebuild', '--tenant', tenant.id, '--viewer', 'rita');
    expect(done).toEqual({ code: 0, err: '', out: 'home of rita rebuilt: 3 entries, all there are\n' });
    expect(await cached.entries('rita')).toEqual([...cast.ids('a3', 'a2', 'a1')]);

    await cast.play('ada posts 30 times as b');
    await service.settle();
    const { code, out } = await admin('rebuild', '--tenant', tenant.id, '--viewer', 'rita');
    expect(code).toBe(0);
    expect(out).toMatch(/^home of rita rebuilt: 20 entries, down to \d+, below which pages come from Postgres\n$/);
    expect(await wholeHome(tenant, 'rita')).toEqual((await tenant.oracle('rita')).home);
  });

  it('says what is wrong and ends with 1', async () => {
    const nobody = await admin('rebuild', '--tenant', 'no-such-tenant', '--viewer', 'rita');
    expect(nobody).toEqual({ code: 1, out: '', err: 'There is no tenant no-such-tenant.\n' });
    const unnamed = await admin('rebuild', '--tenant', tenant.id);
    expect(unnamed.code).toBe(1);
    expect(unnamed.err).toMatch(/^--viewer is needed\.\nUsage/);
  });
});

function portsOf({ service: { grpcPort, httpPort } }: TestService): {
  readonly grpcPort: number;
  readonly httpPort: number;
} {
  return { grpcPort, httpPort };
}
