/**
 * Owns starting the servers of the reading benchmark, each in a process of its own, and asking what they have used.
 * Invariant: whoever started one ends it; it ends by itself too once the benchmark is gone.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import path from 'node:path';
import type { CpuReport, Ready, ServerKind } from './read-server.ts';

/** A server reads nothing while it starts. */
const ANSWER_MS = 60_000;

export interface Child extends Ready {
  cpuMicros(): Promise<number>;
  /** Ends it by its own stop; resolves when the process is gone. May be called again. */
  end(): Promise<void>;
}

export async function startChild(kind: ServerKind, environment: Readonly<Record<string, string>>): Promise<Child> {
  const child: ChildProcess = fork(path.join(import.meta.dirname, 'read-server.ts'), [kind], {
    env: { ...process.env, ...environment },
    execArgv: [],
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  const exited = once(child, 'exit');
  exited.catch(() => undefined);
  const answer = async (): Promise<unknown> => {
    const [message] = await Promise.race([
      once(child, 'message', { signal: AbortSignal.timeout(ANSWER_MS) }),
      exited.then(() => Promise.reject(new Error(`the server "${kind}" ended by itself`))),
    ]);
    return message;
  };
  const end = async (): Promise<void> => {
    if (child.connected) child.disconnect();
    await exited;
  };
  try {
    const ports = (await answer()) as Ready;
    return {
      ...ports,
      async cpuMicros() {
        child.send('cpu');
        return ((await answer()) as CpuReport).cpuMicros;
      },
      end,
    };
  } catch (error) {
    await end();
    throw error;
  }
}
