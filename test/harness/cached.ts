/** Owns looking into the cache, and taking from it what an eviction would take, behind the product's back: the keys of one tenant, by kind. */
import { Redis } from 'ioredis';
import { inject } from 'vitest';

/** By the first part of a key: timelines, lists of pulled authors, who is pulled, relations, meta and bodies of posts, states and profiles of authors, counters. */
export type CachedKind = 'tl' | 'al' | 'pull' | 'rel' | 'pm' | 'pb' | 'am' | 'ap' | 'pc';

export interface Cached {
  /** Evicts every key of these kinds. */
  evict(...kinds: readonly CachedKind[]): Promise<void>;
  /** Evicts every key that there is. */
  evictAll(): Promise<void>;
  /** Entries of a resident timeline, newest first; undefined where it is absent. */
  entries(viewer: string): Promise<readonly string[] | undefined>;
  /** Takes an entry from a resident timeline and puts one there, as no script of ours would. */
  corrupt(viewer: string, change: { readonly without?: string; readonly with?: string }): Promise<void>;
  /** As if the rebuild that is under way had begun a day ago, and so longer ago than any lease. */
  ageRebuild(viewer: string): Promise<void>;
  close(): void;
}

const DAY_MS = 86_400_000;

/** In the cache that every test service has, or in that at `url`. */
export function openCached(tenant: string, url = inject('servers').cacheUrl): Cached {
  const redis = new Redis(url);

  async function find(pattern: string): Promise<readonly string[]> {
    const keys: string[] = [];
    for await (const found of redis.scanStream({ match: pattern, count: 1_000 })) keys.push(...(found as string[]));
    return keys;
  }
  async function remove(keys: readonly string[]): Promise<void> {
    if (keys.length > 0) await redis.del(...keys);
  }

  return {
    async evict(...kinds) {
      for (const kind of kinds) await remove(await find(`${kind}:{*}:${tenant}:*`));
    },
    evictAll: async () => remove(await find(`*:{*}:${tenant}:*`)),
    async entries(viewer) {
      const [head] = await find(`tl:{*}:${tenant}:${viewer}`);
      if (head === undefined) return undefined;
      const entries: string[] = [];
      for (let key: string | undefined = head; key !== undefined; ) {
        const members: string[] = await redis.zrange(key, '0', '-1');
        // The last member is the state, which names the part that the timeline goes on in.
        const link = /^r(\d+):/.exec(members.pop() ?? '')?.[1];
        entries.push(...members);
        key = link === undefined ? undefined : `${head}:${link}`;
      }
      return entries;
    },
    async corrupt(viewer, change) {
      const [key = ''] = await find(`tl:{*}:${tenant}:${viewer}`);
      if (change.without !== undefined && (await redis.zrem(key, change.without)) !== 1)
        throw new Error(`the timeline of ${viewer} has no entry ${change.without}`);
      if (change.with !== undefined) await redis.zadd(key, `-${change.with}`, change.with);
    },
    async ageRebuild(viewer) {
      const [key = ''] = await find(`tl:{*}:${tenant}:${viewer}`);
      const [state = '', floor = ''] = await redis.zrange(key, '-1', '-1', 'WITHSCORES');
      const [, token, since] = /^b(.*):(\d+)$/.exec(state) ?? [];
      if (token === undefined) throw new Error(`nobody rebuilds the timeline of ${viewer}`);
      await redis
        .multi()
        .zrem(key, state)
        .zadd(key, floor, `b${token}:${Number(since) - DAY_MS}`)
        .exec();
    },
    close: () => redis.disconnect(),
  };
}
