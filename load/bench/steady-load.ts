/**
 * Owns a load of calls at a fixed arrival rate, whatever becomes of them: each begins at its moment, and what cannot begin because too many are open counts as failed. So a service that stands still is
 * seen to stand still by as many calls as would have come.
 */
import { after, systemClock } from '../../src/runtime.ts';

export interface Sample {
  /** When it was to begin, in monotonic milliseconds. */
  readonly atMs: number;
  readonly ms: number;
  readonly ok: boolean;
}

export interface SteadyLoad {
  /** Those that have ended, in the order of their ends. */
  readonly samples: readonly Sample[];
  /** Errors by their message, with how often each came. */
  readonly errors: ReadonlyMap<string, number>;
  /** Begins no more; resolves when none is open. */
  stop(): Promise<void>;
}

/** Calls of one load that may be open: some seconds' worth. */
export const OPEN_MAX = 500;
const TICK_MS = 5;
/** Different messages that are kept apart. */
const MESSAGES_MAX = 20;

export function startSteadyLoad(of: {
  readonly perSecond: number;
  readonly openMax: number;
  /** Must end by itself within some deadline. */
  readonly call: () => Promise<void>;
}): SteadyLoad {
  const { perSecond, openMax, call } = of;
  const samples: Sample[] = [];
  const errors = new Map<string, number>();
  const open = new Set<Promise<void>>();
  const startedMs = systemClock.monotonicMs();
  let begun = 0;
  let takeBack = after(TICK_MS, tick);

  async function perform(atMs: number): Promise<void> {
    try {
      await call();
      samples.push({ atMs, ms: systemClock.monotonicMs() - atMs, ok: true });
    } catch (error) {
      failed(atMs, error instanceof Error ? error.message : String(error));
    }
  }

  function failed(atMs: number, message: string): void {
    const known = errors.size < MESSAGES_MAX || errors.has(message) ? message : 'others';
    errors.set(known, (errors.get(known) ?? 0) + 1);
    samples.push({ atMs, ms: systemClock.monotonicMs() - atMs, ok: false });
  }

  function tick(): void {
    takeBack = after(TICK_MS, tick);
    const due = Math.floor(((systemClock.monotonicMs() - startedMs) / 1_000) * perSecond);
    for (; begun < due; begun += 1) {
      const atMs = startedMs + ((begun + 1) * 1_000) / perSecond;
      if (open.size >= openMax) {
        failed(atMs, 'not begun: too many are open');
        continue;
      }
      const performed = perform(atMs).finally(() => open.delete(performed));
      open.add(performed);
    }
  }

  return {
    samples,
    errors,
    async stop() {
      takeBack();
      await Promise.all(open);
    },
  };
}

export interface Stretch {
  readonly count: number;
  /** Part of the calls that failed. */
  readonly errorRate: number;
  /** Of those that did not fail; infinite where all did. */
  readonly p99Ms: number;
}

/** Of the calls that were to begin in `[fromMs, toMs)` and have ended. */
export function stretchOf(samples: readonly Sample[], fromMs: number, toMs: number): Stretch {
  const those = samples.filter(({ atMs }) => atMs >= fromMs && atMs < toMs);
  const good = those
    .filter(({ ok }) => ok)
    .map(({ ms }) => ms)
    .sort((a, b) => a - b);
  return {
    count: those.length,
    errorRate: those.length === 0 ? 0 : 1 - good.length / those.length,
    p99Ms: good[Math.ceil(good.length * 0.99) - 1] ?? Number.POSITIVE_INFINITY,
  };
}

/**
 * Seconds from `faultMs` to the first of `calm` stretches of a second in a row that are as good as they should be, with calls in each; undefined where there were none until `untilMs`.
 */
export function secondsUntilBack(
  samples: readonly Sample[],
  of: {
    readonly faultMs: number;
    readonly untilMs: number;
    readonly calm: number;
    readonly p99MsMax: number;
    readonly errorRateMax: number;
  },
): number | undefined {
  let good = 0;
  for (let second = 0; of.faultMs + (second + 1) * 1_000 <= of.untilMs; second += 1) {
    const from = of.faultMs + second * 1_000;
    const { count, errorRate, p99Ms } = stretchOf(samples, from, from + 1_000);
    good = count > 0 && errorRate <= of.errorRateMax && p99Ms <= of.p99MsMax ? good + 1 : 0;
    if (good === of.calm) return second + 1 - of.calm;
  }
  return undefined;
}
