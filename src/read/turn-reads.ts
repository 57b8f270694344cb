/**
 * Owns the joining of reads of what may change: concurrent requests that ask for facts within one turn of the event loop ask once, together. Under load most requests go on in the turn
 * in which their earlier answers came in one packet, so a hot post's meta is read once for many of them.
 *
 * Invariant: a request never joins a read that was sent before it arrived, so what hides a post holds for the next request. What is joined is sent at the end of the turn, and from then on
 * nobody joins it any more.
 */
import { atEndOfTurn, throwIfAborted } from '../runtime.ts';
import type { TenantId } from '../timeline/ids.ts';
import { countForAll, type ReadBatches, type ReadCall } from './batches.ts';
import { createSharedLoad, type SharedLoad, type WaitsFor } from './shared-load.ts';

export interface TurnReadsParts<Scope, Id, Value> {
  /** Requests of one name may be asked together. */
  readonly nameOf: (scope: Scope) => string;
  readonly tenantOf: (scope: Scope) => TenantId;
  /** `found` is told of values as soon as they are there, before the last of them is. */
  readonly read: (
    call: ReadCall,
    scope: Scope,
    ids: readonly Id[],
    found: (values: ReadonlyMap<Id, Value>) => void,
  ) => Promise<ReadonlyMap<Id, Value>>;
  /** Longest life of a read: no request waits longer. */
  readonly limitMs: number;
  readonly events: { joined(keys: number): void };
}

/** What does not exist is absent from the answer. */
export type TurnRead<Scope, Id, Value> = (
  call: ReadCall,
  scope: Scope,
  ids: readonly Id[],
) => Promise<ReadonlyMap<Id, Value>>;

interface Turn<Id, Value> {
  readonly ids: Set<Id>;
  readonly reads: Set<ReadBatches>;
  readonly values: Map<Id, Value>;
  readonly waiters: Set<() => void>;
  readonly load: SharedLoad<unknown>;
}

/** Keys after which a turn begins another read: after a flush each request misses other keys, and one statement for all of them would keep all of them waiting. */
const KEYS_MAX = 1_024;

export function createTurnReads<Scope, Id, Value>(
  parts: TurnReadsParts<Scope, Id, Value>,
): TurnRead<Scope, Id, Value> & { readonly open: () => number } {
  const turns = new Map<string, Turn<Id, Value>>();

  function begin(name: string, scope: Scope): Turn<Id, Value> {
    const ids = new Set<Id>();
    const reads = new Set<ReadBatches>();
    const values = new Map<Id, Value>();
    const waiters = new Set<() => void>();
    const load = createSharedLoad(parts.limitMs, async (signal, waitsFor) => {
      await new Promise<void>(atEndOfTurn);
      if (turns.get(name) === turn) turns.delete(name);
      throwIfAborted(signal);
      const call: ReadCall = {
        tenant: parts.tenantOf(scope),
        signal,
        batches: tellingWaits(countForAll(reads), waitsFor),
      };
      const all = await parts.read(call, scope, [...ids], (some) => {
        for (const [id, value] of some) values.set(id, value);
        for (const look of waiters) look();
      });
      for (const [id, value] of all) values.set(id, value);
    });
    const turn: Turn<Id, Value> = { ids, reads, values, waiters, load };
    turns.set(name, turn);
    return turn;
  }

  async function turnRead(call: ReadCall, scope: Scope, ids: readonly Id[]): Promise<ReadonlyMap<Id, Value>> {
    if (ids.length === 0) return new Map();
    const name = parts.nameOf(scope);
    const known = turns.get(name);
    const turn = known?.load.isOpen() && known.ids.size < KEYS_MAX ? known : begin(name, scope);
    let joined = 0;
    for (const id of ids) {
      if (turn.ids.has(id)) joined += 1;
      turn.ids.add(id);
    }
    if (joined > 0) parts.events.joined(joined);
    const { batches } = call;
    if (batches) turn.reads.add(batches);
    const { promise: enough, resolve } = Promise.withResolvers<undefined>();
    const look = (): void => {
      if (ids.every((id) => turn.values.has(id))) resolve(undefined);
    };
    turn.waiters.add(look);
    try {
      // Whoever has all that was asked for does not wait for what others need loaded. What is then absent does not exist.
      await turn.load.join(call.signal, enough);
    } finally {
      turn.waiters.delete(look);
      if (batches) turn.reads.delete(batches);
    }
    return new Map(ids.flatMap((id) => (turn.values.has(id) ? [[id, turn.values.get(id) as Value] as const] : [])));
  }

  return Object.assign(turnRead, { open: () => turns.size });
}

function tellingWaits({ redis, postgres }: ReadBatches, waitsFor: (reason: WaitsFor) => void): ReadBatches {
  return {
    redis,
    postgres: {
      begin() {
        waitsFor('DATABASE_UNAVAILABLE');
        const answered = postgres.begin();
        return () => {
          waitsFor('CACHE_UNAVAILABLE');
          answered();
        };
      },
      count: postgres.count,
    },
  };
}
