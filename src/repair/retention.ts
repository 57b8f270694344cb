/**
 * Owns the removal of fan-out jobs and outbox events that are done. They are kept for some minutes first: after a failover to a copy that lagged behind, the last minutes of
 * both are run again.
 */

const RETENTION_MINUTES = 10;
/** Rows in one statement. */
const BATCH_MAX = 2_000;

type Remove = (signal: AbortSignal, input: { readonly minutes: number; readonly most: number }) => Promise<number>;

export interface RetentionParts {
  readonly removeDoneJobs: Remove;
  readonly removeDoneEvents: Remove;
}

/** Removes one batch of each; answers whether there is probably more. */
export function createRetention(parts: RetentionParts): (signal: AbortSignal) => Promise<boolean> {
  return async (signal) => {
    const input = { minutes: RETENTION_MINUTES, most: BATCH_MAX };
    // By turns: the relays need connections of the same few.
    const jobs = await parts.removeDoneJobs(signal, input);
    const events = await parts.removeDoneEvents(signal, input);
    return jobs === BATCH_MAX || events === BATCH_MAX;
  };
}
