/**
 * Owns what a reader does where who is pulled, or the list of somebody who is, changes or fails while the page is being read. The cache is real; what Postgres is asked is the test's own.
 */
import { afterAll, beforeAll, beforeEach, describe, expect, inject, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { createReadPulledEntries, type PulledEntriesParts } from '../../src/read/pulled-entries.ts';
import { createReadResidentHome, type ResidentHomeParts } from '../../src/read/resident-home.ts';
import type { Call } from '../../src/runtime.ts';
import { createPulledFacts, type PulledFacts } from '../../src/store/redis/facts.ts';
import { createReadHomeEntries } from '../../src/store/redis/home-entries.ts';
import type { Timelines } from '../../src/store/redis/timelines.ts';
import { POST_ID_MAX, postIdFrom, type TenantId } from '../../src/timeline/ids.ts';
import type { PulledAuthors } from '../../src/timeline/pulled.ts';
import {
  type CacheUnderTest,
  ids,
  newTenant,
  newToken,
  openCache,
  soon,
  user,
} from '../store/redis/cache-under-test.ts';

const RITA = user('rita');
const NONE: PulledAuthors = { authors: [], tooMany: false };
const ADA: PulledAuthors = { authors: [{ author: user('ada'), epoch: 1 }], tooMany: false };
const NEWEST = { direction: 'older', position: POST_ID_MAX, count: 10 } as const;

let under: CacheUnderTest;
let facts: PulledFacts;
let timelines: Timelines;
let tenant: TenantId;
let filled: string[];
let read: string[];
beforeAll(async () => {
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
  facts = createPulledFacts(under.cache, under.keys, { lifeMs: 60_000, tokenLifeMs: 20_000, random: () => 0 });
  timelines = under.timelines({});
});
afterAll(() => under.close());
beforeEach(async () => {
  tenant = newTenant();
  filled = [];
  read = [];
  const token = newToken();
  await timelines.begin(soon(), { tenant, viewer: RITA, token });
  await timelines.addOlder(soon(), { tenant, viewer: RITA, token, postIds: ids(1, 2, 3) });
  await timelines.commit(soon(), { tenant, viewer: RITA, token, floor: 0 });
});

const call = (): Call => ({ tenant, signal: soon() });

function reader(loadPulled: () => Promise<PulledAuthors>, parts: Partial<ResidentHomeParts> = {}) {
  return createReadResidentHome({
    readEntries: createReadHomeEntries(under.cache, under.keys, { cap: 800, lifeMs: 60_000, tokenLifeMs: 20_000 }),
    pulledFacts: facts,
    loadPulled,
    newToken,
    rebuild: async () => 'refused',
    waitMs: 50,
    events: {
      timelineRead: () => undefined,
      pulledRead: (kind) => read.push(kind),
      pulledFilled: (outcome) => filled.push(outcome),
    },
    ...parts,
  });
}

/** A load that is begun and held: `reached` when it was asked for, `open` to let it answer. */
function held() {
  const asked = Promise.withResolvers<void>();
  const answer = Promise.withResolvers<PulledAuthors>();
  return {
    reached: asked.promise,
    open: answer.resolve,
    load: () => {
      asked.resolve();
      return answer.promise;
    },
  };
}

describe('who is pulled', () => {
  it('that was loaded before a follow and comes after it is not stored: the next reader knows the follow', async () => {
    const late = held();
    const reading = reader(late.load)(call(), RITA, NEWEST);
    await late.reached;
    // The follow: committed, then forgotten.
    await facts.forget(soon(), tenant, [RITA]);
    late.open(NONE);
    expect(await reading).toMatchObject({ pulled: NONE });
    expect(filled).toEqual(['voided']);
    expect(await reader(async () => ADA)(call(), RITA, NEWEST)).toMatchObject({ pulled: ADA });
    expect(filled).toEqual(['voided', 'won']);
    expect(read).toEqual(['miss', 'miss']);
  });

  it('is known before the timeline is read: what a backfill brought meanwhile is there', async () => {
    const late = held();
    const reading = reader(late.load)(call(), RITA, NEWEST);
    await late.reached;
    // An author stops being pulled: the posts come into timelines first, then the class changes, then it is read.
    await timelines.addOlder(soon(), { tenant, viewer: RITA, postIds: ids(9) });
    late.open(NONE);
    expect(await reading).toMatchObject({ page: { state: 'ready', ids: [9, 3, 2, 1] } });
  });

  it('that another reader loads is waited for; one who waited in vain loads it and does not store', async () => {
    const first = held();
    const reading = reader(first.load)(call(), RITA, NEWEST);
    await first.reached;
    expect(await reader(async () => ADA)(call(), RITA, NEWEST)).toMatchObject({ pulled: ADA });
    expect(filled).toEqual([]);
    first.open(ADA);
    await reading;
    const neverAsked = (): Promise<PulledAuthors> => Promise.reject(new Error('was not to be asked'));
    expect(await reader(neverAsked)(call(), RITA, NEWEST)).toMatchObject({ pulled: ADA });
    expect(read).toEqual(['miss', 'loading', 'hit']);
  });

  it('leaves no token where it cannot be loaded: the first reader who can stores it', async () => {
    const without = reader(async () => undefined as never, { newToken: () => undefined });
    expect(await without(call(), RITA, NEWEST)).toMatchObject({ pulledUnknown: true, page: { ids: [3, 2, 1] } });
    await reader(async () => ADA)(call(), RITA, NEWEST);
    expect({ read, filled }).toEqual({ read: ['miss', 'miss'], filled: ['won'] });
  });

  it('costs a page no second round trip where it is known', async () => {
    await reader(async () => NONE)(call(), RITA, NEWEST);
    let calls = 0;
    const readEntries = createReadHomeEntries(under.cache, under.keys, {
      cap: 800,
      lifeMs: 60_000,
      tokenLifeMs: 20_000,
    });
    const counting = reader(async () => NONE, {
      readEntries: (...asked) => {
        calls += 1;
        return readEntries(...asked);
      },
    });
    expect(await counting(call(), RITA, NEWEST)).toMatchObject({ page: { ids: [3, 2, 1] }, pulled: NONE });
    expect(calls).toBe(1);
  });

  it('that Redis does not tell is not taken for nobody: Postgres serves', async () => {
    const failing = reader(async () => NONE, {
      readEntries: () => Promise.reject(new TributaryError('CACHE_UNAVAILABLE', { message: 'away' })),
    });
    expect(await failing(call(), RITA, NEWEST)).toBe('unavailable');
  });

  it('that cannot be loaded fails the page: without it nobody knows what is missing', async () => {
    const away = new TributaryError('DATABASE_UNAVAILABLE', { message: 'away' });
    await expect(reader(() => Promise.reject(away))(call(), RITA, NEWEST)).rejects.toBe(away);
  });

  it('and is too many to be known by name is served by Postgres', async () => {
    const many = reader(async () => ({ authors: [], tooMany: true }));
    expect(await many(call(), RITA, NEWEST)).toBe('elsewhere');
    expect(await many(call(), RITA, NEWEST)).toBe('elsewhere');
    expect(read).toEqual(['miss', 'hit']);
  });
});

describe('lists', () => {
  const AUTHORS = Array.from({ length: 30 }, (_, at) => ({ author: user(`a${at}`), epoch: 1 }));
  const READY = { state: 'ready', floor: 4, ids: ids(9, 8) } as const;
  const AWAY = new TributaryError('CACHE_UNAVAILABLE', { message: 'away' });

  function entries(parts: Partial<PulledEntriesParts>) {
    const asked: (readonly string[])[] = [];
    const why: string[] = [];
    const readEntries = createReadPulledEntries({
      lists: { pages: async (_, lists) => lists.map(() => READY) },
      rebuild: async () => 'done',
      loadNewestOfMany: async (_, { authors }) => {
        asked.push(authors);
        return ids(7);
      },
      listsMax: 500,
      events: { queried: (reason) => why.push(reason) },
      ...parts,
    });
    return { asked, why, read: () => readEntries(call(), AUTHORS, NEWEST) };
  }

  it('that are all ready need no query', async () => {
    const { asked, read: readAll } = entries({});
    const found = await readAll();
    expect(found.lists.map(({ of }) => of)).toEqual(AUTHORS);
    expect(found.queried).toBeUndefined();
    expect(asked).toEqual([]);
  });

  it('beyond the bound are one query, and the page is whole', async () => {
    const { asked, why, read: readAll } = entries({ listsMax: 10 });
    const found = await readAll();
    expect(found.lists).toHaveLength(10);
    expect(found.queried).toEqual({ floor: 0, ids: [7] });
    expect(asked).toEqual([AUTHORS.slice(10).map(({ author }) => author)]);
    expect(why).toEqual(['beyond']);
  });

  it('that Redis did not answer for are queried, and the page is whole', async () => {
    const {
      asked,
      why,
      read: readAll,
    } = entries({
      lists: { pages: async (_, lists) => lists.map((_list, at) => (at % 2 === 0 ? READY : AWAY)) },
    });
    const found = await readAll();
    expect(found.lists).toHaveLength(15);
    expect(asked).toEqual([AUTHORS.filter((_, at) => at % 2 === 1).map(({ author }) => author)]);
    expect(why).toEqual(['not_ready']);
  });

  it('that are not there are rebuilt, a bounded number at once; whoever is left is in the one query', async () => {
    const rebuilt = new Set<string>();
    const { asked, read: readAll } = entries({
      lists: {
        pages: async (_, lists) => lists.map(({ author }) => (rebuilt.has(author) ? READY : { state: 'absent' })),
      },
      rebuild: async (_, { author }) => {
        rebuilt.add(author);
        return 'done';
      },
    });
    const first = await readAll();
    expect(rebuilt.size).toBe(8);
    expect(first.lists.map(({ of }) => of)).toEqual(AUTHORS.slice(0, 8));
    expect(asked).toEqual([AUTHORS.slice(8).map(({ author }) => author)]);
    for (let again = 0; again < 3; again += 1) await readAll();
    expect(rebuilt.size).toBe(30);
  });

  it.each(['busy', 'refused'] as const)('whose rebuild is %s are queried, and the page is whole', async (outcome) => {
    const { asked, read: readAll } = entries({
      lists: {
        pages: async (_, lists) => lists.map(() => ({ state: 'building', floor: 0, ids: ids(postIdFrom(9)) })),
      },
      rebuild: async () => outcome,
    });
    const found = await readAll();
    expect(found).toEqual({ lists: [], queried: { floor: 0, ids: [7] } });
    expect(asked).toEqual([AUTHORS.map(({ author }) => author)]);
  });

  it('that vanish as soon as they are there are queried', async () => {
    const { asked, read: readAll } = entries({
      lists: { pages: async (_, lists) => lists.map(() => ({ state: 'absent' })) },
    });
    expect(await readAll()).toMatchObject({ lists: [] });
    expect(asked).toHaveLength(1);
  });
});
