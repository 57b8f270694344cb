/** Owns how flows are put together from stores: which verb goes where, and nothing else. Belongs to the composition root. */
import { randomUUID } from 'node:crypto';
import type { CacheAssembly } from './cache-assembly.ts';
import type { Config } from './config.ts';
import type { DegradationAssembly } from './degradation-assembly.ts';
import type { Metrics } from './metrics/metrics.ts';
import { createListAuthorPosts } from './read/author-posts.ts';
import { createGraphLists } from './read/graph-lists.ts';
import { createHomeTimeline } from './read/home-timeline.ts';
import type { ReadEvents } from './read/measure.ts';
import { createNamedPeople } from './read/named-people.ts';
import { createOpenPageFacts } from './read/page-facts.ts';
import { createPageTokens } from './read/page-token.ts';
import { createReadPosts } from './read/posts.ts';
import { createOpenPresenter } from './read/present.ts';
import { createRecountFollowers } from './repair/recount-followers.ts';
import type { Flows } from './rpc/flows.ts';
import type { Call, Runtime } from './runtime.ts';
import * as classes from './store/postgres/author-classes.ts';
import * as authors from './store/postgres/authors.ts';
import type { Database, Transaction } from './store/postgres/client.ts';
import * as counters from './store/postgres/counters.ts';
import type { DueJob } from './store/postgres/fanout-jobs.ts';
import * as generators from './store/postgres/generators.ts';
import * as graph from './store/postgres/graph.ts';
import * as graphReads from './store/postgres/graph-reads.ts';
import * as outbox from './store/postgres/outbox.ts';
import * as posts from './store/postgres/posts.ts';
import * as publishing from './store/postgres/publish.ts';
import * as tenants from './store/postgres/tenants.ts';
import type { PostId, UserId } from './timeline/ids.ts';
import { type Administer, type AuthorTransaction, createAdminister } from './write/administer.ts';
import { createDelete, type DeleteTransaction } from './write/delete.ts';
import { createEdit, createModerate, type PostTransaction } from './write/edit.ts';
import { createImport, type ImportPosts } from './write/import.ts';
import { createMint } from './write/mint.ts';
import { createOwedOwn } from './write/owed-own.ts';
import { createShowOwn } from './write/own-timeline.ts';
import { createPublish } from './write/publish.ts';
import { createShowPulled } from './write/pulled-list.ts';
import { createRelate, type GraphTransaction } from './write/relate.ts';
import { createFindTargets } from './write/targets.ts';

export interface Assembly {
  readonly flows: Flows;
  readonly administer: Administer;
  readonly importPosts: ImportPosts;
  stop(): void;
}

/** Of a walk that recounts all authors of a tenant; leaves the last of them time to end within an operator's verb. */
const RECOUNT_BUDGET_MS = 20_000;

export function assemble(parts: {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  readonly database: Database;
  readonly cache: CacheAssembly;
  /** Hints at a new fan-out job at once; never waited for. */
  readonly nudge: (job: DueJob) => void;
  /** Operators' verbs do without. */
  readonly degradation?: Pick<DegradationAssembly, 'hasDatabase' | 'omitsCounts' | 'outage'>;
}): Assembly {
  const { config, runtime, metrics, database, cache, degradation } = parts;
  const hasDatabase = degradation?.hasDatabase ?? (() => true);
  const { clock, log, random } = runtime;

  const loadPosts = (call: Call, postIds: readonly PostId[]) =>
    posts.loadPostsById(database, call.signal, { tenant: call.tenant, postIds });
  const loadRelations = (call: Call, viewer: UserId, of: readonly UserId[]) =>
    graphReads.loadRelations(database, call.signal, { tenant: call.tenant, viewer, authors: of });
  const loadAuthors = (call: Call, of: readonly UserId[]) =>
    authors.loadAuthors(database, call.signal, { tenant: call.tenant, authors: of });
  const loadCounts = async (...asked: Parameters<typeof cache.loadCounts>) =>
    degradation?.omitsCounts() ? undefined : cache.loadCounts(...asked);

  const events: ReadEvents = {
    readFinished: (event) => metrics.readFinished(event),
    entryFiltered: (event) => metrics.entryFiltered(event),
    missingEntry: (surface) => metrics.missingEntry(surface),
    pageServed: ({ pageSize, end, ...page }) =>
      metrics.pageServed({ ...page, short: !end && page.entries < pageSize, empty: !end && page.entries === 0 }),
  };
  const tokens = createPageTokens({ keys: config.pageTokenKeys, rejected: (fault) => metrics.tokenRejected(fault) });
  const named = createNamedPeople();
  /** Home may leave posts out while Postgres is away, and says so; whoever asks for certain posts is told that they cannot be had. */
  const readingWith = (mayLeaveOut: boolean) => {
    const fallback = { known: cache.known, hasDatabase, mayLeaveOut };
    const { posts, people } = cache;
    return {
      clock,
      events,
      openFacts: createOpenPageFacts({ clock, posts, people, named, fallback }),
      openPresenter: createOpenPresenter({
        log,
        posts,
        people,
        loadCounts,
        fallback: { ...fallback, knownBodies: posts.knownBodies, knownProfiles: people.knownProfiles },
      }),
    };
  };
  const reading = readingWith(false);

  const holder = randomUUID();
  const mint = createMint({
    clock,
    claim: (signal) => generators.claimGenerator(database, signal, holder),
    async renew(signal, generator) {
      const highMs = await generators.renewGenerator(database, signal, holder, generator);
      if (highMs === undefined) metrics.idLeaseLost();
      return highMs;
    },
    leaseFailed: (why) => metrics.idLeaseFailed(why),
    refused: (why) => metrics.idMintRefused(why),
  });

  const { forget } = cache;
  const owedOwn = createOwedOwn({
    async push(signal, { tenant, author, postId }) {
      const [outcome] = await cache.timelines.push(signal, { tenant, postId, viewers: [author] });
      return outcome;
    },
    monotonicMs: () => clock.monotonicMs(),
    owed: (count) => metrics.ownPostsOwed(count),
  });
  const recountFollowers = createRecountFollowers({
    clock,
    recount: (call, author) => counters.recountFollowers(database, call.signal, { tenant: call.tenant, author }),
    findNextCounted: (call, after) => counters.findNextCounted(database, call.signal, { tenant: call.tenant, after }),
  });
  const editing = {
    forget,
    transaction: <Result>(call: Call, work: (verbs: PostTransaction) => Promise<Result>) =>
      database.transaction(call.signal, (transaction) => work(postVerbs(call, transaction))),
  };
  const moderate = createModerate(editing);

  return {
    flows: {
      publish: createPublish({
        clock,
        mint,
        insertPost: (signal, post) => publishing.insertPost(database, signal, post),
        findRequest: (call, requestId) =>
          publishing.findPublishRequest(database, call.signal, { tenant: call.tenant, requestId }),
        findTargets: createFindTargets({ clock, loadPosts, loadRelations, loadAuthors }),
        showOwn: createShowOwn({
          push: (signal, post) => cache.timelines.push(signal, { ...post, cutLater: true }),
          random,
          pending(post) {
            metrics.ownTimelinePending();
            owedOwn.owe(post);
          },
        }),
        showPulled: createShowPulled({
          push: (signal, post) => cache.lists.push(signal, post),
          read: (call, post) => cache.warm(call, post),
          random,
          events: {
            listPending: () => metrics.listPending(),
            notWarmed: (error) =>
              log.debug({ err: error }, 'a new post was not brought into the cache; readers load it'),
          },
        }),
        nudge: parts.nudge,
        published: (seconds, outcome) => metrics.publishFinished(seconds, outcome),
      }),
      edit: createEdit(editing),
      remove: createDelete({
        forget,
        transaction: (call, work) =>
          database.transaction(call.signal, (transaction) => work(deleteVerbs(call, transaction))),
      }),
      relate: createRelate({
        followsMax: config.followsMax,
        forget,
        backfill: cache.backfill,
        startFollows: (call, input) => graph.startFollows(database, call.signal, { tenant: call.tenant, ...input }),
        endFollow: (call, pair) => graph.endOneFollow(database, call.signal, pair),
        loadFollowStates: (call, follower, followees) =>
          graph.loadFollowStates(database, call.signal, { tenant: call.tenant, follower, followees }),
        notForgotten: (error) => log.warn({ err: error }, 'a deletion in the cache is left to the outbox'),
        transaction: (call, work) =>
          database.transaction(call.signal, (transaction) => work(graphVerbs(call, transaction))),
      }),
      home: createHomeTimeline({
        ...readingWith(true),
        tokens,
        openSource: cache.openSource,
        ...(degradation && { outage: degradation.outage }),
      }),
      posts: createReadPosts(reading),
      authorPosts: createListAuthorPosts({
        ...reading,
        tokens,
        loadPosts: (call, query) => posts.loadAuthorPosts(database, call.signal, { tenant: call.tenant, ...query }),
      }),
      graph: createGraphLists({
        clock,
        tokens,
        loadRelations,
        loadFollowers: (call, query) =>
          graphReads.loadFollowers(database, call.signal, { tenant: call.tenant, ...query }),
        loadFollowing: (call, query) =>
          graphReads.loadFollowing(database, call.signal, { tenant: call.tenant, ...query }),
      }),
    },
    administer: createAdminister({
      random,
      forget,
      moderate,
      loadShownClass: (call, author) => classes.loadShownClass(database, call.signal, { tenant: call.tenant, author }),
      hasTenant: (call) => tenants.hasTenant(database, call.signal, call.tenant),
      insertTenant: (signal, tenant) => tenants.insertTenant(database, signal, tenant),
      insertApiKey: (signal, key) => tenants.insertApiKey(database, signal, key),
      revokeApiKey: (signal, hash) => tenants.revokeApiKey(database, signal, hash),
      findPostAuthor: (call, postId) => posts.findPostAuthor(database, call.signal, { tenant: call.tenant, postId }),
      recountFollowers: (call, which) => recountFollowers(call, which, RECOUNT_BUDGET_MS),
      transaction: (call, work) =>
        database.transaction(call.signal, (transaction) => work(authorVerbs(call, transaction))),
    }),
    importPosts: createImport({
      insertImportedPosts: (call, rows, fanOut) =>
        publishing.insertImportedPosts(database, call.signal, { tenant: call.tenant, posts: rows, fanOut }),
    }),
    stop: () => owedOwn.stop(),
  };
}

function postVerbs(call: Call, transaction: Transaction): PostTransaction {
  return {
    lock: (key) => posts.lockPost(transaction, key),
    write: (key, change) => posts.writePost(transaction, key, change),
    appendFanoutGeneration: (key) => posts.appendFanoutGeneration(transaction, key),
    appendEvent: (kind, payload) => outbox.appendEvent(transaction, { tenant: call.tenant, kind, payload }),
  };
}

function deleteVerbs(call: Call, transaction: Transaction): DeleteTransaction {
  return {
    lock: (key) => posts.lockPost(transaction, key),
    erase: (key) => posts.erasePost(transaction, key),
    appendTargetCounts: (input) => counters.appendTargetCounts(transaction, { tenant: call.tenant, ...input }),
    appendEvent: (kind, payload) => outbox.appendEvent(transaction, { tenant: call.tenant, kind, payload }),
  };
}

function authorVerbs(call: Call, transaction: Transaction): AuthorTransaction {
  return {
    setLifecycle: (input) => authors.setLifecycle(transaction, input),
    appendEvent: (kind, payload) => outbox.appendEvent(transaction, { tenant: call.tenant, kind, payload }),
  };
}

function graphVerbs(call: Call, transaction: Transaction): GraphTransaction {
  return {
    holdFollows: (pair) => graph.holdFollows(transaction, pair),
    endFollow: (pair) => graph.endFollow(transaction, pair),
    insertBlock: (pair) => graph.insertBlock(transaction, pair),
    deleteBlock: (pair) => graph.deleteBlock(transaction, pair),
    upsertMute: (pair) => graph.upsertMute(transaction, pair),
    deleteMute: (pair) => graph.deleteMute(transaction, pair),
    putProfile: (input) => authors.putProfile(transaction, input),
    appendEvent: (kind, payload) => outbox.appendEvent(transaction, { tenant: call.tenant, kind, payload }),
  };
}
