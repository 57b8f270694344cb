/**
 * Owns which calls are refused under load, before latency collapses: a call that cannot be served in time had better fail at once, while those that can be are served as ever.
 *
 * By priority, the least missed first: deep pages and heads (a reader scrolls on later, a badge may be late), then other reads, then writes, of which one that is refused may be lost for
 * good. Health and administration are never refused. Within a priority a share is refused that grows with the pressure, so that load settles at what can be borne instead of going up and
 * down with all or nothing. Nobody waits here: the only queue is that of the database, which is bounded.
 *
 * The refusal is OVERLOADED, which is UNAVAILABLE: clients try again by themselves, after a delay with jitter, perhaps at another instance. RESOURCE_EXHAUSTED would tell them not to.
 */
import { TributaryError } from '../errors.ts';
import type { PressureKind, Sheddable } from '../metrics/degradation-metrics.ts';
import type { Random } from '../runtime.ts';
import { hardest, type Pressure } from './pressure.ts';

export type Priority = Sheddable | 'never';

export interface Admission {
  /** Throws OVERLOADED where the call is refused. */
  admit(priority: Priority): void;
}

/** Pressure at which the first call of a priority is refused, and at which all are. */
const SHED: Readonly<Record<Sheddable, { readonly from: number; readonly all: number }>> = {
  deep: { from: 0.4, all: 0.6 },
  read: { from: 0.6, all: 0.8 },
  write: { from: 0.8, all: 1 },
};
/** About as long as load needs to settle; half of it jitter. */
const RETRY_AFTER_MS = 1_000;

export function createAdmission(parts: {
  readonly pressure: () => Pressure;
  readonly random: Random;
  readonly shed: (priority: Sheddable, why: PressureKind) => void;
}): Admission {
  return {
    admit(priority) {
      if (priority === 'never') return;
      const [why, ratio] = hardest(parts.pressure());
      const { from, all } = SHED[priority];
      if (ratio <= from || (ratio < all && parts.random.fraction() >= (ratio - from) / (all - from))) return;
      parts.shed(priority, why);
      throw new TributaryError('OVERLOADED', {
        message: 'the service has more to do than it can',
        retryAfterMs: Math.round(RETRY_AFTER_MS * (0.5 + parts.random.fraction() / 2)),
      });
    },
  };
}
