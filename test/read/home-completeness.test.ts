/**
 * Owns what a home page is called when several things are away at once: by the gravest of them. Pages that call themselves PARTIAL hold what belongs there; one that may lack an entry says STALE, whatever else
 * it was read without.
 */
import { expect, it } from 'vitest';
import { createHomeTimeline } from '../../src/read/home-timeline.ts';
import { createNamedPeople } from '../../src/read/named-people.ts';
import { createOpenPageFacts } from '../../src/read/page-facts.ts';
import { createPageTokens } from '../../src/read/page-token.ts';
import { createOpenPresenter } from '../../src/read/present.ts';
import { encodeBody } from '../../src/store/encode-bodies.ts';
import type { PostId, UserId } from '../../src/timeline/ids.ts';
import { NO_RELATION, type PostMeta, UNKNOWN_AUTHOR } from '../../src/timeline/post.ts';
import { postMeta } from '../harness/post-meta.ts';
import { createTestLog } from '../harness/service.ts';
import { createTestClock } from '../harness/test-clock.ts';
import { ids, newTenant, soon, user } from '../store/redis/cache-under-test.ts';

const RITA = user('rita');
const ADA = user('ada');
const BEN = user('ben');
const [NEWER, OLDER] = ids(9, 8) as [PostId, PostId];
const AUTHOR_OF = new Map([
  [NEWER, ADA],
  [OLDER, BEN],
]);

interface Away {
  /** The timeline could not be read. */
  readonly partial: boolean;
  /** A list or what lies below the timeline could not be read. */
  readonly stale: boolean;
  /** How the viewer stands to Ben cannot be told. */
  readonly relation: boolean;
  readonly counters: boolean;
}

async function pageWith(away: Away) {
  const clock = createTestClock();
  const posts = {
    loadMetas: async (_call: unknown, wanted: readonly PostId[]) =>
      new Map(
        wanted.map((postId): [PostId, PostMeta] => [
          postId,
          postMeta({ postId, author: AUTHOR_OF.get(postId) as UserId }),
        ]),
      ),
    loadBodies: async (_call: unknown, metas: readonly PostMeta[]) =>
      new Map(metas.map((meta) => [meta.postId, { meta, body: encodeBody({ text: 'text', media: [] }) }])),
  };
  const relationsOf = (authors: readonly UserId[]) =>
    new Map(authors.map((author) => [author, { ...NO_RELATION, follows: true }]));
  const people = {
    loadRelations: async (_call: unknown, _viewer: unknown, authors: readonly UserId[]) => relationsOf(authors),
    loadStates: async (_call: unknown, authors: readonly UserId[]) =>
      new Map(authors.map((author) => [author, { state: UNKNOWN_AUTHOR, profileVersion: 0 }])),
    loadProfiles: async () => new Map(),
  };
  const all = { unknown: new Set<never>() };
  const fallback = {
    hasDatabase: () => !away.relation,
    mayLeaveOut: true,
    known: {
      metas: async (call: unknown, wanted: readonly PostId[]) => ({
        ...all,
        values: await posts.loadMetas(call, wanted),
      }),
      states: async (call: unknown, authors: readonly UserId[]) => ({
        ...all,
        values: await people.loadStates(call, authors),
      }),
      relations: async (_call: unknown, _viewer: unknown, authors: readonly UserId[]) => ({
        values: relationsOf(authors.filter((author) => author !== BEN)),
        unknown: new Set(authors.filter((author) => author === BEN)),
      }),
    },
  };
  const home = createHomeTimeline({
    clock,
    tokens: createPageTokens({ keys: [Buffer.alloc(32, 7)], rejected: () => undefined }),
    openSource: () => ({
      older: async (position, limit) => ({
        ids: ids(9, 8)
          .filter((id) => id <= position)
          .slice(0, limit),
      }),
      newer: async () => ({ ids: [] }),
      partial: () => away.partial,
      stale: () => away.stale,
      tidy: () => undefined,
    }),
    openFacts: createOpenPageFacts({ clock, posts, people, named: createNamedPeople(), fallback }),
    openPresenter: createOpenPresenter({
      log: createTestLog([]),
      posts,
      people,
      loadCounts: async () => (away.counters ? undefined : new Map()),
    }),
    events: {
      readFinished: () => undefined,
      entryFiltered: () => undefined,
      missingEntry: () => undefined,
      pageServed: () => undefined,
    },
  });
  const page = await home.page({ tenant: newTenant(), signal: soon() }, { viewer: RITA, pageSize: 10, pageToken: '' });
  return {
    completeness: page.completeness,
    ids: page.views.map(({ post }) => post.meta.postId),
    isEnd: page.nextPageToken === '',
  };
}

const NOTHING: Away = { partial: false, stale: false, relation: false, counters: false };

it.each<{
  readonly away: Partial<Away>;
  readonly completeness: string;
  readonly whole: boolean;
  readonly isEnd: boolean;
}>([
  { away: {}, completeness: 'complete', whole: true, isEnd: true },
  { away: { counters: true }, completeness: 'reduced', whole: true, isEnd: true },
  { away: { partial: true }, completeness: 'partial', whole: true, isEnd: true },
  { away: { partial: true, counters: true }, completeness: 'partial', whole: true, isEnd: true },
  { away: { stale: true }, completeness: 'stale', whole: true, isEnd: false },
  { away: { relation: true }, completeness: 'stale', whole: false, isEnd: false },
  { away: { partial: true, stale: true }, completeness: 'stale', whole: true, isEnd: false },
  { away: { partial: true, relation: true }, completeness: 'stale', whole: false, isEnd: false },
  { away: { partial: true, relation: true, counters: true }, completeness: 'stale', whole: false, isEnd: false },
])('a page without $away calls itself $completeness', async ({ away, ...expected }) => {
  const page = await pageWith({ ...NOTHING, ...away });
  expect({ completeness: page.completeness, isEnd: page.isEnd, whole: page.ids.length === 2 }).toEqual(expected);
});
