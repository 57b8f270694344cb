/** Owns when a snapshot is read on the replica and when on the primary, by what the replica does and by what was seen of it. */
import { expect, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { createReplica, type ReplicaParts } from '../../src/repair/snapshot-source.ts';
import type { Queries } from '../../src/store/postgres/client.ts';
import { ReplicaUnfit, type Standing } from '../../src/store/postgres/replica.ts';
import { createTestClock } from '../harness/test-clock.ts';

const MARK = { lsn: '0/200', timeline: 1, system: '7', database: 5 };
const IN_STEP: Standing = { ...MARK, following: true, replayed: true };
const PRIMARY: Queries = { query: async () => [] };
const REPLICA: Queries = { query: async () => [] };
const signal = () => AbortSignal.timeout(5_000);
const load = async (from: Queries) => (from === REPLICA ? 'replica' : 'primary');

function stage(parts: Partial<ReplicaParts> = {}) {
  const clock = createTestClock();
  const told: string[] = [];
  const lags: (number | undefined)[] = [];
  const replica = createReplica({
    readCaughtUp: (_signal, _mark, read) => read(REPLICA),
    readStanding: async () => IN_STEP,
    readMark: async () => MARK,
    isUnreached: (error) => error instanceof TributaryError,
    answerMaxMs: 50,
    snapshotMaxMs: 50,
    clock,
    ...parts,
    events: {
      snapshotRead: (from) => told.push(from),
      lagKnown: (seconds) => lags.push(seconds),
      standingChanged: (standing) => told.push(`stands ${standing}`),
    },
  });
  const source = replica.sourceFor({ queries: PRIMARY, readMark: async () => parts.readMark?.(signal()) ?? MARK });
  return { clock, told, lags, look: () => replica.look(signal()), read: () => source(signal(), load) };
}

it('the replica is read once it has been seen in step, and not before', async () => {
  const { look, read, told } = stage();
  expect(await read()).toBe('primary');
  await look();
  expect(await read()).toBe('replica');
  expect(told).toEqual(['away', 'stands in_step', 'replica']);
});

it.each([
  ['lagging', () => Promise.reject(new ReplicaUnfit('lagging'))],
  ['foreign', () => Promise.reject(new ReplicaUnfit('foreign'))],
  ['away', () => Promise.reject(new TributaryError('DATABASE_UNAVAILABLE'))],
  // A statement that is in the way of what the replica has to replay is cancelled there.
  ['failed', () => Promise.reject(new Error('canceling statement due to conflict with recovery'))],
  ['away', () => new Promise<never>(() => undefined)],
] as const)(
  'a read there that ends %s is done again on the primary, and the replica rests for a second',
  async (why, end) => {
    let tries = 0;
    const { look, read, told, clock } = stage({
      async readCaughtUp(limited) {
        tries += 1;
        const hung = new Promise<never>((_, reject) => limited.addEventListener('abort', () => reject(limited.reason)));
        return Promise.race([end(), hung]);
      },
    });
    await look();
    expect([await read(), await read()]).toEqual(['primary', 'primary']);
    expect(tries).toBe(1);
    clock.advance(1_000);
    await read();
    expect(tries).toBe(2);
    expect(told).toEqual(['stands in_step', why, why, why]);
  },
);

it('a caller who leaves is not read for again', async () => {
  const leaving = new AbortController();
  const { look, told } = stage();
  await look();
  const replica = createReplica({
    readCaughtUp: () => Promise.reject(leaving.signal.reason),
    readStanding: async () => IN_STEP,
    readMark: async () => MARK,
    isUnreached: () => false,
    answerMaxMs: 50,
    snapshotMaxMs: 50,
    clock: createTestClock(),
    events: { snapshotRead: (from) => told.push(from), lagKnown: () => undefined, standingChanged: () => undefined },
  });
  await replica.look(signal());
  leaving.abort(new Error('left'));
  const read = replica.sourceFor({ queries: PRIMARY, readMark: async () => MARK })(leaving.signal, load);
  await expect(read).rejects.toThrow('left');
  expect(told).toEqual(['stands in_step']);
});

it('a primary that cannot say where it is has its snapshots read on itself', async () => {
  let isSilent = false;
  const { look, read } = stage({
    readMark: async () => (isSilent ? Promise.reject(new Error('recovery is in progress')) : MARK),
  });
  await look();
  isSilent = true;
  expect(await read()).toBe('primary');
});

it('a primary that is too busy to say where it is costs that snapshot alone: the replica does not rest for it', async () => {
  let isBusy = false;
  const { look, read } = stage({
    readMark: async () => (isBusy ? Promise.reject(new TributaryError('OVERLOADED')) : MARK),
  });
  await look();
  isBusy = true;
  expect(await read()).toBe('primary');
  isBusy = false;
  expect(await read()).toBe('replica');
});

it.each([
  ['was promoted', { following: false }],
  ['is of another cluster', { system: '8' }],
  ['is of another timeline', { timeline: 2 }],
  ['does not tell its timeline', { timeline: null }],
  ['is ahead of its primary, which was put back to its past', { lsn: '0/201' }],
])('a replica that %s is not read', async (_, standing: Partial<Standing>) => {
  const { look, read, lags, told } = stage({ readStanding: async () => ({ ...IN_STEP, ...standing }) });
  await look();
  expect(await read()).toBe('primary');
  expect(told).toEqual(['stands foreign', 'foreign']);
  expect(lags).toEqual([undefined]);
});

it('the lag is how long ago the primary was where the replica is now; beyond a second it is not waited for', async () => {
  let [written, replayed] = ['0/200', '0/200'];
  const { look, read, lags, clock } = stage({
    readMark: async () => ({ ...MARK, lsn: written }),
    readStanding: async () => ({ ...IN_STEP, lsn: replayed }),
  });
  clock.freeze();
  const lookAt = async (lsns: readonly [string, string]) => {
    [written, replayed] = lsns;
    await look();
    clock.advance(600);
  };
  await lookAt(['0/200', '0/200']);
  await lookAt(['0/300', '0/200']);
  expect(await read()).toBe('replica');
  await lookAt(['0/400', '0/200']);
  await lookAt(['1/0', '0/200']);
  expect(await read()).toBe('primary');
  await lookAt(['1/0', '0/300']);
  await lookAt(['1/0', '1/0']);
  expect(await read()).toBe('replica');
  expect(lags.map((seconds = -1) => Math.round(seconds * 10) / 10)).toEqual([0, 0, 0.6, 1.2, 1.2, 0]);
});
