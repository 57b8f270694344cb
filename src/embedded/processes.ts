// Owns what this project asks of the process table: is it running, what was it started as, who are its children.
// Linux answers from /proc (slim images have no `ps`), other systems by `ps`. A zombie is not running: it holds no port
// and no memory, and in a container nobody may ever collect it. Unless it has threads left: then its first thread has
// ended, and the others still hold its files and locks.

import { execFileSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';

const hasProc = existsSync('/proc/self/stat');

/** Between two looks at a process that is about to end. */
const pollMs = 10;

export function isRunning(pid: number): boolean {
  if (!hasProc) {
    const state = readPs(['-o', 'state=', '-p', String(pid)]).trim();
    return state !== '' && !state.startsWith('Z');
  }
  const stat = readStat(pid);
  return stat !== undefined && (!/^[ZX]$/.test(stat.state) || stat.threads > 1);
}

/** The command line a process was started with, its arguments in one string each where the system tells them apart. */
export function readCommandLine(pid: number): readonly string[] {
  if (!isRunning(pid)) return [];
  if (!hasProc) return [readPs(['-o', 'command=', '-p', String(pid)]).trim()];
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').split('\0').slice(0, -1);
  } catch {
    return [];
  }
}

/** Children, their children, and so on. A process that is born during the look may be missing: stop the parent first. */
export function listDescendants(pid: number): readonly number[] {
  const children = new Map<number, number[]>();
  for (const [child, parent] of listParents()) {
    const siblings = children.get(parent);
    if (siblings === undefined) children.set(parent, [child]);
    else siblings.push(child);
  }
  const found: number[] = [];
  const open = [pid];
  for (let next = open.pop(); next !== undefined; next = open.pop()) {
    const below = children.get(next) ?? [];
    found.push(...below);
    open.push(...below);
  }
  return found;
}

/** Sends a signal; false when there is no such process any more, or it is not ours to signal. */
export function signalProcess(pid: number, signal: NodeJS.Signals): boolean {
  try {
    return process.kill(pid, signal);
  } catch {
    return false;
  }
}

/**
 * Ends a process and all below it at once, as a power cut would. It is stopped before its children are listed, so that
 * none is born in between and none gets the time to clean up. Returns the processes concerned.
 */
export function killTree(pid: number): readonly number[] {
  signalProcess(pid, 'SIGSTOP');
  const all = [pid, ...listDescendants(pid)];
  for (const each of all) signalProcess(each, 'SIGKILL');
  return all;
}

/** Waits until none of them runs; false when some still do after `waitMs`. */
export async function waitUntilGone(
  pids: readonly number[],
  { waitMs }: { readonly waitMs: number },
): Promise<boolean> {
  const deadline = performance.now() + waitMs;
  while (pids.some(isRunning)) {
    if (performance.now() > deadline) return false;
    await sleep(pollMs);
  }
  return true;
}

function listParents(): readonly (readonly [pid: number, parent: number])[] {
  if (hasProc) {
    return readdirSync('/proc')
      .filter((name) => /^\d+$/.test(name))
      .flatMap((name) => {
        const stat = readStat(Number(name));
        return stat === undefined ? [] : [[Number(name), stat.parent] as const];
      });
  }
  return readPs(['-A', '-o', 'pid=,ppid='])
    .split('\n')
    .map((line) => line.trim().split(/\s+/).map(Number))
    .flatMap(([pid, parent]) => (pid === undefined || parent === undefined ? [] : [[pid, parent] as const]));
}

interface Stat {
  readonly state: string;
  readonly parent: number;
  readonly threads: number;
}

/** Fields 3, 4 and 20 of proc_pid_stat(5); field 2, the name, is in brackets and may itself hold blanks and brackets. */
function readStat(pid: number): Stat | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'utf8');
    const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
    return { state: fields[0] ?? '', parent: Number(fields[1]), threads: Number(fields[17]) };
  } catch {
    return undefined;
  }
}

/** `ps` answers "no such process" by its exit code, with nothing on stdout. */
function readPs(args: readonly string[]): string {
  try {
    return execFileSync('ps', args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'ignore'] });
  } catch {
    return '';
  }
}
