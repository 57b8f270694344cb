/**
 * Owns the process that the benchmark of a million followers kills: the whole service, configured by the environment, which answers how large its heap is after a collection.
 * Invariant: it does not outlive the benchmark, and its memory is the service's own.
 */
import { configFrom } from '../../src/config.ts';
import { startService } from '../../src/main.ts';
import { systemRuntime } from '../../src/runtime.ts';

export interface HeapReport {
  readonly heapBytes: number;
  readonly rssBytes: number;
}

async function main(): Promise<void> {
  const { gc } = globalThis;
  const send = process.send?.bind(process);
  if (!gc || !send) throw new Error('to be run by the benchmark, with --expose-gc');
  const config = configFrom(process.env);
  const service = await startService(config, systemRuntime(config.logLevel));
  process.on('message', () => {
    gc();
    const { heapUsed, external, rss } = process.memoryUsage();
    const report: HeapReport = { heapBytes: heapUsed + external, rssBytes: rss };
    send(report);
  });
  process.once('disconnect', () => void service.stop().finally(() => process.exit()));
  send('ready');
}

await main();
