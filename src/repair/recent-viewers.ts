/**
 * Owns who read their home lately in this process, so that it is known when the cache has lost it: a loss must not take along the list of what to bring back. Bounded by count; whoever has
 * not read for longest is forgotten first. Each process knows its own readers; together they know all, whatever a restart of one forgets.
 */
import { LRUCache } from 'lru-cache';
import type { Clock } from '../runtime.ts';
import type { TenantId, UserId } from '../timeline/ids.ts';

export interface RecentViewer {
  readonly tenant: TenantId;
  readonly viewer: UserId;
}

export interface RecentViewers {
  /** On every read: costs a look-up in a map. */
  readBy(tenant: TenantId, viewer: UserId): void;
  /** Who read within the last `activeMs`, the latest first. */
  active(): readonly RecentViewer[];
  count(): number;
}

export function createRecentViewers(parts: {
  readonly max: number;
  readonly activeMs: number;
  readonly clock: Pick<Clock, 'monotonicMs'>;
}): RecentViewers {
  const { clock, activeMs } = parts;
  const viewers = new LRUCache<string, RecentViewer & { atMs: number }>({ max: parts.max });
  return {
    readBy(tenant, viewer) {
      const name = `${tenant}:${viewer}`;
      const atMs = clock.monotonicMs();
      const known = viewers.get(name);
      if (known) known.atMs = atMs;
      else viewers.set(name, { tenant, viewer, atMs });
    },
    active() {
      const sinceMs = clock.monotonicMs() - activeMs;
      const found: RecentViewer[] = [];
      for (const one of viewers.values()) {
        if (one.atMs < sinceMs) break;
        found.push(one);
      }
      return found;
    },
    count: () => viewers.size,
  };
}
