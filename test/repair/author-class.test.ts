/** Owns the law of author classes: never from pushing to pulling or back without both in between, for long enough, and no turning round and round. */
import fc from 'fast-check';
import { expect, it } from 'vitest';
import { type ClassRules, type ClassState, decideClass } from '../../src/repair/author-class.ts';
import { FANOUT_CLASSES } from '../../src/timeline/fanout-class.ts';

const RULES: ClassRules = { up: 100, down: 80, waitMs: 1_000, objectiveSeconds: 30 };
const SMALL = { followers: 80, predictedSeconds: undefined } as const;
const BETWEEN = { followers: 90, predictedSeconds: 27 } as const;
const LARGE = { followers: 100, predictedSeconds: undefined } as const;
const SLOW = { followers: 5, predictedSeconds: 30.1 } as const;
const push = { fanoutClass: 'push', target: 'push', elapsedMs: undefined, backfilled: false } as const;
const upwards = { fanoutClass: 'both', target: 'pull', elapsedMs: 999, backfilled: false } as const;
const pull = { fanoutClass: 'pull', target: 'pull', elapsedMs: 5, backfilled: false } as const;
const downwards = { fanoutClass: 'both', target: 'push', elapsedMs: 999, backfilled: false } as const;
const waited = { elapsedMs: 1_000 } as const;

it.each<{ readonly what: string; readonly state: ClassState; readonly next: string }>([
  { what: 'a small author', state: { ...push, ...SMALL }, next: 'stays' },
  { what: 'one between the thresholds', state: { ...push, ...BETWEEN }, next: 'stays' },
  { what: 'one that reached the upper threshold', state: { ...push, ...LARGE }, next: 'both>pull followers new' },
  { what: 'one just below it', state: { ...push, followers: 99, predictedSeconds: 30 }, next: 'stays' },
  { what: 'one whose fan-out is too slow', state: { ...push, ...SLOW }, next: 'both>pull slow_fanout new' },
  { what: 'one on the way up', state: { ...upwards, ...LARGE }, next: 'stays' },
  { what: 'one on the way up for long enough', state: { ...upwards, ...LARGE, ...waited }, next: 'pull settled' },
  { what: 'one between, on the way up', state: { ...upwards, ...BETWEEN, ...waited }, next: 'pull settled' },
  { what: 'one on the way up that shrank', state: { ...upwards, ...SMALL, ...waited }, next: 'both>push followers' },
  { what: 'a large pulled author', state: { ...pull, ...LARGE }, next: 'stays' },
  { what: 'a pulled author between', state: { ...pull, ...BETWEEN }, next: 'stays' },
  { what: 'a pulled author that shrank', state: { ...pull, ...SMALL }, next: 'both>push followers' },
  { what: 'one just above the lower threshold', state: { ...pull, ...SMALL, followers: 81 }, next: 'stays' },
  { what: 'a small one, slow', state: { ...pull, ...SLOW }, next: 'stays' },
  { what: 'a small one, nearly slow', state: { ...pull, followers: 5, predictedSeconds: 24.1 }, next: 'stays' },
  { what: 'a small one, fast', state: { ...pull, followers: 5, predictedSeconds: 24 }, next: 'both>push followers' },
  { what: 'one on the way down', state: { ...downwards, ...SMALL, backfilled: true }, next: 'stays' },
  { what: 'one that waits for its backfill', state: { ...downwards, ...SMALL, ...waited }, next: 'stays' },
  { what: 'one that is through', state: { ...downwards, ...SMALL, ...waited, backfilled: true }, next: 'push settled' },
  {
    what: 'one through, between',
    state: { ...downwards, ...BETWEEN, ...waited, backfilled: true },
    next: 'push settled',
  },
  { what: 'one that grew on the way down', state: { ...downwards, ...LARGE, ...waited }, next: 'both>pull followers' },
  { what: 'one that slowed on the way down', state: { ...downwards, ...SLOW }, next: 'both>pull slow_fanout' },
])('$what: $next', ({ state, next }) => {
  const change = decideClass(state, RULES);
  const name = change && (change.fanoutClass === 'both' ? `both>${change.target}` : change.fanoutClass);
  expect(change ? `${name} ${change.cause}${change.newEpoch ? ' new' : ''}` : 'stays').toBe(next);
});

/** An author in the course of time, as rounds see it. */
interface Life extends ClassState {
  readonly epoch: number;
}

function live(life: Life, seen: Partial<ClassState>, passedMs: number): Life {
  const state = {
    ...life,
    ...seen,
    elapsedMs: life.elapsedMs === undefined ? undefined : life.elapsedMs + passedMs,
  };
  const change = decideClass(state, RULES);
  if (!change) return state;
  const { fanoutClass, target, newEpoch } = change;
  return { ...state, fanoutClass, target, elapsedMs: 0, backfilled: false, epoch: state.epoch + Number(newEpoch) };
}

const BORN: Life = { ...push, followers: 0, predictedSeconds: undefined, epoch: 0 };
const prediction = fc.option(fc.double({ min: 0, max: 60, noNaN: true }), { nil: undefined });
const sight = fc.record({
  followers: fc.integer({ min: 60, max: 120 }),
  predictedSeconds: prediction,
  backfilled: fc.boolean(),
  passedMs: fc.integer({ min: 0, max: 1_500 }),
});

it('goes through both, for its time, whatever is seen; a list has a new epoch with every leaving of push, and never another', () => {
  fc.assert(
    fc.property(fc.array(sight, { maxLength: 60 }), (sights) => {
      let life = BORN;
      for (const { passedMs, ...seen } of sights) {
        const next = live(life, seen, passedMs);
        if (next.fanoutClass !== life.fanoutClass) {
          expect([life.fanoutClass, next.fanoutClass]).toContain('both');
          if (life.fanoutClass === 'both') {
            // Where it was heading, and after its time; down only with the backfill done.
            expect(next.fanoutClass).toBe(life.target);
            expect((life.elapsedMs ?? 0) + passedMs).toBeGreaterThanOrEqual(RULES.waitMs);
            if (next.fanoutClass === 'push') expect(seen.backfilled).toBe(true);
          }
        }
        if (next.fanoutClass !== 'both') expect(next.target).toBe(next.fanoutClass);
        expect(next.epoch - life.epoch).toBe(Number(life.fanoutClass === 'push' && next.fanoutClass === 'both'));
        life = next;
      }
    }),
  );
});

it('does not turn round while what is seen varies between the thresholds', () => {
  const between = fc.record({
    followers: fc.integer({ min: RULES.down + 1, max: RULES.up - 1 }),
    predictedSeconds: fc.option(fc.double({ min: 0, max: 30, noNaN: true }), { nil: undefined }),
    backfilled: fc.boolean(),
    passedMs: fc.integer({ min: 0, max: 1_500 }),
  });
  fc.assert(
    fc.property(
      fc.constantFrom(...FANOUT_CLASSES),
      fc.constantFrom('push' as const, 'pull' as const),
      fc.array(between, { maxLength: 40 }),
      (fanoutClass, heading, sights) => {
        const target = fanoutClass === 'both' ? heading : fanoutClass;
        let life: Life = { ...BORN, fanoutClass, target, elapsedMs: 0 };
        for (const { passedMs, ...seen } of sights) {
          life = live(life, seen, passedMs);
          expect(life.target).toBe(target);
        }
      },
    ),
  );
});
