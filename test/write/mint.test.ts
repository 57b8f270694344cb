/** Owns the promise that no post ID is minted twice, whatever clocks, pauses and restarts do, with leases from a real database. */
import { randomUUID } from 'node:crypto';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { TributaryError } from '../../src/errors.ts';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import { claimGenerator, renewGenerator } from '../../src/store/postgres/generators.ts';
import { GENERATOR_COUNT, type PostId, postIdMs, SEQUENCE_COUNT } from '../../src/timeline/ids.ts';
import { createMint, type Lease, type MintPostId } from '../../src/write/mint.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import { createTestClock, type TestClock } from '../harness/test-clock.ts';

let testDatabase: TestDatabase;
let database: Database;

beforeEach(async () => {
  testDatabase = await createTestDatabase();
  database = createDatabase({
    url: testDatabase.url,
    pool: 'mint',
    connectionsMax: 4,
    acquireTimeoutMs: 5_000,
    statementTimeoutMs: 5_000,
    lockTimeoutMs: 5_000,
    waitersMax: 1_000,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
});

afterEach(async () => {
  await database.close();
  await testDatabase.drop();
});

interface Minter {
  readonly clock: TestClock;
  readonly refusals: string[];
  readonly leaseFailures: string[];
  readonly mint: MintPostId;
}

/** A process that mints. `agoMs`: Postgres' clock stood that much earlier when it made its promises to this process. */
function startMinter({
  clock = createTestClock(),
  agoMs = () => 0,
  renews = () => true,
}: {
  clock?: TestClock;
  agoMs?: () => number;
  renews?: () => boolean;
} = {}): Minter {
  const holder = randomUUID();
  const refusals: string[] = [];
  const leaseFailures: string[] = [];
  const shift = async (lease: Lease): Promise<Lease> => {
    const ms = agoMs();
    if (ms > 0)
      await testDatabase.sql('UPDATE generators SET high_ms = high_ms - $2 WHERE generator = $1', [
        lease.generator,
        ms,
      ]);
    return { ...lease, highMs: lease.highMs - ms };
  };
  const mint = createMint({
    clock,
    claim: async (signal) => {
      const lease = await claimGenerator(database, signal, holder);
      return lease && shift(lease);
    },
    async renew(signal, generator) {
      if (!renews()) throw new Error('Postgres is away');
      return renewGenerator(database, signal, holder, generator);
    },
    leaseFailed: (why) => leaseFailures.push(why),
    refused: (why) => refusals.push(why),
  });
  return { clock, refusals, leaseFailures, mint };
}

const signal = (): AbortSignal => AbortSignal.timeout(20_000);

async function mintMany(minter: Minter, count: number): Promise<PostId[]> {
  const ids: PostId[] = [];
  while (ids.length < count) ids.push(await minter.mint(signal()));
  return ids;
}

async function refusal(minter: Minter): Promise<{ readonly reason: string; readonly tookMs: number }> {
  const before = performance.now();
  const fault = await minter.mint(signal()).then(
    (id) => ({ reason: `minted ${id}` }),
    (error: TributaryError) => ({ reason: error.reason }),
  );
  return { reason: fault.reason, tookMs: performance.now() - before };
}

function expectRising(ids: readonly PostId[]): void {
  for (const [at, id] of ids.entries())
    if (at > 0 && id <= (ids[at - 1] ?? 0)) throw new Error(`${id} follows ${ids[at - 1]}`);
}

function expectAllDifferent(ids: readonly PostId[]): void {
  expect(new Set(ids).size).toBe(ids.length);
}

const generatorOf = (id: PostId): number => Math.floor(id / SEQUENCE_COUNT) % GENERATOR_COUNT;

describe('a clock that steps', () => {
  it('back by 5 ms is waited out, back by more is refused at once; IDs rise all the same', {
    timeout: 60_000,
  }, async () => {
    const minter = startMinter();
    const ids = await mintMany(minter, 20_000);
    minter.clock.step(-5);
    ids.push(...(await mintMany(minter, 20_000)));
    for (const backMs of [5_000, 3_600_000]) {
      minter.clock.step(-backMs);
      const refused = await refusal(minter);
      expect(refused.reason).toBe('ID_LEASE_UNAVAILABLE');
      expect(refused.tookMs).toBeLessThan(5_000);
      expect(minter.refusals.at(-1)).toBe('clock_behind');
      minter.clock.step(backMs);
      ids.push(...(await mintMany(minter, 10_000)));
    }
    expectRising(ids);
  });

  it('ahead beyond the lease is refused, and does no harm once it is put right', async () => {
    const minter = startMinter();
    const ids = await mintMany(minter, 100);
    minter.clock.step(3_600_000);
    expect((await refusal(minter)).reason).toBe('ID_LEASE_UNAVAILABLE');
    expect(minter.refusals.at(-1)).toBe('clock_ahead');
    minter.clock.step(-3_600_000);
    ids.push(...(await mintMany(minter, 100)));
    expectRising(ids);
  });

  it('never mints ahead of its own clock or below what it minted', async () => {
    const minter = startMinter();
    for (let round = 0; round < 200; round += 1) {
      minter.clock.step(round % 3 === 0 ? -2 : 1);
      const id = await minter.mint(signal());
      expect(postIdMs(id)).toBeLessThanOrEqual(minter.clock.nowMs());
    }
  });
});

describe('a burst', () => {
  it('gives every one of 5,000 callers at once an ID of their own', async () => {
    const minter = startMinter();
    const ids = await Promise.all(Array.from({ length: 5_000 }, () => minter.mint(signal())));
    expectAllDifferent(ids);
    expect(minter.refusals).toEqual([]);
  });
});

describe('processes that come and go', () => {
  it('one that restarts with its clock 10 s behind goes on at once, with other IDs', async () => {
    const ids = await mintMany(startMinter(), 2_000);
    const restarted = startMinter({ clock: createTestClock({ offsetMs: -10_000 }) });
    const before = performance.now();
    ids.push(await restarted.mint(signal()));
    expect(performance.now() - before).toBeLessThan(5_000);
    ids.push(...(await mintMany(restarted, 2_000)));
    expectAllDifferent(ids);
  });

  it('one that is behind all promises ever made refuses instead of spinning', async () => {
    await testDatabase.sql('UPDATE generators SET high_ms = floor(extract(epoch FROM clock_timestamp()) * 1000) - 1');
    const late = await refusal(startMinter({ clock: createTestClock({ offsetMs: -10_000 }) }));
    expect(late.reason).toBe('ID_LEASE_UNAVAILABLE');
    expect(late.tookMs).toBeLessThan(5_000);
  });

  it('20 at once, of which 10 die and are replaced by 10 that take over their numbers, never mint the same', async () => {
    // No more numbers than processes, so that the newcomers must take those of the dead.
    await testDatabase.sql('UPDATE generators SET high_ms = 9007199254740991 WHERE generator >= 20');
    const first = Array.from({ length: 20 }, () => startMinter());
    const early = await Promise.all(first.map((minter) => mintMany(minter, 500)));
    expect(new Set(early.map(([id]) => generatorOf(id as PostId))).size).toBe(20);

    const oneTooMany = startMinter();
    expect((await refusal(oneTooMany)).reason).toBe('ID_LEASE_UNAVAILABLE');
    expect(oneTooMany.leaseFailures).toEqual(['none_free']);

    // The dead minted nothing after this moment: their promises may end here, as they would some seconds later by themselves.
    const dead = early.slice(0, 10).map(([id]) => generatorOf(id as PostId));
    await testDatabase.sql(
      'UPDATE generators SET high_ms = floor(extract(epoch FROM clock_timestamp()) * 1000) WHERE generator = ANY ($1)',
      [dead],
    );
    const minters = [...first.slice(10), ...Array.from({ length: 10 }, () => startMinter())];
    const late = await Promise.all(minters.map((minter) => mintMany(minter, 500)));
    for (const ids of [...early, ...late]) expectRising(ids);
    expectAllDifferent([...early, ...late].flat());
  });

  it('one that was paused beyond its lease, and lost its number meanwhile, mints nothing with it', async () => {
    await testDatabase.sql('UPDATE generators SET high_ms = 9007199254740991 WHERE generator >= 1');
    const pauseMs = 11_000;
    let resumed = false;
    const paused = startMinter({
      clock: createTestClock({ offsetMs: -pauseMs }),
      agoMs: () => (resumed ? 0 : pauseMs),
    });
    const ids = await mintMany(paused, 500);

    const successor = startMinter();
    ids.push(...(await mintMany(successor, 500)));
    resumed = true;
    paused.clock.advance(pauseMs);
    expect((await refusal(paused)).reason).toBe('ID_LEASE_UNAVAILABLE');
    ids.push(...(await mintMany(successor, 500)));

    await testDatabase.sql('UPDATE generators SET high_ms = 0 WHERE generator = 7');
    ids.push(...(await mintMany(paused, 500)));
    expectAllDifferent(ids);
    expect(generatorOf(ids.at(-1) as PostId)).toBe(7);
  });
});

describe('a lease that cannot be renewed', () => {
  it('is told of while IDs are minted still, and refuses nobody before it has run out', async () => {
    let away = false;
    const minter = startMinter({ renews: () => !away });
    await mintMany(minter, 10);
    expect(minter.leaseFailures).toEqual([]);
    away = true;
    minter.clock.advance(6_000);
    await mintMany(minter, 10);
    await eventually(() => expect(minter.leaseFailures).toContain('no_answer'));
    expect(minter.refusals).toEqual([]);
    minter.clock.advance(6_000);
    expect((await refusal(minter)).reason).toBe('ID_LEASE_UNAVAILABLE');
    expect(minter.refusals).toEqual(['no_lease']);
  });
});

describe('a caller that leaves', () => {
  it('stops waiting for an ID', async () => {
    const minter = startMinter();
    await expect(minter.mint(AbortSignal.abort(new Error('gone')))).rejects.toThrow();
    await expect(minter.mint(signal())).resolves.toBeGreaterThan(0);
  });
});
