/**
 * Owns what a walk promises when something changes between two of its pages: the next page is what the truth says by then, strictly beyond the token, whoever has been hidden or shown
 * meanwhile; and the same token, asked again after the change was undone, gives back what it hid.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { composePostId } from '../../src/timeline/ids.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { eventually } from '../harness/eventually.ts';
import { createHeldEvents, type HeldEvents } from '../harness/held-events.ts';
import type { Cast } from '../harness/play.ts';
import { storeClass, storeFollows, storePosts } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { authorPages, homePages, type ReadPage, walkNewer, walkOlder, wholeHome } from '../harness/walk.ts';

const HOUR_MS = 3_600_000;
const MINUTE_MS = 60_000;
const EACH = 10;

let service: TestService;
let events: HeldEvents;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  service = await startTestService({ env: { TIMELINE_CAP: '16', TIMELINE_TRIM_STRIDE: '4' } });
  events = await createHeldEvents(service.database);
});
afterAll(() => service.stop());
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
});
afterEach(async () => {
  cached.close();
  await events.release();
});

interface Change {
  readonly script: string;
  /** What takes it back. */
  readonly undo: string;
  /** Time that passes before that. */
  readonly waitMs?: number;
}

const CHANGES: readonly Change[] = [
  { script: 'rita blocks ada', undo: 'rita unblocks ada; rita follows ada' },
  { script: 'ada blocks rita', undo: 'ada unblocks rita; rita follows ada' },
  { script: 'rita mutes ada', undo: 'rita unmutes ada' },
  { script: 'rita mutes ada for 1 hour', undo: '', waitMs: HOUR_MS },
  { script: 'rita unfollows ada', undo: 'rita follows ada' },
  { script: 'rita follows dan', undo: 'rita unfollows dan' },
  { script: 'ada is protected', undo: 'ada is open' },
  { script: 'ada is protected; ada removes follower rita', undo: 'ada is open; rita follows ada' },
  { script: 'ada is suspended', undo: 'ada is restored' },
  {
    script: 'moderation hides ada1; ada shows ada2 to followers; ben deletes ben3',
    undo: 'ada shows ada2 to everybody',
  },
];

/** Rita follows ada and ben, not dan; each has ten posts, taking turns, a minute between two. Answers a token from before all of them. */
async function scene(fanoutClass: 'push' | 'pull'): Promise<string> {
  await storeFollows(service.database, tenant.id, [
    ['rita', 'ada'],
    ['rita', 'ben'],
  ]);
  await storeClass(service.database, tenant.id, { authors: ['ada', 'dan'], fanoutClass });
  const { headToken } = await homePages(tenant, 'rita', 1)('');
  const firstMs = service.clock.nowMs() - 2 * HOUR_MS;
  const posts = Array.from({ length: 3 * EACH }, (_, at) => {
    const author = ['ada', 'ben', 'dan'][at % 3] ?? '';
    const postId = composePostId({ ms: firstMs + at * MINUTE_MS, generator: 100, sequence: 0 });
    cast.adopt(`${author}${Math.floor(at / 3) + 1}`, { postId: String(postId), author });
    return { author, postId };
  });
  await storePosts(service.database, tenant.id, posts);
  await cached.evictAll();
  // An instance may take its time to look at a list anew.
  const { home } = await tenant.oracle('rita');
  await eventually(async () => expect(await wholeHome(tenant, 'rita')).toEqual(home));
  return headToken;
}

const beyond = (ids: readonly string[], last: string, direction: 'older' | 'newer'): readonly string[] =>
  ids.filter((id) => (direction === 'older' ? Number(id) < Number(last) : Number(id) > Number(last)));

describe.each(['push', 'pull'] as const)('of authors of class %s', (fanoutClass) => {
  it.each(CHANGES)('"$script", and back: every walk goes on with what may be seen by then', async (change) => {
    const start = await scene(fanoutClass);
    const home: ReadPage = homePages(tenant, 'rita', 4);
    const down = await home('');
    const up = await home(start);
    const lists = await Promise.all(
      ['rita', 'zoe'].map(async (viewer) => ({ viewer, first: await authorPages(tenant, viewer, 'ada', 4)('') })),
    );
    expect([down, up, ...lists.map(({ first }) => first)].map((page) => page.ids.length)).toEqual([4, 4, 4, 4]);

    async function expectTheRest(): Promise<void> {
      const { home: all } = await tenant.oracle('rita');
      const older = await walkOlder((token) => home(token || down.nextPageToken), { pageSize: 4 });
      expect(older.ids).toEqual(beyond(all, down.ids.at(-1) ?? '', 'older'));
      // Also at another size than that of the page before.
      const newer = await walkNewer(up.nextPageToken, homePages(tenant, 'rita', 7), { pageSize: 7 });
      expect(newer.ids).toEqual([...beyond(all, up.ids.at(-1) ?? '', 'newer')].reverse());
      for (const { viewer, first } of lists) {
        const read = authorPages(tenant, viewer, 'ada', 3);
        const rest = await walkOlder((token) => read(token || first.nextPageToken), { pageSize: 3 });
        const list = (await tenant.oracle(viewer)).byAuthor('ada');
        expect(rest.ids).toEqual(beyond(list, first.ids.at(-1) ?? '', 'older'));
      }
    }

    // What holds with the answer to a change holds by that call alone.
    await events.hold();
    await cast.play(change.script);
    await expectTheRest();
    service.clock.advance(change.waitMs ?? 0);
    try {
      await cast.play(change.undo);
      await expectTheRest();
      await events.release();
      await service.settle();
      await cached.evictAll();
      await expectTheRest();
    } finally {
      service.clock.step(-(change.waitMs ?? 0));
    }
  });
});

it('a block in the middle of a walk empties the page that was to come, which is then the end', async () => {
  await cast.play('rita follows ada; ada posts 6 times as a');
  const first = await homePages(tenant, 'rita', 3)('');
  await cast.play('ada blocks rita');
  expect(await homePages(tenant, 'rita', 3)(first.nextPageToken)).toMatchObject({ ids: [], nextPageToken: '' });
  // Neither is there anything newer, and the badge does not count what no page shows.
  await cast.play('ada posts 2 times as b');
  await service.settle();
  const { newCount, newestPostId } = await tenant.timeline.getHomeHead({
    viewerId: 'rita',
    sinceToken: first.headToken,
  });
  expect([newCount, newestPostId]).toEqual([0, '']);
  expect((await homePages(tenant, 'rita', 3)(first.headToken)).ids).toEqual([]);
});
