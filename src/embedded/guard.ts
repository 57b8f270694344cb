// Owns one server process on behalf of an owner, and outlives the owner by exactly as long as the server takes to end.
//
// Invariant: when the pipe from the owner ends (the owner stopped, crashed, or was killed with SIGKILL: the kernel closes
// the pipe in every case) the server is ended, politely first and by force after a bound. It runs in a session of its own,
// so Ctrl-C in the owner's terminal does not reach it or the server. It is the server's parent, so the process ID it
// signals cannot have been given to anybody else. (A handler in the owner was the alternative: SIGKILL runs no handlers.)
//
// Speaks lines of JSON: in, one GuardOrder and then GuardCommands; out, GuardReports.

import { spawn } from 'node:child_process';
import { closeSync, openSync, writeFileSync } from 'node:fs';
import { killTree, signalProcess, waitUntilGone } from './processes.ts';

export interface GuardOrder {
  readonly command: string;
  readonly args: readonly string[];
  readonly cwd: string;
  readonly env: Readonly<Record<string, string>>;
  /** The account the server runs as; absent = the owner's. */
  readonly account?: { readonly uid: number; readonly gid: number } | undefined;
  readonly logFile: string;
  /** Where the server's process ID is noted, for the next start to find a server whose guard was killed. */
  readonly pidFile: string;
  /** Tried in order until the server has ended; SIGKILL for it and its children comes after the last. */
  readonly stopSteps: readonly { readonly signal: NodeJS.Signals; readonly waitMs: number }[];
}

export type GuardCommand = 'stop' | 'kill';

export type GuardReport =
  | { readonly kind: 'started'; readonly pid: number }
  | { readonly kind: 'refused'; readonly reason: string }
  | { readonly kind: 'ended'; readonly how: string };

/** After SIGKILL, for the kernel to tear down a server with a large memory map. */
const killWaitMs = 10_000;

function report(message: GuardReport): void {
  process.stdout.write(`${JSON.stringify(message)}\n`);
}

function guard(order: GuardOrder): { end(command: GuardCommand): Promise<void> } {
  const log = openSync(order.logFile, 'a');
  const server = spawn(order.command, order.args, {
    cwd: order.cwd,
    env: order.env,
    stdio: ['ignore', log, log],
    ...(order.account ?? {}),
  });
  closeSync(log);
  // The server and its children: filled in by a kill, so that "ended" is said only once all of them are gone.
  let killed: readonly number[] = [];

  const ended = new Promise<string>((resolve) => {
    server.once('error', (error) => {
      report({ kind: 'refused', reason: error.message });
      resolve('never started');
    });
    server.once('exit', (code, signal) => resolve(signal ?? `exit code ${code}`));
  });
  if (server.pid !== undefined) {
    try {
      writeFileSync(order.pidFile, `${server.pid}\n`);
      report({ kind: 'started', pid: server.pid });
    } catch (error) {
      killed = killTree(server.pid);
      report({ kind: 'refused', reason: `its process ID cannot be noted: ${String(error)}` });
    }
  }
  void ended.then(async (how) => {
    await waitUntilGone(killed, { waitMs: killWaitMs });
    report({ kind: 'ended', how });
    process.stdin.destroy();
  });

  async function endsWithin(waitMs: number): Promise<boolean> {
    const { promise: late, resolve } = Promise.withResolvers<false>();
    const timer = setTimeout(resolve, waitMs, false);
    const first = await Promise.race([ended.then(() => true), late]);
    clearTimeout(timer);
    return first;
  }

  async function end(command: GuardCommand): Promise<void> {
    const { pid } = server;
    if (pid === undefined) return;
    if (command === 'stop') {
      for (const { signal, waitMs } of order.stopSteps) {
        signalProcess(pid, signal);
        if (await endsWithin(waitMs)) return;
      }
    }
    if (server.exitCode === null && server.signalCode === null) killed = killTree(pid);
  }

  return { end };
}

function main(): void {
  let guarded: ReturnType<typeof guard> | undefined;
  let unread = '';
  const stop = (): void => void guarded?.end('stop');

  process.stdin.setEncoding('utf8');
  process.stdin.on('data', (chunk: string) => {
    const lines = (unread + chunk).split('\n');
    unread = lines.pop() ?? '';
    for (const line of lines) {
      if (guarded === undefined) guarded = guard(JSON.parse(line) as GuardOrder);
      else void guarded.end(JSON.parse(line) as GuardCommand);
    }
  });
  process.stdin.on('end', stop);
  process.stdin.on('error', stop);
  // A report to an owner that is gone fails, and must not take the guard down before the server has ended.
  process.stdout.on('error', () => undefined);
  process.on('SIGTERM', stop);
  process.on('SIGINT', () => undefined);
  process.on('SIGHUP', () => undefined);
}

if (import.meta.main) main();
