/**
 * Owns `npm run bench -- <name>`: the list of benchmarks, their options, what is printed and what is kept.
 * Invariant: with --json the last line of stdout is the result and nothing else on stdout is; everything else goes to stderr.
 *
 * Exit code: 0 measured, 1 failed or below what is asked, 2 not understood.
 */
import { parseArgs } from 'node:util';
import { systemClock } from '../../src/runtime.ts';
import type { Bench } from './bench.ts';
import { saveRecord } from './record.ts';
import {
  type BenchResult,
  describeCommit,
  describeMachine,
  figureLines,
  jsonOf,
  shortfalls,
  tableOf,
} from './result.ts';
import { ROUNDS_MIN } from './rounds.ts';

interface Entry {
  readonly summary: string;
  /** Where it is not the usual number. */
  readonly rounds?: number;
  load(): Promise<{ readonly bench: Bench }>;
}

/** Of five contenders. */
const READ_ROUNDS = 7;

const BENCHES: Readonly<Record<string, Entry>> = {
  publish: {
    summary: 'the publish flow with ten publishers, beside its bare statement on ten connections (at least 0.6 of it)',
    load: () => import('./publish.ts'),
  },
  memory: {
    summary:
      'Redis memory of a timeline entry (at most 24 bytes), beside the same as skiplists (at most 0.25 of it); takes no rounds',
    load: () => import('./memory.ts'),
  },
  fanout: {
    summary:
      'deliveries of the fan-out worker, beside the bare script and three usual ways to do it; with CPU and memory; size: timelines',
    load: () => import('./fanout.ts'),
  },
  rebuild: {
    summary:
      'the snapshot of a rebuild, busy and silent follow lists of 200, 1,000 and 5,000, beside the fastest of three single ways (at most 1.3 times it); size: posts',
    rounds: 30,
    load: () => import('./rebuild.ts'),
  },
  isolation: {
    summary:
      "a small author's post-to-timeline p99 during back-to-back fan-outs to 200,000, beside idle; size: posts of each phase",
    rounds: ROUNDS_MIN,
    load: () => import('./isolation.ts'),
  },
  read: {
    summary:
      'warm pages of 20 by gRPC and Connect, beside a bare echo (at least 0.6 of it), SQL alone (at least 5 times it) and pages by messages; p99 during fan-outs; size: resident viewers',
    rounds: READ_ROUNDS,
    load: () => import('./read.ts'),
  },
  million: {
    summary:
      'one fan-out to a million followers: memory at each quarter, SIGKILL at half-way and resumption; takes no rounds; size: followers',
    load: () => import('./million.ts'),
  },
  twip: {
    summary:
      'the benchmark of Pequod: ours by three policies, beside client-side push into Redis and a table kept by triggers (at most 0.9 of the client push); takes no rounds; size: users',
    load: () => import('./twip.ts'),
  },
  policy: {
    summary:
      'CPU of the hybrid while 1 to 100 % of the users read, beside pushing only and pulling only (at most 1.1 of the better one); takes no rounds; size: users',
    load: () => import('./policy.ts'),
  },
  growth: {
    summary:
      'cost of a publish, a delivery, a page and a rebuild at a hundredth, a tenth and the whole of so many viewers; takes no rounds; size: viewers',
    load: () => import('./growth.ts'),
  },
  cluster: {
    summary:
      'CPU of a page and a delivery where calls may not leave a slot, with 24 and 256 shards, beside one server; size: timelines',
    rounds: ROUNDS_MIN,
    load: () => import('./cluster.ts'),
  },
  recovery: {
    summary:
      'seconds until p99 and errors are back after a flush and a restart of Postgres under load (at most 10), and posts per second that the queue bears; takes no rounds; size: reads per second',
    load: () => import('./recovery.ts'),
  },
  soak: {
    summary:
      'memory that the service keeps of many short-lived clients of every kind (at most 8 MB more at the end than after the first eighth); takes no rounds; size: clients',
    load: () => import('./soak.ts'),
  },
  stampede: {
    summary:
      'readers of two instances at once at the moment a large author posts: loads of the post from Postgres (at most 2) and reads of Redis; size: readers',
    rounds: ROUNDS_MIN,
    load: () => import('./stampede.ts'),
  },
};

/** More and shorter ones: what disturbs the machine for some seconds then spoils few of them. */
const ROUNDS_DEFAULT = 15;
const ROUND_SECONDS_DEFAULT = 1.5;

class Misunderstood extends Error {}

function usage(): string {
  const width = Math.max(...Object.keys(BENCHES).map((name) => name.length));
  return [
    'npm run bench -- <name> [--json] [--rounds n] [--seconds n] [--size n] [--save folder]',
    'npm run bench -- all [<name> …]   all of them, or those named, by a preset for two cores each; saved in load/results',
    'npm run bench -- report           writes the committed results into README, and runs nothing',
    '',
    ...Object.entries(BENCHES).map(([name, entry]) => `  ${name.padEnd(width)}  ${entry.summary}`),
    '',
    `  --json       one line of JSON on stdout, the rest on stderr`,
    `  --rounds n   rounds of each contender that count, at least ${ROUNDS_MIN} (${ROUNDS_DEFAULT}; rebuild 30, isolation and stampede ${ROUNDS_MIN}, read ${READ_ROUNDS})`,
    `  --seconds n  length of a round (${ROUND_SECONDS_DEFAULT})`,
    '  --size n     for a smaller run, to try it out, or a larger one',
    '  --save dir   keeps the whole result there, as JSON',
  ].join('\n');
}

function argumentsFrom(args: readonly string[]) {
  try {
    return parseArgs({
      args: [...args],
      allowPositionals: true,
      options: {
        json: { type: 'boolean', default: false },
        rounds: { type: 'string' },
        seconds: { type: 'string' },
        size: { type: 'string' },
        save: { type: 'string' },
      },
    });
  } catch (error) {
    throw new Misunderstood(error instanceof Error ? error.message : String(error));
  }
}

function numberFrom(text: string, option: string, min: number, max = 1_000): number {
  const value = Number(text);
  if (!(value >= min && value <= max)) throw new Misunderstood(`--${option} takes a number from ${min} to ${max}.`);
  return value;
}

function sizeFrom(text: string | undefined, size: Bench['size']): { readonly size?: number } {
  if (size === undefined) {
    if (text !== undefined) throw new Misunderstood('This benchmark has one size.');
    return {};
  }
  return { size: text === undefined ? size.preset : Math.floor(numberFrom(text, 'size', size.min, size.max)) };
}

async function main(args: readonly string[]): Promise<number> {
  const { values, positionals } = argumentsFrom(args);
  const [name, ...rest] = positionals;
  if (name === undefined) {
    console.log(usage());
    return 0;
  }
  if (name === 'all') return all(rest, values);
  if (name === 'report') {
    if (args.length > 1) throw new Misunderstood('The report takes nothing.');
    (await import('./report.ts')).report();
    return 0;
  }
  const entry = Object.hasOwn(BENCHES, name) ? BENCHES[name] : undefined;
  if (entry === undefined) throw new Misunderstood(`There is no benchmark "${name}".`);
  if (rest.length > 0) throw new Misunderstood(`One benchmark at a time; what is "${rest.join(' ')}"?`);
  const rounds = Math.floor(numberFrom(values.rounds ?? String(entry.rounds ?? ROUNDS_DEFAULT), 'rounds', ROUNDS_MIN));
  const roundMs = numberFrom(values.seconds ?? String(ROUND_SECONDS_DEFAULT), 'seconds', 0.1) * 1_000;

  const report = (line: string): void => console.error(line);
  for (const line of describeMachine()) report(line);
  const { bench } = await entry.load();
  const size = sizeFrom(values.size, bench.size);
  if (bench.size && size.size !== undefined) report(`size: ${size.size} ${bench.size.of}`);
  const startedMs = systemClock.monotonicMs();
  const result = await bench.run({ rounds, roundMs, ...size, report, signal: interruption() });
  show(result, values.json);
  if (values.save !== undefined) {
    const [machine = ''] = describeMachine();
    const file = saveRecord(values.save, {
      command: `npm run bench -- ${withoutOption(args, '--save').join(' ')}`,
      machine: `${machine}, Node ${process.version}`,
      commit: describeCommit(),
      day: new Date(systemClock.nowMs()).toISOString().slice(0, 'yyyy-mm-dd'.length),
      seconds: Math.round((systemClock.monotonicMs() - startedMs) / 1_000),
      result,
    });
    report(`saved: ${file}`);
  }
  return shortfalls(result).length === 0 && (result.invalid ?? []).length === 0 ? 0 : 1;
}

async function all(names: readonly string[], options: ReturnType<typeof argumentsFrom>['values']): Promise<number> {
  const { PRESETS, runAll } = await import('./all.ts');
  const { RESULTS } = await import('./record.ts');
  for (const name of names) {
    if (!Object.hasOwn(PRESETS, name)) throw new Misunderstood(`There is no benchmark "${name}".`);
  }
  const { rounds, seconds, size, save = RESULTS } = options;
  if (options.json) throw new Misunderstood('All of them have no one line of JSON.');
  if (size !== undefined && names.length !== 1) throw new Misunderstood('--size is for one benchmark.');
  return runAll({
    names: names.length > 0 ? names : Object.keys(PRESETS),
    options: { ...(rounds && { rounds }), ...(seconds && { seconds }), ...(size && { size }) },
    folder: save,
    report: (line) => console.error(line),
    signal: interruption(),
  });
}

/** Aborts at the first SIGINT or SIGTERM; a second one ends the process. */
function interruption(): AbortSignal {
  const interrupted = new AbortController();
  for (const signal of ['SIGINT', 'SIGTERM'] as const) {
    process.once(signal, () => interrupted.abort(new Error(`stopped by ${signal}`)));
  }
  return interrupted.signal;
}

/** An option that has a value, and its value. */
function withoutOption(args: readonly string[], option: string): readonly string[] {
  return args.filter((arg, index) => arg !== option && args[index - 1] !== option && !arg.startsWith(`${option}=`));
}

function show(result: BenchResult, asJson: boolean): void {
  const say = asJson ? console.error : console.log;
  say(`\n${tableOf(result).join('\n')}\n`);
  for (const line of figureLines(result)) say(line);
  for (const line of result.conditions) say(line);
  for (const line of result.invalid ?? []) say(`INVALID: ${line}`);
  for (const line of shortfalls(result)) say(`NOT MET: ${line}`);
  if (asJson) console.log(jsonOf(result));
}

try {
  process.exitCode = await main(process.argv.slice(2));
} catch (error) {
  const isMisunderstood = error instanceof Misunderstood;
  console.error(isMisunderstood ? `${error.message}\n\n${usage()}` : error);
  process.exitCode = isMisunderstood ? 2 : 1;
}
