/**
 * Owns loading counters through the cache. They are as old as a cached copy may be; nothing but what is shown depends on them. Requests of one turn ask together.
 */
import type { CachedPostCounts } from '../store/redis/post-counts.ts';
import type { PostId, TenantId } from '../timeline/ids.ts';
import type { PostCounts } from '../timeline/post.ts';
import { onPostgres, onRedis, type ReadCall, tellKinds } from './batches.ts';
import { createTurnReads, type TurnReadsParts } from './turn-reads.ts';

export interface CachedCountsParts {
  readonly cached: CachedPostCounts;
  /** Those of which a count is known. */
  readonly load: (call: ReadCall, postIds: readonly PostId[]) => Promise<ReadonlyMap<PostId, PostCounts>>;
  /** Longest life of a read that several wait for. */
  readonly limitMs: number;
  readonly events: TurnReadsParts<unknown, unknown, unknown>['events'] & {
    countsRead(result: 'hit' | 'miss' | 'error', keys: number): void;
    /** The next reader stores them. */
    notStored(error: unknown): void;
  };
}

/** Answers every post asked for; a count that is not known is absent. */
export type LoadCounts = (call: ReadCall, postIds: readonly PostId[]) => Promise<ReadonlyMap<PostId, PostCounts>>;

export function createCachedCounts({ cached, load, limitMs, events }: CachedCountsParts): LoadCounts {
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

  return (call, postIds) => readTogether(call, call.tenant, postIds);
}
