/** Owns the bound on what a process remembers: fifty thousand different keys, once each, leave nothing behind, and neither does a load that fails or never ends. */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, inject, it } from 'vitest';
import { createLeaseFill } from '../../src/read/lease-fill.ts';
import { createRebuild } from '../../src/repair/rebuild.ts';
import { createApiKeys } from '../../src/rpc/api-keys.ts';
import { systemClock, systemRandom } from '../../src/runtime.ts';
import { type AuthorFact, createAuthorFacts, type Facts } from '../../src/store/redis/facts.ts';
import type { Timelines } from '../../src/store/redis/timelines.ts';
import type { TenantId, UserId } from '../../src/timeline/ids.ts';
import { eventually } from '../harness/eventually.ts';
import { newTenant, newToken, openCache, soon, user } from '../store/redis/cache-under-test.ts';

const KEYS = 50_000;
/** Keys under way at once. */
const TOGETHER = 250;
/** Asked for before the heap is looked at: what is compiled once, and caches of bounded size, are no growth. */
const BEFORE = 15_000;
/** An entry that is left behind takes a hundred or two, in its map, with its key and promise. */
const BYTES_PER_KEY_MAX = 50;
const TIMEOUT = { timeout: 120_000 };

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;

function heapBytes(): number {
  collect();
  return process.memoryUsage().heapUsed;
}

/** Asks for each key once, some at a time; afterwards the heap is as it was, as soon as time limits of what has ended are over too. */
async function expectNothingLeft(ask: (key: number) => Promise<unknown>, keys = KEYS): Promise<void> {
  async function askAll(first: number, count: number): Promise<void> {
    for (let from = first; from < first + count; from += TOGETHER)
      await Promise.all(Array.from({ length: TOGETHER }, (_, at) => ask(from + at).catch(() => undefined)));
  }
  await askAll(keys, BEFORE);
  const before = heapBytes();
  await askAll(0, keys);
  await eventually(() => expect((heapBytes() - before) / keys).toBeLessThan(BYTES_PER_KEY_MAX), {
    timeoutMs: 20_000,
    everyMs: 200,
  });
}

const tenant = newTenant();
const viewerOf = (key: number): UserId => user(`viewer-${key}`);

describe('fifty thousand keys, once each', TIMEOUT, () => {
  it('leave the single flights of rebuilds empty, whether they end well or badly', async () => {
    let asked = 0;
    // No store: this is about what stays in the process.
    const timelines = {
      async begin() {
        asked += 1;
        await null;
        if (asked % 2 === 0) throw new Error('on purpose');
        return 'ready' as const;
      },
    } as unknown as Timelines;
    let joined = 0;
    const rebuild = createRebuild<{ readonly viewer: UserId }>({
      clock: systemClock,
      sets: timelines,
      nameOf: ({ viewer }) => viewer,
      loadSnapshot: async () => ({ postIds: [], floor: 0 }),
      newToken: () => 'token',
      random: systemRandom,
      leaseMs: 1_000,
      concurrencyMax: TOGETHER,
      events: { rebuilt: () => undefined, joined: () => (joined += 1), failed: () => undefined },
    });
    const signal = soon(TIMEOUT.timeout);
    await expectNothingLeft((key) => rebuild({ tenant, signal }, { viewer: viewerOf(key) }, 'absent'));
    // Nobody finds a flight of the past: the key is asked for anew.
    await rebuild({ tenant, signal }, { viewer: viewerOf(0) }, 'absent');
    expect({ asked, joined }).toEqual({ asked: KEYS + BEFORE + 1, joined: 0 });
    await rebuild.stop(1_000);
  });

  it('leave nothing in lease fill', async () => {
    const facts: Facts<TenantId, UserId, string> = {
      lookUp: async (_signal, _scope, ids) => ids.map(() => ({ kind: 'miss' })),
      fill: async (_signal, _scope, _token, entries) => entries.map(() => 'won'),
      forget: async () => undefined,
    };
    const leaseFill = createLeaseFill({
      facts,
      newToken: () => 'token',
      events: { lookedUp: () => undefined, filled: () => undefined },
    });
    const call = { tenant, signal: soon(TIMEOUT.timeout) };
    const ask = (key: number) =>
      leaseFill(call, tenant, [viewerOf(key)], async (ids) => {
        if (key % 2 === 0) throw new Error('on purpose');
        return new Map(ids.map((id) => [id, 'loaded']));
      });
    await expectNothingLeft(ask);
  });

  it('leave no lookup of a key under way, and no more keys remembered than may be', async () => {
    let asked = 0;
    const keys = createApiKeys({
      async findApiKey() {
        asked += 1;
        await null;
        if (asked % 3 === 0) throw new Error('on purpose');
        return undefined;
      },
      ttlMs: 60_000,
      lookupTimeoutMs: 1_000,
      clock: systemClock,
    });
    const spelled = (key: number): string => `Bearer tk_${String(key).padStart(43, 'k')}`;
    const signal = soon(TIMEOUT.timeout);
    await expectNothingLeft((key) => keys.identify(spelled(key), signal));
    expect(asked).toBe(KEYS + BEFORE);
    expect(keys.lookups()).toBe(0);
  });
});

it('thousands of keys at once through Redis are each stored, and found', TIMEOUT, async () => {
  const under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
  const outcomes = new Map<string, number>();
  const leaseFill = createLeaseFill({
    facts: createAuthorFacts(under.cache, under.keys, { lifeMs: 30_000, tokenLifeMs: 3_000, random: () => 0 }),
    newToken,
    events: {
      lookedUp: () => undefined,
      filled: (outcome) => void outcomes.set(outcome, (outcomes.get(outcome) ?? 0) + 1),
    },
  });
  const fact: AuthorFact = { state: { lifecycle: 'active', protected: false }, profileVersion: 1 };
  const call = { tenant: newTenant(), signal: soon(TIMEOUT.timeout) };
  const ask = (key: number) =>
    leaseFill(call, call.tenant, [viewerOf(key)], async (ids) => new Map(ids.map((id) => [id, fact])));
  const keys = 5_000;
  for (let from = 0; from < keys; from += TOGETHER)
    await Promise.all(Array.from({ length: TOGETHER }, (_, at) => ask(from + at)));
  expect(outcomes).toEqual(new Map([['won', keys]]));
  // Each is a hit now: nobody loads it.
  const unasked = () => Promise.reject(new Error('Postgres was asked'));
  const some = Array.from({ length: 100 }, (_, at) => viewerOf(at));
  expect((await leaseFill(call, call.tenant, some, unasked)).size).toBe(100);
  await under.close();
});

it('a lookup that never settles is given up after its time limit, and the next one is asked anew', async () => {
  let asked = 0;
  const keys = createApiKeys({
    findApiKey() {
      asked += 1;
      return asked === 1 ? new Promise(() => undefined) : Promise.resolve({ tenant, role: 'service' });
    },
    ttlMs: 60_000,
    lookupTimeoutMs: 50,
    clock: systemClock,
  });
  const key = `Bearer tk_${'k'.repeat(43)}`;
  await expect(keys.identify(key, soon())).rejects.toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
  await eventually(() => expect(keys.lookups()).toBe(0));
  expect(await keys.identify(key, soon())).toMatchObject({ role: 'service' });
});
