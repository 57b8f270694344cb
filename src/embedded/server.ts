// Owns the life of one embedded server: a free port, start, wait for an answer, restart in place, stop, crash.
// What differs between Postgres and Redis is a ServerPlan; which of them is running makes no difference here.
// Invariant: one live server per folder. The folder is locked while it is in use, and a server that an earlier run left
// behind in it is ended before a new one starts.

import { existsSync, mkdirSync, readFileSync, renameSync, statSync } from 'node:fs';
import net from 'node:net';
import path from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { lockData } from './data-lock.ts';
import { type GuardedProcess, spawnGuarded } from './guarded.ts';
import type { Account } from './place.ts';
import { killTree, readCommandLine, signalProcess, waitUntilGone } from './processes.ts';

export interface EmbeddedServer {
  readonly url: string;
  readonly port: number;
  /** Of the process that runs now; another one after `restart`. */
  readonly pid: number;
  /** Ends it in order and gives its folder back. Does nothing when it has ended already. */
  stop(): Promise<void>;
  /** Same port, same data; also after `kill`, `stop`, or a crash. Resolves when it answers again. */
  restart(): Promise<void>;
  /** Ends it as a crash would (SIGKILL), for tests of faults. The folder stays reserved for a `restart`. */
  kill(): Promise<void>;
}

export interface ServerPlan {
  /** For messages: "Postgres", "Redis (cache)". */
  readonly name: string;
  /** The server's own folder. Must be enterable by the account. */
  readonly folder: string;
  readonly command: string;
  /** The argument that only a server of this folder is started with; how one that was left behind is recognised. */
  readonly ownArgument: string;
  readonly account: Account | undefined;
  readonly logFile: string;
  /** A given port is kept to; otherwise a free one is picked. */
  readonly port: number | undefined;
  readonly stopSteps: readonly { readonly signal: NodeJS.Signals; readonly waitMs: number }[];
  readonly startWaitMs: number;
  /** More files the server itself notes its process ID in. */
  readonly pidFiles: readonly string[];
  args(port: number): readonly string[];
  url(port: number): string;
  /** Just before the process is started; nothing else runs in the folder. */
  prepare(): Promise<void>;
  /** Does this very process serve? Throws when not, or not yet. */
  probe(running: { readonly port: number; readonly pid: number }): Promise<void>;
}

/**
 * Picked below the range from which systems take the ports of outgoing connections (Linux 32768, others 49152): a client
 * that keeps trying to reach a restarting server could otherwise be given the server's own port, and connect to itself.
 */
const portsFrom = 20_000;
const portsTo = 32_000;
const portsTriedMax = 50;

/** A port that was free may be taken a moment later; Postgres may wait for the memory of one that crashed. */
const startsTriedMax = 5;
const passingTrouble = /address already in use|could not bind|shared memory block .* is still in use/i;

const probeEveryMs = 20;
const leftoverStopMs = 5_000;
const leftoverKillMs = 10_000;
const tailBytes = 4_000;
const logBytesMax = 8 * 1024 * 1024;

/** Starts the server and resolves when it answers; rejects with the end of its log when it does not in time. */
export async function startServer(plan: ServerPlan): Promise<EmbeddedServer> {
  mkdirSync(plan.folder, { recursive: true });
  let lock = lockData(plan.folder);
  let isLocked = true;
  let running: { readonly process: GuardedProcess; readonly port: number };
  try {
    await endLeftovers(plan);
    await plan.prepare();
    running = await startWithRetry(plan, plan.port);
  } catch (error) {
    lock.release();
    throw error;
  }

  // One change at a time: a stop that is asked for during a restart happens after it.
  let last: Promise<void> = Promise.resolve();
  function inTurn(change: () => Promise<void>): Promise<void> {
    const next = last.then(change);
    last = next.catch(() => undefined);
    return next;
  }

  return {
    get url() {
      return plan.url(running.port);
    },
    get port() {
      return running.port;
    },
    get pid() {
      return running.process.pid;
    },
    stop: () =>
      inTurn(async () => {
        if (!isLocked) return;
        await running.process.stop();
        lock.release();
        isLocked = false;
      }),
    restart: () =>
      inTurn(async () => {
        if (!isLocked) lock = lockData(plan.folder);
        isLocked = true;
        await running.process.stop();
        await endLeftovers(plan);
        await plan.prepare();
        running = await startWithRetry(plan, running.port);
      }),
    kill: () => inTurn(() => running.process.kill()),
  };
}

/** Ends the server that a run which was killed, guard and all, left behind in this folder. */
export async function endLeftovers(
  plan: Pick<ServerPlan, 'name' | 'folder' | 'command' | 'ownArgument' | 'pidFiles'>,
): Promise<void> {
  for (const file of [pidFileOf(plan.folder), ...plan.pidFiles]) {
    const pid = readPid(file);
    if (pid === undefined || !isServerOf(plan, pid)) continue;
    signalProcess(pid, 'SIGINT');
    if (await waitUntilGone([pid], { waitMs: leftoverStopMs })) continue;
    if (await waitUntilGone(killTree(pid), { waitMs: leftoverKillMs })) continue;
    throw new Error(`${plan.name} of an earlier run (process ${pid}) in ${plan.folder} cannot be ended`);
  }
}

/** Asks the command line: by now the number may belong to a process that has nothing to do with us. */
function isServerOf(plan: Pick<ServerPlan, 'command' | 'ownArgument'>, pid: number): boolean {
  const line = readCommandLine(pid);
  const isCommand = line[0]?.includes(path.basename(plan.command)) ?? false;
  return isCommand && line.some((part) => part === plan.ownArgument || part.includes(` ${plan.ownArgument}`));
}

async function startWithRetry(
  plan: ServerPlan,
  wantedPort: number | undefined,
): Promise<{ readonly process: GuardedProcess; readonly port: number }> {
  for (let attempt = 1; ; attempt += 1) {
    const port = wantedPort ?? (await pickPort());
    try {
      return { process: await startOnce(plan, port), port };
    } catch (error) {
      const mayPass = error instanceof Error && passingTrouble.test(error.message);
      if (!mayPass || attempt === startsTriedMax) throw error;
      await sleep(100 * attempt);
    }
  }
}

async function startOnce(plan: ServerPlan, port: number): Promise<GuardedProcess> {
  const logStart = openLog(plan.logFile);
  const server = await spawnGuarded({
    command: plan.command,
    args: plan.args(port),
    cwd: plan.folder,
    // Nothing of the owner's environment: PGDATA, PGOPTIONS or a locale of the user's must not change the server.
    env: { PATH: process.env['PATH'] ?? '', LC_ALL: 'C', TZ: 'UTC', HOME: plan.folder },
    account: plan.account && { uid: plan.account.uid, gid: plan.account.gid },
    logFile: plan.logFile,
    pidFile: pidFileOf(plan.folder),
    stopSteps: plan.stopSteps,
  });
  const trouble = await waitUntilAnswering(plan, server, port);
  if (trouble === undefined) return server;
  await server.kill();
  throw new Error(`${plan.name} ${trouble}. The end of ${plan.logFile}:\n${readTail(plan.logFile, logStart)}`);
}

/** Undefined once it answers, else what went wrong. */
async function waitUntilAnswering(plan: ServerPlan, server: GuardedProcess, port: number): Promise<string | undefined> {
  const deadline = performance.now() + plan.startWaitMs;
  let ended: string | undefined;
  const end = server.ended.then((how) => {
    ended = how;
  });
  let lastError: unknown;
  while (performance.now() < deadline) {
    try {
      await plan.probe({ port, pid: server.pid });
      return undefined;
    } catch (error) {
      lastError = error;
    }
    await Promise.race([end, sleep(probeEveryMs)]);
    if (ended !== undefined) return `ended during its start (${ended})`;
  }
  return `did not answer within ${plan.startWaitMs} ms (${String(lastError)})`;
}

async function pickPort(): Promise<number> {
  for (let tried = 0; tried < portsTriedMax; tried += 1) {
    const port = portsFrom + Math.floor(Math.random() * (portsTo - portsFrom));
    if (await isFree(port)) return port;
  }
  throw new Error(`No free port among ${portsTriedMax} tried from ${portsFrom} to ${portsTo}`);
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const listener = net.createServer();
    listener.once('error', () => resolve(false));
    listener.listen({ host: '127.0.0.1', port, exclusive: true }, () => listener.close(() => resolve(true)));
  });
}

function pidFileOf(folder: string): string {
  return path.join(folder, 'server.pid');
}

/** The first line, which is where Postgres puts it too. */
function readPid(file: string): number | undefined {
  try {
    const pid = Number.parseInt(readFileSync(file, 'utf8'), 10);
    return pid > 1 ? pid : undefined;
  } catch {
    return undefined;
  }
}

/** Where this start's part of the log begins. A log that has grown large is set aside, once. */
function openLog(file: string): number {
  if (!existsSync(file)) return 0;
  const { size } = statSync(file);
  if (size <= logBytesMax) return size;
  renameSync(file, `${file}.old`);
  return 0;
}

function readTail(file: string, from: number): string {
  try {
    return readFileSync(file).subarray(from).subarray(-tailBytes).toString('utf8').trimEnd();
  } catch {
    return '(no log)';
  }
}
