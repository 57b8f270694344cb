/**
 * Owns the rounds in which authors change their class: measure, load whoever may have to change, decide each, write. A write names the state that was decided on, so
 * rounds of several relays at the same moment change nothing twice.
 */
import type { AuthorOf, ClassCandidate } from '../store/postgres/author-classes.ts';
import type { FanoutClass } from '../timeline/fanout-class.ts';
import { type ClassChange, type ClassChangeCause, type ClassRules, DOWN_SHARE, decideClass } from './author-class.ts';

export interface AuthorClassRoundsParts {
  readonly rules: ClassRules;
  readonly loadPushFigures: (
    signal: AbortSignal,
    jobs: number,
  ) => Promise<{ readonly pushes: number; readonly seconds: number }>;
  readonly loadCandidates: (
    signal: AbortSignal,
    query: {
      readonly up: number;
      readonly down: number;
      readonly residentsUp: number | undefined;
      readonly residentsDown: number | undefined;
      readonly most: number;
    },
  ) => Promise<readonly ClassCandidate[]>;
  readonly changeClass: (
    signal: AbortSignal,
    change: AuthorOf & Pick<ClassCandidate, 'changedAt'> & ClassChange,
  ) => Promise<boolean>;
  readonly countPulledAuthors: (signal: AbortSignal) => Promise<{ readonly both: number; readonly pull: number }>;
  readonly events: {
    classChanged(change: AuthorOf & ClassStep): void;
    authorsCounted(authors: { readonly both: number; readonly pull: number }): void;
  };
}

export interface ClassStep {
  readonly from: FanoutClass;
  readonly to: FanoutClass;
  readonly cause: ClassChangeCause;
}

/** Of each kind in one round. Only what has to change is found, but for authors in BOTH, of whom there are far fewer at any time. */
const CANDIDATES_MAX = 1_000;
/** Jobs whose rate counts: enough for a mean, few enough to follow a change within minutes. */
const MEASURED_JOBS = 200;
/** Fewer pushes say nothing of a rate. */
const PUSHES_MIN = 1_000;

/** One round; answers whether there is probably more to change. */
export function createAuthorClassRounds(parts: AuthorClassRoundsParts): (signal: AbortSignal) => Promise<boolean> {
  const { rules, events } = parts;
  /** The last that was measured: where nothing is pushed, because the large authors are pulled, nothing says that pushing has become faster. */
  let perSecond: number | undefined;
  return async function runOnce(signal) {
    const { pushes, seconds } = await parts.loadPushFigures(signal, MEASURED_JOBS);
    if (pushes >= PUSHES_MIN && seconds > 0) perSecond = pushes / seconds;
    const residentsUp = perSecond && perSecond * rules.objectiveSeconds;
    const candidates = await parts.loadCandidates(signal, {
      up: rules.up,
      down: rules.down,
      residentsUp,
      residentsDown: residentsUp && residentsUp * DOWN_SHARE,
      most: CANDIDATES_MAX,
    });
    let changed = 0;
    for (const candidate of candidates) {
      const change = decideClass(stateOf(candidate, perSecond), rules);
      if (!change || !(await parts.changeClass(signal, { ...candidate, ...change }))) continue;
      changed += 1;
      const { tenant, author, fanoutClass: from } = candidate;
      events.classChanged({ tenant, author, from, to: change.fanoutClass, cause: change.cause });
    }
    events.authorsCounted(await parts.countPulledAuthors(signal));
    return changed >= CANDIDATES_MAX;
  };
}

/** Resident followers are known from the last fan-out, which may be long ago for an author who is pulled: there are no more of them than followers. */
function stateOf({ residentFollowers, ...author }: ClassCandidate, perSecond: number | undefined) {
  const residents = residentFollowers && Math.min(residentFollowers, author.followers);
  return { ...author, predictedSeconds: perSecond && residents !== undefined ? residents / perSecond : undefined };
}
