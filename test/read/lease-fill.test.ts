/** Owns reading facts through the cache while they change, fail to load, or are loaded by others: nothing of the past is put back, no failure is remembered, no error is a miss. */
import { afterAll, beforeAll, beforeEach, describe, expect, inject, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { createLeaseFill, type LeaseFill } from '../../src/read/lease-fill.ts';
import type { Call } from '../../src/runtime.ts';
import { createRelationFacts, type RelationFacts, type ViewerScope } from '../../src/store/redis/facts.ts';
import type { TenantId, UserId } from '../../src/timeline/ids.ts';
import { NO_RELATION, type Relation } from '../../src/timeline/post.ts';
import { eventually, within } from '../harness/eventually.ts';
import { type CacheUnderTest, newTenant, newToken, openCache, soon, user } from '../store/redis/cache-under-test.ts';

const RITA = user('rita');
const ADA = user('ada');
const BLOCKED: Relation = { ...NO_RELATION, blocks: true };

let under: CacheUnderTest;
let facts: RelationFacts;
let tenant: TenantId;
let lookups: string[];
let fills: string[];
beforeAll(async () => {
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
  facts = createRelationFacts(under.cache, under.keys, { lifeMs: 60_000, tokenLifeMs: 300, random: () => 0 });
});
afterAll(() => under.close());
beforeEach(() => {
  tenant = newTenant();
  lookups = [];
  fills = [];
});

const call = (timeoutMs?: number): Call => ({ tenant, signal: soon(timeoutMs) });
const scope = (): ViewerScope => ({ tenant, viewer: RITA });
const loaded = (relation: Relation) => async () => new Map([[ADA, relation]]);
const unasked = () => Promise.reject(new Error('Postgres was asked'));

function leaseFill(through: RelationFacts = facts): LeaseFill<ViewerScope, UserId, Relation> {
  return createLeaseFill({
    facts: through,
    newToken,
    events: { lookedUp: (result) => lookups.push(result), filled: (outcome) => fills.push(outcome) },
  });
}

describe('a load that a change overtakes', () => {
  it('is not stored: the next read sees the block', async () => {
    const reached = Promise.withResolvers<void>();
    const held = Promise.withResolvers<ReadonlyMap<UserId, Relation>>();
    const reading = leaseFill()(call(), scope(), [ADA], () => {
      reached.resolve();
      return held.promise;
    });
    await reached.promise;
    // The block commits and forgets the fact, before what was loaded before it is stored.
    await facts.forget(soon(), scope(), [ADA]);
    held.resolve(new Map([[ADA, NO_RELATION]]));
    expect((await reading).get(ADA)).toEqual(NO_RELATION);
    expect(fills).toEqual(['voided']);
    expect((await leaseFill()(call(), scope(), [ADA], loaded(BLOCKED))).get(ADA)).toEqual(BLOCKED);
    expect((await leaseFill()(call(), scope(), [ADA], unasked)).get(ADA)).toEqual(BLOCKED);
  });

  it('is not stored either where a later load has the key again', async () => {
    const reached = Promise.withResolvers<void>();
    const held = Promise.withResolvers<ReadonlyMap<UserId, Relation>>();
    const reading = leaseFill()(call(), scope(), [ADA], () => {
      reached.resolve();
      return held.promise;
    });
    await reached.promise;
    await facts.forget(soon(), scope(), [ADA]);
    await leaseFill()(call(), scope(), [ADA], loaded(BLOCKED));
    held.resolve(new Map([[ADA, NO_RELATION]]));
    await reading;
    expect((await leaseFill()(call(), scope(), [ADA], unasked)).get(ADA)).toEqual(BLOCKED);
  });
});

describe('a load that fails', () => {
  it('is not remembered, and holds the next one up for a moment only', async () => {
    const away = new TributaryError('DATABASE_UNAVAILABLE', { message: 'away' });
    await expect(leaseFill()(call(), scope(), [ADA], () => Promise.reject(away))).rejects.toBe(away);
    // Its token still stands: the next reader waits briefly, and loads without the right to store.
    expect((await within(leaseFill()(call(), scope(), [ADA], loaded(BLOCKED)), 10_000)).get(ADA)).toEqual(BLOCKED);
    // When the token has ended somebody stores again.
    await eventually(async () => {
      await leaseFill()(call(), scope(), [ADA], loaded(BLOCKED));
      expect(fills).toContain('won');
    });
    expect((await leaseFill()(call(), scope(), [ADA], unasked)).get(ADA)).toEqual(BLOCKED);
  });

  it('or never ends keeps its reader no longer than their deadline, and no other reader at all', async () => {
    const hanging = leaseFill()(call(200), scope(), [ADA], () => new Promise(() => undefined));
    hanging.catch(() => undefined);
    expect((await within(leaseFill()(call(), scope(), [ADA], loaded(BLOCKED)), 10_000)).get(ADA)).toEqual(BLOCKED);
  });
});

describe('a cache that answers with errors', () => {
  const broken = createBroken();

  it('is no miss: the truth comes from Postgres, and nothing is stored', async () => {
    expect((await leaseFill(broken)(call(), scope(), [ADA], loaded(BLOCKED))).get(ADA)).toEqual(BLOCKED);
    expect(lookups).toEqual(['error']);
    expect(fills).toEqual([]);
    expect(await under.raw.exists(under.keys.relations(tenant, RITA))).toBe(0);
  });

  it('with Postgres away as well fails the call: unknown is never "nobody is blocked"', async () => {
    const away = new TributaryError('DATABASE_UNAVAILABLE', { message: 'away' });
    await expect(leaseFill(broken)(call(), scope(), [ADA], () => Promise.reject(away))).rejects.toBe(away);
  });
});

it('20 readers at once load once where the load is quick, and agree', async () => {
  let loads = 0;
  const answers = await Promise.all(
    Array.from({ length: 20 }, () =>
      leaseFill()(call(), scope(), [ADA], async () => {
        loads += 1;
        return new Map([[ADA, BLOCKED]]);
      }),
    ),
  );
  expect(answers.map((answer) => answer.get(ADA))).toEqual(Array.from({ length: 20 }, () => BLOCKED));
  expect(loads).toBeLessThan(20);
  expect(fills.filter((outcome) => outcome === 'won')).toHaveLength(1);
});

function createBroken(): RelationFacts {
  const error = new TributaryError('CACHE_UNAVAILABLE', { message: 'away' });
  return {
    lookUp: async (_signal, _scope, ids) => ids.map(() => ({ kind: 'error', error })),
    fill: async (_signal, _scope, _token, entries) => entries.map(() => 'failed'),
    forget: () => Promise.reject(error),
  };
}
