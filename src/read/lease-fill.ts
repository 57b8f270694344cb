/**
 * Owns the reading of mutable facts through the cache: hits as they are, misses loaded from Postgres and stored under the reader's token, what
 * somebody else is loading waited for briefly. An error of the cache is never a miss: the fact comes from Postgres then, and nothing is stored.
 */
import { pause } from '../runtime.ts';
import type { Facts, FillOutcome, Lookup } from '../store/redis/facts.ts';
import { onPostgres, onRedis, type ReadCall, tellKinds } from './batches.ts';

export interface LeaseFillParts<Scope, Id, Value> {
  readonly facts: Facts<Scope, Id, Value>;
  readonly newToken: () => string;
  readonly events: LeaseFillEvents;
}

export interface LeaseFillEvents {
  lookedUp(result: Lookup<unknown>['kind'], keys: number): void;
  filled(outcome: FillOutcome): void;
}

/** The truth from Postgres. An ID that is absent from the answer does not exist, which is not cached: publishing would have to delete it. */
export type LoadTruth<Id, Value> = (ids: readonly Id[]) => Promise<ReadonlyMap<Id, Value>>;

/** `found` is told of values as soon as they are there; what is answered has been stored, where it may be. */
export type LeaseFill<Scope, Id, Value> = (
  call: ReadCall,
  scope: Scope,
  ids: readonly Id[],
  load: LoadTruth<Id, Value>,
  found?: (values: ReadonlyMap<Id, Value>) => void,
) => Promise<ReadonlyMap<Id, Value>>;

/**
 * How long a reader waits for another's load, in milliseconds, look by look: about as long as a load takes, then longer, since where many wait for one post the machine is busy, and each who does
 * not wait is one more load. Together a small part of a read's deadline: whoever loads may be dead.
 */
const WAITS_MS = [15, 30, 60, 120];

export function createLeaseFill<Scope, Id, Value>(
  parts: LeaseFillParts<Scope, Id, Value>,
): LeaseFill<Scope, Id, Value> {
  const { facts, events } = parts;

  return async function leaseFill(call, scope, ids, load, found = () => undefined) {
    const values = new Map<Id, Value>();
    if (ids.length === 0) return values;
    const token = parts.newToken();
    const request: Request<Scope, Id, Value> = { call, scope, token, load, values, found };
    const missing = await lookUp(request, ids);
    if (values.size === ids.length) return values;
    await Promise.all([loadAndFill(request, missing), loadLater(request, missing.loading)]);
    return values;
  };

  async function lookUp(request: Request<Scope, Id, Value>, ids: readonly Id[]): Promise<Missing<Id>> {
    const { call, scope, token } = request;
    const results = await onRedis(call, () => facts.lookUp(call.signal, scope, ids, token));
    tellKinds(results, events.lookedUp);
    const missing = { owned: [] as Id[], loading: [] as Id[], unowned: [] as Id[] };
    results.forEach((result, index) => {
      const id = ids[index] as Id;
      switch (result.kind) {
        case 'hit':
          request.values.set(id, result.value);
          break;
        case 'miss':
          missing.owned.push(id);
          break;
        case 'loading':
          missing.loading.push(id);
          break;
        case 'error':
          missing.unowned.push(id);
          break;
        default:
          throw new Error(`unknown result: ${JSON.stringify(result satisfies never)}`);
      }
    });
    request.found(request.values);
    return missing;
  }

  async function loadAndFill(
    request: Request<Scope, Id, Value>,
    missing: Pick<Missing<Id>, 'owned' | 'unowned'>,
  ): Promise<void> {
    const wanted = [...missing.owned, ...missing.unowned];
    if (wanted.length === 0) return;
    const { call, scope, token } = request;
    const loaded = await onPostgres(call, () => request.load(wanted));
    for (const [id, value] of loaded) request.values.set(id, value);
    const entries = missing.owned.flatMap((id) => (loaded.has(id) ? [[id, loaded.get(id) as Value] as const] : []));
    const filling =
      entries.length === 0 ? undefined : onRedis(call, () => facts.fill(call.signal, scope, token, entries));
    request.found(request.values);
    for (const outcome of (await filling) ?? []) events.filled(outcome);
  }

  /** Gives another reader's load the time it should take, then reads without the right to store. */
  async function loadLater(request: Request<Scope, Id, Value>, ids: readonly Id[]): Promise<void> {
    let loading = ids;
    for (const waitMs of WAITS_MS) {
      if (loading.length === 0) return;
      await pause(request.call.signal, waitMs);
      const missing = await lookUp(request, loading);
      // Whoever loaded it is gone or failed: it is ours to load.
      await loadAndFill(request, missing);
      loading = missing.loading;
    }
    await loadAndFill(request, { owned: [], unowned: loading });
  }
}

interface Request<Scope, Id, Value> {
  readonly call: ReadCall;
  readonly scope: Scope;
  readonly token: string;
  readonly load: LoadTruth<Id, Value>;
  readonly values: Map<Id, Value>;
  readonly found: (values: ReadonlyMap<Id, Value>) => void;
}

interface Missing<Id> {
  /** Our token stands there: what is loaded may be stored. */
  readonly owned: readonly Id[];
  readonly loading: readonly Id[];
  readonly unowned: readonly Id[];
}
