/**
 * Owns the rebuilding of timelines, and of the lists of pulled authors, from Postgres. One rebuild of each at a time: single-flight in the process, the token in Redis across processes, a
 * token older than its lease is taken over. Concurrent pushes land in it from `begin` on, and READY is only set while the token is still there; so nothing that was published
 * or deleted meanwhile is lost or brought back.
 */
import { BulkheadRejectedError, bulkhead } from 'cockatiel';
import { type Call, type Clock, untilAborted } from '../runtime.ts';
import type { Snapshot } from '../store/postgres/home-snapshot.ts';
import type { EntrySets } from '../store/redis/entry-sets.ts';
import type { TenantId } from '../timeline/ids.ts';

export const REBUILD_REASONS = ['absent', 'forced', 'warm'] as const;
export type RebuildReason = (typeof REBUILD_REASONS)[number];

/**
 * `rebuilt`: READY now. `ready`: it was. `busy`: another process rebuilds it. `lost`: it was deleted or taken over meanwhile. `overloaded`: too many rebuilds run
 * here. `failed`: Redis or Postgres did not do it; the next reader tries again.
 */
export const REBUILD_OUTCOMES = ['rebuilt', 'ready', 'busy', 'lost', 'overloaded', 'failed'] as const;
export type RebuildOutcome = (typeof REBUILD_OUTCOMES)[number];

/** `Id` says which timeline or list of the call's tenant. */
export type Rebuild<Id> = (call: Call, id: Id, reason: RebuildReason) => Promise<RebuildOutcome>;

export interface StoppableRebuild<Id> extends Rebuild<Id> {
  /** Lets what runs end within `waitMs`, then ends it. One that is left half done keeps others from rebuilding until its lease is over. */
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

export function createRebuild<Id extends object>(parts: RebuildParts<Id>): StoppableRebuild<Id> {
  const { sets, events, clock } = parts;
  const flights = new Map<string, Promise<RebuildOutcome>>();
  const places = bulkhead(parts.concurrencyMax, parts.concurrencyMax);
  const stopping = new AbortController();

  async function rebuildOnce(of: Of<Id>): Promise<RebuildOutcome> {
    // Not the signal of the reader who came first: others wait for the same rebuild.
    const signal = AbortSignal.any([stopping.signal, AbortSignal.timeout(parts.leaseMs)]);
    const token = parts.newToken();
    const begun = await sets.begin(signal, { ...of, token });
    if (begun !== 'won') return begun;
    // Whatever the load does: who waits for a rebuild waits no longer than its lease.
    const { postIds, floor } = await untilAborted(parts.loadSnapshot(signal, of), signal);
    if (!(await sets.addOlder(signal, { ...of, token, postIds }))) return 'lost';
    return (await sets.commit(signal, { ...of, token, floor })) ? 'rebuilt' : 'lost';
  }

  function fly(of: Of<Id>, reason: RebuildReason): Promise<RebuildOutcome> {
    const startedMs = clock.monotonicMs();
    return places
      .execute(() => rebuildOnce(of))
      .catch((error: unknown): RebuildOutcome => {
        if (error instanceof BulkheadRejectedError) return 'overloaded';
        if (!stopping.signal.aborted) events.failed(error);
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
    const flight = fly({ tenant: call.tenant, ...id }, reason).finally(() => flights.delete(name));
    flights.set(name, flight);
    return untilAborted(flight, call.signal);
  }

  async function stop(waitMs: number): Promise<void> {
    const running = (): Promise<unknown> => Promise.all(flights.values());
    await untilAborted(running(), AbortSignal.timeout(waitMs)).catch(() => undefined);
    stopping.abort();
    await running();
  }

  return Object.assign(rebuild, { stop });
}

/** Deletes what there is and rebuilds it. */
export function createForcedRebuild<Id extends object>(parts: {
  readonly sets: Pick<EntrySets<Of<Id>>, 'drop'>;
  readonly rebuild: Rebuild<Id>;
}): (call: Call, id: Id) => Promise<RebuildOutcome> {
  return async (call, id) => {
    await parts.sets.drop(call.signal, { tenant: call.tenant, ...id });
    return parts.rebuild(call, id, 'forced');
  };
}
