/**
 * Owns what follows when another server took over the cache: it may lack the last of what was pushed and deleted, so the fan-out jobs and events of the last minutes are run again,
 * in batches. Running them again changes nothing where nothing was lost. A server that came back empty needs none of this: what is absent is rebuilt and loaded by its readers, and
 * lists no lost entry as held.
 */
import { TributaryError } from '../errors.ts';
import type { Rerun, SeenLineage } from '../store/postgres/failovers.ts';

export interface FailoverParts {
  /** Rejects with CACHE_UNAVAILABLE while no server answers. */
  readonly loadLineages: (signal: AbortSignal) => Promise<readonly SeenLineage[]>;
  /** Answers how many servers took over since anybody looked. */
  readonly noticeLineages: (
    signal: AbortSignal,
    input: { readonly lineages: readonly SeenLineage[]; readonly lookBackMs: number; readonly settleMs: number },
  ) => Promise<number>;
  readonly rerunBatch: (signal: AbortSignal, most: number) => Promise<Rerun | undefined>;
  readonly monotonicMs: () => number;
  /** What is finished so soon after a failover is run again too: others may still have spoken to the old server. */
  readonly settleMs: number;
  readonly events: {
    failedOver(servers: number): void;
    runAgain(what: { readonly jobs: number; readonly events: number }): void;
  };
}

/** What was finished so long before a failover was seen is run again: far more than a replica in use lags behind, less than finished rows are kept. */
const LOOK_BACK_MS = 5 * 60_000;
/** Rows of each kind in one transaction. */
const BATCH_MAX = 1_000;
/** Lineages that do not change are told again, so that it is known how long nobody has looked, and those that nobody sees are forgotten. */
const TELL_AGAIN_MS = 60_000;

/** One look and one batch, after which the next waits for the next round: posts of now need their share of workers and connections. */
export function createFailoverWatch(parts: FailoverParts): (signal: AbortSignal) => Promise<boolean> {
  let told = { lineages: '', atMs: 0 };

  async function look(signal: AbortSignal): Promise<void> {
    const lineages = await loadLineages(signal);
    const ids = lineages.map(({ replicationId }) => replicationId).sort();
    const nowMs = parts.monotonicMs();
    if (ids.length === 0 || (ids.join() === told.lineages && nowMs - told.atMs < TELL_AGAIN_MS)) return;
    const failovers = await parts.noticeLineages(signal, {
      lineages,
      lookBackMs: LOOK_BACK_MS,
      settleMs: parts.settleMs,
    });
    told = { lineages: ids.join(), atMs: nowMs };
    if (failovers > 0) parts.events.failedOver(failovers);
  }

  async function loadLineages(signal: AbortSignal): Promise<readonly SeenLineage[]> {
    try {
      return await parts.loadLineages(signal);
    } catch (error) {
      // The client tells of its connection itself; what is due is run again all the same.
      if (error instanceof TributaryError && error.reason === 'CACHE_UNAVAILABLE') return [];
      throw error;
    }
  }

  return async function runOnce(signal) {
    await look(signal);
    const rerun = await parts.rerunBatch(signal, BATCH_MAX);
    if (rerun && rerun.jobs + rerun.events > 0) parts.events.runAgain(rerun);
    return false;
  };
}
