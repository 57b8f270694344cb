/** Owns what holds of the counters that a process keeps: they are shown for their time and not a moment longer, are the tenant's own, and what could not be read is not remembered. */
import { expect, it } from 'vitest';
import type { ReadCall } from '../../src/read/batches.ts';
import { type CachedCountsParts, createCachedCounts } from '../../src/read/cached-counts.ts';
import { postIdFrom, type TenantId } from '../../src/timeline/ids.ts';
import { eventually } from '../harness/eventually.ts';
import { createTestClock } from '../harness/test-clock.ts';
import { newTenant, soon } from '../store/redis/cache-under-test.ts';

const POST = postIdFrom(4_096);
const OTHER = postIdFrom(8_192);
const THIRD = postIdFrom(12_288);
const AGE_MS = 1_000;

function counting(parts: Partial<CachedCountsParts> = {}) {
  const clock = createTestClock();
  clock.freeze();
  const asked: number[][] = [];
  let truth = 1;
  const nothing = (): undefined => undefined;
  const load = createCachedCounts({
    cached: {
      async read(_signal, _tenant, postIds) {
        asked.push([...postIds]);
        return postIds.map(() => ({ kind: 'hit', value: { reposts: truth } }));
      },
      store: async () => undefined,
    },
    clock,
    ageMaxMs: AGE_MS,
    load: async () => new Map(),
    limitMs: 5_000,
    events: { joined: nothing, heldRead: nothing, countsRead: nothing, notStored: nothing },
    ...parts,
  });
  const call = (tenant: TenantId): ReadCall => ({ tenant, signal: soon() });
  return { clock, asked, load, call, change: () => (truth += 1) };
}

it('are asked for once in their time, each post for itself, and again when it is over', async () => {
  const { clock, asked, load, call, change } = counting();
  const tenant = newTenant();
  expect((await load(call(tenant), [POST])).get(POST)).toEqual({ reposts: 1 });
  change();
  clock.advance(AGE_MS - 1);
  expect([...(await load(call(tenant), [POST, OTHER])).entries()]).toEqual([
    [POST, { reposts: 1 }],
    [OTHER, { reposts: 2 }],
  ]);
  change();
  clock.advance(1);
  const after = await load(call(tenant), [POST, OTHER]);
  expect([after.get(POST), after.get(OTHER)]).toEqual([{ reposts: 3 }, { reposts: 3 }]);
  expect(asked).toEqual([[POST], [OTHER], [POST, OTHER]]);
});

it('that are read while their time ends are not kept into the next', async () => {
  const held = Promise.withResolvers<void>();
  let reads = 0;
  const { clock, load, call } = counting({
    cached: {
      async read(_signal, _tenant, postIds) {
        reads += 1;
        const value = { reposts: reads };
        if (reads === 1) await held.promise;
        return postIds.map(() => ({ kind: 'hit', value }));
      },
      store: async () => undefined,
    },
  });
  const tenant = newTenant();
  const early = load(call(tenant), [POST]);
  await eventually(() => expect(reads).toBe(1));
  clock.advance(AGE_MS);
  expect((await load(call(tenant), [OTHER])).get(OTHER)).toEqual({ reposts: 2 });
  held.resolve();
  expect((await early).get(POST)).toEqual({ reposts: 1 });
  expect((await load(call(tenant), [POST])).get(POST)).toEqual({ reposts: 3 });
});

it('are those of the tenant who asks', async () => {
  const { asked, load, call, change } = counting();
  await load(call(newTenant()), [POST]);
  change();
  expect((await load(call(newTenant()), [POST])).get(POST)).toEqual({ reposts: 2 });
  expect(asked).toHaveLength(2);
});

it('of no age are none: every page asks', async () => {
  const { asked, load, call } = counting({ ageMaxMs: 0 });
  const tenant = newTenant();
  await load(call(tenant), [POST]);
  await load(call(tenant), [POST]);
  expect(asked).toHaveLength(2);
});

it('that could not be read are not remembered', async () => {
  let fails = true;
  const { load, call } = counting({
    cached: {
      async read(_signal, _tenant, postIds) {
        if (fails) throw new Error('on purpose');
        return postIds.map(() => ({ kind: 'hit', value: { replies: 4 } }));
      },
      store: async () => undefined,
    },
  });
  const tenant = newTenant();
  await expect(load(call(tenant), [POST])).rejects.toThrow('on purpose');
  fails = false;
  expect((await load(call(tenant), [POST])).get(POST)).toEqual({ replies: 4 });
});

it('that are not known are remembered as such, and not as none', async () => {
  const { asked, load, call } = counting({
    cached: {
      async read(_signal, _tenant, postIds) {
        asked.push([...postIds]);
        return postIds.map((id) => (id === POST ? { kind: 'hit', value: {} } : { kind: 'miss' }));
      },
      store: async () => undefined,
    },
    load: async () => new Map([[THIRD, { replies: 0 }]]),
  });
  const tenant = newTenant();
  for (let time = 1; time <= 2; time += 1)
    expect([...(await load(call(tenant), [POST, OTHER, THIRD]))]).toEqual([
      [POST, {}],
      [OTHER, {}],
      [THIRD, { replies: 0 }],
    ]);
  expect(asked).toEqual([[POST, OTHER, THIRD]]);
});

it('are bounded in number, over all tenants: when there are enough, all are asked for anew', async () => {
  const { asked, load, call } = counting();
  const tenants = [newTenant(), newTenant()];
  const pageFrom = (first: number) => Array.from({ length: 1_000 }, (_, at) => postIdFrom(first + at));
  for (let page = 0; page < 50; page += 1) {
    expect(asked).toHaveLength(page);
    await load(call(tenants[page % 2] as TenantId), pageFrom(1 + 1_000 * page));
  }
  await load(call(tenants[0] as TenantId), pageFrom(1));
  await load(call(tenants[1] as TenantId), pageFrom(1_001));
  await load(call(tenants[1] as TenantId), pageFrom(1_001));
  expect(asked).toHaveLength(52);
});
