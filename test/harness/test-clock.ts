/**
 * Owns time in tests. It runs on beside the machine's clock, at a distance that the test sets: a clock that stands still would run
 * out of IDs for its one millisecond, and leases are granted by Postgres' clock, which no test can stop.
 */
import type { Clock } from '../../src/runtime.ts';

export interface TestClock extends Clock {
  /** Moves the wall clock and the monotonic one, as the passing of time does. In milliseconds, 0 or more. */
  advance(ms: number): void;
  /** Moves the wall clock alone, either way, as an operator or a time server does. In milliseconds. */
  step(ms: number): void;
  /** Stops both clocks where they are, as a paused process sees it, until `thaw`. */
  freeze(): void;
  /** Lets both run on: from where they stopped, or, with `catchUp`, as if they had never stopped. */
  thaw(options?: { readonly catchUp: boolean }): void;
}

export function createTestClock({ offsetMs = 0 }: { readonly offsetMs?: number } = {}): TestClock {
  let wallOffsetMs = offsetMs;
  let monotonicOffsetMs = 0;
  let frozen: { readonly wallMs: number; readonly monotonicMs: number } | undefined;
  const wall = (): number => Date.now() + wallOffsetMs;
  const monotonic = (): number => performance.now() + monotonicOffsetMs;

  return {
    nowMs: () => Math.floor(frozen?.wallMs ?? wall()),
    monotonicMs: () => frozen?.monotonicMs ?? monotonic(),
    advance(ms) {
      if (ms < 0) throw new RangeError('time does not pass backwards: use step');
      wallOffsetMs += ms;
      monotonicOffsetMs += ms;
      if (frozen) frozen = { wallMs: frozen.wallMs + ms, monotonicMs: frozen.monotonicMs + ms };
    },
    step(ms) {
      wallOffsetMs += ms;
      if (frozen) frozen = { ...frozen, wallMs: frozen.wallMs + ms };
    },
    freeze() {
      frozen ??= { wallMs: wall(), monotonicMs: monotonic() };
    },
    thaw({ catchUp } = { catchUp: false }) {
      if (!frozen) return;
      if (!catchUp) {
        wallOffsetMs = frozen.wallMs - Date.now();
        monotonicOffsetMs = frozen.monotonicMs - performance.now();
      }
      frozen = undefined;
    },
  };
}
