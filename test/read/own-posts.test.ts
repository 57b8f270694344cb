/** Owns what authors see of their own: all of it, for ever, however their timeline comes about and whoever they stand against; and not what nobody may see. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { type Cached, openCached } from '../harness/cached.ts';
import { eventually } from '../harness/eventually.ts';
import { type Cast, labels } from '../harness/play.ts';
import { storeClass } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { wholeAuthorList, wholeHome } from '../harness/walk.ts';

let service: TestService;
let tenant: TestTenant;
let cast: Cast;
let cached: Cached;
beforeAll(async () => {
  service = await startTestService({ env: { TIMELINE_CAP: '6', TIMELINE_TRIM_STRIDE: '2' } });
});
afterAll(() => service.stop());
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  cached = openCached(tenant.id);
});
afterEach(() => cached.close());

const down = (...some: readonly string[]): readonly string[] => [...cast.ids(...some)].reverse();

/** What a viewer's home shows, with what is shown inside each. */
async function homeOf(viewerId: string): Promise<readonly string[]> {
  const { entries } = await tenant.timeline.getHomeTimeline({ viewerId, pageSize: 100 });
  return entries.map((view) => {
    const inner = view.replyTo ?? view.repostOf;
    const label = cast.labelOf(view.post?.postId ?? '');
    return inner ? `${label} with ${cast.labelOf(inner.postId)}` : label;
  });
}

/** Now, and once nothing is cached. */
async function expectHome(viewer: string, ...due: readonly string[]): Promise<void> {
  expect(await homeOf(viewer)).toEqual(due);
  await service.settle();
  await cached.evictAll();
  expect(await homeOf(viewer)).toEqual(due);
  const { home } = await tenant.oracle(viewer);
  expect(home.map((postId) => cast.labelOf(postId))).toEqual(due.map((entry) => entry.split(' ')[0]));
}

describe.each(['push', 'pull'] as const)('an author of class %s', (fanoutClass) => {
  it('sees posts for nobody at every depth of home, once each, and followers see none of them', async () => {
    await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass });
    await cast.play('rita follows ada');
    await homeOf('ada');
    await homeOf('rita');
    const all: string[] = [];
    for (let round = 0; round < 4; round += 1) {
      await cast.play(`ada posts 3 times to nobody as s${round}-; ada posts 2 times as o${round}-`);
      all.push(...labels(`s${round}-`, 3), ...labels(`o${round}-`, 2));
    }
    await service.settle();
    const others = down(...all.filter((label) => label.startsWith('o')));
    // An instance may take its time to look at a list anew.
    await eventually(async () => expect(await wholeHome(tenant, 'rita')).toEqual(others));
    for (const cold of [false, true]) {
      if (cold) await cached.evictAll();
      for (const pageSize of [3, 50]) {
        expect(await wholeHome(tenant, 'ada', pageSize)).toEqual(down(...all));
        expect(await wholeAuthorList(tenant, 'ada', 'ada', pageSize)).toEqual(down(...all));
        expect(await wholeHome(tenant, 'rita', pageSize)).toEqual(others);
        expect(await wholeAuthorList(tenant, 'rita', 'ada', pageSize)).toEqual(others);
      }
    }
    expect((await tenant.timeline.getHomeHead({ viewerId: 'ada' })).newCount).toBe(all.length);
  });
});

describe('what an author made of their own post', () => {
  it('stays without it when that is deleted, but for a plain repost, which is nothing then', async () => {
    await cast.play(`rita follows ada; ada posts "x" as post; ada replies to post "more" as reply; ada quotes post "see" as quote
      ada reposts post as repost; ada reposts quote as again`);
    await service.settle();
    const whole = ['again with quote', 'repost with post', 'quote with post', 'reply with post', 'post'];
    for (const viewer of ['ada', 'rita']) await expectHome(viewer, ...whole);
    await cast.play('ada deletes post');
    for (const viewer of ['ada', 'rita']) await expectHome(viewer, 'again with quote', 'quote', 'reply');
    await cast.play('ada deletes quote');
    for (const viewer of ['ada', 'rita']) await expectHome(viewer, 'reply');
  });

  it('shows others nothing of what was for nobody, and the author all', async () => {
    await cast.play(
      'rita follows ada; ada posts "x" to nobody as post; ada replies to post "more" as reply; ada reposts post as repost; ada quotes post "see" to followers as quote',
    );
    await service.settle();
    await expectHome('ada', 'quote with post', 'repost with post', 'reply with post', 'post');
    await expectHome('rita', 'quote', 'reply');
    await cast.play('ada shows post to everybody');
    await service.settle();
    await expectHome('rita', 'quote with post', 'repost with post', 'reply with post', 'post');
    await cast.play('ada shows post to nobody');
    await expectHome('rita', 'quote', 'reply');
    await expectHome('ada', 'quote with post', 'repost with post', 'reply with post', 'post');
  });
});

describe('one’s own answer', () => {
  it.each(['rita blocks ada', 'ada blocks rita', 'rita mutes ada', 'ada is protected', 'ada is suspended'])(
    'stays on home, without what it answers, when "%s"',
    async (script) => {
      await cast.play(
        'ada posts "x" as post; rita replies to post "y" as reply; rita quotes post "z" as quote; rita reposts post as repost',
      );
      await service.settle();
      await expectHome('rita', 'repost with post', 'quote with post', 'reply with post');
      await cast.play(script);
      await expectHome('rita', 'quote', 'reply');
    },
  );
});

describe('what nobody may see', () => {
  it('its author does not see either: a post that moderation hides, and all posts while suspended; others’ they do', async () => {
    await cast.play('ada follows ben; ben posts "b" as b1; ada posts "a" as a1; ada replies to b1 "too" as a2');
    await service.settle();
    await cast.play('moderation hides a1');
    await expectHome('ada', 'a2 with b1', 'b1');
    await cast.play('ada is suspended');
    await expectHome('ada', 'b1');
    expect(await wholeAuthorList(tenant, 'ada', 'ada')).toEqual([]);
    await cast.play('ada is restored; moderation clears a1');
    await service.settle();
    await expectHome('ada', 'a2 with b1', 'a1', 'b1');
  });
});
