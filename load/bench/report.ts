/**
 * Owns `npm run bench -- report`: the part of README's load results that is written from committed JSON, and the plots beside that. Runs no benchmark.
 * Invariant: what stands between the two marks in README is what the JSON gives, to the letter.
 */
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { plotOf } from './plot.ts';
import { type BenchRecord, loadRecords, RESULTS } from './record.ts';
import { type BenchResult, type Figure, ratio, shortfalls } from './result.ts';
import { formatFigure, type Measured } from './rounds.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
export const README = path.join(ROOT, 'README.md');
const BEGIN = '<!-- benchmark report: written by `npm run bench -- report` -->';
const END = '<!-- end of the benchmark report -->';
/** Paths in README. */
const FOLDER = 'load/results';

/** A plot of each sweep, beside its JSON. */
export function writePlots(folder: string, records: readonly BenchRecord[]): void {
  for (const { result } of records) {
    const file = path.join(folder, `${result.name}.svg`);
    if (result.sweep) writeFileSync(file, plotOf(result.sweep));
    else rmSync(file, { force: true });
  }
}

export function report(): void {
  const records = loadRecords(RESULTS);
  writePlots(RESULTS, records);
  writeFileSync(README, withReport(readFileSync(README, 'utf8'), reportOf(records)));
}

/** The text with this report in the place of the one before. */
export function withReport(readme: string, text: string): string {
  const from = readme.indexOf(BEGIN);
  const to = readme.indexOf(END);
  if (from < 0 || to < from) throw new Error(`README lacks the marks "${BEGIN}" and "${END}"`);
  return `${readme.slice(0, from + BEGIN.length)}\n${text}\n${readme.slice(to)}`;
}

/** The report that stands in a README. */
export function reportIn(readme: string): string {
  const [, after] = readme.split(`${BEGIN}\n`);
  const [text] = after?.split(`\n${END}`) ?? [];
  if (text === undefined) throw new Error('README has no report');
  return text;
}

export function reportOf(records: readonly BenchRecord[]): string {
  return records.map(sectionOf).join('\n\n');
}

function sectionOf({ command, machine, commit, day, result }: BenchRecord): string {
  const lines = [`**\`${command}\`** on ${machine}; commit \`${commit}\`, ${day}.`, ''];
  lines.push(...tableOfContenders(result));
  const asked = Object.entries(result.figures ?? {}).filter(
    ([, { min, max }]) => min !== undefined || max !== undefined,
  );
  if (asked.length > 0) {
    lines.push('', '| Figure | Value | Asked |', '|---|---|---|');
    for (const [name, figure] of asked) {
      lines.push(`| ${name} | ${formatFigure(figure.value)} ${figure.unit} | ${askedOf(figure)} |`);
    }
  }
  if (result.sweep) {
    const { x, y, series, title } = result.sweep;
    lines.push('', `![${title}](${FOLDER}/${result.name}.svg)`, '');
    lines.push(`| ${x.label} | ${series.map(({ name }) => `${name}, ${y.label}`).join(' | ')} |`);
    lines.push(`|${'---|'.repeat(series.length + 1)}`);
    x.values.forEach((value, at) => {
      const cells = series.map(({ values }) => formatFigure(values[at] ?? 0));
      lines.push(`| ${value.toLocaleString('en-US')} | ${cells.join(' | ')} |`);
    });
  }
  lines.push('', ...result.conditions);
  for (const line of result.invalid ?? []) lines.push('', `**Invalid**: ${line}.`);
  for (const line of shortfalls(result)) lines.push('', `**Not met**: ${line}.`);
  lines.push('', `All figures: [${result.name}.json](${FOLDER}/${result.name}.json).`);
  return lines.join('\n');
}

function tableOfContenders(result: BenchResult): readonly string[] {
  const { ours, against, unit } = result;
  const row = ({ name, median, lowest, highest }: Measured, ratio: string, asked: string): string =>
    `| ${name} | ${formatFigure(median)} | ${formatFigure(lowest)}–${formatFigure(highest)} | ${ratio} | ${asked} |`;
  const askedOfOurs = result.oursMax === undefined ? '' : `at most ${formatFigure(result.oursMax)}`;
  return [
    `| | ${unit} | from–to | ours / this | Asked |`,
    '|---|---|---|---|---|',
    row(ours, '', askedOfOurs),
    ...Object.entries(against).map(([name, other]) =>
      row(other, ratio(result, name).toFixed(2), ratioAskedOf(result, name)),
    ),
  ];
}

function ratioAskedOf({ ratioMin, ratioMax }: BenchResult, name: string): string {
  const of = (bound: BenchResult['ratioMin']): number | undefined =>
    typeof bound === 'number' ? bound : bound?.[name];
  const [least, most] = [of(ratioMin), of(ratioMax)];
  return [
    ...(least === undefined || least === 0 ? [] : [`at least ${least}`]),
    ...(most === undefined ? [] : [`at most ${most}`]),
  ].join(', ');
}

function askedOf({ min, max }: Figure): string {
  return [...(min === undefined ? [] : [`at least ${min}`]), ...(max === undefined ? [] : [`at most ${max}`])].join(
    ', ',
  );
}
