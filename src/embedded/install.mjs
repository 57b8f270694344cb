// Owns everything between a fresh clone and a running script: the packages of package-lock.json, the pinned Node,
// a Redis server. Started as `node src/embedded/install.mjs <script.ts> [args…]` by the scripts of package.json.
//
// Plain JavaScript for any Node >= 20, with no imports but Node's own, because it runs before node_modules exists.
// Invariant: with everything in place it only reads a few files, never reaches for the network, and adds no output.
// The decisions are pure functions on top, tested without installing anything; what acts on them is below.

import { spawn } from 'node:child_process';
import {
  accessSync,
  constants,
  existsSync,
  readFileSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..');

/** Scripts that never start the embedded servers, so they run without any Redis on the machine. */
const scriptsWithoutServers = new Set(['test/check.ts', 'src/main.ts']);

/** How soon after the end of npm the script is told to end. */
const parentWatchMs = 500;

const redisNames = ['redis-server', 'valkey-server'];

// ---------------------------------------------------------------------------------------------- decisions

/** Does this script start the embedded servers? `script` is relative to the project. */
export function needsServers(script) {
  return !scriptsWithoutServers.has(path.posix.normalize(script.replaceAll('\\', '/')));
}

/**
 * Why the packages have to be installed, or undefined when node_modules holds what the lock file asks for.
 *
 * `installed` is npm's own record (node_modules/.package-lock.json), which npm writes last, so that an install that was
 * cut short has none. Optional packages are not compared: which of them belong here depends on the machine.
 */
export function reasonToInstall({ wanted, installed, isPresent }) {
  if (installed === undefined) return 'node_modules is missing or incomplete';
  for (const [location, want] of Object.entries(wanted.packages)) {
    if (location === '' || want.link || want.optional) continue;
    const have = installed.packages[location];
    const name = location.replace(/^.*node_modules\//, '');
    if (have === undefined || !isPresent(location)) return `${name} is not installed`;
    if (have.version !== want.version || have.integrity !== want.integrity) {
      return `${name} is ${have.version}, package-lock.json wants ${want.version}`;
    }
  }
  return undefined;
}

/** The first of `names` that can be run from `searchPath`, as a full path; undefined when there is none. */
export function findOnPath({ names, searchPath, isExecutable }) {
  const folders = (searchPath ?? '').split(path.delimiter).filter((folder) => folder !== '');
  for (const name of names) {
    const found = folders.map((folder) => path.join(folder, name)).find(isExecutable);
    if (found !== undefined) return found;
  }
  return undefined;
}

/**
 * What to do about Redis: `use` a server that is there, install it with `apt`, or `stop` with a message that holds the
 * exact command. Only root on a machine with apt-get gets an installation of its own accord; nobody is asked for a password.
 */
export function decideRedis({ override, searchPath, isExecutable, isRoot, platform }) {
  if (override !== undefined && override !== '') {
    if (isExecutable(override)) return { kind: 'use', path: override };
    return { kind: 'stop', message: `TRIBUTARY_REDIS_SERVER is ${override}, which cannot be run.` };
  }
  const lookUp = (names) => findOnPath({ names, searchPath, isExecutable });
  const found = lookUp(redisNames);
  if (found !== undefined) return { kind: 'use', path: found };

  const hasApt = lookUp(['apt-get']) !== undefined;
  if (hasApt && isRoot) return { kind: 'apt' };
  const asRoot = isRoot ? '' : 'sudo ';
  const command = hasApt
    ? `${asRoot}apt-get install -y --no-install-recommends redis-server`
    : platform === 'darwin'
      ? 'brew install redis'
      : lookUp(['dnf']) !== undefined
        ? `${asRoot}dnf install -y redis`
        : lookUp(['apk']) !== undefined
          ? `${asRoot}apk add redis`
          : undefined;
  const how =
    command === undefined
      ? 'Install Redis 7 or newer with the package manager of this machine'
      : `Install it with\n\n  ${command}\n`;
  return {
    kind: 'stop',
    message: `No redis-server or valkey-server on PATH. ${how}\nor point TRIBUTARY_REDIS_SERVER at one, and start again.`,
  };
}

/**
 * Does the wrapper pass this signal on? Ctrl-C reaches every process of a terminal by itself, and a program that is told
 * twice takes the second time for "at once"; so SIGINT is passed on only where no terminal did it.
 */
export function forwards({ signal, hasTerminal }) {
  return signal !== 'SIGINT' || !hasTerminal;
}

/**
 * Did what started the wrapper end before it? A shell in a terminal may do so on purpose, and what it started in the
 * background goes on; the one between npm and the wrapper never does.
 */
export function wasAbandoned({ parent, parentNow, isRunByNpm }) {
  return isRunByNpm && parentNow !== parent;
}

// ---------------------------------------------------------------------------------------------- the machine

export function isExecutable(file) {
  try {
    accessSync(file, constants.X_OK);
    return true;
  } catch {
    return false;
  }
}

/** The Redis server of this machine, by the same rules the installer uses; undefined when there is none. */
export function findRedisServer(env = process.env) {
  const decision = decideRedis({
    override: env.TRIBUTARY_REDIS_SERVER,
    searchPath: env.PATH,
    isExecutable,
    isRoot: false,
    platform: process.platform,
  });
  return decision.kind === 'use' ? decision.path : undefined;
}

function say(text) {
  process.stderr.write(`${text}\n`);
}

/** A reason to stop that is for the user to read, without a stack. */
class Refusal extends Error {}

/** Runs a program quietly. What it printed is shown when, and only when, it fails. */
async function run(command, args, options = {}) {
  const child = spawn(command, args, { cwd: root, stdio: ['ignore', 'pipe', 'pipe'], ...options });
  const output = [];
  child.stdout.on('data', (chunk) => output.push(chunk));
  child.stderr.on('data', (chunk) => output.push(chunk));
  const pass = (signal) => child.kill(signal);
  process.on('SIGINT', pass).on('SIGTERM', pass);
  try {
    const ended = await new Promise((resolve, reject) => {
      child.once('error', reject);
      child.once('close', (code, signal) => resolve(code ?? signal));
    });
    if (ended === 0) return;
    say(Buffer.concat(output).toString().trimEnd());
    throw new Refusal(`"${[command, ...args].join(' ')}" failed (${ended}); its output is above.`);
  } catch (error) {
    if (error instanceof Refusal) throw error;
    throw new Refusal(`"${command}" cannot be run: ${error.message}`);
  } finally {
    process.off('SIGINT', pass).off('SIGTERM', pass);
  }
}

/** npm, preferably the one that started this script. */
function npm(args) {
  const own = process.env.npm_execpath;
  const quiet = ['--loglevel=error', '--no-fund', '--no-audit'];
  const isNpm = own !== undefined && /^npm(-cli)?\.c?js$/.test(path.basename(own));
  return isNpm ? run(process.execPath, [own, ...args, ...quiet]) : run('npm', [...args, ...quiet]);
}

function readJson(file) {
  try {
    return JSON.parse(readFileSync(path.join(root, file), 'utf8'));
  } catch {
    return undefined;
  }
}

async function ensurePackages() {
  const wanted = readJson('package-lock.json');
  if (wanted === undefined) throw new Refusal('package-lock.json cannot be read; the clone is not complete.');
  const reason = reasonToInstall({
    wanted,
    installed: readJson('node_modules/.package-lock.json'),
    isPresent: (location) => existsSync(path.join(root, location, 'package.json')),
  });
  if (reason === undefined) return;
  say(`Installing packages with npm ci (${reason}) …`);
  const startedAt = performance.now();
  // Errors only: the warnings about this machine's older Node are expected, the scripts run on the pinned one.
  await npm(['ci']);
  say(`Packages installed in ${seconds(startedAt)} s.`);
}

function findNode() {
  return ['node_modules/.bin/node', 'node_modules/node/bin/node']
    .map((file) => path.join(root, file))
    .find(isExecutable);
}

/** The pinned Node comes from the install script of the `node` package, which some npm settings do not run. */
async function ensureNode() {
  const found = findNode();
  if (found !== undefined) return found;
  const { version } = readJson('node_modules/node/package.json') ?? {};
  say(`Fetching Node ${version} (its install script has not run) …`);
  await npm(['rebuild', 'node', '--ignore-scripts=false']);
  const fetched = findNode();
  if (fetched === undefined)
    throw new Refusal('Node is still missing; "npm rebuild node --foreground-scripts" shows why.');
  return fetched;
}

const policyFile = '/usr/sbin/policy-rc.d';
const policyKept = `${policyFile}.kept-by-tributary`;
const policyMark = '# Put here by Tributary while it installs redis-server.';

/**
 * Debian starts a service on 6379 as soon as its package is installed, and again at every boot. The embedded servers
 * need the program only, so the machine's policy says "no" (101) during the installation, and the boot entry is removed.
 */
async function installRedisWithApt() {
  say('Installing redis-server with apt-get (no Redis found, running as root) …');
  const startedAt = performance.now();
  const options = { env: { ...process.env, DEBIAN_FRONTEND: 'noninteractive' } };
  const apt = (...args) => run('apt-get', ['-q', '-o', 'DPkg::Lock::Timeout=120', ...args], options);
  refuseServices();
  try {
    await apt('update');
    await apt('install', '-y', '--no-install-recommends', 'redis-server');
    await run('update-rc.d', ['redis-server', 'disable']).catch(() =>
      say('The boot entry of redis-server stays enabled.'),
    );
  } finally {
    allowServices();
  }
  say(`redis-server installed in ${seconds(startedAt)} s; no service was started.`);
}

function refuseServices() {
  // A policy of an earlier run that was killed is ours to overwrite; anybody else's is kept and put back.
  const isOurs = existsSync(policyFile) && readFileSync(policyFile, 'utf8').includes(policyMark);
  if (existsSync(policyFile) && !isOurs) renameSync(policyFile, policyKept);
  writeFileSync(policyFile, `#!/bin/sh\n${policyMark}\nexit 101\n`, { mode: 0o755 });
}

function allowServices() {
  rmSync(policyFile, { force: true });
  if (existsSync(policyKept)) renameSync(policyKept, policyFile);
}

async function ensureRedis() {
  const decide = (searchPath) =>
    decideRedis({
      override: process.env.TRIBUTARY_REDIS_SERVER,
      searchPath,
      isExecutable,
      isRoot: process.getuid?.() === 0,
      platform: process.platform,
    });
  let decision = decide(process.env.PATH);
  if (decision.kind === 'apt') {
    await installRedisWithApt();
    // Debian's package puts it there, whatever the caller's PATH says.
    decision = decide(`${process.env.PATH ?? ''}:/usr/bin`);
  }
  if (decision.kind === 'apt') throw new Refusal('redis-server was installed, but is neither on PATH nor in /usr/bin.');
  if (decision.kind === 'stop') throw new Refusal(decision.message);
  return decision.path;
}

function seconds(startedAt) {
  return ((performance.now() - startedAt) / 1000).toFixed(1);
}

/** Runs the script on the pinned Node and ends as it ends: same exit code, or the same signal. */
async function runScript(node, script, args, extraEnv) {
  const env = { ...process.env, ...extraEnv };
  env.PATH = [path.join(root, 'node_modules', '.bin'), env.PATH].filter(Boolean).join(path.delimiter);
  const child = spawn(node, [path.resolve(root, script), ...args], { cwd: root, env, stdio: 'inherit' });
  const hasTerminal = process.stdin.isTTY === true;
  for (const signal of ['SIGINT', 'SIGTERM']) {
    process.on(signal, () => {
      if (forwards({ signal, hasTerminal })) child.kill(signal);
    });
  }
  // npm starts scripts below a shell that passes no signal on: `kill <npm>` ends the shell and would leave all this behind.
  const parent = process.ppid;
  const watch = setInterval(() => {
    if (wasAbandoned({ parent, parentNow: process.ppid, isRunByNpm: process.env.npm_lifecycle_event !== undefined })) {
      child.kill('SIGTERM');
      clearInterval(watch);
    }
  }, parentWatchMs);
  const { code, signal } = await new Promise((resolve, reject) => {
    child.once('error', reject);
    child.once('exit', (exitCode, exitSignal) => resolve({ code: exitCode, signal: exitSignal }));
  });
  clearInterval(watch);
  if (signal === null) {
    process.exitCode = code;
    return;
  }
  process.removeAllListeners(signal);
  process.kill(process.pid, signal);
}

async function main([script, ...args]) {
  if (script === undefined) throw new Refusal('Usage: node src/embedded/install.mjs <script.ts> [args…]');
  await ensurePackages();
  const node = await ensureNode();
  const extraEnv = needsServers(script) ? { TRIBUTARY_REDIS_SERVER: await ensureRedis() } : {};
  await runScript(node, script, args, extraEnv);
}

if (process.argv[1] !== undefined && realpathSync(process.argv[1]) === fileURLToPath(import.meta.url)) {
  try {
    await main(process.argv.slice(2));
  } catch (error) {
    say(error instanceof Refusal ? error.message : error.stack);
    process.exitCode = 1;
  }
}
