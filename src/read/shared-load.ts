/**
 * Owns loads that several callers wait for. A caller's deadline or abort ends that caller's wait and nobody else's; the load goes on for the others, and is ended when the last of them has
 * left. One that does not settle is ended by its time limit.
 */
import { TributaryError } from '../errors.ts';
import { abortError, after, untilAborted } from '../runtime.ts';

export interface SharedLoad<Result> {
  /** Waits for the load, or for the part of it that is enough for the caller; rejects with the reason of the caller's abort as soon as that comes. */
  join(signal: AbortSignal, enough?: Promise<undefined>): Promise<Result | undefined>;
  /** Settles when the load does; never rejects. */
  readonly settled: Promise<void>;
  /** Whether it may still be joined: once its last caller has left it is being ended. */
  readonly isOpen: () => boolean;
}

/** What a load waits for, as the reason that its callers are given when its time is over. */
export type WaitsFor = 'CACHE_UNAVAILABLE' | 'DATABASE_UNAVAILABLE';

const RETRY_AFTER_MS = 200;

/** `load` begins with the cache, and tells when it waits for something else. */
export function createSharedLoad<Result>(
  limitMs: number,
  load: (signal: AbortSignal, waitsFor: (reason: WaitsFor) => void) => Promise<Result>,
): SharedLoad<Result> {
  const ending = new AbortController();
  let late: WaitsFor = 'CACHE_UNAVAILABLE';
  const cancelLimit = after(limitMs, () =>
    ending.abort(new TributaryError(late, { message: 'not loaded in time', retryAfterMs: RETRY_AFTER_MS })),
  );
  // Whatever the load does with its signal: nobody waits for it beyond the limit.
  const waitsFor = (reason: WaitsFor): void => {
    late = reason;
  };
  const result = untilAborted(load(ending.signal, waitsFor), ending.signal);
  const settled = result.then(
    () => cancelLimit(),
    () => cancelLimit(),
  );
  let waiting = 0;

  return {
    settled,
    isOpen: () => !ending.signal.aborted,
    join(signal, enough) {
      waiting += 1;
      return new Promise<Result | undefined>((resolve, reject) => {
        let here = true;
        const leave = (): void => {
          if (!here) return;
          here = false;
          waiting -= 1;
          signal.removeEventListener('abort', abort);
        };
        const abort = (): void => {
          leave();
          // One who has what they need leaves the load to end by itself: it may be storing what it found.
          if (waiting === 0) ending.abort(signal.reason);
          reject(abortError(signal));
        };
        const take = (value: Result | undefined): void => {
          leave();
          resolve(value);
        };
        if (signal.aborted) return abort();
        signal.addEventListener('abort', abort, { once: true });
        enough?.then(take);
        result.then(take, (error: unknown) => {
          leave();
          reject(error);
        });
      });
    },
  };
}
