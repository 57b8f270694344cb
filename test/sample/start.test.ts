/** Owns the promises of `npm start`: a table and a way out; data that is used again or made anew; nothing left running. */
import { type ChildProcess, spawn } from 'node:child_process';
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { listDescendants, waitUntilGone } from '../../src/embedded/processes.ts';

const START = path.resolve(import.meta.dirname, '../../src/start.ts');
const ROOT = path.resolve(import.meta.dirname, '../..');
const RUN_TIMEOUT_MS = 60_000;
/** A guard reports that its server has ended, and ends itself a moment after whoever started it. */
const GUARD_EXIT_MS = 5_000;

interface Run {
  readonly child: ChildProcess;
  readonly lines: string[];
  /** The process and all it started, as seen when the line came. */
  seen(line: RegExp): Promise<readonly number[]>;
  readonly ended: Promise<number | null>;
}

let folder = '';
const runs: Run[] = [];

beforeAll(async () => {
  folder = await mkdtemp(path.join(tmpdir(), 'tributary-start-'));
});
afterAll(async () => {
  for (const run of runs) run.child.kill('SIGTERM');
  await Promise.all(runs.map((run) => run.ended));
  await rm(folder, { recursive: true, force: true });
});

function start(...args: readonly string[]): Run {
  const data = path.join(folder, 'data');
  const child = spawn(process.execPath, [START, '--viewers', '120', '--data', data, ...args], {
    cwd: ROOT,
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const lines: string[] = [];
  const waiting: (() => void)[] = [];
  for (const stream of [child.stdout, child.stderr]) {
    createInterface({ input: stream }).on('line', (line) => {
      lines.push(line);
      for (const wake of waiting) wake();
    });
  }
  const { promise: ended, resolve } = Promise.withResolvers<number | null>();
  child.once('close', (code) => resolve(code));
  const run: Run = {
    child,
    lines,
    ended,
    async seen(line) {
      const { promise, resolve: found } = Promise.withResolvers<void>();
      const look = () => lines.some((each) => line.test(each)) && found();
      waiting.push(look);
      look();
      const outcome = await Promise.race([promise, ended]);
      if (outcome !== undefined) throw new Error(`ended with ${outcome} before ${line}:\n${lines.join('\n')}`);
      const { pid } = child;
      return pid === undefined ? [] : [pid, ...listDescendants(pid)];
    },
  };
  runs.push(run);
  return run;
}

describe('npm start', { timeout: RUN_TIMEOUT_MS }, () => {
  it('--once makes a sample, shows a page and what to try, exits 0 and leaves nothing running', async () => {
    const run = start('--once');
    const processes = await run.seen(/profiles: /);
    expect(processes.length).toBeGreaterThan(3);
    expect(await run.ended, run.lines.join('\n')).toBe(0);
    expect(await waitUntilGone(processes, { waitMs: GUARD_EXIT_MS })).toBe(true);

    const text = run.lines.join('\n');
    expect(text).toMatch(/AUTHOR +AGE +KIND +VISIBILITY +TEXT/);
    const rows = run.lines.filter((line) => /\s(post|reply|quote|repost)\s+(public|followers|private)\s/.test(line));
    expect(rows).toHaveLength(20);
    expect(new Set(rows.map((row) => /\s(post|reply|quote|repost)\s/.exec(row)?.[1])).size).toBeGreaterThan(2);
    expect(text).toMatch(/API key +tk_/);
    expect(text).toContain('npx buf curl');
    expect(text).toMatch(/http:\/\/127\.0\.0\.1:\d+\/metrics/);
  });

  it('uses the sample that is there, and stops on Ctrl-C with exit code 0 and nothing left running', async () => {
    const run = start();
    const processes = await run.seen(/Press Ctrl-C/);
    expect(run.lines.join('\n')).toContain('Using the sample');
    expect(run.lines.some((line) => line.includes('profiles:'))).toBe(false);
    run.child.kill('SIGINT');
    expect(await run.ended, run.lines.join('\n')).toBe(0);
    expect(await waitUntilGone(processes, { waitMs: GUARD_EXIT_MS })).toBe(true);
  });

  it('stops on Ctrl-C while it makes its sample, and leaves nothing running', async () => {
    rmSync(path.join(folder, 'data', 'sample.json'));
    const run = start();
    const processes = await run.seen(/profiles: /);
    run.child.kill('SIGINT');
    expect(await run.ended, run.lines.join('\n')).toBe(0);
    expect(run.lines.at(-1)).toBe('Stopped.');
    expect(existsSync(path.join(folder, 'data', 'sample.json'))).toBe(false);
    expect(await waitUntilGone(processes, { waitMs: GUARD_EXIT_MS })).toBe(true);
  });

  it('makes a sample anew that a killed start left half done, and ends the servers it left', async () => {
    const killed = start();
    const left = await killed.seen(/profiles: /);
    killed.child.kill('SIGKILL');
    await killed.ended;
    // The guards end the servers; the next start has to cope whether they are done or not.
    const next = start('--once');
    expect(await next.ended, next.lines.join('\n')).toBe(0);
    expect(next.lines.join('\n')).toContain('did not finish');
    expect(existsSync(path.join(folder, 'data', 'sample.json'))).toBe(true);
    expect(await waitUntilGone(left, { waitMs: GUARD_EXIT_MS })).toBe(true);
  });

  it('never throws away a folder that it did not make', async () => {
    rmSync(path.join(folder, 'data', 'sample.json'));
    writeFileSync(path.join(folder, 'data', 'thesis.txt'), 'the only copy');
    const run = start('--once');
    expect(await run.ended).toBe(1);
    expect(run.lines.join('\n')).toMatch(/holds thesis\.txt, which is not from here/);
    expect(existsSync(path.join(folder, 'data', 'thesis.txt'))).toBe(true);
  });

  it('says what is wrong with its arguments', async () => {
    const run = start('--viewers', '3');
    expect(await run.ended).toBe(1);
    expect(run.lines.join('\n')).toMatch(/--viewers takes a number from 50 to 20000/);
  });
});
