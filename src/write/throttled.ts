/** Owns doing something now and then inside a loop that turns more often: at most once in a given time, however often it is asked. */

/** Runs `work` if the last run began at least `everyMs` ago; a run that failed counts, so that a fault is not repeated in every turn. */
export function throttled(
  options: { readonly everyMs: number; readonly monotonicMs: () => number },
  work: (signal: AbortSignal) => Promise<void>,
): (signal: AbortSignal) => Promise<void> {
  let lastMs = Number.NEGATIVE_INFINITY;
  return async (signal) => {
    const nowMs = options.monotonicMs();
    if (nowMs - lastMs < options.everyMs) return;
    lastMs = nowMs;
    await work(signal);
  };
}
