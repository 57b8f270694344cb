/**
 * Owns the Prometheus of the tests: the two programs of Debian's package, and a server that a test starts. Invariant: nothing is installed into the system and no
 * service is started; the package is unpacked into a folder of the project that git ignores, once.
 *
 * Under CI=true a machine without them fails; elsewhere it is said what is left out, and how to get it.
 */
import { execFile } from 'node:child_process';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { promisify } from 'node:util';
import { spawnGuarded } from '../../src/embedded/guarded.ts';
import { findOnPath, isExecutable } from '../../src/embedded/install.mjs';
import { eventually } from './eventually.ts';

export interface PrometheusPrograms {
  readonly promtool: string;
  readonly prometheus: string;
}

export interface PrometheusServer {
  readonly url: string;
  readonly pid: number;
  /** The `data` of an answer of the HTTP API; rejects where the answer is an error. */
  ask<Data>(pathAndQuery: string): Promise<Data>;
  stop(): Promise<void>;
}

const HOME = path.resolve(import.meta.dirname, '../../.data');
const UNPACKED = path.join(HOME, 'prometheus');
/** For all of it. The package is some 20 MB, and lists of packages may have to be fetched before it; without a network apt-get would try each of its sources for minutes. */
const FETCH_MAX_MS = 90_000;
/** Half a second on an idle machine. */
const START_MAX_MS = 20_000;
const ASK_MAX_MS = 5_000;

const run = promisify(execFile);

interface Machine {
  /** Looked through first, in the manner of PATH. */
  readonly searchPath: string | undefined;
  readonly isCi: boolean;
  readonly fetchPackage: () => Promise<PrometheusPrograms>;
  readonly say: (text: string) => void;
}

const thisMachine: Machine = {
  searchPath: [process.env['PATH'], UNPACKED].filter(Boolean).join(path.delimiter),
  isCi: process.env['CI'] === 'true',
  fetchPackage,
  say: (text) => void process.stderr.write(text),
};

/** From PATH, or unpacked before, or fetched now; undefined where that cannot be, which is said, and is an error under CI=true. */
export async function findPrometheus(machine: Machine = thisMachine): Promise<PrometheusPrograms | undefined> {
  const found = programsIn(machine.searchPath) ?? (await machine.fetchPackage().catch(explain));
  if (typeof found === 'object') return found;
  const text = `No promtool and no prometheus: ${found}. On Debian put them on PATH with "apt-get install --no-install-recommends prometheus".`;
  if (machine.isCi) throw new Error(text);
  machine.say(
    `\n${'!'.repeat(80)}\nSKIPPED: alerts, dashboard and scrape are not checked.\n${text}\n${'!'.repeat(80)}\n\n`,
  );
  return undefined;
}

function explain(error: unknown): string {
  // The command, and what it said first.
  return error instanceof Error ? error.message.split('\n').slice(0, 2).join(': ') : String(error);
}

function programsIn(searchPath: string | undefined): PrometheusPrograms | undefined {
  const [promtool, prometheus] = ['promtool', 'prometheus'].map((name) =>
    findOnPath({ names: [name], searchPath, isExecutable }),
  );
  return promtool === undefined || prometheus === undefined ? undefined : { promtool, prometheus };
}

/** `apt-get download` and `dpkg -x` run none of the package's scripts: those would add an account and start a service. */
async function fetchPackage(): Promise<PrometheusPrograms> {
  process.stderr.write('Fetching the package prometheus with apt-get (not on PATH) …\n');
  mkdirSync(HOME, { recursive: true });
  // A name by which the next run finds and removes what a killed one left behind.
  const folder = mkdtempSync(path.join(HOME, `test-${process.pid}-package-`));
  const signal = AbortSignal.timeout(FETCH_MAX_MS);
  const options = { cwd: folder, signal };
  try {
    const download = () => run('apt-get', ['-q', 'download', 'prometheus'], options);
    // A machine that has just been made has no lists of packages yet; to fetch them is root's right.
    await download().catch(async () => {
      signal.throwIfAborted();
      await run('apt-get', ['-q', 'update'], options);
      await download();
    });
    const [file] = readdirSync(folder).filter((name) => name.endsWith('.deb'));
    if (file === undefined) throw new Error('apt-get left no package');
    await run('dpkg', ['-x', file, 'unpacked'], options);
    try {
      // Whole or not at all.
      renameSync(path.join(folder, 'unpacked', 'usr', 'bin'), UNPACKED);
    } catch (error) {
      // Another process may have been quicker.
      if (!existsSync(UNPACKED)) throw error;
    }
  } catch (error) {
    if (signal.aborted) throw new Error(`apt-get did not bring the package within ${FETCH_MAX_MS / 1_000} s`);
    throw error;
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
  const programs = programsIn(UNPACKED);
  if (programs === undefined) throw new Error('the package holds no promtool');
  return programs;
}

/** Starts a server of these rules that scrapes `target` (host and port) every second. Resolves when it is ready. It ends with the process that started it, however that ends. */
export async function startPrometheus(
  { prometheus }: PrometheusPrograms,
  { target, rules }: { readonly target: string; readonly rules: string },
): Promise<PrometheusServer> {
  const folder = path.join(HOME, `test-${process.pid}-prometheus`);
  mkdirSync(folder, { recursive: true });
  const logFile = path.join(folder, 'server.log');
  const config = path.join(folder, 'prometheus.yml');
  writeFileSync(
    config,
    JSON.stringify({
      global: { scrape_interval: '1s', scrape_timeout: '1s', evaluation_interval: '1s' },
      rule_files: [rules],
      scrape_configs: [{ job_name: 'tributary', static_configs: [{ targets: [target] }] }],
    }),
  );
  const server = await spawnGuarded({
    command: prometheus,
    // A port of the system's choice, which the log tells.
    args: [
      `--config.file=${config}`,
      `--storage.tsdb.path=${path.join(folder, 'data')}`,
      '--web.listen-address=127.0.0.1:0',
    ],
    cwd: folder,
    env: {},
    logFile,
    pidFile: path.join(folder, 'server.pid'),
    stopSteps: [{ signal: 'SIGTERM', waitMs: 5_000 }],
  });
  async function stop(): Promise<void> {
    await server.stop();
    rmSync(folder, { recursive: true, force: true });
  }

  try {
    const address = await eventually(
      () => {
        const log = readFileSync(logFile, 'utf8');
        const listening = /msg="Listening on".*? address=(\S+)/.exec(log)?.[1];
        if (listening === undefined) throw new Error(`Prometheus does not listen: ${log.slice(-2_000)}`);
        return listening;
      },
      { timeoutMs: START_MAX_MS, everyMs: 50 },
    );
    const url = `http://${address}`;
    const fetchSoon = (where: string) => fetch(`${url}${where}`, { signal: AbortSignal.timeout(ASK_MAX_MS) });
    await eventually(
      async () => {
        const { status } = await fetchSoon('/-/ready');
        if (status !== 200) throw new Error(`/-/ready answers ${status}`);
      },
      { timeoutMs: START_MAX_MS, everyMs: 50 },
    );
    return {
      url,
      pid: server.pid,
      async ask<Data>(pathAndQuery: string) {
        const answer = (await (await fetchSoon(pathAndQuery)).json()) as { status: string; error?: string; data: Data };
        if (answer.status !== 'success') throw new Error(`${pathAndQuery}: ${answer.error}`);
        return answer.data;
      },
      stop,
    };
  } catch (error) {
    await stop();
    throw error;
  }
}
