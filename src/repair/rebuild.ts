/**
 * Owns the rebuilding of timelines, and of the lists of pulled authors, from Postgres. One rebuild of each at a time: single-flight in the process, the token in Redis across processes, a
 * token older than its lease is taken over. Concurrent pushes land in it from `begin` on, and READY is only set while the token is still there; so nothing that was published
 * or deleted meanwhile is lost or brought back.
 *
 * A source that fails is not asked by every reader: after a failure each timeline cools down for a moment here, and its readers do without. What had begun is dropped, so that no lease of a rebuild
 * that is over holds anybody up when the source is back. Where that cannot be told (the answer to `begin` was lost), the next try of this process takes it over.
 */
import { BulkheadRejectedError, bulkhead } from 'cockatiel';
import { LRUCache } from 'lru-cache';
import { type Call, type Clock, pause, type Random, untilAborted } from '../runtime.ts';
import type { Snapshot } from '../store/postgres/home-snapshot.ts';
import type { EntrySets } from '../store/redis/entry-sets.ts';
import type { TenantId } from '../timeline/ids.ts';

export const REBUILD_REASONS = ['absent', 'forced', 'warm'] as const;
export type RebuildReason = (typeof REBUILD_REASONS)[number];

/**
 * `rebuilt`: READY now. `ready`: it was. `busy`: another process rebuilds it. `lost`: it was deleted or taken over meanwhile. `overloaded`: too many rebuilds run
 * here. `failed`: Redis or Postgres did not do it. `cooling_down`: it failed here a moment ago; a later reader tries again.
 */
export const REBUILD_OUTCOMES = ['rebuilt', 'ready', 'busy', 'lost', 'overloaded', 'failed', 'cooling_down'] as const;
export type RebuildOutcome = (typeof REBUILD_OUTCOMES)[number];

/** `Id` says which timeline or list of the call's tenant. */
export type Rebuild<Id> = (call: Call, id: Id, reason: RebuildReason) => Promise<RebuildOutcome>;

export interface StoppableRebuild<Id> extends Rebuild<Id> {
  /** Lets what runs end within `waitMs`, then ends it, and drops what was left half done. */
  stop(waitMs: number): Promise<void>;
}

type Of<Id> = Id & { readonly tenant: TenantId };

export interface RebuildParts<Id> {
  readonly clock: Clock;
  readonly sets: EntrySets<Of<Id>>;
  /** A name that no other of the tenant has. */
  readonly nameOf: (id: Id) => string;
  readonly loadSnapshot: (signal: AbortSignal, of: Of<Id>) => Promise<Snapshot>;
  readonly newToken: () => string;
  readonly random: Pick<Random, 'fraction'>;
  /** Bound of one rebuild: after it others may take over. */
  readonly leaseMs: number;
  /** Rebuilds at once; as many may wait for one to end. */
  readonly concurrencyMax: number;
  readonly events: {
    rebuilt(event: {
      readonly reason: RebuildReason;
      readonly outcome: RebuildOutcome;
      readonly seconds: number;
    }): void;
    joined(): void;
    failed(error: unknown): void;
  };
}

/** After a failure: at most two attempts for each timeline in any second, and the first within a second of the source's return. Lengthened by up to two thirds, so that timelines that failed together do not come back together. */
const COOL_DOWN_MS = 600;
const COOL_DOWN_JITTER_MS = 400;
/** Timelines that cool down at once; one that is pushed out of the list is tried again sooner. */
const COOLING_MAX = 10_000;
/** Dropping must work after an abort too. */
const DROP_MAX_MS = 500;

export function createRebuild<Id extends object>(parts: RebuildParts<Id>): StoppableRebuild<Id> {
  const { sets, events, clock } = parts;
  const flights = new Map<string, Promise<RebuildOutcome>>();
  const places = bulkhead(parts.concurrencyMax, parts.concurrencyMax);
  const stopping = new AbortController();
  /** All tokens of this process begin with it. */
  const owner = parts.newToken();
  let begins = 0;
  /** Until when, on the monotonic clock. */
  const cooling = new LRUCache<string, number>({ max: COOLING_MAX });

  async function rebuildOnce(of: Of<Id>): Promise<RebuildOutcome> {
    // Not the signal of the reader who came first: others wait for the same rebuild.
    const lease = AbortSignal.timeout(parts.leaseMs);
    const signal = AbortSignal.any([stopping.signal, lease]);
    begins += 1;
    const token = `${owner}-${begins}`;
    const begun = await sets.begin(signal, { ...of, token, owner });
    if (begun !== 'won') return begun;
    try {
      // Whatever the load does: who waits for a rebuild waits no longer than its lease.
      const { postIds, floor } = await untilAborted(parts.loadSnapshot(signal, of), signal);
      if (!(await sets.addOlder(signal, { ...of, token, postIds }))) return 'lost';
      return (await sets.commit(signal, { ...of, token, floor })) ? 'rebuilt' : 'lost';
    } catch (error) {
      // Once the lease is over another may be at it. Where this fails too, the lease ends by itself; where it hits what another has made, that is made again.
      if (!lease.aborted) await sets.drop(AbortSignal.timeout(DROP_MAX_MS), of).catch(() => undefined);
      throw error;
    }
  }

  function fly(name: string, of: Of<Id>, reason: RebuildReason): Promise<RebuildOutcome> {
    const startedMs = clock.monotonicMs();
    return places
      .execute(() => rebuildOnce(of))
      .catch((error: unknown): RebuildOutcome => {
        if (error instanceof BulkheadRejectedError) return 'overloaded';
        if (stopping.signal.aborted) return 'failed';
        cooling.set(name, clock.monotonicMs() + COOL_DOWN_MS + parts.random.fraction() * COOL_DOWN_JITTER_MS);
        events.failed(error);
        return 'failed';
      })
      .then((outcome) => {
        events.rebuilt({ reason, outcome, seconds: (clock.monotonicMs() - startedMs) / 1_000 });
        return outcome;
      });
  }

  function rebuild(call: Call, id: Id, reason: RebuildReason): Promise<RebuildOutcome> {
    const name = `${call.tenant}:${parts.nameOf(id)}`;
    const running = flights.get(name);
    if (running) {
      events.joined();
      return untilAborted(running, call.signal);
    }
    if (reason !== 'forced' && isCooling(name)) {
      events.rebuilt({ reason, outcome: 'cooling_down', seconds: 0 });
      return Promise.resolve('cooling_down');
    }
    const flight = fly(name, { tenant: call.tenant, ...id }, reason).finally(() => flights.delete(name));
    flights.set(name, flight);
    return untilAborted(flight, call.signal);
  }

  function isCooling(name: string): boolean {
    const untilMs = cooling.get(name);
    if (untilMs === undefined) return false;
    if (clock.monotonicMs() < untilMs) return true;
    cooling.delete(name);
    return false;
  }

  async function stop(waitMs: number): Promise<void> {
    const running = (): Promise<unknown> => Promise.all(flights.values());
    await untilAborted(running(), AbortSignal.timeout(waitMs)).catch(() => undefined);
    stopping.abort();
    await running();
  }

  return Object.assign(rebuild, { stop });
}

/** Looks after another's rebuild before a forced one gives up, and the pause between them. */
const FORCED_TRIES_MAX = 20;
const FORCED_PAUSE_MS = 100;

/** Deletes what there is and rebuilds it. Who else rebuilds it after that does the same, and is waited for; what was under way before is lost. */
export function createForcedRebuild<Id extends object>(parts: {
  readonly sets: Pick<EntrySets<Of<Id>>, 'drop'>;
  readonly rebuild: Rebuild<Id>;
}): (call: Call, id: Id) => Promise<RebuildOutcome> {
  return async (call, id) => {
    await parts.sets.drop(call.signal, { tenant: call.tenant, ...id });
    for (let tries = 1; ; tries += 1) {
      const outcome = await parts.rebuild(call, id, 'forced');
      if ((outcome !== 'busy' && outcome !== 'lost') || tries === FORCED_TRIES_MAX) return outcome;
      await pause(call.signal, FORCED_PAUSE_MS);
    }
  };
}
