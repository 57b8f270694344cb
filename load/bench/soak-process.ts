/**
 * Owns the service in a process of its own for the soak, which says what it holds when it is asked. Invariant: it does not outlive the benchmark.
 */
import { Socket } from 'node:net';
import { pause } from '../../src/runtime.ts';
import { type Serving, serveBenchmark } from './service-process.ts';

export interface SoakServing extends Serving {
  readonly httpPort: number;
}

export interface Held {
  /** Of JavaScript and of buffers, after a collection. */
  readonly heapBytes: number;
  readonly rssBytes: number;
  /** That clients have opened and that are open. */
  readonly sockets: number;
  /** What Node has warned of since the start. */
  readonly warnings: readonly string[];
}

/** Of one wait. */
const WAIT_MAX_MS = 30_000;
/** For connections whose clients have left to be closed here too. */
const SETTLE_TRIES = 100;
const SETTLE_EVERY_MS = 50;
const COLLECTIONS = 3;

async function main(send: (message: SoakServing | Held) => void): Promise<void> {
  const warnings: string[] = [];
  process.on('warning', ({ name, message }) => warnings.push(`${name}: ${message}`));
  const { service, key } = await serveBenchmark();
  const ports = new Set([service.grpcPort, service.httpPort]);

  const openSockets = (): number =>
    handles().filter((handle) => handle instanceof Socket && ports.has(handle.localPort ?? 0)).length;
  process.on('message', async () => {
    for (let tries = 0; openSockets() > 0 && tries < SETTLE_TRIES; tries += 1)
      await pause(AbortSignal.timeout(WAIT_MAX_MS), SETTLE_EVERY_MS);
    // Finalizers of one collection free what the next one takes.
    for (let round = 0; round < COLLECTIONS; round += 1) {
      globalThis.gc?.();
      await pause(AbortSignal.timeout(WAIT_MAX_MS), SETTLE_EVERY_MS);
    }
    const { heapUsed, external, rss } = process.memoryUsage();
    send({ heapBytes: heapUsed + external, rssBytes: rss, sockets: openSockets(), warnings });
  });
  send({ grpcPort: service.grpcPort, httpPort: service.httpPort, key });
}

/** Whatever keeps the process alive; Node has this for looking at it, and no type. */
function handles(): readonly unknown[] {
  return (process as unknown as { _getActiveHandles(): readonly unknown[] })._getActiveHandles();
}

if (process.send && process.argv[1] === import.meta.filename) await main(process.send.bind(process));
