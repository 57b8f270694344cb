/**
 * Owns the service in a process of its own for benchmarks that call it over the network: the whole of it, configured by the environment, with one tenant and a key.
 * Invariant: it does not outlive the benchmark.
 */
import { configFrom } from '../../src/config.ts';
import { type Service, startService } from '../../src/main.ts';
import { systemRuntime } from '../../src/runtime.ts';
import type { TenantId } from '../../src/timeline/ids.ts';

export interface Serving {
  readonly grpcPort: number;
  readonly key: string;
}

export const TENANT = 'bench' as TenantId;
const START_MAX_MS = 30_000;

/** The service as the environment configures it, until the benchmark is gone, and a key to its one tenant. */
export async function serveBenchmark(): Promise<{ readonly service: Service; readonly key: string }> {
  const config = configFrom(process.env);
  const service = await startService(config, systemRuntime(config.logLevel));
  process.once('disconnect', () => void service.stop().finally(() => process.exit()));
  const signal = AbortSignal.timeout(START_MAX_MS);
  await service.administer.createTenant(signal, TENANT);
  const key = await service.administer.createKey(signal, { tenant: TENANT, role: 'service' });
  return { service, key };
}

async function main(send: (message: Serving) => void): Promise<void> {
  const { service, key } = await serveBenchmark();
  send({ grpcPort: service.grpcPort, key });
}

if (process.send && process.argv[1] === import.meta.filename) await main(process.send.bind(process));
