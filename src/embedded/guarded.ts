// Owns the owner's end of the pipe to a guard (guard.ts).
// Invariant: a server that was reported as started has ended when `ended` settles, even if its guard was killed before it.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { closeSync, openSync } from 'node:fs';
import { Socket } from 'node:net';
import path from 'node:path';
import { createInterface } from 'node:readline';
import type { GuardCommand, GuardOrder, GuardReport } from './guard.ts';
import { killTree, readCommandLine, waitUntilGone } from './processes.ts';

export interface GuardedProcess {
  readonly pid: number;
  /** Settles once, with how the server ended ("exit code 0", "SIGKILL", …). Never rejects. */
  readonly ended: Promise<string>;
  /** Ends it politely, then by force; resolves when it has ended. */
  stop(): Promise<void>;
  /** Ends it and its children as a crash would; resolves when all are gone. */
  kill(): Promise<void>;
}

const guardFile = path.join(import.meta.dirname, 'guard.ts');

/** For a server whose guard died first. */
const killWaitMs = 10_000;

/** Starts a guard and its server. Resolves as soon as the process exists, which is before it answers. */
export async function spawnGuarded(order: GuardOrder): Promise<GuardedProcess> {
  // Not the owner's stderr: a guard that outlives its owner would hold a pipe open that somebody reads to its end.
  const log = openSync(order.logFile, 'a');
  const guard = spawn(process.execPath, [guardFile], {
    detached: true,
    stdio: ['pipe', 'pipe', log],
    // Flags of the owner (a debugger's port, a test runner's loaders) are not the guard's.
    env: { ...process.env, NODE_OPTIONS: '' },
  });
  closeSync(log);
  const { stdin, stdout } = guard;
  // What Node makes of a pipe; typed as streams, which have no ref() and unref().
  assert(stdin instanceof Socket && stdout instanceof Socket);
  // A guard that is gone is noticed by its exit; the failing write says nothing more.
  stdin.on('error', () => undefined);

  // A running server does not keep its owner alive; whoever waits for one does.
  const handles = [guard, stdin, stdout];
  let waiting = 0;
  async function hold<T>(promise: Promise<T>): Promise<T> {
    waiting += 1;
    for (const handle of handles) handle.ref();
    try {
      return await promise;
    } finally {
      waiting -= 1;
      if (waiting === 0) for (const handle of handles) handle.unref();
    }
  }

  const started = Promise.withResolvers<number>();
  const ended = Promise.withResolvers<string>();
  let hasEnded = false;
  createInterface({ input: stdout }).on('line', (line) => {
    const report = JSON.parse(line) as GuardReport;
    if (report.kind === 'started') started.resolve(report.pid);
    else if (report.kind === 'refused') started.reject(new Error(`${order.command} cannot be run: ${report.reason}`));
    else {
      hasEnded = true;
      ended.resolve(report.how);
    }
  });
  guard.once('error', (cause) => started.reject(new Error('The guard process cannot be run', { cause })));
  guard.once('close', () => {
    started.reject(new Error(`The guard process ended early; see ${order.logFile}`));
    if (hasEnded) return;
    void started.promise.then(
      async (pid) => {
        // Nobody is the server's parent now, so its ID may already name another process: look before killing.
        if (readCommandLine(pid)[0] === order.command) await waitUntilGone(killTree(pid), { waitMs: killWaitMs });
        ended.resolve('SIGKILL, after the loss of its guard');
      },
      () => ended.resolve('never started'),
    );
  });
  stdin.write(`${JSON.stringify(order)}\n`);
  const pid = await hold(started.promise);

  const tell = async (command: GuardCommand): Promise<void> => {
    stdin.write(`${JSON.stringify(command)}\n`);
    await hold(ended.promise);
  };
  return { pid, ended: ended.promise, stop: () => tell('stop'), kill: () => tell('kill') };
}
