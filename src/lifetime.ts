/**
 * Owns the life of a process that serves: it hears signals from its first moment, starts, waits to be told, stops, and is gone. Invariant: one signal ends it in order and with exit code 0, at
 * whatever moment it comes; a second one ends it at once.
 */
import { constants } from 'node:os';
import { after, type Clock, type Log } from './runtime.ts';

/** Those that mean "stop". */
export type StopSignal = 'SIGTERM' | 'SIGINT' | 'SIGHUP';

export interface HearingParts {
  readonly signals: readonly StopSignal[];
  readonly process: {
    on(signal: StopSignal, listener: () => void): unknown;
    exit(code: number): unknown;
  };
  readonly clock: Pick<Clock, 'monotonicMs'>;
  /** The first signal. */
  readonly told: (signal: StopSignal) => void;
  /** Another one: the process ends as soon as this returns. */
  readonly toldAgain: (signal: StopSignal) => void;
}

export interface LifetimeParts extends Pick<HearingParts, 'process' | 'clock'> {
  /** Begins to serve; where the signal aborts meanwhile it may give up and reject, or go on and be stopped. */
  readonly start: (signal: AbortSignal) => Promise<{
    stop(): Promise<void>;
    /** Answers where the service must not go on: it is stopped then, and that is what the process ends with. */
    readonly unfit?: Promise<Error>;
  }>;
  readonly log: Log;
}

/** A terminal signals the whole group, and npm hands on what it hears: two signals closer than this are one, in milliseconds. */
const TOGETHER_MS = 1_000;
/** For what is left of the process to end by itself after the stop, in milliseconds. */
const LINGER_MAX_MS = 1_000;

/** Hears signals from now on: the first is told, and a second one ends the process at once, as a shell would have it. */
export function hearSignals({ signals, process, clock, told, toldAgain }: HearingParts): void {
  let toldAtMs: number | undefined;
  for (const name of signals) {
    process.on(name, () => {
      if (toldAtMs === undefined) {
        toldAtMs = clock.monotonicMs();
        told(name);
      } else if (clock.monotonicMs() - toldAtMs >= TOGETHER_MS) {
        toldAgain(name);
        process.exit(128 + constants.signals[name]);
      }
    });
  }
}

/** Resolves when the process has nothing left to do; rejects where it could not start, or could not stop everything. */
export async function runUntilTold({ start, process, clock, log }: LifetimeParts): Promise<void> {
  const told = new AbortController();
  const { promise: stopping, resolve: stop } = Promise.withResolvers<void>();
  hearSignals({
    signals: ['SIGTERM', 'SIGINT'],
    process,
    clock,
    told(signal) {
      log.info({ signal }, 'stopping');
      told.abort();
      stop();
    },
    toldAgain: (signal) => log.warn({ signal }, 'told to stop again: ended at once'),
  });

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
