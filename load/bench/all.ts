/**
 * Owns `npm run bench -- all`: every benchmark in a process of its own, one after the other, at a size that two cores bear in some minutes each; their JSON, and the plots of the sweeps.
 * Invariant: one that fails or takes too long costs its own result and no other; each has its time, and is ended when that is over.
 */
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import { after } from '../../src/runtime.ts';
import { loadRecords } from './record.ts';
import { writePlots } from './report.ts';

interface Preset {
  readonly options: Readonly<Record<string, string>>;
  /** Minutes that it may take; some three times what it takes on a machine that does nothing else. */
  readonly minutes: number;
}

export const PRESETS: Readonly<Record<string, Preset>> = {
  publish: { options: {}, minutes: 10 },
  memory: { options: {}, minutes: 10 },
  fanout: { options: { rounds: '7' }, minutes: 20 },
  isolation: { options: {}, minutes: 30 },
  million: { options: {}, minutes: 30 },
  read: { options: {}, minutes: 30 },
  rebuild: { options: {}, minutes: 30 },
  stampede: { options: {}, minutes: 30 },
  twip: { options: { size: '5000' }, minutes: 60 },
  policy: { options: { size: '1000' }, minutes: 40 },
  growth: { options: { size: '1000000' }, minutes: 60 },
  cluster: { options: {}, minutes: 15 },
  recovery: { options: { size: '200' }, minutes: 15 },
  soak: { options: { size: '20000' }, minutes: 20 },
};

const MAIN = path.join(import.meta.dirname, 'main.ts');
/** Between being asked to end and being made to: its servers stop in that time. */
const END_WAIT_MS = 60_000;
const MS_PER_MINUTE = 60_000;

/** `options` go before those of the presets. Answers the exit code: 1 where one of them has no result, or one that falls short. */
export async function runAll(of: {
  readonly names: readonly string[];
  readonly options: Readonly<Record<string, string>>;
  readonly folder: string;
  readonly report: (line: string) => void;
  readonly signal: AbortSignal;
}): Promise<number> {
  const { names, folder, report, signal } = of;
  const failed: string[] = [];
  for (const name of names) {
    if (signal.aborted) break;
    const preset = PRESETS[name];
    if (!preset) throw new Error(`there is no preset for ${name}`);
    report(`\n${name}: at most ${preset.minutes} minutes`);
    const options = Object.entries({ ...preset.options, ...of.options, save: folder });
    const args = [name, ...options.flatMap(([option, value]) => [`--${option}`, value])];
    const code = await runOne(args, preset.minutes, signal);
    if (code !== 0) failed.push(`${name} (${code === null ? 'ended' : `exit code ${code}`})`);
  }
  const records = loadRecords(folder);
  writePlots(folder, records);
  report(
    `\n${records.length} results are in ${folder}; \`npm run bench -- report\` writes what is committed there into README`,
  );
  if (failed.length > 0) report(`failed or fell short: ${failed.join(', ')}`);
  return failed.length === 0 && !signal.aborted ? 0 : 1;
}

/** Answers the exit code; null where it had to be ended. */
async function runOne(args: readonly string[], minutes: number, signal: AbortSignal): Promise<number | null> {
  // In a process group of its own: Ctrl-C would reach it twice else, and the second time it ends without its servers.
  const child = spawn(process.execPath, [MAIN, ...args], { stdio: ['ignore', 'inherit', 'inherit'], detached: true });
  const ended = once(child, 'close');
  let takeBackKill: (() => void) | undefined;
  const end = (): void => {
    if (takeBackKill) return;
    child.kill('SIGINT');
    takeBackKill = after(END_WAIT_MS, () => void child.kill('SIGKILL'));
  };
  const takeBack = after(minutes * MS_PER_MINUTE, end);
  signal.addEventListener('abort', end, { once: true });
  try {
    await ended;
    return child.exitCode;
  } finally {
    takeBack();
    takeBackKill?.();
    signal.removeEventListener('abort', end);
  }
}
