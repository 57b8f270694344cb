/**
 * Owns the filling of an empty tenant with a living sample: profiles, follows, days of posts, and a few published just now.
 *
 * Invariant: everything goes in by the ways that callers have (typed clients; imports by the import flow), so a sample can hold nothing
 * that the service would refuse. The same options give the same sample, but for IDs and times.
 */
import type { Client } from '@connectrpc/connect';
import type { GraphService } from '../gen/tributary/v1/graph_service_pb.ts';
import { Visibility as WireVisibility } from '../gen/tributary/v1/post_pb.ts';
import type { PostService } from '../gen/tributary/v1/post_service_pb.ts';
import type { Clock } from '../runtime.ts';
import type { Visibility } from '../timeline/post.ts';
import { buildGraph, type FollowGraph, listOf } from './graph.ts';
import { createSeeded, type Seeded } from './seeded.ts';
import { type Persona, personaOf, writePost, writeQuote, writeReply } from './text.ts';

export interface SamplePost {
  readonly author: string;
  readonly text: string;
  readonly publishedAtMs: number;
  readonly visibility: Visibility;
}

export interface SeedTools {
  readonly graph: Client<typeof GraphService>;
  readonly posts: Client<typeof PostService>;
  readonly clock: Clock;
  readonly signal: AbortSignal;
  importPosts(posts: readonly SamplePost[]): Promise<void>;
  /** Told often; `done` counts up to `total`. */
  progress(step: SeedStep, done: number, total: number): void;
}

export type SeedStep = 'profiles' | 'follows' | 'posts of the past days' | 'posts of this minute';

export interface SeedOptions {
  readonly viewers: number;
  readonly seed: number;
}

export interface SeedOutcome {
  /** Whose page shows most of what there is. */
  readonly viewer: string;
}

/** Some 30 follows per viewer at 2,000 viewers. */
const GRAPH_SCALE = 0.15;
const POSTS_PER_VIEWER = 4;
const PAST_DAYS = 5;
const DAY_MS = 86_400_000;
/** Imported posts end some minutes ago, so that what is published live is the newest. */
const PAST_END_MS = 4 * 60_000;
const IMPORT_BATCH = 1_000;
/** Calls under way at once: below the pool of ten connections, so that none waits for one. */
const CALLS_AT_ONCE = 8;
const CALL_TIMEOUT_MS = 10_000;
/** What the API takes in one BatchFollow. */
const FOLLOWS_PER_CALL = 500;
const LIVE_POSTS = 60;
/** Live posts by people whom the shown viewer follows: leaves room for older ones on a page of 20. */
const LIVE_ON_PAGE = 9;
/** Follows of the shown viewer: enough for a busy page, few enough to read. */
const SHOWN_FOLLOWS = 60;
const TARGET_AUTHORS = 12;
const PROTECTED_SHARE = 0.03;
/** Follows nobody and is followed by nobody: sees what everybody may see. */
const STRANGER = 'nobody.in.particular';

export async function seedSample(options: SeedOptions, tools: SeedTools): Promise<SeedOutcome> {
  const random = createSeeded(options.seed);
  const graph = buildGraph({ users: options.viewers, seed: options.seed, scale: GRAPH_SCALE });
  const personas = Array.from({ length: options.viewers }, (_, index) => personaOf(index, random));
  const shown = pickShown(graph);
  const isProtected = personas.map((_, index) => index !== shown && random.chance(PROTECTED_SHARE));
  const sample: Sample = { graph, personas, isProtected, random, shown };

  await putProfiles(sample, tools);
  await follow(sample, tools);
  await importPast(sample, tools);
  await publishLive(sample, tools);
  return { viewer: nameOf(sample, shown) };
}

interface Sample {
  readonly graph: FollowGraph;
  readonly personas: readonly Persona[];
  /** By index: whose posts are for followers alone. */
  readonly isProtected: readonly boolean[];
  readonly random: Seeded;
  /** Index of the viewer whose page is shown. */
  readonly shown: number;
}

async function putProfiles({ personas, isProtected }: Sample, tools: SeedTools): Promise<void> {
  const profiles = personas.map((persona, index) => ({
    authorId: persona.id,
    displayName: persona.displayName,
    bio: persona.bio,
    protected: isProtected[index] === true,
  }));
  await each(profiles, tools, 'profiles', async (profile) => {
    await tools.graph.putAuthor(profile, callOptions(tools));
    return 1;
  });
}

async function follow(sample: Sample, tools: SeedTools): Promise<void> {
  const batches = sample.personas.flatMap((persona, index) => {
    const followees = [...listOf(sample.graph.following, index)].map((other) => nameOf(sample, other));
    return Array.from({ length: Math.ceil(followees.length / FOLLOWS_PER_CALL) }, (_, part) => ({
      followerId: persona.id,
      followeeIds: followees.slice(part * FOLLOWS_PER_CALL, (part + 1) * FOLLOWS_PER_CALL),
    }));
  });
  await each(
    batches,
    tools,
    'follows',
    async (batch) => {
      const { results } = await tools.graph.batchFollow(batch, callOptions(tools));
      const refused = results.find((result) => result.refusal !== 0);
      if (refused !== undefined) throw new Error(`${batch.followerId} may not follow ${refused.followeeId}`);
      return batch.followeeIds.length;
    },
    sample.graph.edges,
  );
}

async function importPast(sample: Sample, tools: SeedTools): Promise<void> {
  const { graph, personas, random } = sample;
  const now = tools.clock.nowMs();
  const weights = personas.map(
    (_, index) => Math.exp(random.normal()) * (1 + Math.log10(1 + listOf(graph.followers, index).length)),
  );
  const perWeight = (POSTS_PER_VIEWER * personas.length) / weights.reduce((sum, weight) => sum + weight, 0);
  const past = personas.flatMap((persona, index) => {
    const count = Math.floor((weights[index] ?? 0) * perWeight + random.fraction());
    return Array.from({ length: count }, () => ({
      author: persona.id,
      text: writePost(persona, random),
      // A power above 1 draws posts towards the present.
      publishedAtMs: Math.floor(now - PAST_END_MS - PAST_DAYS * DAY_MS * random.fraction() ** 1.2),
      visibility: drawVisibility(random),
    }));
  });
  for (let from = 0; from < past.length; from += IMPORT_BATCH) {
    tools.signal.throwIfAborted();
    await tools.importPosts(past.slice(from, from + IMPORT_BATCH));
    tools.progress('posts of the past days', Math.min(from + IMPORT_BATCH, past.length), past.length);
  }
}

/** Posts, replies, quotes and reposts of this minute, one after the other, so that they keep their order. */
async function publishLive(sample: Sample, tools: SeedTools): Promise<void> {
  const { random, personas, shown } = sample;
  const followed = new Set(listOf(sample.graph.following, shown));
  const near = [...followed];
  const far = personas.map((_, index) => index).filter((index) => index !== shown && !followed.has(index));
  const targets = await findTargets(sample, tools);

  const total = Math.min(LIVE_POSTS, personas.length);
  const onPage = new Set(
    Array.from({ length: LIVE_ON_PAGE }, (_, turn) => Math.floor(((turn + 1) * total) / (LIVE_ON_PAGE + 1))),
  );
  for (let turn = 0; turn < total; turn++) {
    tools.signal.throwIfAborted();
    const author = turn === total - 1 ? shown : random.pick(onPage.has(turn) && near.length > 0 ? near : far);
    const persona = personas[author];
    if (persona === undefined) throw new RangeError(`no persona ${author}`);
    // The first ones are posts, so that the others have something new to answer as well.
    const published = await publishOne(persona, turn < 3 ? 0 : random.fraction(), targets, sample, tools);
    if (published !== undefined && sample.isProtected[author] !== true) targets.push(published);
    tools.progress('posts of this minute', turn + 1, total);
  }
}

/** Answers the post where others may refer to it. */
async function publishOne(
  persona: Persona,
  kind: number,
  targets: readonly string[],
  { random }: Sample,
  tools: SeedTools,
): Promise<string | undefined> {
  const target = targets.length === 0 ? undefined : random.pick(targets);
  if (target === undefined || kind < 0.4) {
    const visibility = random.chance(0.2) ? WireVisibility.FOLLOWERS : WireVisibility.PUBLIC;
    const { post } = await tools.posts.publishPost(
      { authorId: persona.id, text: writePost(persona, random), visibility },
      callOptions(tools),
    );
    return post !== undefined && visibility === WireVisibility.PUBLIC ? post.postId : undefined;
  }
  const content =
    kind < 0.65
      ? { text: writeReply(random), replyToPostId: target }
      : kind < 0.85
        ? { text: writeQuote(random), repostOfPostId: target }
        : { repostOfPostId: target };
  await tools.posts.publishPost({ authorId: persona.id, ...content }, callOptions(tools));
  return undefined;
}

/** Recent posts of the largest authors that everybody may see: what people answer and repost. */
async function findTargets({ graph, personas }: Sample, tools: SeedTools): Promise<string[]> {
  const largest = personas
    .map((persona, index) => ({ persona, index, followers: listOf(graph.followers, index).length }))
    .sort((a, b) => b.followers - a.followers)
    .slice(0, TARGET_AUTHORS);
  const lists = await Promise.all(
    largest.map(({ persona }) =>
      tools.posts.listAuthorPosts({ viewerId: STRANGER, authorId: persona.id, pageSize: 3 }, callOptions(tools)),
    ),
  );
  return lists.flatMap((list) => list.entries.flatMap(({ post }) => (post === undefined ? [] : [post.postId])));
}

/** The viewer whose number of follows is nearest to what makes a good page. */
function pickShown(graph: FollowGraph): number {
  let best = 0;
  const distance = (user: number) => Math.abs(listOf(graph.following, user).length - SHOWN_FOLLOWS);
  for (let user = 1; user < graph.users; user++) if (distance(user) < distance(best)) best = user;
  return best;
}

function drawVisibility(random: Seeded): Visibility {
  const draw = random.fraction();
  if (draw < 0.02) return 'private';
  return draw < 0.12 ? 'followers' : 'public';
}

function nameOf({ personas }: Pick<Sample, 'personas'>, index: number): string {
  const persona = personas[index];
  if (persona === undefined) throw new RangeError(`no persona ${index}`);
  return persona.id;
}

function callOptions({ signal }: SeedTools): { readonly signal: AbortSignal; readonly timeoutMs: number } {
  return { signal, timeoutMs: CALL_TIMEOUT_MS };
}

/** Does them all, some at a time, and says how far it is by what each of them counted. Stops at the first that fails. */
async function each<Item>(
  items: readonly Item[],
  tools: SeedTools,
  step: SeedStep,
  act: (item: Item) => Promise<number>,
  total = items.length,
): Promise<void> {
  const rest = items.values();
  let done = 0;
  async function work(): Promise<void> {
    for (const item of rest) {
      tools.signal.throwIfAborted();
      // Not `done += await …`: that reads the sum before it waits, and loses what others add meanwhile.
      const counted = await act(item);
      done += counted;
      tools.progress(step, done, total);
    }
  }
  await Promise.all(Array.from({ length: CALLS_AT_ONCE }, work));
}
