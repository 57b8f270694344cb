/**
 * Owns what a benchmark says at its end: a table for people, one line of JSON for programs, and on which machine, from which commit.
 * Invariant: a ratio is ours divided by the other, so that for a rate more than 1 means that ours is the faster.
 */
import { execFileSync } from 'node:child_process';
import { arch, cpus, platform, release, totalmem } from 'node:os';
import path from 'node:path';
import { formatFigure, type Measured } from './rounds.ts';

export interface BenchResult {
  readonly name: string;
  /** What all figures are in, such as "posts/s". */
  readonly unit: string;
  readonly ours: Measured;
  /** By the name each has in JSON. */
  readonly against: Readonly<Record<string, Measured>>;
  /** What ours measured beside each of `against`, by its name, where they were not measured under the same conditions. */
  readonly oursBeside?: Readonly<Record<string, Measured>>;
  /** Least ratio to each of `against` that is asked of ours, or to each by its name; absent where nothing is. */
  readonly ratioMin?: number | Readonly<Record<string, number>>;
  /** The same for what should be small: most that ours may be, and highest ratio to each of `against`, or to each by its name. */
  readonly oursMax?: number;
  readonly ratioMax?: number | Readonly<Record<string, number>>;
  /** What else was measured in the same run, by the name each has in JSON. */
  readonly figures?: Readonly<Record<string, Figure>>;
  /** What was measured over a range, for a plot. */
  readonly sweep?: Sweep;
  /** What makes the comparison worthless, such as a rival that was slower than it is known to be. */
  readonly invalid?: readonly string[];
  /** What a reader needs to know to judge the figures, a line each. */
  readonly conditions: readonly string[];
}

export interface Figure {
  readonly value: number;
  readonly unit: string;
  /** Least and most that is asked; absent where nothing is. */
  readonly min?: number;
  readonly max?: number;
}

/** All series have a value for each of `x`. */
export interface Sweep {
  readonly title: string;
  readonly x: { readonly label: string; readonly values: readonly number[]; readonly isLogarithmic?: boolean };
  readonly y: { readonly label: string; readonly isLogarithmic?: boolean };
  readonly series: readonly { readonly name: string; readonly values: readonly number[] }[];
}

const ROOT = path.resolve(import.meta.dirname, '../..');
const BYTES_PER_GIB = 1_024 ** 3;

export function describeMachine(): readonly string[] {
  const [first] = cpus();
  return [
    `${cpus().length} cores (${first?.model.trim() || arch()}), ${Math.round(totalmem() / BYTES_PER_GIB)} GiB, ${platform()} ${release()}`,
    `Node ${process.version}, commit ${describeCommit()}`,
  ];
}

export function tableOf(result: BenchResult): readonly string[] {
  const rows = [
    ['', `median ${result.unit}`, 'lowest', 'highest', 'ours / this'],
    rowOf(result.ours, ''),
    ...Object.entries(result.against).map(([name, other]) => rowOf(other, ratio(result, name).toFixed(2))),
  ];
  const widths = rows[0]?.map((_, column) => Math.max(...rows.map((row) => row[column]?.length ?? 0))) ?? [];
  return rows.map((row) =>
    row
      .map((cell, column) => (column === 0 ? cell.padEnd(widths[column] ?? 0) : cell.padStart(widths[column] ?? 0)))
      .join('  ')
      .trimEnd(),
  );
}

/** The further figures, a line each. */
export function figureLines({ figures = {} }: BenchResult): readonly string[] {
  return Object.entries(figures).map(([name, { value, unit }]) => `${name}: ${formatFigure(value)} ${unit}`);
}

export function jsonOf(result: BenchResult): string {
  const against = Object.entries(result.against).map(([what, other]) => [
    what,
    { value: rounded(other.median), ratio: rounded(ratio(result, what)) },
  ]);
  return JSON.stringify({
    name: result.name,
    ours: rounded(result.ours.median),
    unit: result.unit,
    against: Object.fromEntries(against),
    ...(result.figures && {
      figures: Object.fromEntries(
        Object.entries(result.figures).map(([name, { value, unit }]) => [name, { value: rounded(value), unit }]),
      ),
    }),
    ...(result.invalid && result.invalid.length > 0 && { invalid: result.invalid }),
  });
}

/** What is asked of ours and not met; empty where all is. */
export function shortfalls(result: BenchResult): readonly string[] {
  const { ours, oursMax = Number.POSITIVE_INFINITY, ratioMin = 0, ratioMax = Number.POSITIVE_INFINITY } = result;
  const found: string[] = [];
  if (ours.median > oursMax) {
    found.push(`${formatFigure(ours.median)} ${result.unit}, at most ${oursMax} is asked`);
  }
  for (const [name, other] of Object.entries(result.against)) {
    const part = ratio(result, name);
    const least = typeof ratioMin === 'number' ? ratioMin : (ratioMin[name] ?? 0);
    if (part < least) found.push(`${part.toFixed(2)} of ${other.name}, at least ${least} is asked`);
    const most = typeof ratioMax === 'number' ? ratioMax : (ratioMax[name] ?? Number.POSITIVE_INFINITY);
    if (part > most) found.push(`${part.toFixed(2)} of ${other.name}, at most ${most} is asked`);
  }
  for (const [name, { value, unit, min = Number.NEGATIVE_INFINITY, max = Number.POSITIVE_INFINITY }] of Object.entries(
    result.figures ?? {},
  )) {
    if (value < min) found.push(`${name}: ${formatFigure(value)} ${unit}, at least ${min} is asked`);
    if (value > max) found.push(`${name}: ${formatFigure(value)} ${unit}, at most ${max} is asked`);
  }
  return found;
}

/** Of ours, as it was beside that rival where each was beside a measurement of its own. */
export function ratio({ ours, oursBeside, against }: BenchResult, name: string): number {
  return (oursBeside?.[name] ?? ours).median / (against[name]?.median ?? Number.NaN);
}

function rowOf(measured: Measured, ratioText: string): readonly string[] {
  return [
    measured.name,
    formatFigure(measured.median),
    formatFigure(measured.lowest),
    formatFigure(measured.highest),
    ratioText,
  ];
}

function rounded(value: number): number {
  return Number(value.toPrecision(4));
}

export function describeCommit(): string {
  try {
    const git = (...args: string[]) =>
      execFileSync('git', args, { cwd: ROOT, encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] }).trim();
    // Results are no part of what is measured: those of one benchmark must not spoil the next one's.
    const isChanged = git('status', '--porcelain', '--untracked-files=no', '--', '.', ':!load/results') !== '';
    return `${git('rev-parse', '--short=12', 'HEAD')}${isChanged ? ' with uncommitted changes' : ''}`;
  } catch {
    return 'unknown';
  }
}
