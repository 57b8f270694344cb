/** Owns the promises of the benchmark frame: fair turns, medians, a result that programs can read, a list for people; and that benchmarks of fan-out run, in a tiny size. */
import { type ChildProcess, spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { globSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { describe, expect, it } from 'vitest';
import { PRESETS } from '../../load/bench/all.ts';
import { loadRecords } from '../../load/bench/record.ts';
import { type BenchResult, figureLines, jsonOf, shortfalls, tableOf } from '../../load/bench/result.ts';
import { type Contender, median, ratePerSecond, runRounds } from '../../load/bench/rounds.ts';
import { removeData } from '../../src/embedded/place.ts';

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

  it('says whom ours is too slow against where each has a ratio of its own', () => {
    const against = { ceiling: measured('bare statement', 4_000), other: measured('other way', 1_000) };
    expect(shortfalls({ ...result, against, ratioMin: { ceiling: 0.8, other: 3 } })).toEqual([
      '0.75 of bare statement, at least 0.8 is asked',
    ]);
    expect(shortfalls({ ...result, against, ratioMin: { other: 3.5 } })).toEqual([
      '3.00 of other way, at least 3.5 is asked',
    ]);
  });

  it('has further figures, with bounds of their own, and says what makes it worthless', () => {
    const figures = { 'client CPU': { value: 6.25, unit: 'µs', max: 5 }, speed: { value: 1, unit: 'times', min: 2 } };
    expect(shortfalls({ ...result, figures })).toEqual([
      'client CPU: 6.25 µs, at most 5 is asked',
      'speed: 1.00 times, at least 2 is asked',
    ]);
    expect(figureLines({ ...result, figures })).toEqual(['client CPU: 6.25 µs', 'speed: 1.00 times']);
    expect(JSON.parse(jsonOf({ ...result, figures, invalid: ['a slow rival'] }))).toMatchObject({
      figures: { 'client CPU': { value: 6.25, unit: 'µs' }, speed: { value: 1, unit: 'times' } },
      invalid: ['a slow rival'],
    });
    expect(JSON.parse(jsonOf({ ...result, invalid: [] }))).not.toHaveProperty('invalid');
  });

  it('compares each of the others with what ours measured beside it, where that differs', () => {
    const besides = {
      ...result,
      against: { busy: measured('scan', 10), silent: measured('lookups', 50) },
      oursBeside: { busy: measured('ours', 12), silent: measured('ours', 75) },
      ratioMin: 0,
      ratioMax: 1.3,
    };
    expect(JSON.parse(jsonOf(besides)).against).toEqual({
      busy: { value: 10, ratio: 1.2 },
      silent: { value: 50, ratio: 1.5 },
    });
    expect(shortfalls(besides)).toEqual(['1.50 of lookups, at most 1.3 is asked']);
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
    expect(stdout).toMatch(/^ {2}publish {2,}\S/m);
  });

  it('has a preset for every benchmark that it lists', () => {
    const listed = [...runMain().stdout.matchAll(/^ {2}([a-z]+) {2,}\S/gm)].map(([, name = '']) => name);
    expect(Object.keys(PRESETS).sort()).toEqual(listed.sort());
  });

  it.each([
    { args: ['publsh'], message: 'There is no benchmark "publsh".' },
    { args: ['constructor'], message: 'There is no benchmark "constructor".' },
    { args: ['publish', '--rounds', '3'], message: '--rounds takes a number from 5' },
    { args: ['publish', '--fast'], message: "'--fast'" },
    { args: ['publish', '--size', '3'], message: 'This benchmark has one size.' },
    { args: ['all', 'publsh'], message: 'There is no benchmark "publsh".' },
    { args: ['all', '--size', '3'], message: '--size is for one benchmark.' },
    { args: ['report', '--json'], message: 'The report takes nothing.' },
    { args: ['million', '--size', '3'], message: '--size takes a number from 20000' },
  ])('does not understand $args, says so with the list, and exits 2', ({ args, message }) => {
    const { status, stderr, stdout } = runMain(...args);
    expect(status).toBe(2);
    expect(stderr).toContain(message);
    expect(stderr).toContain('npm run bench -- <name>');
    expect(stdout).toBe('');
  });
});

/** Too small for its figures to say anything: what is looked at is that the run ends, found every post where it belongs, and says so in the promised form. */
describe('a tiny run', () => {
  const RUN_MAX_MS = 240_000;

  async function runTiny(...args: readonly string[]): Promise<Record<string, unknown>> {
    const { lines, stderr, left } = await run(args);
    // A wrong post somewhere, or any other fault, ends the run without a result.
    expect(lines, stderr).toHaveLength(1);
    expect(lines[0], stderr).toMatch(/^\{.*\}$/);
    expect(left).toEqual([]);
    return JSON.parse(lines[0] ?? '');
  }

  /** `said`: is told what the run says, as it says it. */
  async function run(
    args: readonly string[],
    said: (stderr: string, child: ChildProcess) => void = () => undefined,
    more: readonly string[] = ['--json'],
  ) {
    // A place of its own for temporary folders shows what is left behind.
    const folder = mkdtempSync(path.join(tmpdir(), 'tributary-test-'));
    const child = spawn(process.execPath, [MAIN, ...args, ...more], {
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, TMPDIR: folder },
    });
    let stdout = '';
    let stderr = '';
    child.stdout.on('data', (chunk: Buffer) => {
      stdout += chunk;
    });
    child.stderr.on('data', (chunk: Buffer) => {
      stderr += chunk;
      said(stderr, child);
    });
    await once(child, 'close');
    // Root's servers keep their data outside (src/embedded/place.ts).
    const left = [...readdirSync(folder), ...globSync(`{/var/tmp,/tmp}/tributary-*/data/elsewhere${folder}/*`)];
    removeData(folder);
    const lines = stdout.trimEnd().split('\n');
    return { lines, stderr, status: child.exitCode, left: left.filter((name) => name.includes('tributary-bench-')) };
  }

  const rate = { value: expect.any(Number), ratio: expect.any(Number) };
  const figure = (unit: string) => ({ value: expect.any(Number), unit });

  it(
    'of fanout delivers to all resident followers and compares',
    async () => {
      const result = await runTiny('fanout', '--size', '400', '--rounds', '5', '--seconds', '0.1');
      expect(result).toMatchObject({
        name: 'fanout',
        ours: expect.any(Number),
        unit: 'deliveries/s',
        against: {
          'bare script': rate,
          'zadd pipeline': rate,
          'list pipeline': rate,
          'job per follower': rate,
        },
        figures: {
          'client CPU': figure('µs/delivery'),
          'Redis CPU': figure('µs/delivery'),
          memory: figure('bytes/entry at 800 entries and more'),
          '25 % resident / 100 %': figure('times the followers/s'),
        },
      });
    },
    RUN_MAX_MS,
  );

  it(
    'of read compares the pages of all, then their rates, and p99 during fan-outs',
    async () => {
      const result = await runTiny('read', '--size', '500', '--rounds', '5', '--seconds', '0.1');
      expect(result).toMatchObject({
        name: 'read',
        ours: expect.any(Number),
        unit: 'pages/s',
        against: { connect: rate, echo: rate, 'pull by sql': rate, 'decoded pages': rate },
        figures: { 'server CPU': figure('µs/page'), 'during fan-out': figure('times the p99 without') },
      });
    },
    RUN_MAX_MS,
  );

  it(
    'of isolation measures small posts, idle and during large fan-outs',
    async () => {
      const result = await runTiny('isolation', '--size', '20');
      expect(result).toMatchObject({
        name: 'isolation',
        ours: expect.any(Number),
        unit: 'ms, p99',
        against: { idle: rate },
      });
    },
    RUN_MAX_MS,
  );

  it(
    'of stampede counts what a large author’s post costs the stores',
    async () => {
      const result = await runTiny('stampede', '--size', '40');
      expect(result).toMatchObject({
        name: 'stampede',
        ours: expect.any(Number),
        against: {},
        figures: { 'list reads': { value: expect.any(Number) }, 'body reads': { value: expect.any(Number) } },
      });
      expect(result['ours']).toBeLessThanOrEqual(2);
    },
    RUN_MAX_MS,
  );

  it(
    'of million goes on after SIGKILL and reaches everybody once',
    async () => {
      const result = await runTiny('million', '--size', '20000');
      expect(result).toMatchObject({
        name: 'million',
        unit: 'deliveries/s',
        against: {},
        figures: { 'heap spread': figure('MB between quarters, after collection'), 'killed at': { unit: 'followers' } },
      });
      const { value } = (result as { figures: Record<string, { value: number }> }).figures['killed at'] ?? {};
      expect(value).toBeGreaterThan(0);
      expect(value).toBeLessThan(20_000);
    },
    RUN_MAX_MS,
  );

  it(
    'of twip asks all for the same, finds that all show what they should, and compares',
    async () => {
      const result = await runTiny('twip', '--size', '50');
      expect(result).toMatchObject({
        name: 'twip',
        ours: expect.any(Number),
        unit: 's in total',
        against: {
          'client push': rate,
          'client push, durable': rate,
          'trigger table': rate,
          'push only': rate,
          'pull only': rate,
          'whole pages': rate,
        },
        figures: { 'ours client CPU': figure('s'), 'ours Redis CPU': figure('s'), 'ours Postgres CPU': figure('s') },
      });
    },
    RUN_MAX_MS,
  );

  it(
    'of policy judges the hybrid at every point; among all, it is kept as JSON with a plot',
    async () => {
      const folder = mkdtempSync(path.join(tmpdir(), 'tributary-results-'));
      const { stderr, left } = await run(['all', 'policy', '--size', '50', '--save', folder], () => undefined, []);
      const [record, ...others] = loadRecords(folder);
      expect(others).toEqual([]);
      expect(record, stderr).toMatchObject({
        command: 'npm run bench -- policy --size 50',
        result: { name: 'policy' },
      });
      expect(record?.commit).toMatch(/^[0-9a-f]{12}|^unknown$/);
      const point = { ...figure('times the CPU of the better of push and pull'), max: 1.1 };
      for (const percent of [1, 50, 100]) {
        expect(record?.result.figures?.[`${percent} % active`]).toEqual(point);
      }
      expect(readFileSync(path.join(folder, 'policy.svg'), 'utf8')).toMatch(/^<svg[\s\S]*<\/svg>\n$/);
      expect(left).toEqual([]);
      rmSync(folder, { recursive: true });
    },
    RUN_MAX_MS,
  );

  it(
    'of growth has the cost of each operation at each step',
    async () => {
      const result = await runTiny('growth', '--size', '2000');
      const names = ['publish', 'deliver', 'read', 'rebuild'].flatMap((operation) =>
        ['20', '200', '2,000'].map((viewers) => `${operation} at ${viewers}`),
      );
      const { figures } = result as { figures: Record<string, { value: number }> };
      for (const name of names) expect(figures[name]?.value, name).toBeGreaterThan(0);
    },
    RUN_MAX_MS,
  );

  it(
    'of a cluster has what a page and a delivery cost, by the number of shards',
    async () => {
      const result = await runTiny('cluster', '--size', '2000', '--seconds', '0.1');
      const names = ['one server', '256 shards', '24 shards'].flatMap((kind) =>
        ['page', 'delivery'].flatMap((what) => ['Redis', 'process'].map((where) => `${kind}, ${what}, ${where}`)),
      );
      const { figures } = result as { figures: Record<string, { value: number }> };
      for (const name of names) expect(figures[name]?.value, name).toBeGreaterThan(0);
    },
    RUN_MAX_MS,
  );

  it(
    'of recovery loses no post and says when the service was back',
    async () => {
      const result = await runTiny('recovery', '--size', '10');
      expect(result).toMatchObject({
        name: 'recovery',
        ours: expect.any(Number),
        figures: {
          'cache flushed, seconds until back': figure('s'),
          'queue flushed, seconds until back': figure('s'),
          'Postgres restarted, seconds until back': figure('s'),
          "the queue's capacity": figure('posts/s without growing lag'),
        },
      });
    },
    RUN_MAX_MS,
  );

  it(
    'that is interrupted takes its servers and folders with it, and has no result',
    async () => {
      let interrupted = false;
      const { lines, status, left, stderr } = await run(['isolation', '--size', '20'], (said, child) => {
        // A second one would end it at once.
        if (interrupted || !said.includes('making a large author')) return;
        interrupted = child.kill('SIGINT');
      });
      expect(lines).toEqual(['']);
      expect(stderr).toContain('stopped by SIGINT');
      expect(status).toBe(1);
      expect(left).toEqual([]);
    },
    RUN_MAX_MS,
  );
});
