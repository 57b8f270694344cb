/**
 * Owns bringing recently active viewers back after the cache lost them: it notices the loss, looks who of them is absent, and rebuilds those in the background, the latest reader first. At a bounded rate,
 * and behind readers: it begins nothing while half of the places for rebuilds are taken, or while the service is not at its full level. What it does not come to is done by readers, as ever.
 *
 * Invariant: it rebuilds who is absent and nobody else, so an alarm for nothing costs a look; where one master of a cluster was lost, only its viewers are.
 */
import type { Call } from '../runtime.ts';
import type { Timelines } from '../store/redis/timelines.ts';
import type { RebuildOutcome } from './rebuild.ts';
import type { RecentViewer } from './recent-viewers.ts';

/** `unknown`: the cache did not say whether the viewer is there. The others are those of rebuilds. */
export type WarmUpOutcome = RebuildOutcome | 'unknown';

export interface WarmUpParts {
  readonly readMarks: (signal: AbortSignal) => Promise<ReadonlyMap<string, string>>;
  readonly activeViewers: () => readonly RecentViewer[];
  readonly floors: Timelines['floors'];
  readonly rebuild: (call: Call, viewer: RecentViewer['viewer']) => Promise<RebuildOutcome>;
  /** Rebuilds under way in this process, readers' and these. */
  readonly rebuilding: () => number;
  /** Rebuilds at once in this process. */
  readonly rebuildsMax: number;
  /** Whether nothing is away or short. */
  readonly isFull: () => boolean;
  /** Viewers rebuilt in one round. */
  readonly perRound: number;
  readonly events: WarmUpEvents;
}

export interface WarmUpEvents {
  /** Parts of the cache hold nothing of what they held; so many viewers are looked after. */
  cacheLost(loss: { readonly parts: number; readonly viewers: number }): void;
  warmedUp(outcome: WarmUpOutcome): void;
  waiting(viewers: number): void;
  /** Nobody waits any more. */
  finished(): void;
}

/** Looks of one round: after an alarm for nothing, all of some thousands of viewers are passed within seconds. */
const LOOKS_PER_ROUND = 64;
/** One look asks for as many viewers as a round rebuilds, within a call's keys. */
const LOOK_MAX = 128;
/** Attempts at one viewer, in as many rounds: a dependency that fails on and off must not keep a list alive for ever. */
const TRIES_MAX = 5;

interface Due extends RecentViewer {
  readonly tries: number;
}

/** One round; what is left waits for the next, since the rate is what bounds it. */
export function createWarmUp(parts: WarmUpParts): (signal: AbortSignal) => Promise<boolean> {
  const { events } = parts;
  const known = new Map<string, string>();
  /** Whose turn it is stands last. */
  let due: Due[] = [];
  /** Due again in the next round, after all others: whatever kept them from being rebuilt needs a moment. */
  let later: Due[] = [];
  const atOnce = Math.max(1, Math.floor(parts.rebuildsMax / 4));
  const leftToReaders = Math.max(1, Math.floor(parts.rebuildsMax / 2));

  async function notice(signal: AbortSignal): Promise<void> {
    let lost = 0;
    for (const [part, mark] of await parts.readMarks(signal)) {
      const before = known.get(part);
      if (before !== undefined && before !== mark) lost += 1;
      known.set(part, mark);
    }
    if (lost === 0) return;
    const viewers = parts.activeViewers();
    due = viewers.map(({ tenant, viewer }) => ({ tenant, viewer, tries: 0 })).reverse();
    later = [];
    events.cacheLost({ parts: lost, viewers: viewers.length });
    events.waiting(due.length);
  }

  const mayBegin = (): boolean => parts.isFull() && parts.rebuilding() < leftToReaders;

  function tell(one: Due, outcome: WarmUpOutcome): void {
    events.warmedUp(outcome);
    const again =
      outcome === 'unknown' || outcome === 'failed' || outcome === 'overloaded' || outcome === 'cooling_down';
    if (again && one.tries + 1 < TRIES_MAX) later.push({ ...one, tries: one.tries + 1 });
  }

  /** Those of the viewers who are absent. */
  async function absentAmong(signal: AbortSignal, some: readonly Due[]): Promise<Due[]> {
    const absent: Due[] = [];
    for (const [tenant, ofTenant] of Map.groupBy(some, (one) => one.tenant)) {
      const floors = await parts.floors(signal, { tenant, viewers: ofTenant.map(({ viewer }) => viewer) });
      ofTenant.forEach((one, index) => {
        const floor = floors[index];
        if (floor === undefined) absent.push(one);
        else tell(one, typeof floor === 'number' ? 'ready' : 'unknown');
      });
    }
    return absent;
  }

  /** A few at once; whoever cannot be begun now is due again. */
  async function rebuildAll(signal: AbortSignal, absent: Due[]): Promise<void> {
    async function take(): Promise<void> {
      while (mayBegin()) {
        const one = absent.pop();
        if (!one) return;
        tell(one, await parts.rebuild({ tenant: one.tenant, signal }, one.viewer));
      }
    }
    try {
      await Promise.all(Array.from({ length: atOnce }, take));
    } finally {
      due.push(...absent);
    }
  }

  return async function runOnce(signal) {
    if (later.length > 0) due = [...later.reverse(), ...due];
    later = [];
    await notice(signal);
    if (due.length === 0) return false;
    let left = parts.perRound;
    try {
      for (let looks = 0; looks < LOOKS_PER_ROUND && left > 0 && due.length > 0 && mayBegin(); looks += 1) {
        const some = due.splice(-Math.min(left, LOOK_MAX)).reverse();
        const absent = (await absentAmong(signal, some)).reverse();
        left -= absent.length;
        await rebuildAll(signal, absent);
      }
    } finally {
      events.waiting(due.length + later.length);
    }
    if (due.length + later.length === 0) events.finished();
    return false;
  };
}
