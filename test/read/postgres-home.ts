/** Owns home as it is read from Postgres alone, by the product's own SQL and visibility: what the cache must never differ from. */
import type { CachedPeople } from '../../src/read/cached-people.ts';
import type { CachedPosts } from '../../src/read/cached-posts.ts';
import { createHomeTimeline, type HomeTimeline } from '../../src/read/home-timeline.ts';
import { createNamedPeople } from '../../src/read/named-people.ts';
import { candidatesOf, createOpenPageFacts } from '../../src/read/page-facts.ts';
import { createPageTokens } from '../../src/read/page-token.ts';
import { createOpenPresenter } from '../../src/read/present.ts';
import type { Call } from '../../src/runtime.ts';
import { loadAuthors } from '../../src/store/postgres/authors.ts';
import { createDatabase } from '../../src/store/postgres/client.ts';
import { loadPostCounts } from '../../src/store/postgres/counters.ts';
import { loadRelations } from '../../src/store/postgres/graph-reads.ts';
import { createLoadHomeNewer, createLoadHomeOlder } from '../../src/store/postgres/home-pages.ts';
import { loadPostsById } from '../../src/store/postgres/posts.ts';
import type { AuthorFact } from '../../src/store/redis/facts.ts';
import type { PostId, UserId } from '../../src/timeline/ids.ts';
import { type AuthorProfile, type Post, UNKNOWN_AUTHOR } from '../../src/timeline/post.ts';
import { createTestLog, type TestService } from '../harness/service.ts';

export interface PostgresHome extends HomeTimeline {
  close(): Promise<void>;
}

export function openPostgresHome({ config, clock }: Pick<TestService, 'config' | 'clock'>): PostgresHome {
  const database = createDatabase({
    ...config.database,
    url: config.databaseUrl,
    pool: 'postgres-home',
    connectionsMax: 4,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
  const loadOlder = createLoadHomeOlder(database);
  const loadNewer = createLoadHomeNewer(database);
  const authorsOf = ({ tenant, signal }: Call, authors: readonly UserId[]) =>
    loadAuthors(database, signal, { tenant, authors });
  const rowsOf = async ({ tenant, signal }: Call, postIds: readonly PostId[]): Promise<readonly Post[]> =>
    (await loadPostsById(database, signal, { tenant, postIds })).entries.flatMap(({ post }) => post ?? []);
  const posts: Pick<CachedPosts, 'loadMetas' | 'loadBodies'> = {
    loadMetas: async (call, ids) => new Map((await rowsOf(call, ids)).map(({ meta }) => [meta.postId, meta])),
    loadBodies: async (call, metas) => {
      const ids = metas.map(({ postId }) => postId);
      return new Map((await rowsOf(call, ids)).map((post) => [post.meta.postId, post]));
    },
  };
  const people: Omit<CachedPeople, 'size' | 'knownProfiles'> = {
    loadRelations: ({ tenant, signal }, viewer, authors) =>
      loadRelations(database, signal, { tenant, viewer, authors }),
    async loadStates(call, authors) {
      const loaded = await authorsOf(call, authors);
      return new Map(
        authors.map((author): readonly [UserId, AuthorFact] => {
          const { state = UNKNOWN_AUTHOR, profile } = loaded.get(author) ?? {};
          return [author, { state, profileVersion: profile?.profileVersion ?? 0 }];
        }),
      );
    },
    async loadProfiles(call, authors) {
      const loaded = await authorsOf(call, [...authors.keys()]);
      return new Map(
        [...loaded].flatMap(([author, { profile }]): (readonly [UserId, AuthorProfile])[] =>
          profile ? [[author, profile]] : [],
        ),
      );
    },
  };
  const home = createHomeTimeline({
    clock,
    tokens: createPageTokens({ keys: config.pageTokenKeys, rejected: () => undefined }),
    openSource: ({ tenant, signal }, viewer) => ({
      older: async (position, limit) => candidatesOf(await loadOlder(signal, { tenant, viewer, position, limit })),
      newer: async (position, limit) => candidatesOf(await loadNewer(signal, { tenant, viewer, position, limit })),
      partial: () => false,
      stale: () => false,
      tidy: () => undefined,
    }),
    openFacts: createOpenPageFacts({ clock, posts, people, named: createNamedPeople() }),
    openPresenter: createOpenPresenter({
      log: createTestLog([]),
      posts,
      people,
      loadCounts: ({ tenant, signal }, postIds) => loadPostCounts(database, signal, { tenant, postIds }),
    }),
    events: {
      readFinished: () => undefined,
      entryFiltered: () => undefined,
      missingEntry: () => undefined,
      pageServed: () => undefined,
    },
  });
  return { ...home, close: () => database.close() };
}
