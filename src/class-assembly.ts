/** Owns how the changing of authors' classes is put together. Belongs to the composition root, beside fanout-assembly.ts. */
import { type CacheAssembly, CLASS_BACKFILL_LEASE_MS } from './cache-assembly.ts';
import type { Config } from './config.ts';
import type { Metrics } from './metrics/metrics.ts';
import type { ClassRules } from './repair/author-class.ts';
import { createAuthorClassRounds } from './repair/author-class-rounds.ts';
import { createClassBackfill } from './repair/class-backfill.ts';
import { type Rounds, startRounds } from './repair/rounds.ts';
import type { Runtime } from './runtime.ts';
import * as classes from './store/postgres/author-classes.ts';
import * as backfills from './store/postgres/class-backfills.ts';
import type { Database } from './store/postgres/client.ts';
import { loadFollowerPage } from './store/postgres/fanout-jobs.ts';
import { loadNewestOf } from './store/postgres/home-pages.ts';
import { LIMITS } from './timeline/limits.ts';

export interface ClassAssembly {
  /** Changes classes in rounds, until stopped. */
  startRelay(): void;
  stop(): Promise<void>;
}

const ROUND_MAX_MS = 30_000;
/**
 * Followers on a page, each of whom may be given a whole timeline: at most some seconds of work between two checkpoints, far within the lease and the round, at any cap. (Measured on an idle
 * Redis, 8 at once: 6 to 11 ms a timeline at a cap of 800, 22 to 61 ms at 2,000.)
 */
const BACKFILL_FOLLOWER_PAGE = 100;

/**
 * How long an author stays between pushing and pulling, in milliseconds: until nothing is left that was answered before the change was seen. A cached `pull:` lives for its life from the
 * moment it is stored, which is at most a token's life after its load began; a reader who has it may go on reading until the deadline; a rebuild ends with its lease; and the change itself
 * was timed before it was committed.
 */
export function classWaitMs(config: Config): number {
  const readers = Math.max(config.deadlines.readMaxMs, config.rebuild.leaseMs);
  return config.pulled.lifeMs + config.cache.factLoadLeaseMs + readers + config.database.statementTimeoutMs;
}

export function assembleClasses(parts: {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  /** For the rounds: short statements. */
  readonly relayDatabase: Database;
  /** For pages of followers. */
  readonly database: Database;
  readonly cache: Pick<CacheAssembly, 'timelines'>;
}): ClassAssembly {
  const { config, runtime, metrics, database, relayDatabase, cache } = parts;
  const { clock, log, random } = runtime;
  const rules: ClassRules = {
    up: config.classes.pullUp,
    down: config.classes.pullDown,
    waitMs: classWaitMs(config),
    objectiveSeconds: LIMITS.freshnessObjectiveMs / 1_000,
  };
  const changeClasses = createAuthorClassRounds({
    rules,
    loadPushFigures: (signal, jobs) => classes.loadPushFigures(relayDatabase, signal, jobs),
    loadCandidates: (signal, query) => classes.loadClassCandidates(relayDatabase, signal, query),
    changeClass: (signal, change) => classes.changeClass(relayDatabase, signal, change),
    countPulledAuthors: (signal) => classes.countPulledAuthors(relayDatabase, signal),
    events: {
      classChanged(change) {
        metrics.classChanged(change);
        log.info(change, 'an author changed class');
      },
      authorsCounted: (authors) => metrics.authorsCounted(authors),
    },
  });
  const backfill = createClassBackfill({
    backfills: {
      claim: (signal, input) => backfills.claimBackfill(database, signal, input),
      advance: (signal, page) => backfills.advanceBackfill(database, signal, page),
      release: (signal, page) => backfills.releaseBackfill(database, signal, page),
    },
    loadFollowers: (signal, query) => loadFollowerPage(database, signal, query),
    loadNewestOf: (signal, query) => loadNewestOf(database, signal, query),
    timelines: cache.timelines,
    clock,
    cap: config.timeline.cap,
    followerPage: BACKFILL_FOLLOWER_PAGE,
    waitMs: rules.waitMs,
    leaseMs: CLASS_BACKFILL_LEASE_MS,
    events: {
      pageBackfilled: (page) => metrics.classBackfilled(page),
      timelineDropped: () => metrics.timelineDropped(),
    },
  });

  const rounds: Rounds[] = [];
  const every = (name: string, runOnce: (signal: AbortSignal) => Promise<boolean>): void => {
    rounds.push(startRounds({ name, everyMs: config.classes.everyMs, runOnce, roundMaxMs: ROUND_MAX_MS, random, log }));
  };
  return {
    startRelay() {
      every('author classes', changeClasses);
      every('class backfill', backfill);
    },
    async stop() {
      await Promise.all(rounds.map((one) => one.stop()));
    },
  };
}
