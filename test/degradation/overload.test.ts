/** Owns what happens when four times as much comes as Postgres can do: what is admitted is served in time, the rest is told at once, and nothing stays behind. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { refusalFrom } from '../harness/clients.ts';
import { eventually, within } from '../harness/eventually.ts';
import { type OutageStage, openOutageStage } from './outage-stage.ts';

/** Each way. A statement takes twice as long, so two connections do twenty in a second. */
const WAY_MS = 50;
const PER_SECOND = 80;
const SECONDS = 4;

let stage: OutageStage;
beforeAll(async () => {
  stage = await openOutageStage({
    TRIBUTARY_ROLE: 'api',
    DATABASE_POOL_REQUESTS: '2',
    DATABASE_ACQUIRE_TIMEOUT_MS: '1000',
    READ_DEADLINE_DEFAULT_MS: '3000',
  });
  await stage.tenant.cast().play('rita follows ada; ada posts 3 times');
  await stage.home('rita');
});
afterAll(() => stage.close());

/** One statement each. */
const read = () => stage.tenant.graph.listFollowing({ userId: 'rita' });
const deep = () => stage.tenant.timeline.getHomeHead({ viewerId: 'rita' });

it('sheds before the wait for a connection ends by force, answers what it admits, and is itself again right after', async () => {
  await stage.postgres.delay(WAY_MS);
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

const shedBy = (priority: string) => stage.scraped(`tributary_calls_shed_total{priority="${priority}",why="database"}`);
