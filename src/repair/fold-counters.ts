/** Owns the folding of counter changes into totals: in batches, by one aggregator at a time. Folding twice or half changes nothing: a change is taken away in the transaction that counts it. */

/** Changes in one batch: some tens of milliseconds of work. */
const BATCH_MAX = 5_000;

export interface FoldCountersParts {
  readonly foldCounterDeltas: (signal: AbortSignal, most: number) => Promise<number>;
}

/** Folds one batch; answers whether there is probably more. */
export function createFoldCounters(parts: FoldCountersParts): (signal: AbortSignal) => Promise<boolean> {
  return async (signal) => (await parts.foldCounterDeltas(signal, BATCH_MAX)) === BATCH_MAX;
}
