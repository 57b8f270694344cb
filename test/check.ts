// Owns the static checks: what must hold of the text of the project before a test runs. `npm run check` runs them alone.
// Invariant: needs no network and no server, and changes no file of the project.

import { execFile, execFileSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parse } from 'yaml';

export interface CheckResult {
  readonly name: string;
  readonly outcome: 'ok' | 'failed' | 'skipped';
  readonly seconds: number;
}

interface Check {
  readonly name: string;
  /** Resolves when it holds, with a reason when it could not be asked here; rejects with what is wrong. */
  readonly run: (scratch: string) => Promise<undefined | { readonly skippedBecause: string }>;
}

const root = path.resolve(import.meta.dirname, '..');

/** As many as the smallest machine this is meant for has cores; the slow ones are programs of their own. */
const concurrencyMax = 2;

/** Enough to see what it is about; a whole badly formatted project is thousands of lines. */
const failureLinesMax = 100;

/** A check that hangs is a failed check. The slowest takes some seconds. */
const programWaitMs = 120_000;

const checks: readonly Check[] = [
  { name: 'generated code is up to date', run: checkGenerated },
  { name: 'types', run: () => runProgram('tsc', ['-p', 'tsconfig.json', '--pretty', 'false']) },
  { name: 'types of k6 scripts', run: () => runProgram('tsc', ['-p', 'load/k6/tsconfig.json', '--pretty', 'false']) },
  {
    name: 'format and lint',
    run: () => runProgram('biome', ['ci', '--colors=off', '--diagnostic-level=warn', '--error-on-warnings', '.']),
  },
  { name: 'API style', run: () => runProgram('buf', ['lint']) },
  { name: 'API compatibility', run: checkCompatibility },
  { name: 'docker-compose.yml', run: checkCompose },
];

/** The parts of a deployment; what each of them is set to is for a test to say. */
const composeServices = ['postgres', 'redis-cache', 'redis-queue'];

/** Runs all checks, some at a time, and reports them in their order. */
export async function runChecks(report: (line: string) => void = console.log): Promise<readonly CheckResult[]> {
  const scratch = mkdtempSync(path.join(tmpdir(), 'tributary-check-'));
  try {
    const free = createSlots(concurrencyMax);
    const runs = checks.map((check) => free(() => runCheck(check, scratch)));
    const results: CheckResult[] = [];
    for (const run of runs) {
      const { result, details } = await run;
      results.push(result);
      report(`${result.outcome.padEnd(7)} ${result.name} (${result.seconds.toFixed(1)} s)${details}`);
    }
    return results;
  } finally {
    rmSync(scratch, { recursive: true, force: true });
  }
}

async function runCheck(check: Check, scratch: string): Promise<{ result: CheckResult; details: string }> {
  const startedAt = performance.now();
  const finish = (outcome: CheckResult['outcome'], details: string) => ({
    result: { name: check.name, outcome, seconds: (performance.now() - startedAt) / 1000 },
    details,
  });
  try {
    const skipped = await check.run(scratch);
    return skipped === undefined ? finish('ok', '') : finish('skipped', `: ${skipped.skippedBecause}`);
  } catch (error) {
    const text = error instanceof Error ? error.message : String(error);
    const lines = text.trimEnd().split('\n');
    const shown = lines.slice(0, failureLinesMax);
    if (lines.length > shown.length) shown.push(`… and ${lines.length - shown.length} more lines`);
    return finish('failed', shown.map((line) => `\n        ${line}`).join(''));
  }
}

/** Lets `count` run at a time, in the order they came. */
function createSlots(count: number): <T>(run: () => Promise<T>) => Promise<T> {
  const waiting: (() => void)[] = [];
  let free = count;
  return async (run) => {
    if (free > 0) free -= 1;
    else await new Promise<void>((resolve) => waiting.push(resolve));
    try {
      return await run();
    } finally {
      const next = waiting.shift();
      if (next === undefined) free += 1;
      else next();
    }
  };
}

/** Generates into the scratch folder and compares with src/gen, both ways. */
async function checkGenerated(scratch: string): Promise<undefined> {
  const output = path.join(scratch, 'generated');
  await runProgram('buf', ['generate', '--template', 'proto/buf.gen.yaml', '--output', output]);
  const wanted = listFiles(path.join(output, 'src', 'gen'));
  const present = listFiles(path.join(root, 'src', 'gen'));
  const differing = [...new Set([...wanted.keys(), ...present.keys()])]
    .filter((file) => !isSame(wanted.get(file), present.get(file)))
    .map(
      (file) => `src/gen/${file} ${present.has(file) ? (wanted.has(file) ? 'differs' : 'is left over') : 'is missing'}`,
    );
  if (differing.length > 0) throw new Error([...differing, 'Run `npm run generate` and commit the result.'].join('\n'));
}

function isSame(one: Buffer | undefined, other: Buffer | undefined): boolean {
  return one !== undefined && other !== undefined && one.equals(other);
}

function listFiles(folder: string): ReadonlyMap<string, Buffer> {
  const entries = existsSync(folder) ? readdirSync(folder, { recursive: true, withFileTypes: true }) : [];
  const files = entries.filter((entry) => entry.isFile()).map((entry) => path.join(entry.parentPath, entry.name));
  return new Map(files.map((file) => [path.relative(folder, file), readFileSync(file)]));
}

/** Compares with the API that clients may have: the last release or, before the first, the state before this change. */
async function checkCompatibility(scratch: string): Promise<undefined | { readonly skippedBecause: string }> {
  const base = findCompatibilityBase();
  if ('skippedBecause' in base) return base;
  const folder = path.join(scratch, 'base');
  mkdirSync(folder);
  const archive = path.join(scratch, 'base.tar');
  git(['archive', '--format=tar', `--output=${archive}`, base.commit, 'proto', 'buf.yaml']);
  execFileSync('tar', ['-xf', archive, '-C', folder]);
  await runProgram('buf', ['breaking', '--against', folder]);
  return undefined;
}

function findCompatibilityBase(): { readonly commit: string } | { readonly skippedBecause: string } {
  if (askGit(['rev-parse', '--verify', 'HEAD']) === undefined) return { skippedBecause: 'this is not a git clone' };
  const isChanged = askGit(['status', '--porcelain', '--', 'proto', 'buf.yaml']) !== '';
  const main = ['origin/main', 'main'].find(
    (name) => askGit(['rev-parse', '--verify', `${name}^{commit}`]) !== undefined,
  );
  const candidates = [
    askGit(['describe', '--tags', '--abbrev=0', '--match', 'v*']),
    // Uncommitted changes are compared with the commit they are made on, a branch with where it left main.
    isChanged ? 'HEAD' : undefined,
    main === undefined ? undefined : askGit(['merge-base', 'HEAD', main]),
  ];
  const head = askGit(['rev-parse', 'HEAD']);
  const commit = candidates.find((each) => each !== undefined && (isChanged || askGit(['rev-parse', each]) !== head));
  const base = commit ?? askGit(['rev-parse', '--verify', 'HEAD^']);
  if (base === undefined) return { skippedBecause: 'no tag and no earlier commit to compare with (a shallow clone?)' };
  const holdsApi = ['proto', 'buf.yaml'].every((name) => askGit(['cat-file', '-e', `${base}:${name}`]) !== undefined);
  return holdsApi
    ? { commit: base }
    : { skippedBecause: `${base.slice(0, 12)}, the state before this one, holds no API` };
}

async function checkCompose(): Promise<undefined | { readonly skippedBecause: string }> {
  const file = path.join(root, 'docker-compose.yml');
  if (!existsSync(file)) return { skippedBecause: 'there is no such file' };
  const document = parse(readFileSync(file, 'utf8'), { merge: true }) as { services?: Record<string, unknown> } | null;
  const services = document?.services ?? {};
  const missing = composeServices.filter((name) => services[name] === undefined);
  if (missing.length > 0) throw new Error(`services are missing: ${missing.join(', ')}`);
  return undefined;
}

function git(args: readonly string[]): string {
  return execFileSync('git', args, { cwd: root, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] }).trim();
}

/** Undefined when git says no, or is not there. */
function askGit(args: readonly string[]): string | undefined {
  try {
    return git(args);
  } catch {
    return undefined;
  }
}

/** Runs a program of node_modules/.bin; rejects with what it printed. */
function runProgram(name: string, args: readonly string[]): Promise<undefined> {
  const bin = path.join(root, 'node_modules', '.bin');
  const env = { ...process.env, PATH: `${bin}${path.delimiter}${process.env['PATH'] ?? ''}`, NO_COLOR: '1' };
  const { promise, resolve, reject } = Promise.withResolvers<undefined>();
  execFile(
    path.join(bin, name),
    args,
    { cwd: root, env, timeout: programWaitMs, maxBuffer: 64 * 1024 * 1024 },
    (error, stdout, stderr) => {
      if (error === null) resolve(undefined);
      else reject(new Error(`${stdout}${stderr}`.trim() || error.message));
    },
  );
  return promise;
}

if (import.meta.main) {
  const results = await runChecks();
  process.exitCode = results.some((result) => result.outcome === 'failed') ? 1 : 0;
}
