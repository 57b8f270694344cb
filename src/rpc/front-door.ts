/**
 * Owns the front door as a whole: one chain and one table of methods behind two listeners, started together and stopped in order. A stop ends within
 * the drain time and a moment, whatever clients and handlers do.
 */
import type { Config } from '../config.ts';
import type { Metrics } from '../metrics/metrics.ts';
import { after, type Runtime } from '../runtime.ts';
import { createApiKeys, type FindApiKey } from './api-keys.ts';
import { createCallChain } from './call-chain.ts';
import { createConnectAdapter } from './connect-adapter.ts';
import type { Flows } from './flows.ts';
import { graphServiceMethods } from './graph-service.ts';
import { createGrpcListener } from './grpc-listener.ts';
import { healthMethods } from './health.ts';
import { createHttpListener } from './http-listener.ts';
import { type MethodTable, methodTable } from './methods.ts';
import { postServiceMethods } from './post-service.ts';
import type { CallPriority } from './priority.ts';
import { reflectionMethods } from './reflection.ts';
import { createServing, type Readiness, type Serving } from './serving.ts';
import { timelineServiceMethods } from './timeline-service.ts';

export interface FrontDoor {
  /** Handlers that run now. */
  running(): number;
  /** Listens on both ports. Throws where one cannot be had; neither is open then. */
  start(): Promise<{ readonly grpcPort: number; readonly httpPort: number }>;
  /** Says not ready, sends clients away, lets open calls end for the drain time, fails the rest as SHUTTING_DOWN, and closes. Safe to call again. */
  stop(): Promise<void>;
}

export interface FrontDoorParts {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  readonly flows: Flows;
  readonly findApiKey: FindApiKey;
  readonly readiness: Readiness;
  /** Throws where load forbids the call; without it none is refused for load. */
  readonly admit?: (priority: CallPriority) => void;
}

/** Time for last answers to reach their callers before connections are cut, in milliseconds. */
const CLOSE_GRACE_MS = 1_000;

export function createFrontDoor(parts: FrontDoorParts): FrontDoor {
  const { config, runtime, metrics } = parts;
  const { clock, log, random } = runtime;
  const serving = createServing(parts.readiness);
  const table = tableOf(parts, serving);
  const apiKeys = createApiKeys({
    findApiKey: parts.findApiKey,
    ttlMs: config.apiKeyCacheMs,
    lookupTimeoutMs: config.deadlines.readDefaultMs,
    clock,
  });
  const chain = createCallChain({
    limits: config,
    clock,
    log,
    metrics,
    apiKeys,
    ...(parts.admit && { admit: parts.admit }),
  });
  const adapter = createConnectAdapter({ table, chain, messageBytesMax: config.messageBytesMax, clock, random, log });
  const grpc = createGrpcListener({ config, runtime, table, chain });
  const http = createHttpListener({ config, runtime, metrics, isReady: () => serving.isReady(), adapter });
  const listeners = [grpc, http];

  async function stopInOrder(): Promise<void> {
    serving.stop();
    // Health watchers hear of it before their connections are told to end.
    await new Promise((resolve) => setImmediate(resolve));
    const closed = Promise.all(listeners.map((listener) => listener.drain()));
    chain.close();
    await withinMs(chain.idle(), config.drainTimeoutMs);
    chain.abort();
    await withinMs(closed, CLOSE_GRACE_MS);
    for (const listener of listeners) listener.destroy();
    await closed;
  }

  let stopping: Promise<void> | undefined;
  const stop = (): Promise<void> => {
    stopping ??= stopInOrder();
    return stopping;
  };
  return {
    running: () => chain.running(),
    async start() {
      const [grpcStart, httpStart] = await Promise.allSettled([grpc.start(), http.start()]);
      if (grpcStart.status === 'fulfilled' && httpStart.status === 'fulfilled') {
        return { grpcPort: grpcStart.value, httpPort: httpStart.value };
      }
      await stop();
      throw grpcStart.status === 'rejected' ? grpcStart.reason : (httpStart as PromiseRejectedResult).reason;
    },
    stop,
  };
}

function tableOf({ flows, runtime }: FrontDoorParts, serving: Serving): MethodTable {
  const table: MethodTable = methodTable([
    ...postServiceMethods(flows),
    ...graphServiceMethods(flows, runtime.clock),
    ...timelineServiceMethods(flows),
    ...healthMethods(serving, () => table.methods),
    ...reflectionMethods(() => table.services),
  ]);
  return table;
}

/** Waits for `work`, but no longer than `ms`. */
function withinMs(work: Promise<unknown>, ms: number): Promise<void> {
  return new Promise((resolve) => {
    const cancelTimer = after(ms, resolve);
    work.then(
      () => {
        cancelTimer();
        resolve();
      },
      () => undefined,
    );
  });
}
