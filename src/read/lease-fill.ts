/**
 * Owns the reading of mutable facts through the cache: hits as they are, misses loaded from Postgres and stored under the token, what somebody else is loading waited for briefly. An
 * error of the cache is never a miss: the fact comes from Postgres then, and nothing is stored.
 */
import { after, type Call, untilAborted } from '../runtime.ts';
import type { Facts, FillOutcome, Lookup } from '../store/redis/facts.ts';

export interface LeaseFillParts<Scope, Id, Value> {
  readonly facts: Facts<Scope, Id, Value>;
  /** The truth from Postgres. An ID that is absent from the answer does not exist, which is not cached: publishing would have to delete it. */
  readonly load: (call: Call, scope: Scope, ids: readonly Id[]) => Promise<ReadonlyMap<Id, Value>>;
  readonly newToken: () => string;
  readonly events: LeaseFillEvents;
}

export interface LeaseFillEvents {
  lookedUp(result: Lookup<unknown>['kind']): void;
  filled(outcome: FillOutcome): void;
}

export type LoadFacts<Scope, Id, Value> = (
  call: Call,
  scope: Scope,
  ids: readonly Id[],
) => Promise<ReadonlyMap<Id, Value>>;

/** How long a reader waits for another's load: about as long as a load takes. */
const WAIT_MS = 15;

export function createLeaseFill<Scope, Id, Value>(
  parts: LeaseFillParts<Scope, Id, Value>,
): LoadFacts<Scope, Id, Value> {
  const { facts, events } = parts;

  return async function loadFacts(call, scope, ids) {
    const values = new Map<Id, Value>();
    if (ids.length === 0) return values;
    const token = parts.newToken();

    const first = await lookUp(call, scope, ids, token, values);
    await Promise.all([
      loadAndFill(call, scope, first, token, values),
      loadLater(call, scope, first.loading, token, values),
    ]);
    return values;
  };

  /** Gives another reader's load the time it should take, then reads without the right to store. */
  async function loadLater(
    call: Call,
    scope: Scope,
    ids: readonly Id[],
    token: string,
    values: Map<Id, Value>,
  ): Promise<void> {
    if (ids.length === 0) return;
    await untilAborted(new Promise<void>((resolve) => void after(WAIT_MS, resolve)), call.signal);
    const missing = await lookUp(call, scope, ids, token, values);
    await loadAndFill(call, scope, { ...missing, unowned: [...missing.unowned, ...missing.loading] }, token, values);
  }

  async function lookUp(
    call: Call,
    scope: Scope,
    ids: readonly Id[],
    token: string,
    values: Map<Id, Value>,
  ): Promise<Missing<Id>> {
    const results = await facts.lookUp(call.signal, scope, ids, token);
    const missing = { owned: [] as Id[], loading: [] as Id[], unowned: [] as Id[] };
    results.forEach((result, index) => {
      const id = ids[index] as Id;
      events.lookedUp(result.kind);
      switch (result.kind) {
        case 'hit':
          values.set(id, result.value);
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
    return missing;
  }

  async function loadAndFill(
    call: Call,
    scope: Scope,
    missing: Missing<Id>,
    token: string,
    values: Map<Id, Value>,
  ): Promise<void> {
    const wanted = [...missing.owned, ...missing.unowned];
    if (wanted.length === 0) return;
    const loaded = await parts.load(call, scope, wanted);
    for (const [id, value] of loaded) values.set(id, value);
    const entries = missing.owned.flatMap((id) => (loaded.has(id) ? [[id, loaded.get(id) as Value] as const] : []));
    for (const outcome of await facts.fill(call.signal, scope, token, entries)) events.filled(outcome);
  }
}

interface Missing<Id> {
  /** Our token stands there: what is loaded may be stored. */
  readonly owned: readonly Id[];
  readonly loading: readonly Id[];
  readonly unowned: readonly Id[];
}
