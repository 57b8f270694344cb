/**
 * Owns a process of the service that a test may kill or put to sleep: the program itself, in one role, over the test's database. Invariant: none outlives the
 * test file that started it.
 */
import { spawn } from 'node:child_process';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { createInterface } from 'node:readline';
import { afterAll } from 'vitest';
import type { Role } from '../../src/config.ts';
import type { TestDatabase } from './database.ts';
import { within } from './eventually.ts';
import { environmentOf } from './service.ts';

export interface RoleProcess {
  readonly grpcPort: number;
  readonly httpPort: number;
  /** Lines that it wrote, of its log and else. */
  readonly lines: readonly string[];
  /** SIGKILL: nothing of it runs after this. Resolves when it is gone. */
  kill(): Promise<void>;
  /** SIGSTOP: its event loop stands still, its connections stay open. */
  freeze(): void;
  thaw(): void;
  /** Its exit code, once it has ended, whoever ended it. */
  readonly ended: Promise<number | null>;
  /** SIGTERM; answers its exit code. */
  stop(): Promise<number | null>;
}

/** Node keys it by version and content. It takes two fifths off the CPU of a start. */
const COMPILE_CACHE = path.join(tmpdir(), 'tributary-compile-cache');
const MAIN = path.resolve(import.meta.dirname, '../../src/main.ts');
/** A second on an idle machine; several start at once, beside other tests. */
const START_MAX_MS = 60_000;
/** Longer than a process takes that drains for as long as it may. */
const STOP_MAX_MS = 30_000;

const alive = new Set<() => Promise<void>>();
afterAll(async () => {
  await Promise.all([...alive].map((kill) => kill()));
});

/** A process that may never serve. */
export interface Launched extends Omit<RoleProcess, 'grpcPort' | 'httpPort'> {
  /** Rejects with what it wrote where it ended before. */
  readonly serving: Promise<Pick<RoleProcess, 'grpcPort' | 'httpPort'>>;
}

/** Resolves once it serves; rejects with what it wrote where it ended before. */
export async function startRole(...of: Parameters<typeof launchRole>): Promise<RoleProcess> {
  const { serving, ...launched } = launchRole(...of);
  const { grpcPort, httpPort } = await within(serving, START_MAX_MS);
  return { ...launched, grpcPort, httpPort };
}

export function launchRole(
  role: Role,
  database: Pick<TestDatabase, 'url' | 'name'>,
  env: Readonly<Record<string, string>> = {},
): Launched {
  const child = spawn(process.execPath, [MAIN], {
    env: {
      ...environmentOf(database, env),
      PATH: process.env['PATH'] ?? '',
      TRIBUTARY_ROLE: role,
      NODE_COMPILE_CACHE: COMPILE_CACHE,
    },
    stdio: ['ignore', 'pipe', 'pipe'],
  });
  const { promise: ended, resolve: end } = Promise.withResolvers<number | null>();
  child.once('close', end);
  const kill = async (): Promise<void> => {
    child.kill('SIGKILL');
    await ended;
  };
  alive.add(kill);
  void ended.then(() => alive.delete(kill));

  const lines: string[] = [];
  const serving = Promise.withResolvers<{ readonly grpcPort: number; readonly httpPort: number }>();
  serving.promise.catch(() => undefined);
  for (const stream of [child.stdout, child.stderr]) {
    createInterface({ input: stream }).on('line', (line) => {
      lines.push(line);
      if (line.includes('"msg":"serving"')) serving.resolve(JSON.parse(line));
    });
  }
  void ended.then((code) => serving.reject(new Error(`ended with ${code}:\n${lines.join('\n')}`)));

  return {
    serving: serving.promise,
    lines,
    kill,
    ended,
    freeze: () => void child.kill('SIGSTOP'),
    thaw: () => void child.kill('SIGCONT'),
    stop() {
      child.kill('SIGTERM');
      return within(ended, STOP_MAX_MS);
    },
  };
}
