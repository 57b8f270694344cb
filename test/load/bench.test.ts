/** Owns the promises of the benchmark frame: fair turns, medians, a result that programs can read, a list for people. */
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { type BenchResult, jsonOf, shortfalls, tableOf } from '../../load/bench/result.ts';
import { type Contender, median, ratePerSecond, runRounds } from '../../load/bench/rounds.ts';

const MAIN = path.resolve(import.meta.dirname, '../../load/bench/main.ts');

function runMain(...args: readonly string[]) {
  return spawnSync(process.execPath, [MAIN, ...args], { encoding: 'utf8' });
}

describe('rounds', () => {
  function contender(name: string, turns: string[], values: readonly number[]): Contender {
    let round = 0;
    return {
      name,
      async round() {
        turns.push(name);
        return values[round++ % values.length] ?? 0;
      },
    };
  }

  it('take turns, let each go first as often as the others, and count no warm-up', async () => {
    const turns: string[] = [];
    const contenders = [contender('a', turns, [900, 1, 2, 3, 4, 5]), contender('b', turns, [7])];
    const measured = await runRounds({ contenders, rounds: 5, warmUps: 1, report: () => undefined });
    expect(turns.join('')).toBe('abbaabbaabba');
    expect(measured).toEqual([
      { name: 'a', median: 3, lowest: 1, highest: 5 },
      { name: 'b', median: 7, lowest: 7, highest: 7 },
    ]);
  });

  it('are at least five', async () => {
    await expect(runRounds({ contenders: [], rounds: 4, warmUps: 0, report: () => undefined })).rejects.toThrow(
      RangeError,
    );
  });

  it.each([
    { values: [5, 1, 3], middle: 3 },
    { values: [4, 1, 3, 2], middle: 2.5 },
    { values: [10, 9, 100], middle: 10 },
  ])('have the median $middle of $values', ({ values, middle }) => expect(median(values)).toBe(middle));

  it('end with the error of an operation that failed', async () => {
    const operation = (): Promise<void> => Promise.reject(new Error('no such table'));
    await expect(ratePerSecond({ workers: 2, durationMs: 1_000, operation })).rejects.toThrow('no such table');
  });
});

describe('a result', () => {
  const measured = (name: string, value: number) => ({ name, median: value, lowest: value, highest: value });
  const result: BenchResult = {
    name: 'publish',
    unit: 'posts/s',
    ours: measured('publish flow', 3_000),
    against: { ceiling: measured('bare statement', 4_000) },
    ratioMin: 0.6,
    conditions: [],
  };

  it('is one line of JSON: ours, and what each of the others measured, with ours divided by it', () => {
    expect(JSON.parse(jsonOf(result))).toEqual({
      name: 'publish',
      ours: 3_000,
      unit: 'posts/s',
      against: { ceiling: { value: 4_000, ratio: 0.75 } },
    });
    expect(jsonOf(result)).not.toContain('\n');
  });

  it('is a table', () => {
    expect(tableOf(result)).toEqual([
      '                median posts/s  lowest  highest  ours / this',
      'publish flow             3,000   3,000    3,000',
      'bare statement           4,000   4,000    4,000         0.75',
    ]);
  });

  it('says whom ours is too slow against', () => {
    expect(shortfalls(result)).toEqual([]);
    expect(shortfalls({ ...result, ratioMin: 0.8 })).toEqual(['0.75 of bare statement, at least 0.8 is asked']);
  });

  it('says what ours is too large for', () => {
    expect(shortfalls({ ...result, oursMax: 3_000, ratioMax: 0.75 })).toEqual([]);
    expect(shortfalls({ ...result, oursMax: 2_000, ratioMax: 0.25 })).toEqual([
      '3,000 posts/s, at most 2000 is asked',
      '0.75 of bare statement, at most 0.25 is asked',
    ]);
  });
});

describe('the command', () => {
  it('lists the benchmarks when it is given none', () => {
    const { status, stdout } = runMain();
    expect(status).toBe(0);
    expect(stdout).toMatch(/^ {2}publish {2}\S/m);
  });

  it.each([
    { args: ['publsh'], message: 'There is no benchmark "publsh".' },
    { args: ['constructor'], message: 'There is no benchmark "constructor".' },
    { args: ['publish', '--rounds', '3'], message: '--rounds takes a number from 5' },
    { args: ['publish', '--fast'], message: "'--fast'" },
  ])('does not understand $args, says so with the list, and exits 2', ({ args, message }) => {
    const { status, stderr, stdout } = runMain(...args);
    expect(status).toBe(2);
    expect(stderr).toContain(message);
    expect(stderr).toContain('npm run bench -- <name>');
    expect(stdout).toBe('');
  });
});
