/** Owns when a process says that it can be called, probe by probe. */
import { beforeEach, expect, it } from 'vitest';
import { createReadiness, type ProbedReadiness } from '../../src/degradation/readiness.ts';
import { createTestLog } from '../harness/service.ts';
import { createTestClock, type TestClock } from '../harness/test-clock.ts';

const KEY_OUTAGE_MS = 60_000;

let clock: TestClock;
let postgres: 'writes' | 'reads' | 'away';
let cache: 'there' | 'away';
let readiness: ProbedReadiness;
beforeEach(() => {
  clock = createTestClock();
  clock.freeze();
  [postgres, cache] = ['writes', 'there'];
  readiness = createReadiness({
    probeDatabase: async () => {
      if (postgres === 'away') throw new Error('no answer');
      return postgres === 'writes';
    },
    probeCache: async () => {
      if (cache === 'away') throw new Error('no answer');
    },
    keyOutageMs: KEY_OUTAGE_MS,
    clock,
    log: createTestLog([]),
  });
});

async function after(probes: number): Promise<string> {
  for (let probe = 0; probe < probes; probe += 1) await readiness.probeOnce();
  return `${readiness.isReady() ? 'ready' : 'not ready'}, ${readiness.takesWrites() ? 'takes writes' : 'no writes'}`;
}

it('is not ready before Postgres has answered once, whatever the cache does', async () => {
  postgres = 'away';
  expect(await after(0)).toBe('not ready, no writes');
  expect(await after(3)).toBe('not ready, no writes');
  postgres = 'writes';
  expect(await after(1)).toBe('ready, takes writes');
});

it('stays ready without Postgres while the cache is there, and not without both; one probe that fails changes nothing', async () => {
  await after(1);
  postgres = 'away';
  expect(await after(1)).toBe('ready, takes writes');
  expect(await after(1)).toBe('ready, no writes');
  cache = 'away';
  expect(await after(1)).toBe('ready, no writes');
  expect(await after(1)).toBe('not ready, no writes');
  cache = 'there';
  expect(await after(1)).toBe('ready, no writes');
  [postgres, cache] = ['writes', 'away'];
  expect(await after(2)).toBe('ready, takes writes');
});

it('is ready for pages over a Postgres that takes no writes, with or without the cache', async () => {
  postgres = 'reads';
  expect(await after(2)).toBe('ready, no writes');
  cache = 'away';
  expect(await after(2)).toBe('ready, no writes');
});

it('is not ready any more when no key is remembered that a page could be asked for with', async () => {
  await after(1);
  postgres = 'away';
  expect(await after(2)).toBe('ready, no writes');
  clock.advance(KEY_OUTAGE_MS);
  expect(await after(1)).toBe('not ready, no writes');
  clock.step(-3_600_000);
  expect(await after(1)).toBe('not ready, no writes');
});

it('tells of every change once, and of the last one when it stops', async () => {
  const told: string[] = [];
  readiness.onChange(() => void after(0).then((state) => told.push(state)));
  await after(3);
  postgres = 'away';
  await after(3);
  readiness.stop();
  await after(1);
  expect(told).toEqual(['ready, takes writes', 'ready, no writes', 'not ready, no writes']);
});
