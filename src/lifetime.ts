/**
 * Owns the life of a process that serves: it hears signals from its first moment, starts, waits to be told, stops, and is gone. Invariant: one signal ends it in order and with exit code 0, at
 * whatever moment it comes; a second one ends it at once.
 */
import { constants } from 'node:os';
import { after, type Clock, type Log } from './runtime.ts';

export interface LifetimeParts {
  /** Begins to serve; where the signal aborts meanwhile it may give up and reject, or go on and be stopped. */
  readonly start: (signal: AbortSignal) => Promise<{
    stop(): Promise<void>;
    /** Answers where the service must not go on: it is stopped then, and that is what the process ends with. */
    readonly unfit?: Promise<Error>;
  }>;
  readonly process: {
    on(signal: 'SIGTERM' | 'SIGINT', listener: () => void): unknown;
    exit(code: number): unknown;
  };
  readonly clock: Pick<Clock, 'monotonicMs'>;
  readonly log: Log;
}

/** A terminal signals the whole group, and npm hands on what it hears: two signals closer than this are one, in milliseconds. */
const TOGETHER_MS = 1_000;
/** For what is left of the process to end by itself after the stop, in milliseconds. */
const LINGER_MAX_MS = 1_000;

/** Resolves when the process has nothing left to do; rejects where it could not start, or could not stop everything. */
export async function runUntilTold({ start, process, clock, log }: LifetimeParts): Promise<void> {
  const told = new AbortController();
  const { promise: stopping, resolve: stop } = Promise.withResolvers<void>();
  let toldAtMs: number | undefined;
  for (const name of ['SIGTERM', 'SIGINT'] as const) {
    process.on(name, () => {
      if (toldAtMs === undefined) {
        toldAtMs = clock.monotonicMs();
        log.info({ signal: name }, 'stopping');
        told.abort();
        stop();
      } else if (clock.monotonicMs() - toldAtMs >= TOGETHER_MS) {
        log.warn({ signal: name }, 'told to stop again: ended at once');
        process.exit(128 + constants.signals[name]);
      }
    });
  }

  /** A socket to a server that does not answer, say, holds up a process that is done. */
  const leave = (code: number): void => {
    after(LINGER_MAX_MS, () => process.exit(code));
  };
  try {
    const service = await start(told.signal).catch((error: unknown) => {
      // What fails once the process was told to stop fails because of that.
      if (!told.signal.aborted) throw error;
      log.info({ err: error }, 'told to stop before everything had started');
      return undefined;
    });
    const unfit = await Promise.race([stopping, ...(service?.unfit ? [service.unfit] : [])]);
    await service?.stop();
    if (unfit) throw unfit;
    leave(0);
  } catch (error) {
    leave(1);
    throw error;
  }
}
