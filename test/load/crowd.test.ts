/** Owns that a benchmark finds a post wherever a timeline keeps it, and nowhere else: a run that ends with "not delivered" must be right. */
import type { Redis } from 'ioredis';
import { afterAll, beforeAll, expect, inject, it } from 'vitest';
import { countHolders, filledIds, partsOf, viewerAt } from '../../load/bench/crowd.ts';
import { partSizesFor } from '../../src/store/redis/timeline-parts.ts';
import { type PostId, postIdFrom } from '../../src/timeline/ids.ts';
import { type CacheUnderTest, newTenant, newToken, openCache, soon } from '../store/redis/cache-under-test.ts';

const CAP = 800;
const SIZES = partSizesFor(CAP);
/** Enough for three parts. */
const POSTS = 3 * SIZES.entries + SIZES.keep;
const VIEWERS = [0, 1, 2].map(viewerAt);

let under: CacheUnderTest;
beforeAll(async () => {
  under = await openCache({ urls: [inject('servers').cacheUrl], cluster: false });
});
afterAll(() => under.close());

it('a post that was pushed is found in whatever part it is in by now, one that was not is not', async () => {
  const tenant = newTenant();
  const { keys, raw } = under;
  const timelines = under.timelines({ cap: CAP });
  const resident = VIEWERS.slice(0, 2);
  for (const viewer of resident) {
    const of = { tenant, viewer, token: newToken() };
    await timelines.begin(soon(), of);
    await timelines.commit(soon(), { ...of, floor: 0 });
  }
  const posts = filledIds(POSTS).toReversed();
  for (const postId of posts) await timelines.push(soon(), { tenant, postId, viewers: resident });
  const parts = await Promise.all(partsOf(keys, tenant, viewerAt(0)).map((key) => raw.zcard(key)));
  expect(parts.filter((members) => members > 0).length).toBeGreaterThan(2);

  const count = (postId: PostId) => countHolders(raw as Redis, { keys, tenant, postId, viewers: VIEWERS });
  for (const postId of [posts[0], posts[Math.floor(POSTS / 2)], posts.at(-1)])
    expect(await count(postId as PostId)).toMatchObject({ holders: 2, present: 2 });
  expect(await count(postIdFrom((posts.at(-1) as number) + 1))).toMatchObject({ holders: 0, present: 2 });
});
