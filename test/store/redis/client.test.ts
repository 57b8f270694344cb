/** Owns the promises of the cache client when Redis is away, slow, deaf, restarted or demoted: fail at once, take no error for an answer, come back unaided. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { Cache, CacheOptions } from '../../../src/store/redis/client.ts';
import { createCache } from '../../../src/store/redis/client.ts';
import { createPostFacts } from '../../../src/store/redis/facts.ts';
import { postIdFrom } from '../../../src/timeline/ids.ts';
import { eventually, within } from '../../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../../harness/fault-proxy.ts';
import { type CacheUnderTest, newTenant, newToken, openCache, PATIENT, soon, user } from './cache-under-test.ts';
import { type OwnRedis, startOwnRedis } from './own-redis.ts';

/** Of clients whose time-outs are waited for; the others are patient, since a busy machine must not fail them. */
const HASTY_MS = 150;
const UNAVAILABLE = expect.objectContaining({ reason: 'CACHE_UNAVAILABLE' });

let own: OwnRedis;
let proxy: FaultProxy;
let under: CacheUnderTest;
const faults: Error[] = [];

beforeAll(async () => {
  own = await startOwnRedis();
});
afterAll(() => own.stop());

beforeEach(async () => {
  proxy = await startFaultProxy({ port: own.server.port });
  faults.length = 0;
  under = await openThrough({});
});
afterEach(async () => {
  await under.close();
  await proxy.stop();
});

function openThrough(options: Partial<CacheOptions>): Promise<CacheUnderTest> {
  const url = proxy.through(own.server.url);
  return openCache({ urls: [url], cluster: false }, { clientFailed: (error) => void faults.push(error), ...options });
}

const KEYS = Array.from({ length: 1_000 }, (_, index) => `none:${index}`);
const pushTo = (cache: Cache, keys = KEYS) => cache.runEach(soon(), 'push', keys, [1, 800, 64]);

async function workingAgain({ cache } = under): Promise<void> {
  await eventually(async () => expect(await cache.read(soon(), ['none'])).toEqual([{ value: undefined }]));
}

describe('a server that is away', () => {
  it('fails every verb at once, and the connections are reported', async () => {
    await proxy.refuse();
    await eventually(() => expect(faults.length).toBeGreaterThan(0));
    const { cache } = under;
    const started = performance.now();
    await expect(cache.run(soon(), 'page', ['k'], ['older', 1, 1, 1, 1])).rejects.toEqual(UNAVAILABLE);
    await expect(cache.remove(soon(), ['k'])).rejects.toEqual(UNAVAILABLE);
    await expect(cache.removeFields(soon(), [{ key: 'k', field: 'f' }])).rejects.toEqual(UNAVAILABLE);
    expect(await cache.runEachSet(soon(), 'cut', [['k', 'l']], [1, 1, 1])).toEqual([{ error: UNAVAILABLE }]);
    await expect(cache.write(soon(), [{ key: 'k', value: 'v' }], 1_000)).rejects.toEqual(UNAVAILABLE);
    await expect(cache.settings(soon(), 'save')).rejects.toEqual(UNAVAILABLE);
    expect(await cache.read(soon(), ['k', 'l'])).toEqual([{ error: UNAVAILABLE }, { error: UNAVAILABLE }]);
    expect((await pushTo(cache)).every((result) => 'error' in result)).toBe(true);
    expect(performance.now() - started).toBeLessThan(PATIENT.commandTimeoutMs / 2);
    await proxy.restore();
    await workingAgain();
  });

  it('is waited for by those who ask whether it is ready, until they have enough', async () => {
    await proxy.refuse();
    const cache = createCache({ ...PATIENT, urls: [proxy.through(own.server.url)], cluster: false });
    await expect(cache.ready(AbortSignal.timeout(50))).rejects.toEqual(
      expect.objectContaining({ reason: 'DEADLINE_EXCEEDED' }),
    );
    const ready = cache.ready(soon());
    await proxy.restore();
    await ready;
    await cache.close();
    await expect(cache.ready(soon())).rejects.toEqual(UNAVAILABLE);
    await expect(cache.run(soon(), 'push', ['k'], [1, 800, 64])).rejects.toEqual(UNAVAILABLE);
  });
});

describe('a server that is restarted', () => {
  it('has lost its scripts, and the next calls work', async () => {
    expect(await pushTo(under.cache, ['none'])).toEqual([{ value: 0 }]);
    await own.server.kill();
    await expect(under.cache.remove(soon(), ['k'])).rejects.toEqual(UNAVAILABLE);
    await own.server.restart();
    await workingAgain();
    expect(await pushTo(under.cache, ['none'])).toEqual([{ value: 0 }]);
  });

  it('fails the calls that were in flight, and repeats none of them', async () => {
    await pushTo(under.cache, ['none']);
    proxy.delay(100);
    const results = pushTo(under.cache);
    await eventually(() => expect(proxy.bytesUp).toBeGreaterThan(10_000));
    proxy.reset();
    expect(
      (await within(results, PATIENT.commandTimeoutMs / 2)).filter((result) => 'error' in result).length,
    ).toBeGreaterThan(0);
  });

  it('or that forgot its scripts and kept its connections gets them again', async () => {
    await pushTo(under.cache, ['none']);
    await under.raw.script('FLUSH');
    expect(await pushTo(under.cache)).toEqual(KEYS.map(() => ({ value: 0 })));
    await under.raw.script('FLUSH');
    const some = Array.from({ length: 50 }, () => under.cache.run(soon(), 'push', ['none'], [1, 800, 64]));
    expect(await Promise.all(some)).toEqual(some.map(() => [0]));
  });
});

describe('a network that drops everything for 600 ms', () => {
  let hasty: CacheUnderTest;
  beforeEach(async () => {
    hasty = await openThrough({ commandTimeoutMs: HASTY_MS });
  });
  afterEach(() => hasty.close());

  it('gives errors and no misses, stores nothing, and is over by itself', async () => {
    const facts = createPostFacts(hasty.cache, hasty.keys, {
      lifeMs: 60_000,
      tokenLifeMs: 20_000,
      random: Math.random,
    });
    const [tenant, token, postId] = [newTenant(), newToken(), postIdFrom(5)];
    await facts.lookUp(soon(), tenant, [postId], token);
    const kinds = new Set<string>();
    proxy.blackhole();
    const until = performance.now() + 600;
    while (performance.now() < until) {
      const [lookup] = await within(facts.lookUp(soon(), tenant, [postId], newToken()), 20_000);
      kinds.add(lookup?.kind ?? 'none');
    }
    expect([...kinds]).toEqual(['error']);
    await expect(facts.forget(soon(), tenant, [postId])).rejects.toEqual(UNAVAILABLE);
    await proxy.restore();
    await workingAgain(hasty);
    // The token from before still stands: nothing was taken for a miss meanwhile.
    expect((await facts.lookUp(soon(), tenant, [postId], newToken())).map(({ kind }) => kind)).toEqual(['loading']);
  });

  it('and never comes back on that connection: another is made', async () => {
    proxy.blackhole();
    const taken = proxy.connectionsTaken;
    await eventually(
      async () => {
        await hasty.cache.read(soon(), ['none']);
        expect(proxy.connectionsTaken).toBeGreaterThan(taken);
      },
      { timeoutMs: 10_000 },
    );
    await proxy.restore();
    await workingAgain(hasty);
  });

  it('does not keep a caller beyond their own deadline', async () => {
    const patient = await openThrough({ commandTimeoutMs: 20_000 });
    proxy.blackhole();
    const signal = AbortSignal.timeout(50);
    const late = { reason: 'DEADLINE_EXCEEDED' };
    const work = [
      patient.cache.run(signal, 'push', ['k'], [1, 800, 64]),
      patient.cache.runEach(signal, 'push', KEYS, [1, 800, 64]),
      patient.cache.read(signal, KEYS),
      patient.cache.remove(signal, KEYS),
      patient.cache.write(signal, [{ key: 'k', value: 'v' }], 1_000),
    ];
    for (const result of await within(Promise.allSettled(work), 10_000)) {
      expect(result).toMatchObject({ status: 'rejected', reason: late });
    }
    await patient.close();
  });
});

describe('a caller who has left', () => {
  it('has nothing sent', async () => {
    const gone = AbortSignal.abort(new Error('left'));
    const cancelled = expect.objectContaining({ reason: 'CALL_CANCELLED' });
    await under.raw.config('RESETSTAT');
    await expect(under.cache.run(gone, 'push', ['k'], [1, 800, 64])).rejects.toEqual(cancelled);
    await expect(under.cache.read(gone, ['k'])).rejects.toEqual(cancelled);
    await expect(under.cache.remove(gone, ['k'])).rejects.toEqual(cancelled);
    // Whatever had been sent before this one would have been counted before it is answered.
    await under.cache.read(soon(), ['k']);
    const counted = await under.raw.info('commandstats');
    expect(counted).toContain('cmdstat_mget:calls=1,');
    expect(counted).not.toMatch(/cmdstat_(?:del|eval|evalsha):/);
  });
});

describe('a server that was demoted', () => {
  it('is left by every script, also one that only reads, and the connection is made anew', async () => {
    const timelines = under.timelines({});
    const of = { tenant: newTenant(), viewer: user('viewer') };
    const token = newToken();
    await timelines.begin(soon(), { ...of, token });
    await timelines.commit(soon(), { ...of, token, floor: 0 });
    const page = () => timelines.page(soon(), { ...of, direction: 'older', position: 9, count: 9 });
    expect((await page()).state).toBe('ready');
    const other = await startOwnRedis();
    try {
      const taken = proxy.connectionsTaken;
      await under.raw.replicaof('127.0.0.1', other.server.port);
      await expect(page()).rejects.toEqual(UNAVAILABLE);
      await eventually(() => expect(proxy.connectionsTaken).toBeGreaterThan(taken));
    } finally {
      await eventually(() => under.raw.replicaof('NO', 'ONE'));
      await other.stop();
    }
    await workingAgain();
  });
});

describe('a batch', () => {
  it('has few calls in flight, whatever its size', async () => {
    proxy.delay(20);
    const many = Array.from({ length: 128 * 40 }, (_, index) => `none:${index}`);
    await pushTo(under.cache, ['none']);
    const patient = await openThrough({});
    await pushTo(patient.cache, ['none']);
    const sent = proxy.bytesUp;
    const results = pushTo(patient.cache, many);
    await new Promise((resolve) => setImmediate(resolve));
    await eventually(() => expect(proxy.bytesUp).toBeGreaterThan(sent));
    const inFlight = proxy.bytesUp - sent;
    expect(await results).toHaveLength(many.length);
    const all = proxy.bytesUp - sent;
    expect(inFlight).toBeLessThanOrEqual((all * 16) / 40 + 2_000);
    await patient.close();
  });
});

describe('close', () => {
  it('leaves no connection, whatever the state of it, and fails what is in flight', async () => {
    proxy.blackhole();
    const reading = under.cache.read(soon(), ['k']);
    await within(under.cache.close(), PATIENT.commandTimeoutMs / 2);
    expect(await reading).toEqual([{ error: UNAVAILABLE }]);
    under.raw.disconnect();
    await proxy.restore();
    await eventually(() => expect(proxy.connectionsOpen).toBe(0));
  });

  it('is prompt while there is no server, and twice', async () => {
    await proxy.refuse();
    await eventually(() => expect(faults.length).toBeGreaterThan(0));
    await within(under.cache.close(), PATIENT.commandTimeoutMs / 2);
    await within(under.cache.close(), PATIENT.commandTimeoutMs / 2);
    const taken = proxy.connectionsTaken;
    await proxy.restore();
    await new Promise((resolve) => setTimeout(resolve, 300));
    under.raw.disconnect();
    expect(proxy.connectionsTaken - taken).toBeLessThanOrEqual(1);
  });
});
