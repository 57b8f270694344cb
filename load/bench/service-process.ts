/**
 * Owns the service in a process of its own for benchmarks that call it over the network: the whole of it, configured by the environment, with one tenant and a key.
 * Invariant: it does not outlive the benchmark.
 */
import { configFrom } from '../../src/config.ts';
import { startService } from '../../src/main.ts';
import { systemRuntime } from '../../src/runtime.ts';
import type { TenantId } from '../../src/timeline/ids.ts';

export interface Serving {
  readonly grpcPort: number;
  readonly key: string;
}

export const TENANT = 'bench' as TenantId;
const START_MAX_MS = 30_000;

async function main(send: (message: Serving) => void): Promise<void> {
  const config = configFrom(process.env);
  const service = await startService(config, systemRuntime(config.logLevel));
  process.once('disconnect', () => void service.stop().finally(() => process.exit()));
  const signal = AbortSignal.timeout(START_MAX_MS);
  await service.administer.createTenant(signal, TENANT);
  const key = await service.administer.createKey(signal, { tenant: TENANT, role: 'service' });
  send({ grpcPort: service.grpcPort, key });
}

if (process.send && process.argv[1] === import.meta.filename) await main(process.send.bind(process));
