/** Owns a front door in a test: the real one on free ports, over flows in memory, with a readiness that the test switches. */
import { type DestinationStream, pino } from 'pino';
import { type Config, configFrom } from '../../src/config.ts';
import { createMetrics, type Metrics } from '../../src/metrics/metrics.ts';
import type { ApiKey, FindApiKey } from '../../src/rpc/api-keys.ts';
import { createFrontDoor, type FrontDoor } from '../../src/rpc/front-door.ts';
import { systemClock, systemRandom } from '../../src/runtime.ts';
import type { TenantId } from '../../src/timeline/ids.ts';
import { createFakeFlows, type FakeFlows } from './fake-flows.ts';

export const SERVICE_KEY = `tk_${'s'.repeat(43)}`;
export const UNKNOWN_KEY = `tk_${'u'.repeat(43)}`;
export const TENANT = 'tenant-a' as TenantId;

export interface TestDoor {
  readonly frontDoor: FrontDoor;
  readonly grpcPort: number;
  readonly httpPort: number;
  readonly config: Config;
  readonly flows: FakeFlows;
  readonly metrics: Metrics;
  readonly logLines: string[];
  /** For everything, or for pages alone. */
  setReady(ready: boolean | 'for pages'): void;
}

export function testConfig(env: Readonly<Record<string, string>> = {}): Config {
  return configFrom({
    TRIBUTARY_HOST: '127.0.0.1',
    TRIBUTARY_GRPC_PORT: '0',
    TRIBUTARY_HTTP_PORT: '0',
    DATABASE_URL: 'postgres://nowhere/none',
    REDIS_CACHE_URL: 'redis://nowhere',
    REDIS_QUEUE_URL: 'redis://nowhere',
    PAGE_TOKEN_KEYS: Buffer.alloc(32, 'test').toString('base64'),
    DRAIN_TIMEOUT_MS: '5000',
    ...env,
  });
}

export async function startDoor(
  options: { readonly env?: Readonly<Record<string, string>>; readonly findApiKey?: FindApiKey } = {},
): Promise<TestDoor> {
  const config = testConfig(options.env);
  const flows = createFakeFlows();
  const metrics = createMetrics();
  const logLines: string[] = [];
  const lines: DestinationStream = { write: (line) => void logLines.push(line) };
  const listeners = new Set<() => void>();
  let ready: boolean | 'for pages' = true;
  const frontDoor = createFrontDoor({
    config,
    runtime: { clock: systemClock, random: systemRandom, log: pino({ level: 'debug', base: null }, lines) },
    metrics,
    flows,
    findApiKey: options.findApiKey ?? findTestKey,
    readiness: {
      isReady: () => ready !== false,
      takesWrites: () => ready === true,
      onChange(listener) {
        listeners.add(listener);
        return () => void listeners.delete(listener);
      },
    },
  });
  const ports = await frontDoor.start();
  return {
    frontDoor,
    ...ports,
    config,
    flows,
    metrics,
    logLines,
    setReady(next) {
      ready = next;
      for (const listener of listeners) listener();
    },
  };
}

export async function findTestKey(keyText: string): Promise<ApiKey | undefined> {
  return keyText === SERVICE_KEY ? { tenant: TENANT, role: 'service' } : undefined;
}
