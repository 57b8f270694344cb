/**
 * Owns the decision whether an author's class changes. Pure.
 *
 *   PUSH ──(many followers, or slow fan-out)──▶ BOTH heading for PULL ──(all cached `pull:` know the author)──▶ PULL
 *   PUSH ◀──(backfilled, and waited)── BOTH heading for PUSH ◀──(few followers, and fan-out fast enough)── PULL
 *
 * Between PUSH and PULL there is always BOTH, for `waitMs` at least: an overlap of pushing and pulling is harmless, since the merge removes what comes twice; a gap loses posts.
 * BOTH may turn round on the way, and its time begins anew then.
 */
import type { ClassTarget, FanoutClass } from '../timeline/fanout-class.ts';

export interface ClassState {
  readonly fanoutClass: FanoutClass;
  readonly target: ClassTarget;
  readonly followers: number;
  /** Since the last change, by Postgres' clock; undefined where there was none. */
  readonly elapsedMs: number | undefined;
  /** How long a fan-out to the followers would take; undefined where too little was measured. */
  readonly predictedSeconds: number | undefined;
  /** Whether all resident followers have been given the author's posts on the way down. */
  readonly backfilled: boolean;
}

export interface ClassRules {
  /** Followers from which an author is pulled. */
  readonly up: number;
  /** Followers down to which a pulled author stays pulled; below `up`. */
  readonly down: number;
  /** Time in BOTH at least: longer than any answer lives that was given before. */
  readonly waitMs: number;
  /** Fan-out that takes longer makes an author pulled. */
  readonly objectiveSeconds: number;
}

export const CLASS_CHANGE_CAUSES = ['followers', 'slow_fanout', 'settled'] as const;
/** `followers`: the count crossed a threshold. `slow_fanout`: the second guard. `settled`: BOTH has done its time. */
export type ClassChangeCause = (typeof CLASS_CHANGE_CAUSES)[number];

export interface ClassChange {
  readonly fanoutClass: FanoutClass;
  readonly target: ClassTarget;
  readonly cause: ClassChangeCause;
  /** The list of an earlier time of pulling was not kept up to date: a new one begins. */
  readonly newEpoch: boolean;
}

/** On the way down fan-out must be faster than the objective by this much, so that measurements that vary do not turn an author round and round. */
export const DOWN_SHARE = 0.8;

/** The next class, or undefined where nothing changes now. */
export function decideClass(state: ClassState, rules: ClassRules): ClassChange | undefined {
  const { fanoutClass, target } = state;
  const up = causeToPull(state, rules);
  switch (fanoutClass) {
    case 'push':
      return up && { fanoutClass: 'both', target: 'pull', cause: up, newEpoch: true };
    case 'pull':
      return mayPush(state, rules) ? DOWN : undefined;
    case 'both':
      if (target === 'pull') {
        if (mayPush(state, rules)) return DOWN;
        return hasWaited(state, rules) ? { fanoutClass: 'pull', target, cause: 'settled', newEpoch: false } : undefined;
      }
      if (up) return { fanoutClass: 'both', target: 'pull', cause: up, newEpoch: false };
      return hasWaited(state, rules) && state.backfilled
        ? { fanoutClass: 'push', target, cause: 'settled', newEpoch: false }
        : undefined;
    default:
      throw new Error(`unknown class: ${fanoutClass satisfies never}`);
  }
}

const DOWN: ClassChange = { fanoutClass: 'both', target: 'push', cause: 'followers', newEpoch: false };

function causeToPull({ followers, predictedSeconds }: ClassState, rules: ClassRules): ClassChangeCause | undefined {
  if (followers >= rules.up) return 'followers';
  return predictedSeconds !== undefined && predictedSeconds > rules.objectiveSeconds ? 'slow_fanout' : undefined;
}

function mayPush({ followers, predictedSeconds }: ClassState, rules: ClassRules): boolean {
  return followers <= rules.down && (predictedSeconds ?? 0) <= DOWN_SHARE * rules.objectiveSeconds;
}

function hasWaited({ elapsedMs }: ClassState, rules: ClassRules): boolean {
  return elapsedMs !== undefined && elapsedMs >= rules.waitMs;
}
