/** Owns a cache client of a test: what it is connected to, tenants and tokens nobody else has, and a second connection that looks behind its back. */
import { randomUUID } from 'node:crypto';
import { Cluster, Redis } from 'ioredis';
import { type Cache, type CacheOptions, createCache } from '../../../src/store/redis/client.ts';
import { createKeys, type Keys } from '../../../src/store/redis/keys.ts';
import { createTimelines, type TimelineOptions, type Timelines } from '../../../src/store/redis/timelines.ts';
import {
  type PostId,
  parseTenantId,
  parseUserId,
  postIdFrom,
  type TenantId,
  type UserId,
} from '../../../src/timeline/ids.ts';

export interface CacheUnderTest {
  readonly cache: Cache;
  readonly keys: Keys;
  /** The same servers, by a client that knows nothing of ours. */
  readonly raw: Redis | Cluster;
  timelines(options: Partial<TimelineOptions>): Timelines;
  close(): Promise<void>;
}

/** Generous: a busy machine must not fail a test of something else. */
export const PATIENT: Pick<CacheOptions, 'commandTimeoutMs' | 'connectTimeoutMs' | 'clientFailed'> = {
  commandTimeoutMs: 20_000,
  connectTimeoutMs: 20_000,
  clientFailed: () => undefined,
};

export async function openCache(
  place: { readonly urls: readonly string[]; readonly cluster: boolean },
  options: Partial<CacheOptions> = {},
): Promise<CacheUnderTest> {
  const cache = createCache({ ...PATIENT, ...place, ...options });
  const [url = ''] = place.urls;
  const raw = place.cluster ? new Cluster([...place.urls]) : new Redis(url);
  raw.on('error', () => undefined);
  await cache.ready(soon());
  const keys = createKeys(256);
  return {
    cache,
    keys,
    raw,
    timelines: (timelineOptions) =>
      createTimelines(cache, keys, { cap: 800, stride: 64, lifeMs: 60_000, rebuildLeaseMs: 5_000, ...timelineOptions }),
    async close() {
      raw.disconnect();
      await cache.close();
    },
  };
}

/** A deadline that a working call never meets. */
export function soon(ms = 20_000): AbortSignal {
  return AbortSignal.timeout(ms);
}

export function newToken(): string {
  return randomUUID();
}

/** Keys begin with the tenant: a test that has its own sees nobody else's. */
export function newTenant(): TenantId {
  return tenant(`t-${randomUUID()}`);
}

export function tenant(text: string): TenantId {
  const parsed = parseTenantId(text);
  if (parsed === undefined) throw new Error(`not a tenant ID: ${text}`);
  return parsed;
}

export function user(text: string): UserId {
  const parsed = parseUserId(text);
  if (parsed === undefined) throw new Error(`not a user ID: ${text}`);
  return parsed;
}

export function ids(...numbers: readonly number[]): readonly PostId[] {
  return numbers.map(postIdFrom);
}
