/**
 * Owns the thread of one VU of the k6 stand-in: a world of its own with the script in it, as k6 has one for each VU.
 * Invariant: a script reaches k6's modules and its own files, and nothing else.
 */
import { registerHooks } from 'node:module';
import path from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { parentPort, workerData } from 'node:worker_threads';
import { beginTask, connectHost, endTask, metrics } from './host.ts';
import type { FromVu, LoadedScript, Task, VuData } from './messages.ts';

const MODULES: Readonly<Record<string, string>> = {
  k6: 'k6.ts',
  'k6/execution': 'execution.ts',
  'k6/http': 'http.ts',
  'k6/metrics': 'metrics.ts',
  'k6/net/grpc': 'grpc.ts',
};

type Script = Readonly<Record<string, unknown>>;

const { vu, script, env, port, signal } = workerData as VuData;
const scripts = `${pathToFileURL(path.dirname(fileURLToPath(script))).href}/`;

registerHooks({
  resolve(specifier, context, next) {
    const module = MODULES[specifier];
    if (module !== undefined) return { url: new URL(`modules/${module}`, import.meta.url).href, shortCircuit: true };
    const isScript = context.parentURL?.startsWith(scripts) === true;
    if (isScript && !/^\.{1,2}\//.test(specifier)) throw new Error(`unknown module: ${specifier}`);
    return next(specifier, context);
  },
});

connectHost({ port, signal: new Int32Array(signal) });
Object.assign(globalThis, { __ENV: { ...env }, __VU: vu });

const loaded = (await import(script)) as Script;
say({ kind: 'loaded', script: describe(loaded) });
parentPort?.on('message', (task: Task) => say(run(loaded, task)));

function describe(exported: Script): LoadedScript {
  const functions = Object.keys(exported).filter((name) => typeof exported[name] === 'function');
  return { options: exported['options'] ?? {}, functions, metrics: Object.fromEntries(metrics) };
}

function run(exported: Script, task: Task): FromVu {
  const startedMs = performance.now();
  beginTask(task);
  let result: string | undefined;
  let error: string | undefined;
  try {
    const call = exported[task.exec] as (data: unknown) => unknown;
    result = JSON.stringify(call(task.data === undefined ? undefined : JSON.parse(task.data)));
  } catch (fault) {
    error = fault instanceof Error ? (fault.stack ?? fault.message) : String(fault);
  }
  return { kind: 'done', samples: endTask(), durationMs: performance.now() - startedMs, result, error };
}

function say(message: FromVu): void {
  parentPort?.postMessage(message);
}
