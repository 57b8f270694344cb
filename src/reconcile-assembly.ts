/** Owns how the reconciler is put together. Belongs to the composition root, beside cache-assembly.ts. */
import type { CacheAssembly } from './cache-assembly.ts';
import type { Config } from './config.ts';
import type { Metrics } from './metrics/metrics.ts';
import { createReconcile } from './repair/reconcile.ts';
import type { ReadSnapshot } from './repair/snapshot-source.ts';
import type { Runtime } from './runtime.ts';
import type { Database } from './store/postgres/client.ts';
import { loadSnapshot } from './store/postgres/home-snapshot.ts';
import * as reconciling from './store/postgres/reconcile.ts';
import type { Cache } from './store/redis/client.ts';
import { createKeys } from './store/redis/keys.ts';
import { createTimelines } from './store/redis/timelines.ts';
import { LIMITS } from './timeline/limits.ts';

/** Pause between two rounds. */
export const RECONCILE_EVERY_MS = 10_000;
const ROUNDS_PER_MINUTE = 60_000 / RECONCILE_EVERY_MS;
/** A read lengthens a life that is shorter than nine tenths of this, so none that is going to end. */
const LOOK_LIFE_MS = 1;
/** IDs in one line of the log. */
const SHOWN_MAX = 20;

export interface ReconcileAssemblyParts {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  readonly database: Database;
  /** Where the truth to compare with is read; the database itself where absent. What differs is asked about there in any case. */
  readonly readSnapshot?: ReadSnapshot;
  readonly cache: Cache;
  readonly cached: Pick<CacheAssembly, 'timelines' | 'forceRebuild' | 'cleanUp'>;
  /** A test has it shorter. */
  readonly settleMs?: number;
}

/** One round of the reconciler. */
export function assembleReconcile(parts: ReconcileAssemblyParts): (signal: AbortSignal) => Promise<boolean> {
  const { config, runtime, metrics, database, cache, cached, settleMs = LIMITS.freshnessObjectiveMs } = parts;
  const { readSnapshot = (_signal, load) => load(database) } = parts;
  const { clock, random, log } = runtime;
  const { cap, stride, shards } = config.timeline;
  return createReconcile({
    claimNextViewers: (signal, most) => reconciling.claimNextViewers(database, signal, most),
    looks: createTimelines(cache, createKeys(shards), {
      ...config.timeline,
      lifeMs: LOOK_LIFE_MS,
      rebuildLeaseMs: config.rebuild.leaseMs,
    }),
    timelines: cached.timelines,
    loadSnapshot: (signal, of) => readSnapshot(signal, (from) => loadSnapshot(from, signal, of)),
    findOverdue: (signal, query) => reconciling.findOverdue(database, signal, query),
    findStrangers: (signal, query) => reconciling.findStrangers(database, signal, query),
    cleanUp: cached.cleanUp,
    forceRebuild: cached.forceRebuild,
    entriesMax: cap + stride,
    perRound: Math.ceil(config.reconcile.perMinute / ROUNDS_PER_MINUTE),
    settleMs,
    clock,
    random,
    events: {
      timelineReconciled: (result) => metrics.timelineReconciled(result),
      driftFound({ tenant, viewer, missing, foreign }) {
        metrics.driftFound({ missing: missing.length, foreign: foreign.length });
        const shown = { missing: missing.slice(0, SHOWN_MAX), foreign: foreign.slice(0, SHOWN_MAX) };
        log.warn({ tenant, viewer, ...shown }, 'a timeline has drifted from the truth, and is mended');
      },
      driftRepaired: (how) => metrics.driftRepaired(how),
      notReconciled: (error) => log.debug({ err: error }, 'a timeline could not be compared'),
    },
  });
}
