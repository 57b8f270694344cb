/**
 * Owns what is kept of a benchmark: its whole result with command, machine, commit and day, as JSON that is committed.
 * Invariant: nothing is taken for a record that lacks any of these.
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import type { BenchResult } from './result.ts';

const measured = z.object({ name: z.string(), median: z.number(), lowest: z.number(), highest: z.number() });
const perName = z.record(z.string(), z.number());
const axis = z.object({ label: z.string(), isLogarithmic: z.boolean().optional() });
const schema = z.object({
  command: z.string(),
  machine: z.string(),
  commit: z.string(),
  /** Day of the run, by UTC. */
  day: z.iso.date(),
  seconds: z.number(),
  // A field that is not named here would be dropped without a word, and with it what the report is worth.
  result: z.strictObject({
    name: z.string(),
    unit: z.string(),
    ours: measured,
    against: z.record(z.string(), measured),
    oursBeside: z.record(z.string(), measured).optional(),
    ratioMin: z.union([z.number(), perName]).optional(),
    ratioMax: z.union([z.number(), perName]).optional(),
    oursMax: z.number().optional(),
    figures: z
      .record(
        z.string(),
        z.object({ value: z.number(), unit: z.string(), min: z.number().optional(), max: z.number().optional() }),
      )
      .optional(),
    sweep: z
      .object({
        title: z.string(),
        x: axis.extend({ values: z.array(z.number()) }),
        y: axis,
        series: z.array(z.object({ name: z.string(), values: z.array(z.number()) })),
      })
      .optional(),
    invalid: z.array(z.string()).optional(),
    conditions: z.array(z.string()),
  }),
});

export interface BenchRecord {
  readonly command: string;
  readonly machine: string;
  readonly commit: string;
  readonly day: string;
  readonly seconds: number;
  readonly result: BenchResult;
}

/** Where the committed ones are. */
export const RESULTS = path.resolve(import.meta.dirname, '../results');

/** Answers the path of the file. */
export function saveRecord(folder: string, record: BenchRecord): string {
  mkdirSync(folder, { recursive: true });
  const file = path.join(folder, `${record.result.name}.json`);
  writeFileSync(file, `${JSON.stringify(record, rounded, 2)}\n`);
  return file;
}

/** Six digits: more would say more than was measured. */
function rounded(_name: string, value: unknown): unknown {
  return typeof value === 'number' ? Number(value.toPrecision(6)) : value;
}

/** All that the folder has, by the names of their files; none where there is no folder. Throws where one cannot be read. */
export function loadRecords(folder: string): readonly BenchRecord[] {
  let files: readonly string[];
  try {
    files = readdirSync(folder).filter((file) => file.endsWith('.json'));
  } catch {
    return [];
  }
  return [...files].sort().map((file) => {
    const parsed = schema.safeParse(JSON.parse(readFileSync(path.join(folder, file), 'utf8')));
    if (!parsed.success) throw new Error(`${file} is no result: ${parsed.error.issues[0]?.path.join('.')}`);
    // Optional fields are absent in what was read, never undefined.
    return parsed.data as BenchRecord;
  });
}
