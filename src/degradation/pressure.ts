/**
 * Owns how hard pressed the process is: the delay of its event loop and the wait for a database connection, each as a share of what can be borne.
 *
 * The wait is the one that a newcomer has before them: those who wait now, over how many were served lately. How long the oldest has waited tells of the past: at four times the load that can be
 * borne, a quarter of what a newcomer will wait.
 *
 * Invariant: only load that stands counts. What is measured is the least of the last looks: a burst that drains between two of them is no load, a queue that never empties is.
 */
import type { PressureKind } from '../metrics/degradation-metrics.ts';
import { after, type Clock } from '../runtime.ts';

export type Pressure = Readonly<Record<PressureKind, number>>;

export interface PressureWatch {
  /** By kind; 1 is the bound. `inFlight` over its own bound comes in as it is: it is not a queue but what memory is bounded by. */
  read(): Pressure;
  /** Looks once, as the rounds do. */
  look(lateMs: number): void;
  start(): void;
  stop(): void;
}

export interface PressureParts {
  readonly clock: Clock;
  /** Who waits for a database connection now, and how many connections were handed out so far. */
  readonly database: () => { readonly waiting: number; readonly granted: number };
  /** Share of the calls that may be in flight. */
  readonly inFlightShare: () => number;
  /** What can be borne for as long as a window, in milliseconds. */
  readonly bounds: { readonly eventLoopMs: number; readonly waitMs: number };
  /** After every look. */
  readonly looked: () => void;
}

const LOOK_EVERY_MS = 50;
/** Looks that must all find load: a quarter of a second of them. Longer ones see a queue late, when it has grown beyond what those in it will wait. */
const WINDOW_LOOKS = 5;

export function createPressureWatch(parts: PressureParts): PressureWatch {
  const { bounds, clock } = parts;
  let looks: readonly {
    readonly atMs: number;
    readonly granted: number;
    readonly lateMs: number;
    readonly waitMs: number;
  }[] = [];
  let standing = { event_loop: 0, database: 0 };
  let cancelNext = (): void => undefined;

  function look(lateMs: number): void {
    const { waiting, granted } = parts.database();
    const atMs = clock.monotonicMs();
    const [first = { atMs, granted }] = looks;
    const waitMs = (waiting * (atMs - first.atMs)) / Math.max(1, granted - first.granted);
    looks = [...looks.slice(1 - WINDOW_LOOKS), { atMs, granted, lateMs, waitMs }];
    if (looks.length === WINDOW_LOOKS) {
      standing = {
        event_loop: Math.min(...looks.map((one) => one.lateMs)) / bounds.eventLoopMs,
        database: Math.min(...looks.map((one) => one.waitMs)) / bounds.waitMs,
      };
    }
    parts.looked();
  }

  function lookLater(): void {
    const dueMs = clock.monotonicMs() + LOOK_EVERY_MS;
    cancelNext = after(LOOK_EVERY_MS, () => {
      look(Math.max(0, clock.monotonicMs() - dueMs));
      lookLater();
    });
  }

  return {
    read: () => ({ in_flight: parts.inFlightShare(), ...standing }),
    look,
    start: lookLater,
    stop: () => cancelNext(),
  };
}

/** The kind that presses hardest, and how hard. */
export function hardest(pressure: Pressure): readonly [PressureKind, number] {
  return (Object.entries(pressure) as [PressureKind, number][]).reduce((most, one) => (one[1] > most[1] ? one : most));
}
