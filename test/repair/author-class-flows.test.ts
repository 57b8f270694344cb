/**
 * Owns what readers see while authors change class, through the whole service: nothing twice, nothing missing, whenever a post was published and whatever the cache has lost. The thresholds
 * are 3 and 2 followers.
 */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { type Cached, openCached } from '../harness/cached.ts';
import { eventually } from '../harness/eventually.ts';
import type { Cast } from '../harness/play.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { homePages, walkNewer, walkOlder, wholeHome } from '../harness/walk.ts';

/** With them an author stays in BOTH for some three and a half seconds. */
const SHORT_WAIT = {
  AUTHOR_PULL_UP: '3',
  AUTHOR_PULL_DOWN: '2',
  AUTHOR_CLASS_EVERY_MS: '20',
  PULLED_LIFE_MS: '100',
  FACT_LOAD_LEASE_MS: '300',
  READ_DEADLINE_DEFAULT_MS: '2000',
  READ_DEADLINE_MAX_MS: '2000',
  REBUILD_LEASE_MS: '1000',
  DATABASE_STATEMENT_TIMEOUT_MS: '1000',
  TIMELINE_CAP: '30',
  TIMELINE_TRIM_STRIDE: '4',
  FANOUT_FOLLOWER_PAGE: '2',
};
/** The whole way up or down, on a busy machine. */
const PATIENCE = { timeoutMs: 60_000, everyMs: 50 };

let service: TestService;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  service = await startTestService({ env: SHORT_WAIT });
});
afterAll(() => service.stop());
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
});
afterEach(() => cached.close());

type Class = 'push' | 'both>pull' | 'pull' | 'both>push';

async function classOf(author: string): Promise<Class> {
  const [row] = await service.database.sql<{ fanout_class: 'push' | 'both' | 'pull'; class_target: 'push' | 'pull' }>(
    'SELECT fanout_class, class_target FROM authors WHERE tenant_id = $1 AND author_id = $2',
    [tenant.id, author],
  );
  if (!row) return 'push';
  return row.fanout_class === 'both' ? `both>${row.class_target}` : row.fanout_class;
}

/** Lets the time between pass at once: what was cached of who is pulled is gone, and the change is an hour old. Only while nobody reads. */
async function passTime(): Promise<void> {
  await cached.evict('pull');
  await service.database.sql(
    "UPDATE authors SET class_changed_at = class_changed_at - interval '1 hour' WHERE tenant_id = $1 AND fanout_class = 'both'",
    [tenant.id],
  );
}

/** Waits for a class, letting time pass where there is need. */
async function reach(author: string, wanted: Class): Promise<void> {
  await eventually(async () => {
    const now = await classOf(author);
    if (now === wanted) return;
    if (now === 'both>pull' || now === 'both>push') await passTime();
    throw new Error(`${author} is ${now} and not ${wanted}`);
  }, PATIENCE);
}

/** Everybody's home is what the oracle sees, walked down in small pages. */
async function expectHomes(...viewers: readonly string[]): Promise<void> {
  await service.settle();
  for (const viewer of viewers) {
    const seen = (await wholeHome(tenant, viewer, 4)).map(cast.labelOf);
    expect(seen, viewer).toEqual((await tenant.oracle(viewer)).home.map(cast.labelOf));
  }
}

describe('an author who becomes large and ordinary again, in real time', () => {
  it('is on every page once, with the posts of every time and of the moments of change, also while a viewer walks', async () => {
    await cast.play('rita follows ada, ben; ruth follows ada; ben posts 6 times as b; ada posts 12 times as a');
    await expectHomes('rita', 'ruth');
    const seenIn = new Map<Class, number>();
    let posts = 0;
    const post = async (): Promise<void> => {
      posts += 1;
      await cast.play(`ada posts "${posts}" as p${posts}`);
    };

    /** Publishes, walks down while more is published, and walks up to what came meanwhile, until the class is the wanted one. */
    async function walkUntil(wanted: Class): Promise<void> {
      await eventually(async () => {
        await post();
        await service.settle();
        const before = await classOf('ada');
        seenIn.set(before, (seenIn.get(before) ?? 0) + 1);
        const expected = (await tenant.oracle('rita')).home;
        const walk = await walkOlder(homePages(tenant, 'rita', 5), {
          pageSize: 5,
          between: (pages) => (pages === 2 ? post() : Promise.resolve()),
        });
        expect(walk.ids.map(cast.labelOf)).toEqual(expected.map(cast.labelOf));
        await service.settle();
        const newer = await walkNewer(walk.headToken, homePages(tenant, 'rita', 5), { pageSize: 5 });
        const now = (await tenant.oracle('rita')).home;
        expect([...newer.ids].sort()).toEqual(now.filter((id) => !expected.includes(id)).sort());
        if ((await classOf('ada')) !== wanted) throw new Error(`not yet ${wanted}`);
      }, PATIENCE);
    }

    await cast.play('sam follows ada');
    await walkUntil('pull');
    await walkUntil('pull');
    await cast.play('sam unfollows ada');
    await walkUntil('push');
    await walkUntil('push');
    expect([...seenIn.keys()]).toEqual(expect.arrayContaining(['push', 'both>pull', 'pull', 'both>push']));
    await expectHomes('rita', 'ruth', 'sam');

    const changed = service.logLines.filter((line) => line.includes('changed class') && line.includes(tenant.id));
    expect(changed.map((line) => JSON.parse(line)).map(({ from, to }) => `${from} ${to}`)).toEqual([
      'push both',
      'both pull',
      'pull both',
      'both push',
    ]);
  }, 200_000);
});

describe('in every class and on the way', () => {
  const WAY: readonly { readonly play?: string; readonly to: Class }[] = [
    { play: 'rita follows ada', to: 'push' },
    { play: 'ruth follows ada; sam follows ada', to: 'both>pull' },
    { to: 'pull' },
    { play: 'sam unfollows ada', to: 'both>push' },
    { to: 'push' },
  ];

  it('homes are right when all of the cache is lost', async () => {
    await cast.play('rita follows ben; ben posts 3 times as b');
    for (const [step, { play, to }] of WAY.entries()) {
      if (play !== undefined) await cast.play(play);
      await reach('ada', to);
      await cast.play(`ada posts 10 times as s${step}x`);
      await expectHomes('rita', 'ruth', 'sam');
      await cached.evictAll();
      await expectHomes('rita', 'ruth', 'sam');
      await cast.play(`ada posts 2 times as s${step}y; ada deletes s${step}x3`);
      await expectHomes('rita', 'ruth', 'sam');
    }
  }, 200_000);
});

describe('on the way down', () => {
  it('timelines get back what they lack: of one who joined, and of one that was rebuilt, while the author was pulled', async () => {
    await cast.play('rita follows ada; ruth follows ada; sam follows ada; ada posts 3 times as a');
    await reach('ada', 'pull');
    await expectHomes('rita', 'ruth', 'sam');
    await cast.play('ada posts 4 times as b');
    await cached.evict('tl');
    await expectHomes('rita', 'tess');
    await cast.play('tess follows ada');
    await expectHomes('tess');
    // Nothing of a pulled author is put into timelines.
    expect(await cached.entries('rita')).toEqual([]);
    expect(await cached.entries('tess')).toEqual([]);
    await cast.play('ruth unfollows ada; sam unfollows ada');
    await reach('ada', 'push');
    await service.settle();
    const posts = [...cast.ids('a1', 'a2', 'a3', 'b1', 'b2', 'b3', 'b4')].reverse();
    expect(await cached.entries('rita')).toEqual(posts);
    expect(await cached.entries('tess')).toEqual(posts);
    await cached.evict('al', 'pull');
    await expectHomes('rita', 'tess', 'ruth', 'sam');
    const metrics = await service.service.metrics.exposition();
    expect(metrics.body).toMatch(/tributary_class_backfilled_total\{what="entries"\} [1-9]/);
    expect(metrics.body).toMatch(/tributary_author_class_changes_total\{from="both",to="push",cause="settled"\} [1-9]/);
  }, 200_000);
});

describe('a follow that is toggled fifty times', () => {
  it.each(['follows', 'unfollows'] as const)(
    'across the threshold settles: at last sam %s',
    async (last) => {
      await cast.play('rita follows ada; ruth follows ada; ada posts 5 times as a');
      await expectHomes('rita', 'sam');
      for (let toggle = 0; toggle < 25; toggle += 1) {
        await cast.play('sam follows ada');
        if (toggle % 5 === 0) await cast.play(`ada posts "t${toggle}" as t${toggle}`);
        await cast.play('sam unfollows ada');
      }
      if (last === 'follows') await cast.play('sam follows ada');
      await expectHomes('rita', 'ruth', 'sam');
      await eventually(async () => {
        const [row] = await service.database.sql<{ follower_count: number }>(
          "SELECT follower_count FROM authors WHERE tenant_id = $1 AND author_id = 'ada'",
          [tenant.id],
        );
        expect(row?.follower_count).toBe(last === 'follows' ? 3 : 2);
      }, PATIENCE);
      await reach('ada', last === 'follows' ? 'pull' : 'push');
      await cast.play('ada posts 2 times as z');
      await expectHomes('rita', 'ruth', 'sam');
    },
    120_000,
  );
});
