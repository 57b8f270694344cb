// Owns `npm test`: the static checks, then the tests, then one line that sums up both.
// Invariant: the last line is "N passed, N failed", and the exit code is 0 only if something ran and nothing failed.
//
// Arguments are vitest's: `npm test -- test/embedded` runs the tests of one folder.

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { JsonTestResults } from 'vitest/node';
import { forwards } from '../src/embedded/install.mjs';
import { type CheckResult, runChecks } from './check.ts';

interface Tally {
  readonly passed: number;
  readonly failed: number;
}

const root = path.resolve(import.meta.dirname, '..');

/** Resolves with vitest's exit code; null after a signal. */
async function runVitest(args: readonly string[]): Promise<number | null> {
  const program = path.join(root, 'node_modules', 'vitest', 'vitest.mjs');
  const child = spawn(process.execPath, [program, 'run', '--config', 'test/vitest.config.ts', ...args], {
    cwd: root,
    stdio: 'inherit',
  });
  // This process stays to say how it went.
  const hasTerminal = process.stdin.isTTY === true;
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.on(signal, () => {
      if (forwards({ signal, hasTerminal })) child.kill(signal);
    });
  }
  const { promise, resolve, reject } = Promise.withResolvers<number | null>();
  child.once('error', reject);
  child.once('exit', resolve);
  return promise;
}

/**
 * Counts tests, and whatever else went wrong as one failure each: a file that could not be loaded has no failed test,
 * and an error outside of every test shows in the exit code only.
 */
export function tallyTests(results: JsonTestResults | undefined, exitCode: number | null): Tally {
  const files = results?.testResults ?? [];
  const brokenFiles = files.filter(
    (file) => file.status === 'failed' && !file.assertionResults.some((test) => test.status === 'failed'),
  );
  const passed = results?.numPassedTests ?? 0;
  const failed = (results?.numFailedTests ?? 0) + brokenFiles.length;
  const isUnexplained = failed === 0 && (exitCode !== 0 || passed === 0);
  return { passed, failed: isUnexplained ? 1 : failed };
}

function readResults(file: string): JsonTestResults | undefined {
  try {
    return JSON.parse(readFileSync(file, 'utf8')) as JsonTestResults;
  } catch {
    return undefined;
  }
}

async function runAll(args: readonly string[], scratch: string): Promise<Tally> {
  const checks = await runChecks();
  const file = path.join(scratch, 'results.json');
  const exitCode = await runVitest(['--reporter=default', '--reporter=json', `--outputFile.json=${file}`, ...args]);
  const tests = tallyTests(readResults(file), exitCode);
  const count = (outcome: CheckResult['outcome']): number => checks.filter((check) => check.outcome === outcome).length;
  return { passed: tests.passed + count('ok'), failed: tests.failed + count('failed') };
}

async function main(args: readonly string[]): Promise<void> {
  const scratch = mkdtempSync(path.join(tmpdir(), 'tributary-test-'));
  let tally: Tally;
  try {
    tally = await runAll(args, scratch);
  } catch (error) {
    console.error(error);
    tally = { passed: 0, failed: 1 };
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
  process.exitCode = tally.failed === 0 ? 0 : 1;
  console.log(`${tally.passed} passed, ${tally.failed} failed`);
}

if (import.meta.main) await main(process.argv.slice(2));
