/** Owns the promises of what is kept of benchmarks: README says what the committed JSON says, no more and no less; a plot is a picture of its sweep. */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, describe, expect, it } from 'vitest';
import { plotOf } from '../../load/bench/plot.ts';
import { type BenchRecord, loadRecords, RESULTS, saveRecord } from '../../load/bench/record.ts';
import { README, reportIn, reportOf, withReport, writePlots } from '../../load/bench/report.ts';
import type { Sweep } from '../../load/bench/result.ts';

const folder = mkdtempSync(path.join(tmpdir(), 'tributary-report-'));
afterAll(() => rmSync(folder, { recursive: true }));

const sweep: Sweep = {
  title: 'Cost & benefit',
  x: { label: 'viewers', values: [10, 100, 1_000], isLogarithmic: true },
  y: { label: 's of CPU' },
  series: [
    { name: 'push', values: [1, 2, 4] },
    { name: 'pull', values: [3, 3, 3] },
  ],
};
const measured = (name: string, median: number) => ({ name, median, lowest: median - 1, highest: median + 1 });
const record: BenchRecord = {
  command: 'npm run bench -- twip --size 100',
  machine: '2 cores (some processor), 8 GiB, linux 6',
  commit: '0123456789ab',
  day: '2026-01-31',
  seconds: 12,
  result: {
    name: 'twip',
    unit: 's in total',
    ours: measured('ours', 10),
    against: { 'client push': measured('client push', 5), 'trigger table': measured('trigger table', 40) },
    ratioMax: { 'client push': 0.9 },
    figures: { lag: { value: 12, unit: 's', max: 10 }, 'Redis CPU': { value: 3, unit: 's' } },
    sweep,
    conditions: ['All of it on one machine.'],
  },
};

describe('the report', () => {
  it('in README is what the committed results give', () => {
    expect(reportIn(readFileSync(README, 'utf8'))).toBe(reportOf(loadRecords(RESULTS)));
  });

  it('has plots beside the committed results that are those of their sweeps', () => {
    for (const { result } of loadRecords(RESULTS)) {
      if (result.sweep)
        expect(readFileSync(path.join(RESULTS, `${result.name}.svg`), 'utf8')).toBe(plotOf(result.sweep));
    }
  });

  it('has command, machine, commit, ratios, what was asked and what was not met', () => {
    const text = reportOf([record]);
    expect(text).toContain(
      '**`npm run bench -- twip --size 100`** on 2 cores (some processor), 8 GiB, linux 6; commit `0123456789ab`',
    );
    expect(text).toContain('| client push | 5.00 | 4.00–6.00 | 2.00 | at most 0.9 |');
    expect(text).toContain('| trigger table | 40.0 | 39.0–41.0 | 0.25 |  |');
    expect(text).toContain('| lag | 12.0 s | at most 10 |');
    expect(text).not.toContain('Redis CPU');
    expect(text).toContain('**Not met**: 2.00 of client push, at most 0.9 is asked.');
    expect(text).toContain('**Not met**: lag: 12.0 s, at most 10 is asked.');
    expect(text).toContain('![Cost & benefit](load/results/twip.svg)');
    expect(text).toContain('| 1,000 | 4.00 | 3.00 |');
  });

  it('compares each rival with what ours was beside it, also once it has been saved', () => {
    const place = mkdtempSync(path.join(folder, 'beside-'));
    const { against } = record.result;
    const oursBeside = { 'client push': measured('ours', 4), 'trigger table': measured('ours', 80) };
    saveRecord(place, { ...record, result: { ...record.result, against, oursBeside } });
    const text = reportOf(loadRecords(place));
    expect(text).toContain('| client push | 5.00 | 4.00–6.00 | 0.80 | at most 0.9 |');
    expect(text).toContain('| trigger table | 40.0 | 39.0–41.0 | 2.00 |  |');
  });

  it('takes the place of the one before, and of nothing else', () => {
    const readme = readFileSync(README, 'utf8');
    const changed = withReport(withReport(readme, 'one'), 'another\nof two lines');
    expect(reportIn(changed)).toBe('another\nof two lines');
    expect(withReport(changed, reportIn(readme))).toBe(readme);
    expect(() => withReport('no marks', 'text')).toThrow('README lacks the marks');
  });
});

describe('a record', () => {
  it('is read back as it was saved', () => {
    expect(path.basename(saveRecord(folder, record))).toBe('twip.json');
    expect(loadRecords(folder)).toEqual([record]);
  });

  it('that lacks its commit is refused', () => {
    const { commit: _commit, ...rest } = record;
    writeFileSync(path.join(folder, 'bad.json'), JSON.stringify(rest));
    expect(() => loadRecords(folder)).toThrow('bad.json is no result: commit');
    rmSync(path.join(folder, 'bad.json'));
  });

  it('has its sweep drawn beside it', () => {
    writePlots(folder, [record]);
    expect(readFileSync(path.join(folder, 'twip.svg'), 'utf8')).toBe(plotOf(sweep));
  });
});

describe('a plot', () => {
  const svg = plotOf(sweep);
  const lines = [...svg.matchAll(/<polyline points="([^"]+)"/g)].map(([, points = '']) =>
    points.split(' ').map((point) => point.split(',').map(Number) as [number, number]),
  );

  it('has one line for each series, with a point for each value, names and labels', () => {
    expect(lines.map((points) => points.length)).toEqual([3, 3]);
    for (const text of ['Cost &amp; benefit', '>viewers<', '>s of CPU<', '>push<', '>pull<'])
      expect(svg).toContain(text);
  });

  it('is true to scale: a logarithmic axis by factors, a linear one from zero', () => {
    const [push = [], pull = []] = lines;
    const [[x1, y1] = [0, 0], [x2, y2] = [0, 0], [x3, y3] = [0, 0]] = push;
    expect(x2 - x1).toBeCloseTo(x3 - x2, 0);
    // 4 is as far above 2 as 2 is above 0.
    expect((y1 - y2) * 2).toBeCloseTo(y2 - y3, 0);
    expect(new Set(pull.map(([, y]) => y)).size).toBe(1);
    expect(pull[0]?.[1]).toBeLessThan(y2);
  });

  it('keeps inside its frame whatever the values', () => {
    for (const values of [
      [0, 0, 0],
      [1e-6, 3, 1e6],
      [-5, 0, 5],
    ]) {
      for (const isLogarithmic of [true, false]) {
        const drawn = plotOf({ ...sweep, y: { label: 'y', isLogarithmic }, series: [{ name: 'one', values }] });
        expect(drawn).not.toContain('NaN');
        for (const [, y] of drawn.matchAll(/cy="([^"]+)"/g)) {
          expect(Number(y)).toBeGreaterThanOrEqual(50);
          expect(Number(y)).toBeLessThanOrEqual(340);
        }
      }
    }
  });
});
