/** Owns many resident timelines at once: made without a reader for each, and looked at as a whole. */
import { inject } from 'vitest';
import { createCache } from '../../src/store/redis/client.ts';
import { createKeys, type Keys } from '../../src/store/redis/keys.ts';
import { createTimelines } from '../../src/store/redis/timelines.ts';
import type { TenantId } from '../../src/timeline/ids.ts';
import { userId } from './service.ts';

export interface Residents {
  readonly keys: Keys;
  /** Ready and empty: right for viewers of whose authors nobody has posted yet. */
  make(viewers: readonly string[]): Promise<void>;
  /** What each timeline holds, oldest first; undefined for those that are not resident. */
  entries(viewers: readonly string[]): Promise<readonly (readonly string[] | undefined)[]>;
  close(): Promise<void>;
}

/** Calls under way at once. */
const TOGETHER = 500;

export async function openResidents(
  tenant: TenantId,
  { url = inject('servers').cacheUrl, shards = 256 }: { readonly url?: string; readonly shards?: number } = {},
): Promise<Residents> {
  const cache = createCache({
    urls: [url],
    cluster: false,
    commandTimeoutMs: 10_000,
    connectTimeoutMs: 10_000,
    clientFailed: () => undefined,
  });
  const signal = (): AbortSignal => AbortSignal.timeout(20_000);
  await cache.ready(signal());
  const keys = createKeys(shards);
  const timelines = createTimelines(cache, keys, { cap: 800, stride: 64, lifeMs: 600_000, rebuildLeaseMs: 5_000 });

  async function each<Result>(viewers: readonly string[], act: (viewer: string) => Promise<Result>) {
    const results: Result[] = [];
    for (let from = 0; from < viewers.length; from += TOGETHER)
      results.push(...(await Promise.all(viewers.slice(from, from + TOGETHER).map(act))));
    return results;
  }

  return {
    keys,
    async make(viewers) {
      await each(viewers, async (viewer) => {
        const of = { tenant, viewer: userId(viewer), token: 'made' };
        await timelines.begin(signal(), of);
        if (!(await timelines.commit(signal(), { ...of, floor: 0 }))) throw new Error(`${viewer} was resident before`);
      });
    },
    entries: (viewers) =>
      each(viewers, async (viewer) => {
        const query = { tenant, viewer: userId(viewer), direction: 'newer', position: 0, count: 1_000 } as const;
        const page = await timelines.page(signal(), query);
        return page.state === 'absent' ? undefined : page.ids.map(String);
      }),
    close: () => cache.close(),
  };
}
