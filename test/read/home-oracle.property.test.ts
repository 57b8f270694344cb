/**
 * Owns the law of reading: whatever happened, what a viewer is shown equals what the oracle works out from Postgres alone, walking to
 * older and to newer entries, at every page size, on home, author lists and single reads, and one tenant never shows in another.
 *
 * Random histories by five users in two tenants that use the same user IDs. A failure prints its seed and its history at once;
 * `TRIBUTARY_PROPERTY_SEED` runs it again and looks for a shorter one. `TRIBUTARY_PROPERTY_RUNS` sets the number of histories.
 */
import assert from 'node:assert/strict';
import fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import type { PostView } from '../../src/read/page.ts';
import type { PostId, UserId } from '../../src/timeline/ids.ts';
import { LIMITS } from '../../src/timeline/limits.ts';
import { type ModerationState, VISIBILITIES } from '../../src/timeline/post.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { type ReadPage, walkNewer, walkOlder } from '../harness/walk.ts';

const RUNS = Number(process.env['TRIBUTARY_PROPERTY_RUNS'] ?? 30);
const SEED = process.env['TRIBUTARY_PROPERTY_SEED'];
const STEPS = { minLength: 60, maxLength: 140 };
const PAGE_SIZES = [1, 2, 50] as const;
const USERS = ['ada', 'ben', 'cyd', 'dan', 'eve'].map(userId);
/** Refusals that a random history meets by right. */
const EXPECTED = new Set(['POST_NOT_FOUND', 'TARGET_NOT_FOUND', 'BLOCKED', 'AUTHOR_SUSPENDED', 'POST_KIND_FIXED']);

/** Plain objects, which print in one line. */
const record = <Fields extends object>(
  fields: { [Key in keyof Fields]: fc.Arbitrary<Fields[Key]> },
): fc.Arbitrary<Fields> => fc.record<Fields>(fields, { noNullPrototype: true }) as fc.Arbitrary<Fields>;
const user = fc.constantFrom(...USERS);
const pair = record({ from: user, to: user }).filter(({ from, to }) => from !== to);
/** A post by its place in the tenant's history, counted from the newest. */
const nthPost = fc.nat({ max: 11 });
const visibility = fc.constantFrom('public', 'public', ...VISIBILITIES);

const step = fc.oneof(
  {
    weight: 24,
    arbitrary: record({
      kind: fc.constant('publish'),
      who: user,
      link: fc.constantFrom('none', 'none', 'reply', 'repost', 'repost', 'quote'),
      nth: nthPost,
      visibility,
    }),
  },
  { weight: 10, arbitrary: record({ kind: fc.constant('follow'), pair }) },
  {
    weight: 5,
    arbitrary: record({
      kind: fc.constantFrom('unfollow', 'removeFollower', 'block', 'unblock', 'unblock', 'mute', 'unmute', 'unmute'),
      pair,
    }),
  },
  { weight: 2, arbitrary: record({ kind: fc.constant('muteForMs'), pair, ms: fc.integer({ min: 1, max: 40 }) }) },
  { weight: 1, arbitrary: record({ kind: fc.constant('pass'), ms: fc.integer({ min: 1, max: 60 }) }) },
  { weight: 1, arbitrary: record({ kind: fc.constant('delete'), nth: nthPost }) },
  {
    weight: 2,
    arbitrary: record({
      kind: fc.constant('edit'),
      nth: nthPost,
      text: fc.option(fc.constantFrom('new', 'newer'), { nil: undefined }),
      visibility,
    }),
  },
  {
    weight: 2,
    arbitrary: record({
      kind: fc.constant('moderate'),
      nth: nthPost,
      state: fc.constantFrom<ModerationState[]>('hidden', 'sensitive', 'clear', 'clear'),
    }),
  },
  { weight: 2, arbitrary: record({ kind: fc.constantFrom('suspend', 'restore', 'restore'), who: user }) },
  { weight: 1, arbitrary: record({ kind: fc.constant('putAuthor'), who: user, protected: fc.boolean() }) },
  { weight: 2, arbitrary: record({ kind: fc.constant('takeHead'), who: user, size: fc.constantFrom(...PAGE_SIZES) }) },
  {
    weight: 2,
    arbitrary: record({
      kind: fc.constant('readNewer'),
      nth: fc.nat({ max: 3 }),
      size: fc.constantFrom(...PAGE_SIZES),
    }),
  },
  { weight: 2, arbitrary: record({ kind: fc.constant('check'), who: user, size: fc.constantFrom(...PAGE_SIZES) }) },
);
type Step = typeof step extends fc.Arbitrary<infer Given> ? Given : never;
/** Most happens in the first tenant, so that its timelines grow; the other is there to show through where it must not. */
const tenant = fc.constantFrom(0, 0, 0, 1);
const history = fc.array(record({ tenant, step }), { ...STEPS, size: 'max' });

/** A head token somebody holds, with all they were shown on the way to it. */
interface Head {
  readonly viewer: UserId;
  readonly token: string;
  readonly shown: ReadonlySet<string>;
}

interface World {
  readonly tenant: TestTenant;
  readonly posts: { readonly id: PostId; readonly author: UserId }[];
  readonly heads: Head[];
}

let service: TestService;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(() => service.stop());

it('shows on every walk exactly what the oracle sees', { timeout: 600_000 }, async () => {
  await fc.assert(
    fc.asyncProperty(history, async (steps) => {
      const worlds: World[] = [];
      for (let at = 0; at < 2; at += 1) worlds.push({ tenant: await service.tenant(), posts: [], heads: [] });
      for (const { tenant, step: next } of steps) {
        const world = worlds[tenant];
        if (world) await perform(world, next);
      }
      for (const world of worlds) {
        for (const viewer of USERS) await checkViewer(world, viewer, PAGE_SIZES);
        for (let at = 0; at < world.heads.length; at += 1) await readNewer(world, at, 2);
      }
      await checkApart(worlds);
    }),
    SEED === undefined ? { numRuns: RUNS, endOnFailure: true } : { numRuns: RUNS, seed: Number(SEED) },
  );
});

async function perform(world: World, next: Step): Promise<void> {
  try {
    await act(world, next);
  } catch (error) {
    if (!(error instanceof TributaryError && EXPECTED.has(error.reason))) throw error;
  }
}

async function act(world: World, next: Step): Promise<unknown> {
  const { flows, administer } = service.service;
  const call = world.tenant.call();
  switch (next.kind) {
    case 'publish':
      return publish(world, next);
    case 'follow':
    case 'unfollow':
      return flows.relate[next.kind](call, { follower: next.pair.from, followee: next.pair.to });
    case 'removeFollower':
      return flows.relate.removeFollower(call, { author: next.pair.from, follower: next.pair.to });
    case 'block':
    case 'unblock':
      return flows.relate[next.kind](call, { blocker: next.pair.from, blocked: next.pair.to });
    case 'mute':
    case 'unmute':
      return flows.relate[next.kind](call, { muter: next.pair.from, muted: next.pair.to });
    case 'muteForMs':
      return flows.relate.mute(call, {
        muter: next.pair.from,
        muted: next.pair.to,
        untilMs: service.clock.nowMs() + next.ms,
      });
    case 'pass':
      return service.clock.advance(next.ms);
    case 'delete': {
      const post = postOf(world, next.nth);
      return post && flows.remove(call, { author: post.author, postId: post.id });
    }
    case 'edit': {
      const post = postOf(world, next.nth);
      const text = next.text === undefined ? {} : { text: next.text };
      return post && flows.edit(call, { author: post.author, postId: post.id, visibility: next.visibility, ...text });
    }
    case 'moderate': {
      const post = postOf(world, next.nth);
      return post && administer.moderatePost(call, { postId: post.id, state: next.state });
    }
    case 'suspend':
      return administer.suspendAuthor(call, next.who);
    case 'restore':
      return administer.restoreAuthor(call, next.who);
    case 'putAuthor':
      return flows.relate.putAuthor(call, {
        author: next.who,
        displayName: '',
        avatarAddress: '',
        bio: '',
        protected: next.protected,
      });
    case 'takeHead':
      return takeHead(world, next.who, next.size);
    case 'readNewer':
      return readNewer(world, next.nth, next.size);
    case 'check':
      return checkViewer(world, next.who, [next.size]);
    default:
      throw new Error(`unknown step: ${JSON.stringify(next satisfies never)}`);
  }
}

async function publish(world: World, next: Extract<Step, { kind: 'publish' }>): Promise<void> {
  const target = next.link === 'none' ? undefined : postOf(world, next.nth);
  const { post } = await service.service.flows.publish(world.tenant.call(), {
    author: next.who,
    text: next.link === 'repost' && target ? '' : `post ${world.posts.length}`,
    media: [],
    visibility: next.visibility,
    ...(target && next.link === 'reply' ? { replyTo: target.id } : {}),
    ...(target && next.link !== 'reply' ? { repostOf: target.id } : {}),
  });
  world.posts.push({ id: post.meta.postId, author: next.who });
}

function postOf(world: World, nth: number): World['posts'][number] | undefined {
  return world.posts.at(-1 - nth);
}

/**
 * Time stands still while product and oracle look, so that both see a mute that ends in these milliseconds the same way, and goes on from
 * there: behind the machine's clock it does no harm, while a clock that ran ahead of it could mint no IDs.
 */
async function atOneMoment<T>(look: () => Promise<T>): Promise<T> {
  service.clock.freeze();
  try {
    return await look();
  } finally {
    service.clock.thaw();
  }
}

function homePages(world: World, viewer: UserId, pageSize: number, seen?: (view: PostView) => void): ReadPage {
  return async (pageToken) => {
    const page = await service.service.flows.home.page(world.tenant.call(), { viewer, pageSize, pageToken });
    expect(page.completeness).toBe('complete');
    for (const view of page.views) seen?.(view);
    // Profiles of whom the page shows, and of nobody who is hidden behind it.
    const shown = page.views
      .flatMap((view) => [view.post, view.replyTo, view.repostOf])
      .map((post) => post?.meta.author);
    for (const author of page.authors.keys())
      assert.ok(shown.includes(author), `a profile of ${author}, who is not on the page`);
    return {
      ids: page.views.map((view) => String(view.post.meta.postId)),
      nextPageToken: page.nextPageToken,
      headToken: page.headToken,
    };
  };
}

function authorPages(world: World, viewer: UserId, author: UserId, pageSize: number): ReadPage {
  return async (pageToken) => {
    const page = await service.service.flows.authorPosts(world.tenant.call(), { viewer, author, pageSize, pageToken });
    return {
      ids: page.views.map((view) => String(view.post.meta.postId)),
      nextPageToken: page.nextPageToken,
      headToken: '',
    };
  };
}

async function checkViewer(world: World, viewer: UserId, pageSizes: readonly number[]): Promise<void> {
  await atOneMoment(async () => {
    const oracle = await world.tenant.oracle(viewer);
    for (const pageSize of pageSizes) {
      const seen: PostView[] = [];
      const walk = await walkOlder(
        homePages(world, viewer, pageSize, (view) => seen.push(view)),
        { pageSize },
      );
      assert.deepEqual(walk.ids, oracle.home, `home of ${viewer} by ${pageSize}`);
      for (const view of seen) assertTargets(view, oracle);
    }
    for (const author of USERS) {
      const pageSize = pageSizes.at(-1) ?? 50;
      const walk = await walkOlder(authorPages(world, viewer, author, pageSize), { pageSize });
      assert.deepEqual(walk.ids, oracle.byAuthor(author), `posts of ${author} for ${viewer}`);
    }
    if (world.posts.length === 0) return;
    const asked = world.posts.slice(-100).map((post) => post.id);
    const batch = await service.service.flows.posts.batch(world.tenant.call(), { viewer, postIds: asked });
    const expected = asked.map(String).filter((id) => oracle.entry(id));
    assert.deepEqual(
      batch.views.map((view) => String(view.post.meta.postId)),
      expected,
      `batch for ${viewer}`,
    );
    for (const view of batch.views) assertTargets(view, oracle);
  });
}

function assertTargets(view: PostView, oracle: Awaited<ReturnType<TestTenant['oracle']>>): void {
  const postId = String(view.post.meta.postId);
  const idOf = (post: PostView['post'] | undefined): string | undefined => post && String(post.meta.postId);
  const { replyTo, repostOf } = oracle.entry(postId) ?? {};
  assert.deepEqual(
    { replyTo: idOf(view.replyTo), repostOf: idOf(view.repostOf) },
    { replyTo, repostOf },
    `targets inside ${postId}`,
  );
}

async function takeHead(world: World, viewer: UserId, pageSize: number): Promise<void> {
  const page = await homePages(world, viewer, pageSize)('');
  world.heads.push({ viewer, token: page.headToken, shown: new Set(page.ids) });
}

/**
 * From a head token up: all that the oracle holds above the newest entry shown before, and besides only what was not shown before.
 * How far below the newest a late entry still counts depends on what the page examined; tests of single cases pin that down.
 */
async function readNewer(world: World, nth: number, pageSize: number): Promise<void> {
  const at = world.heads.length === 0 ? 0 : nth % world.heads.length;
  const head = world.heads[at];
  if (!head) return;
  await atOneMoment(async () => {
    const { home } = await world.tenant.oracle(head.viewer);
    const { newCount } = await service.service.flows.home.head(world.tenant.call(), {
      viewer: head.viewer,
      sinceToken: head.token,
    });
    const walk = await walkNewer(head.token, homePages(world, head.viewer, pageSize), { pageSize });
    assert.equal(newCount, Math.min(walk.ids.length, LIMITS.newCountMax), `count of newer entries of ${head.viewer}`);
    const newest = [...head.shown].reduce((most, id) => (BigInt(id) > most ? BigInt(id) : most), 0n);
    const given = new Set(walk.ids);
    const missing = home.filter((id) => BigInt(id) > newest && !head.shown.has(id) && !given.has(id));
    assert.deepEqual(missing, [], `newer entries of ${head.viewer} by ${pageSize}`);
    const wrong = walk.ids.filter((id) => head.shown.has(id) || !home.includes(id));
    assert.deepEqual(wrong, [], `entries of ${head.viewer} that were shown before or are not on home`);
    const again = await walkNewer(walk.headToken, homePages(world, head.viewer, pageSize), { pageSize });
    assert.deepEqual(again.ids, [], `a second look by ${head.viewer} at the same moment`);
    world.heads[at] = { viewer: head.viewer, token: again.headToken, shown: new Set([...head.shown, ...walk.ids]) };
  });
}

async function checkApart([one, two]: readonly World[]): Promise<void> {
  if (!one || !two) throw new Error('a history has two tenants');
  for (const [here, there] of [
    [one, two],
    [two, one],
  ] as const) {
    const foreign = there.posts.slice(-100).map((post) => post.id);
    if (foreign.length === 0) continue;
    for (const viewer of USERS) {
      const { views } = await service.service.flows.posts.batch(here.tenant.call(), { viewer, postIds: foreign });
      assert.deepEqual(views, [], 'posts of one tenant are nothing in another');
    }
  }
}
