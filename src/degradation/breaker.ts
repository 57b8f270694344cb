/**
 * Owns whether calls to one dependency are worth making. Closed, they go through; after failures in a row the breaker opens, and a call fails at once instead of waiting for its
 * time-out, so that in an outage neither calls nor what they hold pile up.
 *
 * Invariants: only a failure to reach the dependency counts, never what it answered and never that a caller left. Nobody's call is spent on finding out whether it is back: probes are
 * the breaker's own, need no traffic, and nobody waits for one.
 *
 * Failures in a row, and not a share of a sample: one success proves that the dependency is there, and where a part of it fails (a node of a cluster, a slow statement) the rest goes on being used.
 * In a row over some time, and not in number alone: when this process or the server stalls for a moment, everything in flight times out together, which is one event.
 */
import { CircuitState, circuitBreaker, handleWhen, type IBreaker } from 'cockatiel';
import type { BreakerState } from '../metrics/degradation-metrics.ts';
import { after, type Clock, untilAborted } from '../runtime.ts';

export interface Breaker {
  isClosed(): boolean;
  /** Work whose end, either way, tells how the dependency does. Throws the refusal at once while the breaker is not closed. */
  call<Result>(work: () => Promise<Result>): Promise<Result>;
  /** Work of which only a failure tells anything, such as taking a connection that may have died long ago. Refused alike. */
  attempt<Result>(work: () => Promise<Result>): Promise<Result>;
  /** Sends no more probes. */
  stop(): void;
}

export interface BreakerParts {
  readonly isFailure: (error: unknown) => boolean;
  /** What a call is told while the breaker is not closed. */
  readonly refusal: () => Error;
  /** Asks the dependency for a sign of life, past the breaker. */
  readonly probe: (signal: AbortSignal) => Promise<unknown>;
  readonly clock: Clock;
  /** With what opened it. */
  readonly changed: (state: BreakerState, cause?: unknown) => void;
}

/** Failures in a row that open the breaker, once they span the time below. */
const FAILURES_MIN = 5;
/** Longer than a stall of the process or a long script of Redis; shorter than any default deadline. */
const FAILING_MS = 500;
/** Between two probes: what an outage lasts longer for us than for others, at most, beside the way of the probe. */
const PROBE_EVERY_MS = 200;
const PROBE_TIMEOUT_MS = 500;

export function createBreaker(parts: BreakerParts): Breaker {
  const row = inARow(parts.clock);
  const policy = circuitBreaker(
    handleWhen((error) => error instanceof ProbeFailed || parts.isFailure(error)),
    {
      breaker: row,
      // Our prober alone decides when; cockatiel would compare wall clocks, which may step.
      halfOpenAfter: Number.NEGATIVE_INFINITY,
    },
  );
  let cancelProbe = (): void => undefined;
  let stopped = false;
  policy.onStateChange((state) => {
    const { lastFailure } = policy;
    if (state === CircuitState.Open && lastFailure && 'error' in lastFailure) parts.changed('open', lastFailure.error);
    else parts.changed(nameOf(state));
    if (state === CircuitState.Open && !stopped) cancelProbe = after(PROBE_EVERY_MS, () => void probe());
  });

  /** Ends with the breaker closed, or open again, which sends the next one. */
  async function probe(): Promise<void> {
    const limit = new AbortController();
    const cancelLimit = after(PROBE_TIMEOUT_MS, () => limit.abort(new ProbeFailed('no sign of life in time')));
    const ask = (): Promise<unknown> =>
      untilAborted(parts.probe(limit.signal), limit.signal).catch((error: unknown) => {
        throw new ProbeFailed('no sign of life', { cause: error });
      });
    await policy.execute(ask).catch(() => undefined);
    cancelLimit();
  }

  function throwUnlessClosed(): void {
    if (policy.state !== CircuitState.Closed) throw parts.refusal();
  }

  /** Only failures go by way of the policy: every command goes through here, and what succeeds has nothing to say but that the row is over. */
  async function fail(error: unknown): Promise<void> {
    // Where it is not closed any more, what it has to say is known; and nothing but a probe may run half-open.
    if (policy.state === CircuitState.Closed) await policy.execute(() => Promise.reject(error)).catch(() => undefined);
  }

  return {
    isClosed: () => policy.state === CircuitState.Closed,
    async call(work) {
      throwUnlessClosed();
      try {
        const value = await work();
        row.success();
        return value;
      } catch (error) {
        // An error that was answered is as good a sign of life as any.
        if (parts.isFailure(error)) await fail(error);
        else row.success();
        throw error;
      }
    },
    async attempt(work) {
      throwUnlessClosed();
      try {
        return await work();
      } catch (error) {
        await fail(error);
        throw error;
      }
    },
    stop() {
      stopped = true;
      cancelProbe();
    },
  };
}

class ProbeFailed extends Error {}

/** Says to open after enough failures in a row over long enough a time. */
function inARow(clock: Clock): IBreaker & { success(): void } {
  let failures = 0;
  let sinceMs = 0;
  return {
    // Nothing that would have to outlive the process.
    state: undefined,
    success() {
      failures = 0;
    },
    failure(state) {
      if (failures === 0) sinceMs = clock.monotonicMs();
      failures += 1;
      return state !== CircuitState.Closed || (failures >= FAILURES_MIN && clock.monotonicMs() - sinceMs >= FAILING_MS);
    },
  };
}

function nameOf(state: CircuitState): BreakerState {
  switch (state) {
    case CircuitState.Closed:
      return 'closed';
    case CircuitState.HalfOpen:
      return 'half_open';
    case CircuitState.Open:
    case CircuitState.Isolated:
      return 'open';
    default:
      return state satisfies never;
  }
}
