/** Owns what becomes of an own post that could not be brought to its author's timeline in time. */
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { postIdFrom } from '../../src/timeline/ids.ts';
import { createOwedOwn, type OwedOwn, type OwnPost } from '../../src/write/owed-own.ts';
import { userId } from '../harness/service.ts';
import { newTenant } from '../store/redis/cache-under-test.ts';

const REFUSED = new TributaryError('CACHE_UNAVAILABLE', { message: 'away' });
const tenant = newTenant();
const post = (at: number): OwnPost => ({ tenant, author: userId(`author-${at}`), postId: postIdFrom(1_000 + at) });

let owed: OwedOwn;
let pushed: number[];
let tries: number;
let refuses: (at: number) => boolean;
let left: number;
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance'] });
  pushed = [];
  tries = 0;
  refuses = () => false;
  owed = createOwedOwn({
    async push(_, { postId }) {
      tries += 1;
      if (refuses(postId - 1_000)) return REFUSED;
      pushed.push(postId - 1_000);
      return 'added';
    },
    monotonicMs: () => performance.now(),
    owed: (count) => {
      left = count;
    },
  });
});
afterEach(() => {
  owed.stop();
  vi.useRealTimers();
});
const pass = (ms: number) => vi.advanceTimersByTimeAsync(ms);

it('is brought as soon as it can be, with all others, and once', async () => {
  refuses = () => true;
  for (let at = 0; at < 200; at += 1) owed.owe(post(at));
  await pass(10_000);
  expect(left).toBe(200);
  // One try at a time while none is taken.
  expect(tries).toBeLessThanOrEqual(50);
  refuses = () => false;
  await pass(200);
  expect(pushed.toSorted((a, b) => a - b)).toEqual(Array.from({ length: 200 }, (_, at) => at));
  await pass(10_000);
  expect([pushed.length, left]).toEqual([200, 0]);
});

it('holds no other up where it alone is not taken, and is left to its job at last', async () => {
  refuses = (at) => at === 0;
  for (let at = 0; at < 3; at += 1) owed.owe(post(at));
  await pass(1_000);
  expect(pushed.toSorted()).toEqual([1, 2]);
  await pass(610_000);
  expect(left).toBe(0);
  const before = tries;
  await pass(10_000);
  expect(tries).toBe(before);
});

it('is one of a bounded number, and forgotten when the process stops', async () => {
  refuses = () => true;
  for (let at = 0; at < 20_100; at += 1) owed.owe(post(at));
  expect(left).toBe(20_000);
  owed.stop();
  const before = tries;
  await pass(10_000);
  expect(tries).toBe(before);
});
