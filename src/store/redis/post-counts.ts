/**
 * Owns the cached counters of posts: `pc:`, one short text for each, a hash being no help while all of them are read together. They are shown and decide nothing, and are folded in batches
 * anyway; so nothing deletes them, and a short life is what keeps them true.
 */
import type { TributaryError } from '../../errors.ts';
import type { PostId, TenantId } from '../../timeline/ids.ts';
import type { PostCounts } from '../../timeline/post.ts';
import type { Cache } from './client.ts';
import type { Keys } from './keys.ts';

export type FoundCounts =
  | { readonly kind: 'hit'; readonly value: PostCounts }
  | { readonly kind: 'miss' }
  | { readonly kind: 'error'; readonly error: TributaryError };

export interface CachedPostCounts {
  /** One result for each, in order. */
  read(signal: AbortSignal, tenant: TenantId, postIds: readonly PostId[]): Promise<readonly FoundCounts[]>;
  /** A post of which no count is known is stored as such. */
  store(
    signal: AbortSignal,
    tenant: TenantId,
    counts: readonly (readonly [PostId, PostCounts | undefined])[],
  ): Promise<void>;
}

export function createCachedPostCounts(
  cache: Cache,
  keys: Keys,
  options: { readonly lifeMs: number; readonly random: () => number },
): CachedPostCounts {
  return {
    async read(signal, tenant, postIds) {
      const results = await cache.read(
        signal,
        postIds.map((postId) => keys.postCounts(tenant, postId)),
      );
      return results.map((result): FoundCounts => {
        if ('error' in result) return { kind: 'error', error: result.error };
        const value = decode(result.value);
        return value === undefined ? { kind: 'miss' } : { kind: 'hit', value };
      });
    },
    store: (signal, tenant, counts) =>
      cache.write(
        signal,
        counts.map(([postId, value]) => ({ key: keys.postCounts(tenant, postId), value: encode(value) })),
        // Those that are stored together do not end together.
        Math.max(1, Math.floor(options.lifeMs * (1 - options.random() / 5))),
      ),
  };
}

/** Reposts, a comma, replies; nothing for what is not known. */
function encode(counts: PostCounts | undefined): string {
  return `${counts?.reposts ?? ''},${counts?.replies ?? ''}`;
}

function decode(value: unknown): PostCounts | undefined {
  const match = Buffer.isBuffer(value) ? /^(\d{0,15}),(\d{0,15})$/.exec(value.toString('latin1')) : null;
  if (!match) return undefined;
  const [, reposts, replies] = match;
  return { ...(reposts && { reposts: Number(reposts) }), ...(replies && { replies: Number(replies) }) };
}
