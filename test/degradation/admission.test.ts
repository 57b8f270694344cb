/** Owns which calls are refused under load, in which order and how many, and that a burst alone refuses none. */
import { beforeEach, describe, expect, it } from 'vitest';
import { createAdmission, type Priority } from '../../src/degradation/admission.ts';
import { createPressureWatch, type Pressure, type PressureWatch } from '../../src/degradation/pressure.ts';
import { TributaryError } from '../../src/errors.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { type Access, type Effect, unary } from '../../src/rpc/methods.ts';
import { priorityOf } from '../../src/rpc/priority.ts';

const CALM: Pressure = { in_flight: 0, event_loop: 0, database: 0 };
let shed: string[];
beforeEach(() => {
  shed = [];
});

/** Of a hundred calls, whose chances are spread evenly. */
function admitted(priority: Priority, pressure: Partial<Pressure>): number {
  let chance = 0;
  let count = 0;
  for (let call = 0; call < 100; call += 1) {
    chance = call / 100;
    const admission = createAdmission({
      pressure: () => ({ ...CALM, ...pressure }),
      random: { fraction: () => chance, bytes: (length) => Buffer.alloc(length) },
      shed: (of, why) => void shed.push(`${of} ${why}`),
    });
    try {
      admission.admit(priority);
      count += 1;
    } catch (error) {
      expect(error).toBeInstanceOf(TributaryError);
      expect((error as TributaryError).reason).toBe('OVERLOADED');
      expect((error as TributaryError).retryAfterMs).toBeGreaterThanOrEqual(500);
    }
  }
  return count;
}

describe('calls', () => {
  it('are refused a share at a time, deep pages first, then reads, then writes; probes and administration never', () => {
    const at = (database: number) =>
      (['deep', 'read', 'write', 'never'] as const).map((priority) => admitted(priority, { database }));
    expect(at(0.4)).toEqual([100, 100, 100, 100]);
    expect(at(0.5)).toEqual([50, 100, 100, 100]);
    expect(at(0.6)).toEqual([0, 100, 100, 100]);
    expect(at(0.75)).toEqual([0, 25, 100, 100]);
    expect(at(0.9)).toEqual([0, 0, 50, 100]);
    expect(at(5)).toEqual([0, 0, 0, 100]);
  });

  it('are refused for whatever presses hardest, and counted under that', () => {
    admitted('read', { in_flight: 0.9, database: 0.1 });
    admitted('write', { in_flight: 0.9, event_loop: 2 });
    expect(new Set(shed)).toEqual(new Set(['read in_flight', 'write event_loop']));
  });

  it('have the priority of what they do', () => {
    const { getHomeTimeline, getHomeHead } = TimelineService.method;
    const page = (access: Access, effect: Effect, request: object) =>
      priorityOf(
        unary(getHomeTimeline, { access, effect }, async () => ({})),
        request,
      );
    expect(page('service', 'read', { pageToken: '' })).toBe('read');
    expect(page('service', 'read', { pageToken: 't' })).toBe('deep');
    expect(page('service', 'write', {})).toBe('write');
    expect(page('open', 'read', {})).toBe('never');
    expect(page('admin', 'write', {})).toBe('never');
    const head = unary(getHomeHead, { access: 'service', effect: 'read' }, async () => ({}));
    expect(priorityOf(head, { sinceToken: '' })).toBe('deep');
  });
});

describe('pressure', () => {
  let nowMs: number;
  let waiting: number;
  let granted: number;
  let watch: PressureWatch;
  beforeEach(() => {
    nowMs = 0;
    waiting = 0;
    granted = 0;
    watch = createPressureWatch({
      clock: { nowMs: () => nowMs, monotonicMs: () => nowMs },
      database: () => ({ waiting, granted }),
      inFlightShare: () => 0.25,
      bounds: { eventLoopMs: 500, waitMs: 200 },
      looked: () => undefined,
    });
  });
  /** Looks fifty milliseconds apart, between which some were served. */
  function look(
    facts: { readonly lateMs?: number; readonly waiting?: number; readonly served?: number },
    times = 1,
  ): void {
    for (let time = 0; time < times; time += 1) {
      nowMs += 50;
      waiting = facts.waiting ?? 0;
      granted += facts.served ?? 0;
      watch.look(facts.lateMs ?? 0);
    }
  }

  it('is what stands for some looks: a burst that drains in between, and a stall, are none', () => {
    look({}, 5);
    look({ lateMs: 900, waiting: 900, served: 1 }, 4);
    expect(watch.read()).toEqual({ in_flight: 0.25, event_loop: 0, database: 0 });
    look({});
    look({ lateMs: 900, waiting: 900, served: 1 }, 4);
    expect(watch.read()).toMatchObject({ event_loop: 0, database: 0 });
    look({ lateMs: 900, waiting: 900, served: 1 });
    expect(watch.read().event_loop).toBe(1.8);
    expect(watch.read().database).toBeGreaterThan(100);
    look({});
    expect(watch.read()).toMatchObject({ event_loop: 0, database: 0 });
  });

  it('is the wait that a newcomer has before them, whoever has waited how long', () => {
    // Two are served in fifty milliseconds, so the fourth of a queue of eight waits a hundred and the last two hundred.
    look({ waiting: 8, served: 2 }, 10);
    expect(watch.read().database).toBeCloseTo(1);
    look({ waiting: 4, served: 2 }, 10);
    expect(watch.read().database).toBeCloseTo(0.5);
  });

  it('is high where many wait and nobody is served', () => {
    look({ waiting: 20 }, 10);
    expect(watch.read().database).toBeGreaterThan(1);
  });
});
