/** Owns home as it is read from Postgres alone, by the product's own SQL and visibility: what the cache must never differ from. */
import { createHomeTimeline, type HomeTimeline } from '../../src/read/home-timeline.ts';
import { createHydrate } from '../../src/read/hydrate.ts';
import { createPageTokens } from '../../src/read/page-token.ts';
import { loadAuthors } from '../../src/store/postgres/authors.ts';
import { createDatabase } from '../../src/store/postgres/client.ts';
import { loadPostCounts } from '../../src/store/postgres/counters.ts';
import { loadRelations } from '../../src/store/postgres/graph-reads.ts';
import { createLoadHomeNewer, createLoadHomeOlder } from '../../src/store/postgres/home-pages.ts';
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
  const home = createHomeTimeline({
    clock,
    tokens: createPageTokens({ keys: config.pageTokenKeys, rejected: () => undefined }),
    openCandidates: ({ tenant, signal }, viewer) => ({
      older: (position, limit) => loadOlder(signal, { tenant, viewer, position, limit }),
      newer: (position, limit) => loadNewer(signal, { tenant, viewer, position, limit }),
      partial: () => false,
      stale: () => false,
      cutShort: () => false,
      tidy: () => undefined,
    }),
    hydrate: createHydrate({
      clock,
      log: createTestLog([]),
      loadRelations: ({ tenant, signal }, viewer, authors) =>
        loadRelations(database, signal, { tenant, viewer, authors }),
      loadAuthors: ({ tenant, signal }, authors) => loadAuthors(database, signal, { tenant, authors }),
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
