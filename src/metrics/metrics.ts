/**
 * Owns one server's registry and puts the events of all themes together. One function per event; no global registry, so that a
 * process can start the server twice. Labels come from closed sets: neither a path, nor an ID, nor a message ever becomes one.
 */
import { collectDefaultMetrics, Registry } from 'prom-client';
import { type CacheMetrics, cacheMetrics } from './cache-metrics.ts';
import { type ClassMetrics, classMetrics } from './class-metrics.ts';
import { type DatabaseMetrics, databaseMetrics } from './database-metrics.ts';
import { type DegradationMetrics, degradationMetrics } from './degradation-metrics.ts';
import { type FanoutMetrics, fanoutMetrics } from './fanout-metrics.ts';
import { type ReconcileMetrics, reconcileMetrics } from './reconcile-metrics.ts';
import { type ReplicaMetrics, replicaMetrics } from './replica-metrics.ts';
import { type RpcMetrics, rpcMetrics } from './rpc-metrics.ts';
import { type TimelineMetrics, timelineMetrics } from './timeline-metrics.ts';
import { type WarmUpMetrics, warmingMetrics } from './warm-up-metrics.ts';

export type { PoolLoad } from './database-metrics.ts';
export type { Surface, TokenRejection } from './timeline-metrics.ts';

export interface Metrics
  extends RpcMetrics,
    TimelineMetrics,
    DatabaseMetrics,
    CacheMetrics,
    FanoutMetrics,
    ClassMetrics,
    ReconcileMetrics,
    ReplicaMetrics,
    WarmUpMetrics,
    DegradationMetrics {
  /** What Prometheus scrapes. */
  exposition(): Promise<{ readonly contentType: string; readonly body: string }>;
}

const PROCESS_PREFIX = 'tributary_';
/** Gauges of prom-client that bear the name of a counter, which promtool does not accept; the same by type stay, and can be summed. */
const MISNAMED = ['nodejs_active_handles_total', 'nodejs_active_requests_total', 'nodejs_active_resources_total'];
/** What each space of V8's heap holds: four kB of a scrape for what nobody would act on; the heap as a whole stays. */
const HEAP_SPACES = ['total', 'used', 'available'].map((what) => `nodejs_heap_space_size_${what}_bytes`);

export function createMetrics(): Metrics {
  const registry = new Registry();
  // CPU, memory, garbage collection and event-loop delay of the process, under the names that prom-client gives them.
  collectDefaultMetrics({ register: registry, prefix: PROCESS_PREFIX });
  for (const name of [...MISNAMED, ...HEAP_SPACES]) registry.removeSingleMetric(`${PROCESS_PREFIX}${name}`);
  return {
    ...rpcMetrics(registry),
    ...timelineMetrics(registry),
    ...databaseMetrics(registry),
    ...cacheMetrics(registry),
    ...fanoutMetrics(registry),
    ...classMetrics(registry),
    ...reconcileMetrics(registry),
    ...replicaMetrics(registry),
    ...warmingMetrics(registry),
    ...degradationMetrics(registry),
    exposition: async () => ({ contentType: registry.contentType, body: await registry.metrics() }),
  };
}
