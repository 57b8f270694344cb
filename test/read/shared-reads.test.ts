/**
 * Owns what holds of loads that several callers wait for, and of the copies that a process keeps: nobody's deadline decides for others, no failure is remembered, what never settles is dropped, bytes are
 * bounded, and nobody is given what was asked for before they came. The stores are the test's own.
 */
import { getEventListeners } from 'node:events';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { describe, expect, inject, it } from 'vitest';
import { createReadBatches, onPostgres, onRedis, type ReadCall } from '../../src/read/batches.ts';
import { createCachedPosts } from '../../src/read/cached-posts.ts';
import { createListMemory, type ListMemoryParts } from '../../src/read/list-memory.ts';
import { createTurnReads } from '../../src/read/turn-reads.ts';
import { createVersionedCache, type VersionedCacheParts } from '../../src/read/versioned-cache.ts';
import { encodeBody } from '../../src/store/encode-bodies.ts';
import { createPulledLists } from '../../src/store/redis/pulled-lists.ts';
import { POST_ID_MAX, type PostId, type TenantId } from '../../src/timeline/ids.ts';
import type { PostMeta } from '../../src/timeline/post.ts';
import { eventually, within } from '../harness/eventually.ts';
import { postMeta } from '../harness/post-meta.ts';
import { createTestClock } from '../harness/test-clock.ts';
import { ids, newTenant, newToken, openCache, soon, user } from '../store/redis/cache-under-test.ts';

const tenant = newTenant();
const call = (signal: AbortSignal = soon()): ReadCall => ({ tenant, signal });
const nothing = (): undefined => undefined;
const later = () => new Promise<void>((resolve) => setImmediate(resolve));

setFlagsFromString('--expose-gc');
const collect = runInNewContext('gc') as () => void;
function heapBytes(): number {
  collect();
  return process.memoryUsage().heapUsed;
}

interface Row {
  readonly id: string;
  readonly version: number;
  readonly value: { readonly text: string };
}

function cache(parts: Partial<VersionedCacheParts<string, { readonly text: string }, Row>>) {
  const seen = { joined: 0, stored: 0, asked: 0 };
  const under = createVersionedCache<string, { readonly text: string }, Row>({
    store: {
      async read(_signal, _tenant, wanted) {
        seen.asked += 1;
        return wanted.map(({ id, version }) => ({ kind: 'hit', value: { text: `${id} ${version}` } }));
      },
      async store(_signal, _tenant, values) {
        seen.stored += values.length;
      },
    },
    loadRows: async () => new Map(),
    heldBy: (row) => row,
    bytesOf: ({ text }) => text.length,
    bytesMax: 100_000,
    limitMs: 5_000,
    events: {
      heldRead: nothing,
      storeRead: nothing,
      joined: (keys) => (seen.joined += keys),
      held: nothing,
      notStored: nothing,
    },
    ...parts,
  });
  return { ...under, seen };
}

const FIRST = [{ id: 'a', version: 1 }];
const textOf = (found: Awaited<ReturnType<ReturnType<typeof cache>['read']>>) => {
  const [one] = found.values();
  return one?.kind === 'value' ? one.value.text : one?.row.value.text;
};

describe('copies of what never changes', () => {
  it('are read once for all who ask at the same time, and for all who ask after them', async () => {
    const { read, seen } = cache({});
    const found = await Promise.all(Array.from({ length: 100 }, () => read(call(), FIRST)));
    expect(found.map(textOf)).toEqual(Array.from({ length: 100 }, () => 'a 1'));
    await read(call(), FIRST);
    expect(seen).toMatchObject({ asked: 1, joined: 99 });
  });

  it('come from Postgres where Redis has none, once for all, and are stored behind them', async () => {
    let loads = 0;
    const { read, seen } = cache({
      store: {
        read: async (_signal, _tenant, wanted) => wanted.map(() => ({ kind: 'miss' })),
        async store() {
          seen.stored += 1;
        },
      },
      async loadRows(_call, wanted) {
        loads += 1;
        await later();
        return new Map(wanted.map((id) => [id, { id, version: 1, value: { text: 'row' } }]));
      },
    });
    await Promise.all(Array.from({ length: 50 }, () => read(call(), FIRST)));
    expect(textOf(await read(call(), FIRST))).toBe('row');
    expect({ loads, stored: seen.stored }).toEqual({ loads: 1, stored: 1 });
  });

  it('are never those of another version that is on its way', async () => {
    const { read } = cache({});
    const [one, two] = await Promise.all([
      read(call(), [
        { id: 'a', version: 1 },
        { id: 'b', version: 1 },
      ]),
      read(call(), [
        { id: 'a', version: 1 },
        { id: 'b', version: 2 },
      ]),
    ]);
    expect(one.get('b')).toMatchObject({ value: { text: 'b 1' } });
    expect(two.get('b')).toMatchObject({ value: { text: 'b 2' } });
  });

  it('that one caller no longer waits for come for the others', async () => {
    const held = Promise.withResolvers<void>();
    const { read, size } = cache({
      store: {
        async read() {
          await held.promise;
          return [{ kind: 'hit', value: { text: 'late' } }];
        },
        store: async () => undefined,
      },
    });
    const leaving = new AbortController();
    const first = read(call(leaving.signal), FIRST);
    const second = read(call(), FIRST);
    leaving.abort();
    await expect(first).rejects.toMatchObject({ reason: 'CALL_CANCELLED' });
    held.resolve();
    expect(textOf(await second)).toBe('late');
    expect(size().underWay).toBe(0);
  });

  it('that nobody waits for any more are not loaded to the end, and the next caller asks anew', async () => {
    const signals: AbortSignal[] = [];
    const { read } = cache({
      store: {
        async read(signal) {
          signals.push(signal);
          if (signals.length === 1) await new Promise(() => undefined);
          return [{ kind: 'hit', value: { text: 'anew' } }];
        },
        store: async () => undefined,
      },
    });
    const leaving = new AbortController();
    const first = read(call(leaving.signal), FIRST);
    leaving.abort();
    await expect(first).rejects.toBeDefined();
    expect(signals[0]?.aborted).toBe(true);
    expect(textOf(await read(call(), FIRST))).toBe('anew');
  });

  it('that failed to load are not remembered', async () => {
    let asked = 0;
    const { read, size } = cache({
      store: {
        async read() {
          asked += 1;
          if (asked === 1) throw new Error('on purpose');
          return [{ kind: 'hit', value: { text: 'second' } }];
        },
        store: async () => undefined,
      },
    });
    await expect(read(call(), FIRST)).rejects.toThrow('on purpose');
    expect(size().underWay).toBe(0);
    expect(textOf(await read(call(), FIRST))).toBe('second');
  });

  it('that never come are given up after their limit', async () => {
    let asked = 0;
    const { read, size } = cache({
      limitMs: 30,
      store: {
        async read() {
          asked += 1;
          if (asked === 1) await new Promise(() => undefined);
          return [{ kind: 'hit', value: { text: 'second' } }];
        },
        store: async () => undefined,
      },
    });
    await expect(within(read(call(), FIRST), 5_000)).rejects.toMatchObject({ reason: 'CACHE_UNAVAILABLE' });
    expect(size().underWay).toBe(0);
    expect(textOf(await read(call(), FIRST))).toBe('second');
  });

  it('of which Postgres is the part that never comes are given up with that for a reason', async () => {
    const { read } = cache({
      limitMs: 30,
      store: { read: async () => [{ kind: 'miss' }], store: async () => undefined },
      loadRows: () => new Promise(() => undefined),
    });
    await expect(within(read(call(), FIRST), 5_000)).rejects.toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
  });

  it('stay within their bytes under a million different keys, and leave nothing under way', {
    timeout: 120_000,
  }, async () => {
    const bytesMax = 2_000_000;
    const { read, size } = cache({ bytesMax });
    const TOGETHER = 1_000;
    const ask = (first: number, count: number) =>
      read(
        call(),
        Array.from({ length: count }, (_, at) => ({ id: `key-${first + at}`, version: 1 })),
      );
    for (let from = 0; from < 50_000; from += TOGETHER) await ask(from, TOGETHER);
    const before = heapBytes();
    for (let from = 0; from < 1_000_000; from += TOGETHER) {
      await ask(from, TOGETHER);
      expect(size().bytes).toBeLessThanOrEqual(bytesMax);
    }
    expect(size().underWay).toBe(0);
    await eventually(() => expect(heapBytes() - before).toBeLessThan(20 * 1_024 ** 2), { timeoutMs: 10_000 });
  });

  it('larger than all that may be held are served and not kept', async () => {
    const { read, size, seen } = cache({ bytesMax: 0 });
    expect(textOf(await read(call(), FIRST))).toBe('a 1');
    expect(textOf(await read(call(), FIRST))).toBe('a 1');
    expect(size()).toEqual({ bytes: 0, underWay: 0 });
    expect(seen.asked).toBe(2);
  });
});

it('a row that others began to load before the meta was read does not bring an earlier meta back; a later one is taken', async () => {
  const [postId] = ids(7) as [PostId];
  const metaOf = (metaVersion: number, more: Partial<PostMeta> = {}): PostMeta =>
    postMeta({ postId, author: user('ada'), metaVersion, ...more });
  const body = encodeBody({ text: 'body', media: [] });
  const posts = createCachedPosts({
    fillMeta: async () => new Map(),
    bodies: {
      read: async (_signal, _tenant, wanted) => wanted.map(() => ({ kind: 'miss' })),
      store: async () => undefined,
    },
    loadRows: async () => ({
      entries: [{ postId, post: { meta: metaOf(2), body } }],
      targets: new Map(),
    }),
    bytesMax: 0,
    limitMs: 5_000,
    events: {
      meta: { joined: nothing },
      body: { heldRead: nothing, storeRead: nothing, joined: nothing, held: nothing, notStored: nothing },
    },
  });
  const later = metaOf(3, { moderation: 'sensitive' });
  expect((await posts.loadBodies(call(), [later])).get(postId)).toEqual({ meta: later, body });
  expect((await posts.loadBodies(call(), [metaOf(1)])).get(postId)?.meta).toEqual(metaOf(2));
});

describe('reads of what may change', () => {
  function turns(read: (asked: readonly string[]) => Promise<ReadonlyMap<string, number>>) {
    let joined = 0;
    const under = createTurnReads<TenantId, string, number>({
      nameOf: (of) => of,
      tenantOf: (of) => of,
      read: (_call, _scope, asked) => read(asked),
      limitMs: 5_000,
      events: { joined: (keys) => (joined += keys) },
    });
    return { read: under, joins: () => joined, open: under.open };
  }

  it('of one turn are one, each key once; who comes later asks anew, although the first is not answered yet', async () => {
    const asked: (readonly string[])[] = [];
    const answers = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    let truth = 1;
    const { read, joins, open } = turns(async (keys) => {
      asked.push(keys);
      const value = truth;
      await answers[asked.length - 1]?.promise;
      return new Map(keys.map((key) => [key, value]));
    });
    const early = [read(call(), tenant, ['a', 'b']), read(call(), tenant, ['b', 'c']), read(call(), tenant, ['a'])];
    await eventually(() => expect(asked).toHaveLength(1));
    // A change is answered now: whoever comes after it must not be given what was read before.
    truth = 2;
    const late = read(call(), tenant, ['a']);
    await eventually(() => expect(asked).toHaveLength(2));
    for (const answer of answers) answer.resolve();
    expect((await Promise.all(early)).map((found) => found.get('a') ?? found.get('b'))).toEqual([1, 1, 1]);
    expect((await late).get('a')).toBe(2);
    expect(asked).toEqual([['a', 'b', 'c'], ['a']]);
    expect({ joins: joins(), open: open() }).toEqual({ joins: 2, open: 0 });
  });

  it('are handed on as soon as they are there, and counted for each who waits for them', async () => {
    const held = Promise.withResolvers<void>();
    const read = createTurnReads<TenantId, string, number>({
      nameOf: (of) => of,
      tenantOf: (of) => of,
      async read({ batches }, _scope, _asked, found) {
        batches?.redis.begin()();
        found(new Map([['quick', 1]]));
        batches?.postgres.begin()();
        await held.promise;
        return new Map([['slow', 2]]);
      },
      limitMs: 30_000,
      events: { joined: nothing },
    });
    const counts = [createReadBatches(), createReadBatches()] as const;
    const slow = read({ ...call(), batches: counts[1] }, tenant, ['slow', 'quick']);
    const quick = await within(read({ ...call(), batches: counts[0] }, tenant, ['quick']), 20_000);
    expect(quick.get('quick')).toBe(1);
    held.resolve();
    expect([...(await slow)]).toEqual([
      ['slow', 2],
      ['quick', 1],
    ]);
    expect(counts[1].redis.count()).toBe(1);
    expect(counts[1].postgres.count()).toBe(1);
  });

  it('are asked for in portions where many ask for different keys', async () => {
    const asked: number[] = [];
    const { read, open } = turns(async (keys) => {
      asked.push(keys.length);
      return new Map(keys.map((key) => [key, 1]));
    });
    const found = await Promise.all(
      Array.from({ length: 100 }, (_, at) =>
        read(
          call(),
          tenant,
          Array.from({ length: 50 }, (_key, key) => `${at} ${key}`),
        ),
      ),
    );
    expect(found.map(({ size }) => size)).toEqual(Array.from({ length: 100 }, () => 50));
    expect(Math.max(...asked)).toBeLessThan(1_024 + 50);
    expect(asked.reduce((sum, keys) => sum + keys, 0)).toBe(5_000);
    expect(open()).toBe(0);
  });

  it('that fail do so for those who asked, and not for the next', async () => {
    let asked = 0;
    const { read, open } = turns(async () => {
      asked += 1;
      if (asked === 1) throw new Error('on purpose');
      return new Map([['a', 1]]);
    });
    await expect(read(call(), tenant, ['a'])).rejects.toThrow('on purpose');
    expect(open()).toBe(0);
    expect((await read(call(), tenant, ['a'])).get('a')).toBe(1);
  });

  it.each([
    { what: 'cache', ask: onRedis, reason: 'CACHE_UNAVAILABLE' },
    { what: 'database', ask: onPostgres, reason: 'DATABASE_UNAVAILABLE' },
  ])('that wait for the $what beyond their limit say so', async ({ ask, reason }) => {
    const read = createTurnReads<TenantId, string, number>({
      nameOf: (of) => of,
      tenantOf: (of) => of,
      read: async (own) => {
        await onPostgres(own, async () => undefined);
        return ask(own, () => new Promise(() => undefined));
      },
      limitMs: 30,
      events: { joined: nothing },
    });
    await expect(within(read(call(), tenant, ['a']), 5_000)).rejects.toMatchObject({ reason });
  });

  it('leave nothing behind with a caller who goes on, however each of them ended', async () => {
    let ending: 'whole' | 'enough' | 'failure' = 'whole';
    const held = Promise.withResolvers<void>();
    const read = createTurnReads<TenantId, string, number>({
      nameOf: (of) => of,
      tenantOf: (of) => of,
      async read(_call, _scope, asked, found) {
        if (ending === 'failure') throw new Error('on purpose');
        const values = new Map(asked.map((key) => [key, 1]));
        if (ending === 'enough') {
          found(values);
          await held.promise;
        }
        return values;
      },
      limitMs: 30_000,
      events: { joined: nothing },
    });
    const going = new AbortController();
    for (ending of ['whole', 'enough', 'failure'] as const)
      await read(call(going.signal), tenant, ['a']).catch(nothing);
    const leaving = new AbortController();
    ending = 'whole';
    const left = read(call(leaving.signal), tenant, ['a']);
    const stays = read(call(going.signal), tenant, ['a']);
    leaving.abort();
    await expect(left).rejects.toMatchObject({ reason: 'CALL_CANCELLED' });
    expect((await stays).get('a')).toBe(1);
    for (const { signal } of [going, leaving]) expect(getEventListeners(signal, 'abort')).toEqual([]);
    held.resolve();
  });

  it('that all who asked have left are given up', async () => {
    const leaving = new AbortController();
    let signal: AbortSignal | undefined;
    const read = createTurnReads<TenantId, string, number>({
      nameOf: (of) => of,
      tenantOf: (of) => of,
      read: (own) => {
        signal = own.signal;
        return new Promise(() => undefined);
      },
      limitMs: 30_000,
      events: { joined: nothing },
    });
    const waiting = [read(call(leaving.signal), tenant, ['a']), read(call(leaving.signal), tenant, ['a'])];
    await eventually(() => expect(signal).toBeDefined());
    expect(signal?.aborted).toBe(false);
    leaving.abort();
    for (const each of waiting) await expect(each).rejects.toMatchObject({ reason: 'CALL_CANCELLED' });
    expect(signal?.aborted).toBe(true);
  });
});

describe('copies of lists', () => {
  const ADA = { author: user('ada'), epoch: 1 };
  const BEN = { author: user('ben'), epoch: 1 };
  const CYD = { author: user('cyd'), epoch: 1 };
  const NEWEST = { direction: 'older', position: POST_ID_MAX, count: 3 } as const;

  /** Lists as Redis has them, by author; asked for as the script of Redis is (`PAGES`), which the tests of the lists hold it to. */
  function memory(stored: Map<string, readonly PostId[]>, parts: Partial<ListMemoryParts> = {}) {
    const clock = createTestClock();
    const asked: string[] = [];
    const under = createListMemory({
      lists: {
        async pages(_signal, { lists, direction, position, count }) {
          asked.push(`${direction} ${lists.map(({ author }) => author).join(' ')}`);
          return lists.map(({ author }) => {
            const all = stored.get(author);
            if (!all) return { state: 'absent' };
            const found =
              direction === 'older' ? all.filter((id) => id <= position) : all.filter((id) => id > position).reverse();
            return { state: 'ready', floor: 0, ids: found.slice(0, count) };
          });
        },
      },
      clock,
      random: { fraction: () => 0 },
      ageMaxMs: 1_000,
      bytesMax: 1_000_000,
      limitMs: 5_000,
      events: { heldRead: nothing, listRead: nothing, joined: nothing, held: nothing },
      ...parts,
    });
    const read = async (range: Parameters<typeof under.pages>[2], lists = [ADA]) =>
      (await under.pages(call(), lists, range)).map((page) => ('ids' in page ? page.ids : page));
    return { ...under, read, clock, asked };
  }

  it('serve a second’s pages, in both directions, from one read', async () => {
    const under = memory(new Map([['ada', ids(9, 8, 7, 6, 5)]]));
    expect(await under.read(NEWEST)).toEqual([[9, 8, 7]]);
    expect(await under.read({ direction: 'older', position: 7, count: 3 })).toEqual([[7, 6, 5]]);
    expect(await under.read({ direction: 'newer', position: 5, count: 2 })).toEqual([[6, 7]]);
    expect(await under.read({ direction: 'newer', position: 9, count: 2 })).toEqual([[]]);
    expect(under.asked).toEqual(['older ada']);
    under.clock.advance(1_001);
    await under.read(NEWEST);
    expect(under.asked).toHaveLength(2);
  });

  it('are read once by a thousand who come at once', async () => {
    const under = memory(new Map([['ada', ids(9, 8, 7)]]));
    await Promise.all(Array.from({ length: 1_000 }, () => under.read(NEWEST)));
    expect(under.asked).toHaveLength(1);
    expect(under.size().underWay).toBe(0);
  });

  it('that others are reading together with newer ones give whoever joins no less', async () => {
    const stored = new Map([
      ['ada', ids(9, 8, 7)],
      ['ben', ids(...Array.from({ length: 300 }, (_, at) => 1_000 - at))],
      ['cyd', ids(6)],
    ]);
    const under = memory(stored);
    const [, joined] = await Promise.all([under.read(NEWEST, [ADA, BEN]), under.read(NEWEST, [ADA, CYD])]);
    expect(under.asked).toEqual(['older ada ben', 'older cyd']);
    expect(joined).toEqual([[9, 8, 7], []]);
    expect(await under.read({ direction: 'newer', position: 5, count: 3 }, [ADA, CYD])).toEqual([[7, 8, 9], [6]]);
  });

  it('that do not reach far enough are passed over: Redis gives the page', async () => {
    const all = ids(...Array.from({ length: 500 }, (_, at) => 1_000 - at));
    const under = memory(new Map([['ada', all]]));
    await under.read(NEWEST);
    const deep = { direction: 'older', position: 600, count: 3 } as const;
    expect(await under.read(deep)).toEqual([[600, 599, 598]]);
    expect(await under.read({ direction: 'newer', position: 600, count: 2 })).toEqual([[601, 602]]);
    expect(under.asked).toEqual(['older ada', 'older ada', 'newer ada']);
  });

  it('of many lists together, as Redis gives them, leave nothing out that belongs on the page', async () => {
    const under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
    try {
      const lists = createPulledLists(under.cache, under.keys, {
        cap: 800,
        stride: 64,
        lifeMs: 60_000,
        rebuildLeaseMs: 5_000,
      });
      const authors = Array.from({ length: 12 }, (_, at) => ({ author: user(`a${at}`), epoch: 1 }));
      const everything: PostId[] = [];
      for (const [at, of] of authors.entries()) {
        const count = at === 3 ? 0 : at === 4 ? 2 : 300;
        const own = new Set(
          Array.from({ length: count }, (_, n) => ((((at * 300 + n) * 7_919) % 1_000) + 1) * 12 + at),
        );
        const postIds = ids(...[...own].sort((a, b) => b - a));
        everything.push(...postIds);
        const list = { tenant, ...of, token: newToken() };
        await lists.begin(soon(), list);
        await lists.addOlder(soon(), { ...list, postIds });
        await lists.commit(soon(), { ...list, floor: 0 });
      }
      let asked = 0;
      const held = memory(new Map(), {
        lists: {
          pages: (...question) => {
            asked += 1;
            return lists.pages(...question);
          },
        },
        ageMaxMs: 600_000,
      });
      for (const position of [POST_ID_MAX, 11_000, 6_000, 500, 0]) {
        for (const count of [1, 10, 60, 250]) {
          for (const direction of ['older', 'newer'] as const) {
            const byPage = (a: PostId, b: PostId): number => (direction === 'older' ? b - a : a - b);
            const pages = await held.read({ direction, position, count }, authors);
            const merged = [...new Set(pages.flatMap((page) => page as readonly PostId[]))].sort(byPage);
            const expected = everything.filter((id) => (direction === 'older' ? id <= position : id > position));
            expect(merged.slice(0, count)).toEqual(expected.sort(byPage).slice(0, count));
          }
        }
      }
      // Of the newest pages only the first of each size that none before reached was read.
      const before = asked;
      for (const count of [1, 10, 60]) await held.read({ direction: 'older', position: POST_ID_MAX, count }, authors);
      expect(asked).toBe(before);
    } finally {
      await under.close();
    }
  });

  it('go with a push: the next page of this process has the post, also where a read was under way', async () => {
    const stored = new Map([['ada', ids(8, 7)]]);
    const under = memory(stored);
    await under.read(NEWEST);
    stored.set('ada', ids(9, 8, 7));
    expect(await under.read(NEWEST)).toEqual([[8, 7]]);
    under.forget(tenant, ADA);
    expect(await under.read(NEWEST)).toEqual([[9, 8, 7]]);
    under.clock.advance(1_001);
    const before = under.read(NEWEST);
    stored.set('ada', ids(10, 9));
    under.forget(tenant, ADA);
    await before;
    expect(await under.read(NEWEST)).toEqual([[10, 9]]);
  });

  it('are kept of lists that are READY alone, each for itself', async () => {
    const stored = new Map([['ada', ids(8, 7)]]);
    const under = memory(stored);
    expect(await under.read(NEWEST, [ADA, BEN])).toEqual([[8, 7], { state: 'absent' }]);
    stored.set('ben', ids(9));
    expect(await under.read(NEWEST, [ADA, BEN])).toEqual([[8, 7], [9]]);
    expect(under.asked).toEqual(['older ada ben', 'older ben']);
  });

  it('stay within their bytes', async () => {
    const under = memory(new Map(), {
      bytesMax: 50_000,
      lists: {
        pages: async (_signal, { lists }) => lists.map(() => ({ state: 'ready', floor: 0, ids: ids(3, 2, 1) })),
      },
    });
    for (let from = 0; from < 20_000; from += 100) {
      await under.read(
        NEWEST,
        Array.from({ length: 100 }, (_, at) => ({ author: user(`a${from + at}`), epoch: 1 })),
      );
      expect(under.size().bytes).toBeLessThanOrEqual(50_000);
    }
    expect(under.size().underWay).toBe(0);
  });

  it('of no age are none: every page is read', async () => {
    const under = memory(new Map([['ada', ids(8, 7)]]), { ageMaxMs: 0 });
    await under.read(NEWEST);
    await under.read(NEWEST);
    expect(under.asked).toHaveLength(2);
    expect(under.size().bytes).toBe(0);
  });
});
