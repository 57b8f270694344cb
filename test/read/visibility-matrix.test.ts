/**
 * Owns the promise that who may see a post depends neither on where they look nor on how they ask: every state of post, author and relation, also as the state of what a reply, quote or
 * repost names, gives one verdict on every surface, by gRPC and by Connect JSON, from warm caches and from none. A change holds for the request that follows its answer, to and fro.
 *
 * Each state plays in two worlds of its own, one of authors who are pushed and one of authors who are pulled, all in one tenant. The verdicts come from the table below; the oracle, which
 * knows neither the table nor the product, has to agree with it.
 */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import type { PostView } from '../../src/gen/tributary/v1/post_pb.ts';
import { PostService } from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { composePostId } from '../../src/timeline/ids.ts';
import { openCached } from '../harness/cached.ts';
import { eventually } from '../harness/eventually.ts';
import { createHeldEvents, type HeldEvents } from '../harness/held-events.ts';
import type { OracleView } from '../harness/oracle.ts';
import type { Cast } from '../harness/play.ts';
import { openResidents } from '../harness/residents.ts';
import { type StoredPost, storeClass, storeFollows, storePosts } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { Failure, openClient, type TestClient } from '../rpc/clients.ts';

type Where = 'everywhere' | 'not on home' | 'nowhere';

/** What rita is shown, who follows ada and ben. Where nothing is said of ben, he stands well with everybody. */
interface Verdict {
  /** Ada's post. */
  readonly post: Where;
  /** Her post for followers. */
  readonly narrow: Where;
  /** Her public posts beside it. */
  readonly others: Where;
  /** What she had published for nobody. */
  readonly secret?: Where;
  /** What ben made of her post: shown with it, shown without it, not shown. A plain repost without it is nothing. */
  readonly aroundPost: 'whole' | 'bare' | 'hidden';
  /** What he made of the one for followers. */
  readonly aroundNarrow: 'whole' | 'bare' | 'hidden';
  /** Where his own are shown if at all. */
  readonly ben?: Where;
}

const ALL: Verdict = {
  post: 'everywhere',
  narrow: 'everywhere',
  others: 'everywhere',
  aroundPost: 'whole',
  aroundNarrow: 'whole',
};
/** Between her and ada stands a block or a mute. */
const NOTHING: Verdict = {
  post: 'nowhere',
  narrow: 'nowhere',
  others: 'nowhere',
  aroundPost: 'hidden',
  aroundNarrow: 'hidden',
};
const POST_GONE: Verdict = { ...ALL, post: 'nowhere', aroundPost: 'bare' };
/** Ada is not there for her, and it is nothing between the two. */
const AUTHOR_GONE: Verdict = { ...NOTHING, aroundPost: 'bare', aroundNarrow: 'bare' };
const NOT_FOLLOWED: Verdict = {
  post: 'not on home',
  narrow: 'nowhere',
  others: 'not on home',
  aroundPost: 'whole',
  aroundNarrow: 'bare',
};

interface Step {
  readonly script: string;
  readonly verdict: Verdict;
  /** Time that passes after the script. */
  readonly waitMs?: number;
  /** Shows on home what may have to be fanned out first. */
  readonly fansOut?: boolean;
}

const HOUR_MS = 3_600_000;

const STATES: Readonly<Record<string, readonly Step[]>> = {
  'the viewer blocks the author': [
    { script: 'rita blocks ada', verdict: NOTHING },
    { script: 'rita unblocks ada', verdict: NOT_FOLLOWED },
    { script: 'rita follows ada', verdict: ALL },
  ],
  'the author blocks the viewer': [
    { script: 'ada blocks rita', verdict: NOTHING },
    { script: 'ada unblocks rita', verdict: NOT_FOLLOWED },
    { script: 'rita follows ada', verdict: ALL },
  ],
  'both block each other': [
    { script: 'rita blocks ada; ada blocks rita', verdict: NOTHING },
    { script: 'rita unblocks ada', verdict: NOTHING },
    { script: 'ada unblocks rita', verdict: NOT_FOLLOWED },
  ],
  'the viewer mutes the author': [
    { script: 'rita mutes ada', verdict: NOTHING },
    { script: 'rita unmutes ada', verdict: ALL },
  ],
  'the viewer mutes the author for a while': [
    { script: 'rita mutes ada for 1 hour', verdict: NOTHING },
    { script: '', waitMs: HOUR_MS, verdict: ALL },
  ],
  'the viewer mutes the author for a while, and then for good': [
    { script: 'rita mutes ada for 1 hour', verdict: NOTHING },
    { script: 'rita mutes ada', waitMs: HOUR_MS, verdict: NOTHING },
  ],
  'the author mutes the viewer': [{ script: 'ada mutes rita', verdict: ALL }],
  'the viewer mutes and follows no more': [
    { script: 'rita mutes ada; rita unfollows ada', verdict: NOTHING },
    { script: 'rita unmutes ada', verdict: NOT_FOLLOWED },
    { script: 'rita follows ada; ada shows narrow to everybody', verdict: ALL },
  ],
  'the author removed the follower': [
    { script: 'ada removes follower rita', verdict: NOT_FOLLOWED },
    { script: 'ada is protected', verdict: AUTHOR_GONE },
    { script: 'ada is open', verdict: NOT_FOLLOWED },
  ],
  'the author is protected': [
    { script: 'ada is protected', verdict: ALL },
    { script: 'rita unfollows ada', verdict: AUTHOR_GONE },
    { script: 'rita follows ada', verdict: ALL },
  ],
  'the author is suspended': [
    { script: 'ada is suspended', verdict: AUTHOR_GONE },
    { script: 'ada is restored', verdict: ALL },
  ],
  'the post is deleted': [{ script: 'ada deletes post', verdict: POST_GONE }],
  'the post is hidden by moderation': [
    { script: 'moderation hides post', verdict: POST_GONE },
    { script: 'moderation marks post', verdict: ALL, fansOut: true },
    { script: 'moderation hides post; moderation clears post', verdict: ALL, fansOut: true },
  ],
  'the post is for followers': [
    { script: 'ada shows post to followers', verdict: ALL },
    {
      script: 'rita unfollows ada',
      verdict: { ...AUTHOR_GONE, others: 'not on home' },
    },
    { script: 'ada shows post to everybody', verdict: NOT_FOLLOWED },
  ],
  'the post went from public to followers to private': [
    { script: 'ada shows post to followers; ada shows post to nobody', verdict: POST_GONE },
    { script: 'ada shows post to followers', verdict: ALL, fansOut: true },
    { script: 'ada shows post to nobody; ada deletes post', verdict: POST_GONE },
  ],
  'the post was created private': [
    { script: 'ada shows secret to everybody', verdict: { ...ALL, secret: 'everywhere' }, fansOut: true },
    { script: 'ada shows secret to nobody', verdict: ALL },
    { script: 'ada deletes secret', verdict: ALL },
  ],
  'the viewer follows no more': [
    { script: 'rita unfollows ada', verdict: NOT_FOLLOWED },
    { script: 'rita follows ada', verdict: ALL },
  ],
  'the one who passed it on is muted': [
    { script: 'rita mutes ben', verdict: { ...ALL, aroundPost: 'hidden', aroundNarrow: 'hidden' } },
    { script: 'rita unmutes ben', verdict: ALL },
  ],
  'the one who passed it on is suspended': [
    { script: 'ben is suspended', verdict: { ...ALL, aroundPost: 'hidden', aroundNarrow: 'hidden' } },
    { script: 'ben is restored', verdict: ALL },
  ],
  'the one who passed it on is followed no more, and anew while the author is blocked': [
    { script: 'rita unfollows ben', verdict: { ...ALL, ben: 'not on home' } },
    { script: 'rita blocks ada; rita follows ben', verdict: NOTHING },
    { script: 'rita unblocks ada', verdict: NOT_FOLLOWED },
  ],
};

/** The posts of a world, oldest first. */
const POSTS = {
  post: { by: 'ada' },
  narrow: { by: 'ada', visibility: 'followers' },
  secret: { by: 'ada', visibility: 'private' },
  selfQuote: { by: 'ada', repostOf: 'secret' },
  selfRepost: { by: 'ada', repostOf: 'secret', text: '' },
  reply: { by: 'ben', replyTo: 'post' },
  quote: { by: 'ben', repostOf: 'post' },
  repost: { by: 'ben', repostOf: 'post', text: '' },
  narrowReply: { by: 'ben', replyTo: 'narrow' },
  narrowRepost: { by: 'ben', repostOf: 'narrow', text: '' },
  answer: { by: 'rita', replyTo: 'post' },
  echo: { by: 'rita', repostOf: 'post', text: '' },
} as const;
type Label = keyof typeof POSTS;
const LABELS = Object.keys(POSTS) as readonly Label[];
const TARGETS: Readonly<Partial<Record<Label, Label>>> = Object.fromEntries(
  Object.entries(POSTS).map(([label, post]) => [
    label,
    'replyTo' in post ? post.replyTo : 'repostOf' in post ? post.repostOf : undefined,
  ]),
);

interface Cell {
  readonly where: Where;
  readonly target: boolean;
}

/** The table's row, spelled out for every post. */
function cellsOf(verdict: Verdict): Readonly<Record<Label, Cell>> {
  const { post, narrow, others, secret = 'nowhere', ben = 'everywhere' } = verdict;
  const plain = (where: Where): Cell => ({ where, target: false });
  const beside = (around: Verdict['aroundPost']): Cell => ({
    where: around === 'hidden' ? 'nowhere' : ben,
    target: around === 'whole',
  });
  const plainRepost = (around: Verdict['aroundPost']): Cell =>
    around === 'whole' ? beside('whole') : plain('nowhere');
  const postSeen = post !== 'nowhere';
  const secretSeen = secret !== 'nowhere';
  return {
    post: plain(post),
    narrow: plain(narrow),
    secret: plain(secret),
    selfQuote: { where: others, target: secretSeen },
    selfRepost: secretSeen ? { where: others, target: true } : plain('nowhere'),
    reply: beside(verdict.aroundPost),
    quote: beside(verdict.aroundPost),
    repost: plainRepost(verdict.aroundPost),
    narrowReply: beside(verdict.aroundNarrow),
    narrowRepost: plainRepost(verdict.aroundNarrow),
    answer: { where: 'everywhere', target: postSeen },
    echo: postSeen ? { where: 'everywhere', target: true } : plain('nowhere'),
  };
}

const SURFACES = ['single', 'batch', 'home', 'head', 'list of ada', 'list of ben', 'list of rita'] as const;
type Surface = (typeof SURFACES)[number];
/** Whether authors are pulled shows on home alone. */
const HOME: readonly Surface[] = ['home', 'head'];
const HOME_AND_BATCH: readonly Surface[] = ['home', 'batch'];

/** What each surface shows, in its order, each post with what is shown inside it; of the head the number of entries, and the newest. */
type Look = Readonly<Partial<Record<Surface, readonly string[]>>>;

const WAYS = ['pushed', 'pulled'] as const;
const WORLDS = Object.entries(STATES).flatMap(([state, steps], at) =>
  WAYS.map((way) => ({ state, steps, way, suffix: `${at}-${way}` })),
);
type World = (typeof WORLDS)[number];
const nameIn = (world: World, role: string): string => `${role}-${world.suffix}`;
const ROLES = ['rita', 'ada', 'ben'] as const;

let service: TestService;
let tenant: TestTenant;
/** Kept back, so that what holds with the answer to a change holds by that call alone. */
let events: HeldEvents;
let clients: Readonly<Record<'gRPC' | 'JSON', TestClient>>;
const casts = new Map<World, Cast>();
const castOf = (world: World): Cast => casts.get(world) as Cast;

beforeAll(async () => {
  service = await startTestService();
  events = await createHeldEvents(service.database);
  await events.hold();
  tenant = await service.tenant();
  clients = {
    gRPC: openClient('grpc-js on the gRPC port', service.service),
    JSON: openClient('Connect JSON over HTTP/1.1', service.service),
  };
  const names = (world: World, ...roles: readonly string[]) => roles.map((role) => nameIn(world, role));
  await storeFollows(
    service.database,
    tenant.id,
    WORLDS.flatMap((world) => {
      const [rita = '', ada = '', ben = ''] = names(world, ...ROLES);
      return [[rita, ada] as const, [rita, ben] as const, [ben, ada] as const];
    }),
  );
  const large = WORLDS.filter(({ way }) => way === 'pulled').flatMap((world) => names(world, 'ada', 'ben'));
  await storeClass(service.database, tenant.id, { authors: large, fanoutClass: 'pull' });
  const firstMs = service.clock.nowMs() - HOUR_MS;
  await storePosts(
    service.database,
    tenant.id,
    WORLDS.flatMap((world, at) => postsOf(world, firstMs + at * 100)),
  );
  const viewers = WORLDS.map((world) => nameIn(world, 'rita'));
  // As many at once as may be rebuilt at once.
  for (let from = 0; from < viewers.length; from += 8)
    await Promise.all(viewers.slice(from, from + 8).map((viewerId) => tenant.timeline.getHomeTimeline({ viewerId })));
  // The pages of one half come from timelines, those of the other from lists.
  const residents = await openResidents(tenant.id);
  const timelines = await residents.entries(viewers);
  await residents.close();
  for (const [at, world] of WORLDS.entries()) {
    const entries = timelines[at]?.map((postId) => castOf(world).labelOf(postId));
    expect(entries).toEqual(world.way === 'pushed' ? LABELS.filter((label) => label !== 'secret') : ['answer', 'echo']);
  }
}, 120_000);
afterAll(async () => {
  for (const client of Object.values(clients)) client.close();
  await service.stop();
});

/** Rows of a world's posts, which its cast then knows by their labels. */
function postsOf(world: World, firstMs: number): readonly StoredPost[] {
  const cast = tenant.cast();
  casts.set(world, cast);
  const idOf = (label: Label) => composePostId({ ms: firstMs + LABELS.indexOf(label), generator: 100, sequence: 0 });
  const refTo = (label: Label) => ({ postId: idOf(label), author: nameIn(world, POSTS[label].by) });
  return LABELS.map((label) => {
    const post = POSTS[label];
    const author = nameIn(world, post.by);
    cast.adopt(label, { postId: String(idOf(label)), author });
    return {
      author,
      postId: idOf(label),
      ...('visibility' in post && { visibility: post.visibility }),
      ...('text' in post && { text: post.text }),
      ...('replyTo' in post && { replyTo: refTo(post.replyTo) }),
      ...('repostOf' in post && { repostOf: refTo(post.repostOf) }),
    };
  });
}

async function lookBy(client: TestClient, world: World, viewer: string, surfaces: readonly Surface[]): Promise<Look> {
  const cast = castOf(world);
  const options = { headers: { authorization: `Bearer ${tenant.key}` } };
  const viewerId = nameIn(world, viewer);
  const postIds = [...cast.ids(...LABELS)];
  const { getPost, batchGetPosts, listAuthorPosts } = PostService.method;
  const { getHomeTimeline, getHomeHead } = TimelineService.method;

  const shown = (view: PostView | undefined): string => {
    const label = (post: { postId: string } | undefined) => cast.labelOf(post?.postId ?? '');
    const inner = view?.replyTo ?? view?.repostOf;
    return inner ? `${label(view?.post)} with ${label(inner)}` : label(view?.post);
  };
  const single = async (postId: string): Promise<readonly string[]> => {
    try {
      const { message } = await client.unary(getPost, { viewerId, postId }, options);
      return [shown(message.view)];
    } catch (error) {
      if (error instanceof Failure && error.reasons[0] === 'POST_NOT_FOUND') return [];
      throw error;
    }
  };
  const listOf = async (author: string): Promise<readonly string[]> => {
    const request = { viewerId, authorId: nameIn(world, author), pageSize: 100 };
    return (await client.unary(listAuthorPosts, request, options)).message.entries.map(shown);
  };
  const read: Readonly<Record<Surface, () => Promise<readonly string[]>>> = {
    single: async () => (await Promise.all(postIds.map(single))).flat(),
    batch: async () => (await client.unary(batchGetPosts, { viewerId, postIds }, options)).message.views.map(shown),
    home: async () =>
      (await client.unary(getHomeTimeline, { viewerId, pageSize: 100 }, options)).message.entries.map(shown),
    head: async () => {
      const { message } = await client.unary(getHomeHead, { viewerId }, options);
      return [String(message.newCount), cast.labelOf(message.newestPostId)];
    },
    'list of ada': () => listOf('ada'),
    'list of ben': () => listOf('ben'),
    'list of rita': () => listOf('rita'),
  };
  const seen = await Promise.all(surfaces.map(async (surface) => [surface, await read[surface]()] as const));
  return Object.fromEntries(seen);
}

/** What both protocols show on the surfaces that are looked at in this world, and what they should. */
async function lookByBoth(
  world: World,
  viewer: string,
  expected: Look,
  surfaces: readonly Surface[] = world.way === 'pushed' ? SURFACES : HOME,
): Promise<{ readonly seen: readonly Look[]; readonly due: readonly Look[] }> {
  const due = Object.fromEntries(surfaces.map((surface) => [surface, expected[surface]]));
  const seen = await Promise.all([clients.gRPC, clients.JSON].map((client) => lookBy(client, world, viewer, surfaces)));
  return { seen, due: [due, due] };
}

function lookFrom(cells: ReadonlyMap<Label, Cell>): Look {
  const shown = (label: Label): string => (cells.get(label)?.target ? `${label} with ${TARGETS[label]}` : label);
  const seen = LABELS.filter((label) => (cells.get(label)?.where ?? 'nowhere') !== 'nowhere');
  const newestFirst = [...seen].reverse();
  const home = newestFirst.filter((label) => cells.get(label)?.where === 'everywhere');
  const listOf = (author: string) => newestFirst.filter((label) => POSTS[label].by === author).map(shown);
  return {
    single: seen.map(shown),
    batch: seen.map(shown),
    home: home.map(shown),
    head: [String(home.length), home[0] ?? ''],
    'list of ada': listOf('ada'),
    'list of ben': listOf('ben'),
    'list of rita': listOf('rita'),
  };
}

const tableLook = (verdict: Verdict): Look => lookFrom(new Map(Object.entries(cellsOf(verdict)) as [Label, Cell][]));

async function oracleLook(world: World, viewer: string): Promise<Look> {
  const oracle: OracleView = await tenant.oracle(nameIn(world, viewer));
  const cells = LABELS.flatMap((label): [Label, Cell][] => {
    const entry = oracle.entry(castOf(world).post(label).postId);
    if (!entry) return [];
    const target = (entry.replyTo ?? entry.repostOf) !== undefined;
    return [[label, { where: entry.onHome ? 'everywhere' : 'not on home', target }]];
  });
  return lookFrom(new Map(cells));
}

const withState = WORLDS.map((world) => ({ ...world, world }));

async function expectLooks(...of: Parameters<typeof lookByBoth>): Promise<void> {
  const { seen, due } = await lookByBoth(...of);
  expect(seen).toEqual(due);
}

describe('before any change', () => {
  it.each(withState)('home and batches show all there is, and warm the caches: $state, $way', async ({ world }) => {
    await expectLooks(world, 'rita', tableLook(ALL), HOME_AND_BATCH);
  });
});

describe.each([1, 2, 3])('change %i', (round) => {
  const changed = withState.flatMap(({ world, state, way }) => {
    const step = world.steps[round - 1];
    return step ? [{ world, state, way, step, script: step.script }] : [];
  });

  it.each(changed)(
    'holds on every surface for the read that follows: $state, $way, "$script"',
    async ({ world, step }) => {
      const expected = tableLook(step.verdict);
      await castOf(world).play(step.script.replaceAll(/\b(rita|ada|ben)\b/g, (role) => nameIn(world, role)));
      service.clock.advance(step.waitMs ?? 0);
      if (step.fansOut) {
        const { seen, due } = await lookByBoth(world, 'rita', expected);
        const { home = [], head = [] } = expected;
        expect(seen.map((look) => ({ ...look, home, head }))).toEqual(due);
        for (const look of seen) expect(home).toEqual(expect.arrayContaining([...(look.home ?? [])]));
      } else await expectLooks(world, 'rita', expected);
      expect(await oracleLook(world, 'rita')).toEqual(expected);
    },
  );

  describe('and after its events', () => {
    beforeAll(async () => {
      await events.release();
      await service.settle();
    });
    it.each(changed.filter(({ step }) => step.fansOut))(
      'shows on home what had to be fanned out: $state, $way, "$script"',
      // An instance may take its time to look at a list anew.
      ({ world, step }) => eventually(() => expectLooks(world, 'rita', tableLook(step.verdict))),
    );
  });

  describe('and then nothing cached', () => {
    beforeAll(async () => {
      const cached = openCached(tenant.id);
      await cached.evictAll();
      cached.close();
    });
    afterAll(() => events.hold());
    it.each(changed)(
      'gives the same verdict, and to others the oracle’s: $state, $way, "$script"',
      async ({ world, step }) => {
        await expectLooks(world, 'rita', tableLook(step.verdict));
        const others = world.way === 'pushed' ? ['ada', 'ben', 'zoe'] : ['ada', 'ben'];
        const surfaces = world.way === 'pushed' ? HOME_AND_BATCH : HOME;
        for (const viewer of others) await expectLooks(world, viewer, await oracleLook(world, viewer), surfaces);
      },
    );
  });
});
