/**
 * Owns fair comparison: contenders take turns in rounds, and the middle round counts.
 *
 * Invariant: every contender runs the same number of rounds, and each goes first as often as the others. A machine that slows down,
 * a table that grows or a cache that warms up then touches all of them alike. The median, because one checkpoint or one noisy
 * neighbour spoils a round and would spoil a mean.
 */
import { systemClock } from '../../src/runtime.ts';

export interface Contender {
  readonly name: string;
  /** One round, some seconds long. Answers what it measured, such as operations per second. */
  round(): Promise<number>;
}

export interface Measured {
  readonly name: string;
  readonly median: number;
  readonly lowest: number;
  readonly highest: number;
}

/** Fewer say little about the spread. */
export const ROUNDS_MIN = 5;

export async function runRounds(options: {
  readonly contenders: readonly Contender[];
  readonly rounds: number;
  /** Rounds of each before the first that counts. */
  readonly warmUps: number;
  readonly report: (line: string) => void;
}): Promise<readonly Measured[]> {
  const { contenders, rounds, warmUps, report } = options;
  if (rounds < ROUNDS_MIN) throw new RangeError(`a comparison takes at least ${ROUNDS_MIN} rounds: ${rounds}`);
  const values = new Map(contenders.map((contender) => [contender, [] as number[]]));
  for (let round = -warmUps; round < rounds; round++) {
    const shift = (((round + warmUps) % contenders.length) + contenders.length) % contenders.length;
    const order = [...contenders.slice(shift), ...contenders.slice(0, shift)];
    const figures: string[] = [];
    for (const contender of order) {
      const value = await contender.round();
      figures.push(`${contender.name} ${formatFigure(value)}`);
      if (round >= 0) values.get(contender)?.push(value);
    }
    report(`${round < 0 ? 'warm-up' : `round ${round + 1} of ${rounds}`}: ${figures.join(', ')}`);
  }
  return contenders.map((contender) => summarize(contender.name, values.get(contender) ?? []));
}

export function median(values: readonly number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length / 2;
  const upper = sorted[Math.floor(middle)];
  const lower = sorted[Math.ceil(middle) - 1];
  if (upper === undefined || lower === undefined) throw new RangeError('no values, no median');
  return (upper + lower) / 2;
}

function summarize(name: string, values: readonly number[]): Measured {
  return { name, median: median(values), lowest: Math.min(...values), highest: Math.max(...values) };
}

/**
 * Lets `workers` run `operation` over and over for `durationMs` and answers completed operations per second, over the time until
 * the last one is done. An operation that fails ends the round with its error: a rate of errors is no rate.
 */
export async function ratePerSecond(options: {
  readonly workers: number;
  readonly durationMs: number;
  readonly operation: (worker: number) => Promise<void>;
}): Promise<number> {
  const { workers, durationMs, operation } = options;
  const startedAt = systemClock.monotonicMs();
  const end = startedAt + durationMs;
  let completed = 0;
  async function work(worker: number): Promise<void> {
    while (systemClock.monotonicMs() < end) {
      await operation(worker);
      completed += 1;
    }
  }
  await Promise.all(Array.from({ length: workers }, (_, worker) => work(worker)));
  return completed / ((systemClock.monotonicMs() - startedAt) / 1_000);
}

/** Three or more digits, whatever the size. */
export function formatFigure(value: number): string {
  return value >= 100 ? Math.round(value).toLocaleString('en-US') : value.toPrecision(3);
}
