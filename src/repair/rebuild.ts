/**
 * Owns the rebuilding of a timeline from Postgres. One rebuild per viewer: single-flight in the process, the token in Redis across processes, a token older than its
 * lease is taken over. Concurrent pushes land in the timeline from `begin` on, and READY is only set while the token is still there; so nothing that was published
 * or deleted meanwhile is lost or brought back.
 */
import { BulkheadRejectedError, bulkhead } from 'cockatiel';
import { type Call, type Clock, untilAborted } from '../runtime.ts';
import type { Snapshot } from '../store/postgres/home-pages.ts';
import type { Timelines } from '../store/redis/timelines.ts';
import type { TenantId, UserId } from '../timeline/ids.ts';

export const REBUILD_REASONS = ['absent', 'forced', 'warm'] as const;
export type RebuildReason = (typeof REBUILD_REASONS)[number];

/**
 * `rebuilt`: READY now. `ready`: it was. `busy`: another process rebuilds it. `lost`: the timeline was deleted or taken over meanwhile. `overloaded`: too many rebuilds run
 * here. `failed`: Redis or Postgres did not do it; the next reader tries again.
 */
export const REBUILD_OUTCOMES = ['rebuilt', 'ready', 'busy', 'lost', 'overloaded', 'failed'] as const;
export type RebuildOutcome = (typeof REBUILD_OUTCOMES)[number];

export type Rebuild = (call: Call, viewer: UserId, reason: RebuildReason) => Promise<RebuildOutcome>;

export interface StoppableRebuild extends Rebuild {
  /** Lets what runs end within `waitMs`, then ends it. One that is left half done keeps others from rebuilding until its lease is over. */
  stop(waitMs: number): Promise<void>;
}

export interface RebuildParts {
  readonly clock: Clock;
  readonly timelines: Timelines;
  readonly loadSnapshot: (
    signal: AbortSignal,
    query: { readonly tenant: TenantId; readonly viewer: UserId },
  ) => Promise<Snapshot>;
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

export function createRebuild(parts: RebuildParts): StoppableRebuild {
  const { timelines, events, clock } = parts;
  const flights = new Map<string, Promise<RebuildOutcome>>();
  const places = bulkhead(parts.concurrencyMax, parts.concurrencyMax);
  const stopping = new AbortController();

  async function rebuildOnce(tenant: TenantId, viewer: UserId): Promise<RebuildOutcome> {
    // Not the signal of the reader who came first: others wait for the same rebuild.
    const signal = AbortSignal.any([stopping.signal, AbortSignal.timeout(parts.leaseMs)]);
    const of = { tenant, viewer };
    const token = parts.newToken();
    const begun = await timelines.begin(signal, { ...of, token });
    if (begun !== 'won') return begun;
    // Whatever the load does: who waits for a rebuild waits no longer than its lease.
    const { postIds, floor } = await untilAborted(parts.loadSnapshot(signal, of), signal);
    if (!(await timelines.addOlder(signal, { ...of, token, postIds }))) return 'lost';
    return (await timelines.commit(signal, { ...of, token, floor })) ? 'rebuilt' : 'lost';
  }

  function fly(tenant: TenantId, viewer: UserId, reason: RebuildReason): Promise<RebuildOutcome> {
    const startedMs = clock.monotonicMs();
    return places
      .execute(() => rebuildOnce(tenant, viewer))
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

  function rebuild(call: Call, viewer: UserId, reason: RebuildReason): Promise<RebuildOutcome> {
    const name = `${call.tenant}:${viewer}`;
    const running = flights.get(name);
    if (running) {
      events.joined();
      return untilAborted(running, call.signal);
    }
    const flight = fly(call.tenant, viewer, reason).finally(() => flights.delete(name));
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

/** Deletes a timeline and rebuilds it. */
export function createForcedRebuild(parts: {
  readonly timelines: Timelines;
  readonly rebuild: Rebuild;
}): (call: Call, viewer: UserId) => Promise<RebuildOutcome> {
  return async (call, viewer) => {
    await parts.timelines.drop(call.signal, { tenant: call.tenant, viewer });
    return parts.rebuild(call, viewer, 'forced');
  };
}
