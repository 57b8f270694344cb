/**
 * Owns loading counters through the cache. They are as old as a cached copy may be; nothing but what is shown depends on them. Requests of one turn ask together.
 *
 * The process keeps what it read for a part of that time: a page of which all is warm then asks for nothing after its posts have been judged.
 */
import type { Clock } from '../runtime.ts';
import type { CachedPostCounts } from '../store/redis/post-counts.ts';
import type { PostId, TenantId } from '../timeline/ids.ts';
import type { PostCounts } from '../timeline/post.ts';
import { onPostgres, onRedis, type ReadCall, tellKinds } from './batches.ts';
import { createTurnReads, type TurnReadsParts } from './turn-reads.ts';

export interface CachedCountsParts {
  readonly cached: CachedPostCounts;
  readonly clock: Clock;
  /** Longest life of a copy of the process; 0 keeps none. */
  readonly ageMaxMs: number;
  /** Those of which a count is known. */
  readonly load: (call: ReadCall, postIds: readonly PostId[]) => Promise<ReadonlyMap<PostId, PostCounts>>;
  /** Longest life of a read that several wait for. */
  readonly limitMs: number;
  readonly events: TurnReadsParts<unknown, unknown, unknown>['events'] & {
    /** Of the process's own copies. */
    heldRead(result: 'hit' | 'miss', keys: number): void;
    countsRead(result: 'hit' | 'miss' | 'error', keys: number): void;
    /** The next reader stores them. */
    notStored(error: unknown): void;
  };
}

/** Answers every post asked for; a count that is not known is absent. */
export type LoadCounts = (call: ReadCall, postIds: readonly PostId[]) => Promise<ReadonlyMap<PostId, PostCounts>>;

/** Copies of a process, of some hundred bytes: when there are as many, it begins anew. */
const COPIES_MAX = 50_000;

export function createCachedCounts(parts: CachedCountsParts): LoadCounts {
  const { cached, clock, ageMaxMs, load, limitMs, events } = parts;
  /** All of one time, and over at one time, so that nothing has to be kept about each. */
  const copies = new Map<TenantId, Map<PostId, PostCounts>>();
  let count = 0;
  let overMs = 0;

  /** The copies that are still good. */
  function copiesOf(tenant: TenantId): Map<PostId, PostCounts> {
    const nowMs = clock.monotonicMs();
    if (nowMs >= overMs || count >= COPIES_MAX) {
      copies.clear();
      count = 0;
      overMs = nowMs + ageMaxMs;
    }
    let of = copies.get(tenant);
    if (!of) {
      of = new Map();
      copies.set(tenant, of);
    }
    return of;
  }

  const readTogether = createTurnReads<TenantId, PostId, PostCounts>({
    nameOf: (tenant) => tenant,
    tenantOf: (tenant) => tenant,
    read: (call, _tenant, postIds, found) => readCounts(call, postIds, found),
    limitMs,
    events,
  });

  async function readCounts(
    call: ReadCall,
    postIds: readonly PostId[],
    tell: (counts: ReadonlyMap<PostId, PostCounts>) => void,
  ): Promise<ReadonlyMap<PostId, PostCounts>> {
    const counts = new Map<PostId, PostCounts>();
    const found = await onRedis(call, () => cached.read(call.signal, call.tenant, postIds));
    tellKinds(found, events.countsRead);
    const missing = new Map<PostId, boolean>();
    found.forEach((result, index) => {
      const postId = postIds[index] as PostId;
      if (result.kind === 'hit') counts.set(postId, result.value);
      else missing.set(postId, result.kind !== 'error');
    });
    if (missing.size === 0) return counts;
    tell(counts);
    const ids = [...missing.keys()];
    const loaded = await onPostgres(call, () => load(call, ids));
    for (const id of ids) counts.set(id, loaded.get(id) ?? {});
    const toStore = ids.filter((id) => missing.get(id) === true).map((id) => [id, loaded.get(id)] as const);
    if (toStore.length > 0) {
      // Nobody waits for it.
      onRedis(call, () => cached.store(call.signal, call.tenant, toStore)).catch((error: unknown) => {
        if (!call.signal.aborted) events.notStored(error);
      });
    }
    return counts;
  }

  if (ageMaxMs === 0) return (call, postIds) => readTogether(call, call.tenant, postIds);

  return async function loadCounts(call, postIds) {
    const held = copiesOf(call.tenant);
    const untilMs = overMs;
    const counts = new Map<PostId, PostCounts>();
    const rest: PostId[] = [];
    for (const id of postIds) {
      const copy = held.get(id);
      if (copy) counts.set(id, copy);
      else rest.push(id);
    }
    if (counts.size > 0) events.heldRead('hit', counts.size);
    if (rest.length === 0) return counts;
    events.heldRead('miss', rest.length);
    for (const [id, value] of await readTogether(call, call.tenant, rest)) {
      counts.set(id, value);
      // Not into those of a later time, where they would outlive their own.
      if (overMs !== untilMs) continue;
      count += held.has(id) ? 0 : 1;
      held.set(id, value);
    }
    return counts;
  };
}
