/** Owns the removal of what is past its retention: request IDs of publishes after 24 hours. */

const REQUEST_RETENTION_HOURS = 24;
/** Rows in one statement. */
const BATCH_MAX = 2_000;

export interface CleanUpParts {
  readonly expirePublishRequests: (
    signal: AbortSignal,
    input: { readonly hours: number; readonly most: number },
  ) => Promise<number>;
}

/** Removes one batch; answers whether there is probably more. */
export function createCleanUp(parts: CleanUpParts): (signal: AbortSignal) => Promise<boolean> {
  return async (signal) =>
    (await parts.expirePublishRequests(signal, { hours: REQUEST_RETENTION_HOURS, most: BATCH_MAX })) === BATCH_MAX;
}
