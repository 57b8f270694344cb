/**
 * Owns the process's copies of what never changes under its version: bodies of posts, profiles of authors. They need no invalidation; meta, read anew by every request, names the version.
 * Bounded in bytes, the longest unused goes first. These copies are what keeps a hot body's key from being read by every request.
 *
 * Single flight: one read of Redis, and where that lacks it one of Postgres, for all who ask for a version at the same time. A read that fails is not remembered; one that does not settle is
 * dropped after its limit. What is under way is bounded by the calls under way.
 */
import { LRUCache } from 'lru-cache';
import type { Found, Version, Versioned } from '../store/redis/bodies.ts';
import type { TenantId } from '../timeline/ids.ts';
import { onPostgres, onRedis, type ReadCall, tellKinds } from './batches.ts';
import { createSharedLoad, type SharedLoad, type WaitsFor } from './shared-load.ts';

export interface VersionedCacheParts<Id, Value extends object, Row> {
  readonly store: Versioned<Id, Value>;
  /** Rows of those that exist. */
  readonly loadRows: (call: ReadCall, ids: readonly Id[]) => Promise<ReadonlyMap<Id, Row>>;
  /** What a row holds that may be kept, and under which version; undefined where there is nothing. */
  readonly heldBy: (row: Row) => (Version<Id> & { readonly value: Value }) | undefined;
  readonly bytesOf: (value: Value) => number;
  readonly bytesMax: number;
  /** Longest life of a read: no request waits longer. */
  readonly limitMs: number;
  readonly events: {
    /** Of the process's own copies. */
    heldRead(result: 'hit' | 'miss', keys: number): void;
    storeRead(result: Found<unknown>['kind'], keys: number): void;
    joined(keys: number): void;
    held(bytes: number): void;
    notStored(error: unknown): void;
  };
}

/** A value under the version that was asked for; a row where only Postgres had it, perhaps of a later version. */
export type FoundVersion<Value, Row> =
  | { readonly kind: 'value'; readonly value: Value }
  | { readonly kind: 'row'; readonly row: Row };

export interface VersionedCache<Id, Value extends object, Row> {
  /** What exists nowhere any more is absent. */
  read(call: ReadCall, wanted: readonly Version<Id>[]): Promise<ReadonlyMap<Id, FoundVersion<Value, Row>>>;
  /** What the process or Redis has under these versions; nothing is loaded. */
  readKnown(call: ReadCall, wanted: readonly Version<Id>[]): Promise<ReadonlyMap<Id, Value>>;
  /** Keeps what somebody loaded for other reasons, and stores it behind them. */
  keep(call: ReadCall, rows: Iterable<Row>): void;
  /** Bytes held, and reads under way. */
  size(): { readonly bytes: number; readonly underWay: number };
}

/** What an entry takes beside its value: key, list and map. */
const ENTRY_BYTES = 250;

export function createVersionedCache<Id extends string | number, Value extends object, Row>(
  parts: VersionedCacheParts<Id, Value, Row>,
): VersionedCache<Id, Value, Row> {
  type Answer = ReadonlyMap<Id, FoundVersion<Value, Row>>;
  const { store, events } = parts;
  const held = new LRUCache<string, Value>({
    // The library takes 0 for no bound; nothing is smaller than 1 byte.
    maxSize: Math.max(1, parts.bytesMax),
    sizeCalculation: (value) => ENTRY_BYTES + parts.bytesOf(value),
  });
  const flights = new Map<string, SharedLoad<Answer>>();
  const nameOf = (tenant: TenantId, { id, version }: Version<Id>): string => `${tenant}:${id}:${version}`;

  function hold(tenant: TenantId, version: Version<Id>, value: Value): void {
    held.set(nameOf(tenant, version), value);
    events.held(held.calculatedSize);
  }

  function keep(call: ReadCall, rows: Iterable<Row>): void {
    const values = [...rows].map(parts.heldBy).filter((value) => value !== undefined);
    if (values.length === 0) return;
    for (const { value, ...version } of values) hold(call.tenant, version, value);
    // Nobody waits for it; whoever asks Redis after this asks behind it on the same connection.
    onRedis(call, () => store.store(call.signal, call.tenant, values)).catch((error: unknown) => {
      if (!call.signal.aborted) events.notStored(error);
    });
  }

  async function load(
    call: ReadCall,
    wanted: readonly Version<Id>[],
    waitsFor: (reason: WaitsFor) => void,
  ): Promise<Answer> {
    const answer = new Map<Id, FoundVersion<Value, Row>>();
    const found = await onRedis(call, () => store.read(call.signal, call.tenant, wanted));
    tellKinds(found, events.storeRead);
    const missing = new Map<Id, boolean>();
    found.forEach((result, index) => {
      const version = wanted[index] as Version<Id>;
      if (result.kind === 'hit') {
        hold(call.tenant, version, result.value);
        answer.set(version.id, { kind: 'value', value: result.value });
      } else missing.set(version.id, result.kind !== 'error');
    });
    if (missing.size === 0) return answer;
    waitsFor('DATABASE_UNAVAILABLE');
    const rows = await onPostgres(call, () => parts.loadRows(call, [...missing.keys()]));
    for (const [id, row] of rows) answer.set(id, { kind: 'row', row });
    keep(
      call,
      [...rows].flatMap(([id, row]) => (missing.get(id) === true ? [row] : [])),
    );
    return answer;
  }

  /** One read for all of these; others find it until it settles. */
  function fly(call: ReadCall, wanted: readonly Version<Id>[]): SharedLoad<Answer> {
    const { tenant, batches } = call;
    const names = wanted.map((version) => nameOf(tenant, version));
    const flight = createSharedLoad(parts.limitMs, (signal, waitsFor) =>
      load({ tenant, signal, ...(batches && { batches }) }, wanted, waitsFor),
    );
    for (const name of names) flights.set(name, flight);
    void flight.settled.then(() => {
      for (const name of names) if (flights.get(name) === flight) flights.delete(name);
    });
    return flight;
  }

  return {
    async read(call, wanted) {
      const answer = new Map<Id, FoundVersion<Value, Row>>();
      const joined = new Map<SharedLoad<Answer>, Id[]>();
      const flown: Version<Id>[] = [];
      let joins = 0;
      for (const version of wanted) {
        const name = nameOf(call.tenant, version);
        const value = held.get(name);
        if (value) {
          answer.set(version.id, { kind: 'value', value });
          continue;
        }
        const flight = flights.get(name);
        if (flight?.isOpen()) {
          joins += 1;
          const ids = joined.get(flight);
          if (ids) ids.push(version.id);
          else joined.set(flight, [version.id]);
        } else flown.push(version);
      }
      if (answer.size > 0) events.heldRead('hit', answer.size);
      if (answer.size < wanted.length) events.heldRead('miss', wanted.length - answer.size);
      if (joins > 0) events.joined(joins);
      const waits = [...joined].map(([flight, ids]) => onRedis(call, () => take(flight, ids)));
      if (flown.length > 0) {
        const own = flown.map(({ id }) => id);
        waits.push(take(fly(call, flown), own));
      }
      await Promise.all(waits);
      return answer;

      async function take(flight: SharedLoad<Answer>, ids: readonly Id[]): Promise<void> {
        const found = await flight.join(call.signal);
        for (const id of ids) {
          const value = found?.get(id);
          if (value) answer.set(id, value);
        }
      }
    },

    async readKnown(call, wanted) {
      const known = new Map<Id, Value>();
      const rest: Version<Id>[] = [];
      for (const version of wanted) {
        const value = held.get(nameOf(call.tenant, version));
        if (value) known.set(version.id, value);
        else rest.push(version);
      }
      if (rest.length === 0) return known;
      const found = await onRedis(call, () => store.read(call.signal, call.tenant, rest));
      tellKinds(found, events.storeRead);
      found.forEach((result, index) => {
        if (result.kind === 'hit') known.set((rest[index] as Version<Id>).id, result.value);
      });
      return known;
    },

    keep,
    size: () => ({ bytes: held.calculatedSize, underWay: flights.size }),
  };
}
