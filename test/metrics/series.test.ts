/** Owns the bound on time series: no user, no post and no viewer is a label. */
import { afterAll, beforeAll, expect, it } from 'vitest';
import { composePostId, postIdFrom } from '../../src/timeline/ids.ts';
import { storePosts } from '../harness/rows.ts';
import { startTestService, type TestService, userId } from '../harness/service.ts';

const COUNT = 10_000;

let service: TestService;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(() => service.stop());

async function scrape(): Promise<string> {
  return (await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`)).text();
}

const seriesIn = (text: string): number =>
  text.split('\n').filter((line) => line !== '' && !line.startsWith('#')).length;

it('10,000 posts by as many authors, read by 200 viewers, add fewer than 50 series, and the page stays below 200 kB', {
  timeout: 120_000,
}, async () => {
  const tenant = await service.tenant();
  const first = composePostId({ ms: Date.now() - 3_600_000, generator: 104, sequence: 0 });
  const posts = Array.from({ length: COUNT }, (_, at) => ({ author: `author-${at}`, postId: first + at * 4_096 }));
  await storePosts(service.database, tenant.id, posts);
  const { flows } = service.service;
  const readHome = (viewer: string) =>
    flows.home.page(tenant.call(), { viewer: userId(viewer), pageSize: 5, pageToken: '' });
  const readBatch = (viewer: string, from: number) =>
    flows.posts.batch(tenant.call(), {
      viewer: userId(viewer),
      postIds: posts.slice(from, from + 50).map(({ postId }) => postIdFrom(postId)),
    });
  // Each kind of call once, so that its own series are there.
  await tenant.posts.publishPost({ authorId: 'ada', text: 'hi', visibility: 1 });
  await tenant.graph.follow({ followerId: 'nobody', followeeId: 'ada' });
  for (let round = 0; round < 2; round += 1) {
    await readHome('nobody');
    await readBatch('nobody', 0);
  }
  await service.settle();
  const before = seriesIn(await scrape());

  const rest = Array.from({ length: 200 }, (_, at) => at).values();
  async function readOn(): Promise<void> {
    for (const at of rest) {
      const { views } = await readBatch(`viewer-${at}`, at * 50);
      expect(views).toHaveLength(50);
      if (at % 5 === 0) await readHome(`viewer-${at}`);
      if (at % 10 === 0) await tenant.graph.follow({ followerId: `viewer-${at}`, followeeId: `author-${at}` });
    }
  }
  await Promise.all(Array.from({ length: 8 }, readOn));
  await service.settle();

  const text = await scrape();
  expect(seriesIn(text) - before).toBeLessThan(50);
  expect(text.length).toBeLessThan(200_000);
});
