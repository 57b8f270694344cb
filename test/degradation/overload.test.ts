/** Owns what happens when more comes than Postgres can do, by itself or because the cache is away: what is admitted is served in time, the rest is told at once, and nothing stays behind. */
import { afterEach, expect, it } from 'vitest';
import { refusalFrom } from '../harness/clients.ts';
import { eventually, within } from '../harness/eventually.ts';
import { type OutageStage, openOutageStage } from './outage-stage.ts';

/** Each way. A statement takes twice as long, so two connections do twenty in a second. */
const WAY_MS = 50;
const PER_SECOND = 80;
const SECONDS = 4;

let stage: OutageStage;
afterEach(() => stage.close());

async function open(env: Readonly<Record<string, string>>): Promise<void> {
  stage = await openOutageStage({ TRIBUTARY_ROLE: 'api', ...env });
  await stage.tenant.cast().play('rita follows ada; ada posts 3 times');
  await stage.home('rita');
}

/** One statement each. */
const read = () => stage.tenant.graph.listFollowing({ userId: 'rita' });
const deep = () => stage.tenant.timeline.getHomeHead({ viewerId: 'rita' });

it('sheds before the wait for a connection ends by force, answers what it admits, and is itself again right after', async () => {
  await open({
    DATABASE_POOL_REQUESTS: '2',
    DATABASE_ACQUIRE_TIMEOUT_MS: '1000',
    READ_DEADLINE_DEFAULT_MS: '3000',
  });
  stage.postgres.delay(WAY_MS);
  const ends: string[] = [];
  const calls: Promise<unknown>[] = [];
  let inFlight = 0;
  for (let at = 0; at < PER_SECOND * SECONDS; at += 1) {
    const call: Promise<unknown> = at % 5 === 0 ? deep() : read();
    calls.push(
      within(call, 15_000).then(
        () => ends.push('served'),
        (fault) => ends.push(refusalFrom(fault).message),
      ),
    );
    await new Promise((resolve) => setTimeout(resolve, 1_000 / PER_SECOND));
    if (at % PER_SECOND === 0) inFlight = Math.max(inFlight, await stage.scraped('tributary_rpc_in_flight_calls'));
  }
  await Promise.all(calls);

  const count = (end: string): number => ends.filter((one) => one.includes(end)).length;
  const shed = count('the service has more to do than it can');
  expect(shed).toBeGreaterThan(PER_SECOND);
  expect(await shedBy('deep')).toBeGreaterThan(0);
  expect(await shedBy('read')).toBeGreaterThan(0);
  // Of what was admitted nearly all was served, none late; a wait that ends by force is an accident.
  expect(count('served')).toBeGreaterThan(10 * SECONDS);
  expect(ends.filter((end) => end.includes('deadline'))).toEqual([]);
  expect(count('served') + shed).toBeGreaterThan(0.9 * ends.length);
  expect(inFlight).toBeLessThan(PER_SECOND);

  await stage.postgres.restore();
  await eventually(async () => {
    expect(await stage.scraped('tributary_rpc_in_flight_calls')).toBe(0);
    expect(await stage.scraped('tributary_degradation_level')).toBe(0);
  });
  const before = (await shedBy('deep')) + (await shedBy('read'));
  for (let at = 0; at < 10; at += 1) await Promise.all([read(), deep()]);
  expect((await shedBy('deep')) + (await shedBy('read'))).toBe(before);
});

it('without the cache lets a few reads at once through to Postgres, tells the others at once, and leaves room for writes', async () => {
  await open({ DEGRADED_READS_MAX: '1' });
  await stage.redis.refuse();
  await eventually(async () => {
    await stage.home('rita');
    expect(await stage.scraped('tributary_breaker_state{dependency="cache"}')).toBeGreaterThan(0);
  });
  stage.postgres.delay(WAY_MS);
  const leaving = new AbortController();
  const left = stage.tenant.timeline
    .getHomeTimeline({ viewerId: 'rita' }, { signal: leaving.signal })
    .catch((fault: unknown) => refusalFrom(fault).code);
  let busiest = 0;
  let watching = true;
  const watched = (async () => {
    const busy = 'tributary_database_connections{pool="requests",state="busy"}';
    while (watching) busiest = Math.max(busiest, await stage.scraped(busy));
  })();
  const reads = Array.from({ length: 30 }, () => refusedOr(stage.home('rita')));
  leaving.abort();
  const write = stage.tenant.posts.publishPost({ authorId: 'ada', text: 'through' });
  expect(await left).toBe('CANCELED');
  await within(write, 10_000);
  const ends = await within(Promise.all(reads), 20_000);
  watching = false;
  await watched;
  // One is served at a time, and sixteen may wait.
  const refused = ends.filter((end) => end === 'OVERLOADED').length;
  expect(refused).toBeGreaterThan(0);
  expect(ends.filter((end) => end === 'served').length).toBe(30 - refused);
  expect(await stage.scraped('tributary_degraded_reads_refused_total')).toBe(refused);
  // Three for the read that is being served, two for the write.
  expect(busiest).toBeLessThanOrEqual(5);
});

const refusedOr = (call: Promise<unknown>): Promise<string | undefined> =>
  call.then(
    () => 'served',
    (fault) => refusalFrom(fault).reason,
  );

const shedBy = (priority: string) => stage.scraped(`tributary_calls_shed_total{priority="${priority}",why="database"}`);
