/**
 * A STAND-IN FOR k6, for tests alone: it runs our own scripts where k6 itself is not installed, so that they cannot rot. It has the modules,
 * executors and thresholds that they use and no others, follows k6's rules for those, and is no load generator.
 *
 * Owns one run: init, `setup`, scenarios at once, `teardown`, thresholds. Each VU is a thread of its own, since k6's calls block
 * their VU; its calls are made in this one.
 * Invariants: a run ends, whatever a script does; no thread outlives it; a script that throws outside of an iteration fails the run.
 */
import { pathToFileURL } from 'node:url';
import { type ArrivalScenario, scenarioFrom } from './executors.ts';
import { BUILT_IN } from './host.ts';
import type { MetricSample, Tags } from './messages.ts';
import { evaluateThresholds, type ThresholdResult, validateThresholds } from './thresholds.ts';
import { openVu, type Vu } from './vu-thread.ts';

export interface RunReport {
  /** Whether k6 would exit with 0. */
  readonly passed: boolean;
  readonly thresholds: readonly ThresholdResult[];
  readonly checks: Readonly<Record<string, { readonly passes: number; readonly fails: number }>>;
  readonly iterations: number;
  readonly dropped: number;
  /** What iterations threw, and those that were cut off. k6 logs these and goes on. */
  readonly errors: readonly string[];
  readonly samples: readonly MetricSample[];
}

interface Options {
  readonly scenarios: Readonly<Record<string, Readonly<Record<string, unknown>>>>;
  readonly thresholds: Readonly<Record<string, readonly string[]>>;
  readonly noVUConnectionReuse: boolean;
}

const OPTIONS = /^(?:scenarios|thresholds|noVUConnectionReuse|setupTimeout|teardownTimeout|summaryTrendStats)$/;
/** For `setup` and `teardown`. */
const STEP_TIMEOUT_MS = 60_000;
/** Each is a thread. */
const VUS_MAX = 64;

export async function runScript(file: string, env: Readonly<Record<string, string>>): Promise<RunReport> {
  const script = pathToFileURL(file).href;
  const vus: Promise<Vu>[] = [];
  const open = (noReuse = false): Promise<Vu> => {
    if (vus.length >= VUS_MAX) throw new Error(`more than ${VUS_MAX} VUs`);
    const vu = openVu({ script, env, vu: vus.length, noReuse });
    vus.push(vu);
    return vu;
  };
  try {
    const first = await open();
    return await runLoaded(first, open);
  } finally {
    // Those too that were still opening when something failed; one that failed to open has closed itself.
    const opened = await Promise.allSettled(vus);
    await Promise.all(opened.map((vu) => (vu.status === 'fulfilled' ? vu.value.close() : undefined)));
  }
}

async function runLoaded(first: Vu, open: (noReuse: boolean) => Promise<Vu>): Promise<RunReport> {
  const { functions, metrics } = first.script;
  const kinds = { ...BUILT_IN, ...metrics };
  const options = optionsFrom(first.script.options);
  validateThresholds(options.thresholds, kinds);
  const scenarios = Object.entries(options.scenarios).map(
    ([name, given]) => [name, scenarioFrom(name, given)] as const,
  );
  for (const [name, { exec }] of scenarios) {
    if (!functions.includes(exec)) throw new Error(`scenario ${name}: function ${exec} is not exported`);
  }

  const startedMs = performance.now();
  const samples: MetricSample[] = [];
  const errors: string[] = [];
  const step = async (exec: 'setup' | 'teardown', data: string | undefined): Promise<string | undefined> => {
    if (!functions.includes(exec)) return undefined;
    const task = { exec, data, tags: { group: `::${exec}` }, scenario: undefined };
    const done = await first.run(task, STEP_TIMEOUT_MS);
    samples.push(...done.samples);
    if (done.error !== undefined) throw new Error(`${exec}: ${done.error}`);
    return done.result;
  };

  const data = await step('setup', undefined);
  const pools = await Promise.all(
    scenarios.map(([, { preAllocatedVUs }]) =>
      Promise.all(Array.from({ length: preAllocatedVUs }, () => open(options.noVUConnectionReuse))),
    ),
  );
  await Promise.all(
    scenarios.map(([name, scenario], at) =>
      runScenario({
        name,
        scenario,
        pool: pools[at] ?? [],
        data,
        samples,
        errors,
      }),
    ),
  );
  await step('teardown', data);
  const durationMs = performance.now() - startedMs;
  const thresholds = evaluateThresholds(options.thresholds, { kinds, samples, durationMs });
  return {
    passed: thresholds.every(({ passed }) => passed),
    thresholds,
    checks: checksOf(samples),
    iterations: sumOf(samples, 'iterations'),
    dropped: sumOf(samples, 'dropped_iterations'),
    errors,
    samples,
  };
}

/** Starts every iteration at its time, if there is a VU for it; then waits for those that run, and cuts off what takes too long. */
async function runScenario(run: {
  readonly name: string;
  readonly scenario: ArrivalScenario;
  readonly pool: readonly Vu[];
  readonly data: string | undefined;
  readonly samples: MetricSample[];
  readonly errors: string[];
}): Promise<void> {
  const { name, scenario, data, samples, errors } = run;
  const tags: Tags = { scenario: name };
  const free = [...run.pool];
  const running = new Set<Promise<void>>();
  const endMs = (scenario.arrivalsMs.at(-1) ?? 0) + scenario.gracefulStopMs;
  const startedMs = performance.now();
  let iterationInTest = 0;

  const iterate = async (vu: Vu, number: number): Promise<void> => {
    const task = {
      exec: scenario.exec,
      data,
      tags,
      scenario: { name, executor: scenario.executor, iterationInTest: number },
    };
    try {
      const done = await vu.run(task, Math.max(1, endMs - (performance.now() - startedMs)));
      samples.push(...done.samples, { metric: 'iterations', value: 1, tags });
      samples.push({ metric: 'iteration_duration', value: done.durationMs, tags });
      if (done.error !== undefined) errors.push(`${name}: ${done.error}`);
      free.push(vu);
    } catch (error) {
      errors.push(`${name}: ${String(error)}`);
    }
  };
  const start = (vu: Vu | undefined): void => {
    if (vu === undefined) {
      samples.push({ metric: 'dropped_iterations', value: 1, tags });
      return;
    }
    const iteration = iterate(vu, iterationInTest).finally(() => running.delete(iteration));
    iterationInTest += 1;
    running.add(iteration);
  };

  for (const atMs of scenario.arrivalsMs) {
    const leftMs = atMs - (performance.now() - startedMs);
    if (leftMs > 0) await new Promise((resolve) => setTimeout(resolve, leftMs));
    start(free.shift());
  }
  await Promise.all(running);
}

function optionsFrom(given: unknown): Options {
  const { scenarios, thresholds = {}, noVUConnectionReuse = false, ...rest } = given as Partial<Options>;
  const unknown = Object.keys(rest).filter((key) => !OPTIONS.test(key));
  if (unknown.length > 0) throw new Error(`the stand-in does not know the options ${unknown.join(', ')}`);
  if (scenarios === undefined) throw new Error('the stand-in runs scenarios only');
  return { scenarios, thresholds, noVUConnectionReuse };
}

function checksOf(samples: readonly MetricSample[]): RunReport['checks'] {
  const checks: Record<string, { passes: number; fails: number }> = {};
  for (const { metric, value, tags } of samples) {
    if (metric !== 'checks') continue;
    const name = tags['check'] ?? '';
    const { passes, fails } = checks[name] ?? { passes: 0, fails: 0 };
    checks[name] = value === 0 ? { passes, fails: fails + 1 } : { passes: passes + 1, fails };
  }
  return checks;
}

function sumOf(samples: readonly MetricSample[], metric: string): number {
  return samples.reduce((sum, sample) => (sample.metric === metric ? sum + sample.value : sum), 0);
}
