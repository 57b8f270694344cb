/**
 * Owns the thread of a VU from outside: made, given one task at a time, and ended, with everything it had opened.
 * Invariant: a task ends within its time, also where the thread does not; such a thread is of no further use.
 */
import { MessageChannel, Worker } from 'node:worker_threads';
import type { Call, FromVu, LoadedScript, Task, VuData } from './messages.ts';
import { createOutside } from './outside.ts';

export interface Vu {
  readonly script: LoadedScript;
  run(task: Task, timeoutMs: number): Promise<Done>;
  close(): Promise<void>;
}

type Done = Extract<FromVu, { kind: 'done' }>;

const LOAD_TIMEOUT_MS = 30_000;

/** Resolves once the script's init context has run. */
export async function openVu(made: {
  readonly script: string;
  readonly env: Readonly<Record<string, string>>;
  readonly vu: number;
  /** Ends HTTP connections after each task. */
  readonly noReuse: boolean;
}): Promise<Vu> {
  const { script, env, vu, noReuse } = made;
  const { port1, port2 } = new MessageChannel();
  const signal = new Int32Array(new SharedArrayBuffer(Int32Array.BYTES_PER_ELEMENT));
  const outside = createOutside();
  const workerData: VuData = { vu, script, env, port: port2, signal: signal.buffer };
  const worker = new Worker(new URL('./vu.ts', import.meta.url), {
    workerData,
    transferList: [port2],
    execArgv: [],
    env: {},
  });
  // Whoever waits for the thread hears of its end in `nextMessage`; without a listener, one between two tasks would end the process.
  let death: unknown;
  worker.on('error', (error) => {
    death = error;
  });
  port1.on('message', ({ id, call }: { readonly id: number; readonly call: Call }) => {
    void outside.perform(call).then((answer) => {
      port1.postMessage({ id, answer });
      // In this order: who wakes up finds the answer.
      Atomics.store(signal, 0, 1);
      Atomics.notify(signal, 0);
    });
  });

  async function close(): Promise<void> {
    port1.close();
    outside.close();
    await worker.terminate();
  }

  async function run(task: Task, timeoutMs: number): Promise<Done> {
    if (death !== undefined) throw death;
    worker.postMessage(task);
    const done = (await nextMessage(worker, timeoutMs)) as Done;
    if (noReuse) outside.endHttp();
    return done;
  }

  try {
    const loaded = (await nextMessage(worker, LOAD_TIMEOUT_MS)) as Extract<FromVu, { kind: 'loaded' }>;
    return { script: loaded.script, run, close };
  } catch (error) {
    await close();
    throw error;
  }
}

function nextMessage(worker: Worker, timeoutMs: number): Promise<unknown> {
  const { promise, resolve, reject } = Promise.withResolvers<unknown>();
  const onExit = (code: number): void => reject(new Error(`a VU ended with code ${code}`));
  const timer = setTimeout(() => reject(new Error(`a VU took more than ${Math.round(timeoutMs)} ms`)), timeoutMs);
  worker.once('message', resolve).once('error', reject).once('exit', onExit);
  return promise.finally(() => {
    clearTimeout(timer);
    worker.off('message', resolve).off('error', reject).off('exit', onExit);
  });
}
