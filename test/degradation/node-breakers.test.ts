/** Owns that one master of a cluster is given up without the others, and counted while it is away. */
import { afterEach, beforeEach, expect, it, vi } from 'vitest';
import { createBreaker } from '../../src/degradation/breaker.ts';
import { createNodeBreakers, type NodeBreakers } from '../../src/degradation/node-breakers.ts';

const UNREACHED = new Error('nobody there');

let breakers: NodeBreakers;
let away: Set<string>;
let told: string[];
let probed: string[];
let wholeIsBack: boolean;
const clock = { nowMs: () => Date.now(), monotonicMs: () => performance.now() };
beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'performance', 'Date'] });
  [away, told, probed] = [new Set(), [], []];
  wholeIsBack = false;
  breakers = createNodeBreakers({
    whole: createBreaker({
      isFailure: (error) => error === UNREACHED,
      refusal: () => UNREACHED,
      async probe() {
        if (!wholeIsBack) throw UNREACHED;
      },
      clock,
      changed: (state) => {
        const news = `the whole is ${state}`;
        if (state !== 'half_open' && !told.includes(news)) told.push(news);
      },
    }),
    isFailure: (error) => error === UNREACHED,
    refusal: () => new Error('refused'),
    async probe(_, node) {
      probed.push(node);
      if (away.has(node)) throw UNREACHED;
    },
    clock,
    changed: (node, { isAway, away: count }) => told.push(`${node} ${isAway ? 'away' : 'back'}, ${count} away`),
  });
});
afterEach(() => {
  breakers.stop();
  vi.useRealTimers();
});

const ask = (node: string) =>
  breakers.call(node, async () => (away.has(node) ? Promise.reject(UNREACHED) : 'answered')).catch(String);
async function askAllFor(ms: number): Promise<void> {
  for (let at = 0; at <= ms; at += 50) {
    await Promise.all(['a', 'b', 'c'].map(ask));
    await vi.advanceTimersByTimeAsync(50);
  }
}

it('is refused alone: calls to the others go through, in whatever number they come between its failures', async () => {
  away.add('b');
  await askAllFor(600);
  expect(told).toEqual(['b away, 1 away']);
  expect(await Promise.all(['a', 'b', 'c'].map(ask))).toEqual(['answered', 'Error: refused', 'answered']);
  expect(['a', 'b', 'c'].map((node) => breakers.isClosed(node))).toEqual([true, false, true]);
});

it('is asked for signs of life alone, told once however many of them fail, and back with the first', async () => {
  away.add('b').add('c');
  await askAllFor(600);
  expect(told).toEqual(['b away, 1 away', 'c away, 2 away']);
  await vi.advanceTimersByTimeAsync(3_000);
  expect(new Set(probed)).toEqual(new Set(['b', 'c']));
  expect(told).toHaveLength(2);
  away.delete('b');
  await vi.advanceTimersByTimeAsync(300);
  expect(told.slice(2)).toEqual(['b back, 1 away']);
  expect(await ask('b')).toBe('answered');
  away.clear();
  await vi.advanceTimersByTimeAsync(300);
  expect(told.slice(3)).toEqual(['c back, 0 away']);
});

it('no longer asks once it was told to stop', async () => {
  away.add('a');
  await askAllFor(600);
  breakers.stop();
  const before = probed.length;
  await vi.advanceTimersByTimeAsync(5_000);
  expect(probed.length).toBeLessThanOrEqual(before + 1);
});

it('is not given up for what the breaker of the whole cache refuses, nor is that a sign of life', async () => {
  const askFor = async (node: string, ms: number): Promise<void> => {
    for (let at = 0; at < ms; at += 50) {
      await ask(node);
      await vi.advanceTimersByTimeAsync(50);
    }
  };
  away.add('a');
  await askFor('a', 300);
  away.add('b');
  // Both fail, neither for long enough; together they are the whole cache.
  await askFor('b', 350);
  expect(told).toEqual(['the whole is open']);
  await askFor('c', 1_000);
  expect(told).toEqual(['the whole is open']);
  expect(['a', 'b', 'c'].map((node) => breakers.isClosed(node))).toEqual([true, true, true]);
  await askFor('a', 50);
  wholeIsBack = true;
  await vi.advanceTimersByTimeAsync(300);
  expect(told).toEqual(['the whole is open', 'the whole is closed']);
  expect(await ask('c')).toBe('answered');
  // Its row goes on where it was.
  await ask('a');
  expect(told.slice(2)).toEqual(['a away, 1 away']);
});
