/** Owns the promise that commands of one turn of the event loop reach Redis together, on one server and on every node of a cluster, and that none is kept back. */
import { Redis } from 'ioredis';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { openCache, soon } from './cache-under-test.ts';
import { type OwnRedis, startOwnRedis } from './own-redis.ts';

let own: OwnRedis;
beforeAll(async () => {
  own = await startOwnRedis();
});
afterAll(() => own.stop());

/** Reads from sockets so far, of all connections. */
async function readsOf(redis: Redis): Promise<number> {
  const reads = /^total_reads_processed:(\d+)/m.exec(await redis.info('stats'))?.[1];
  if (reads === undefined) throw new Error('Redis does not count its reads');
  return Number(reads);
}

describe('commands', () => {
  it('of one turn reach the server together, whatever verbs they are of', async () => {
    const under = await openCache({ urls: [own.server.url], cluster: false });
    const observer = new Redis(own.server.url);
    try {
      const { cache } = under;
      // The script is there from then on: a server that lacks it is asked twice.
      await cache.run(soon(), 'page', ['k'], ['older', 1, 1, 1, 1]);
      const before = await readsOf(observer);
      await Promise.all(
        Array.from({ length: 40 }, (_, index) =>
          index % 2 === 0
            ? cache.read(soon(), [`k${index}`])
            : cache.run(soon(), 'page', [`k${index}`], ['older', 1, 1, 1, 1]),
        ),
      );
      // One for the commands and one for the question; a busy machine may bring a write in pieces.
      expect((await readsOf(observer)) - before).toBeLessThan(8);
    } finally {
      observer.disconnect();
      await under.close();
    }
  });

  it('of a turn of their own go out with it: each is answered before the next is sent', async () => {
    const under = await openCache({ urls: [own.server.url], cluster: false });
    try {
      for (let index = 0; index < 20; index += 1) {
        expect(await under.cache.read(soon(), [`alone:${index}`])).toEqual([{ value: undefined }]);
      }
    } finally {
      await under.close();
    }
  });
});
