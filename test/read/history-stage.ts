/**
 * Owns the stage of random histories: a service with a small cap over cache and queue servers of its own, steps carried out as a caller would (what is UNAVAILABLE is asked
 * again), readers that look all the time beside them, and the looks that compare with the oracle.
 */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import path from 'node:path';
import { setTimeout as pause } from 'node:timers/promises';
import { assembleCache, type CacheAssembly, openCache } from '../../src/cache-assembly.ts';
import { startRedis } from '../../src/embedded/redis.ts';
import { removeServers } from '../../src/embedded/servers.ts';
import { outcomeOf, TributaryError } from '../../src/errors.ts';
import { createMetrics } from '../../src/metrics/metrics.ts';
import { createLeaseFill } from '../../src/read/lease-fill.ts';
import type { Completeness, HomePage, PostView } from '../../src/read/page.ts';
import { createFollowEntries } from '../../src/repair/follow-entries.ts';
import { createRebuild, type Rebuild } from '../../src/repair/rebuild.ts';
import { type Runtime, systemClock, systemRandom } from '../../src/runtime.ts';
import { loadAuthors } from '../../src/store/postgres/authors.ts';
import { createDatabase } from '../../src/store/postgres/client.ts';
import { loadRelations } from '../../src/store/postgres/graph-reads.ts';
import { findWrittenBy, loadNewestPushedOf } from '../../src/store/postgres/home-pages.ts';
import { loadSnapshot } from '../../src/store/postgres/home-snapshot.ts';
import { loadPostsById } from '../../src/store/postgres/posts.ts';
import { createAuthorFacts, createPostFacts, createRelationFacts } from '../../src/store/redis/facts.ts';
import { createKeys } from '../../src/store/redis/keys.ts';
import { entriesMaxOf } from '../../src/store/redis/timeline-parts.ts';
import { type PostId, postIdFrom, postIdMs, type UserId } from '../../src/timeline/ids.ts';
import { LIMITS } from '../../src/timeline/limits.ts';
import { eventually } from '../harness/eventually.ts';
import { createTestLog, startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { type ReadPage, walkNewer, walkOlder } from '../harness/walk.ts';
import { createHiddenLedger, type HiddenLedger, type Hiding } from './hidden-ledger.ts';
import { type HistoryCache, startHistoryCache } from './history-cache.ts';
import { openPostgresHome, type PostgresHome } from './postgres-home.ts';
import { type Disaster, PAGE_SIZES, type Step, type Turn, USERS } from './random-history.ts';

export interface HistoryStage {
  readonly service: TestService;
  /** Plays a history in tenants of its own and looks at its end. `thorough`: every viewer, everywhere, at every page size; else one of them in each tenant, and the others' homes. */
  play(turns: readonly Turn[], options: { readonly thorough: boolean }): Promise<void>;
  /** Steps carried out, and reads of those who look beside them. */
  readonly counts: { operations: number; reads: number };
  /** Resolves when something more has happened, or a moment has passed. */
  beside(): Promise<void>;
  close(): Promise<void>;
}

/** Small enough that trims, strides, pages of followers and leases come into every history. */
const SMALL = {
  TIMELINE_CAP: '5',
  TIMELINE_TRIM_STRIDE: '2',
  FANOUT_FOLLOWER_PAGE: '2',
  FANOUT_SMALL_CONCURRENCY: '8',
  FANOUT_LEASE_MS: '2000',
  FACT_LIFE_MS: '2000',
  FACT_LOAD_LEASE_MS: '400',
  REBUILD_LEASE_MS: '1000',
  REBUILD_WAIT_MS: '50',
  REBUILDS_MAX: '64',
  CACHE_COMMAND_TIMEOUT_MS: '1000',
  DATABASE_STATEMENT_TIMEOUT_MS: '2500',
  DATABASE_POOL_REQUESTS: '16',
  DATABASE_POOL_WORKERS: '8',
  RELAY_EVERY_MS: '10',
  // Whom three follow is pulled, and a change of class takes four seconds and more; one list comes from the cache, what is beyond from Postgres.
  AUTHOR_PULL_UP: '3',
  AUTHOR_PULL_DOWN: '2',
  AUTHOR_CLASS_EVERY_MS: '20',
  PULLED_LIFE_MS: '100',
  PULLED_LISTS_MAX: '1',
  READ_DEADLINE_DEFAULT_MS: '1000',
  READ_DEADLINE_MAX_MS: '1000',
  LOG_LEVEL: 'silent',
};
/** Refusals that a random history meets by right. */
const EXPECTED = new Set(['POST_NOT_FOUND', 'TARGET_NOT_FOUND', 'BLOCKED', 'AUTHOR_SUSPENDED', 'POST_KIND_FIXED']);
/** Loops that look beside each history, and their pause between two looks: in a long run, where many histories go on at once, fewer each. */
const READERS = { thorough: { count: 2, pauseMs: 1 }, else: { count: 1, pauseMs: 40 } } as const;
/** A server that is away is back after a second or two; the queue may take a stalled job's time. */
const PATIENCE_MS = 60_000;
/** How long pages may be PARTIAL after a restart (clients come back within two seconds) or an abandoned rebuild (over after its lease). */
const DISTURBED_FOR_MS = 8_000;

/** A head token somebody holds, with all they were shown on the way to it, and the entry below which it promises nothing. */
interface Head {
  readonly viewer: UserId;
  readonly token: string;
  readonly shown: ReadonlySet<string>;
  readonly above: number;
}

interface World {
  readonly tenant: TestTenant;
  readonly posts: { readonly id: PostId; readonly author: UserId }[];
  readonly heads: Head[];
  readonly ledger: HiddenLedger;
  /** End of the last short mute: looks wait for it, so that product and oracle see the same. */
  mutesEndMs: number;
  /** What goes on slowly beside the steps. */
  readonly slow: Promise<void>[];
  requests: number;
}

let stages = 0;

/** On a cache of its own, or on one that a test has. */
export async function openHistoryStage(given?: HistoryCache): Promise<HistoryStage> {
  stages += 1;
  // The name by which the next run finds and removes what a killed one left.
  const folder = path.resolve(import.meta.dirname, `../../.data/test-${process.pid}-histories-${stages}`);
  const [cache, queueServer] = await Promise.all([
    given ?? startHistoryCache(folder),
    startRedis({ role: 'queue', dataDir: path.join(folder, 'queue') }),
  ]);
  const env = { ...SMALL, ...cache.env, REDIS_QUEUE_URL: queueServer.url };
  const service = await startTestService({ env: { ...env, TRIBUTARY_ROLE: 'api' } });
  const startRole = (role: 'relay' | 'worker'): Promise<TestService> =>
    startTestService({ env: { ...env, TRIBUTARY_ROLE: role }, database: service.database });
  const roles = { relay: await startRole('relay'), worker: await startRole('worker') };
  const { config, clock } = service;
  const postgresHome: PostgresHome = openPostgresHome(service);

  // A second process, as far as the cache can tell.
  const runtime: Runtime = { clock, random: systemRandom, log: createTestLog([]) };
  const metrics = createMetrics();
  const elsewhereCache = openCache(config, runtime, metrics);
  const elsewhereDatabase = createDatabase({
    ...config.database,
    url: config.databaseUrl,
    pool: 'elsewhere',
    connectionsMax: 4,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
  const elsewhere: CacheAssembly = assembleCache({
    config,
    runtime,
    metrics,
    database: elsewhereDatabase,
    cache: elsewhereCache,
  });

  const newToken = (): string => randomUUID();
  const keys = createKeys(config.timeline.shards);
  const facts = { lifeMs: config.cache.factLifeMs, tokenLifeMs: config.cache.factLoadLeaseMs, random: () => 0 };
  const relationFacts = createRelationFacts(elsewhereCache, keys, facts);
  const authorFacts = createAuthorFacts(elsewhereCache, keys, facts);
  const postFacts = createPostFacts(elsewhereCache, keys, facts);
  const counts = { operations: 0, reads: 0 };
  const { flows, administer } = service.service;
  /** When something last left a timeline unfinished, or its server away. */
  let disturbedMs = -Infinity;
  const disturb = (): void => {
    disturbedMs = performance.now();
  };
  let restarting: Promise<void> = Promise.resolve();

  // ---- what happens

  async function perform(world: World, next: Step | Disaster): Promise<void> {
    counts.operations += 1;
    try {
      await act(world, next);
    } catch (error) {
      if (!(error instanceof TributaryError && EXPECTED.has(error.reason))) throw error;
    }
  }

  /** As a caller would: what a retry may help is asked again, which every call allows. */
  async function retried<Result>(ask: () => Promise<Result>): Promise<Result> {
    const givenUpMs = performance.now() + PATIENCE_MS;
    for (;;) {
      try {
        return await ask();
      } catch (error) {
        if (outcomeOf(error) !== 'unavailable' || performance.now() > givenUpMs) throw error;
        await pause(20);
      }
    }
  }

  function act(world: World, next: Step | Disaster): Promise<unknown> {
    const { ledger, tenant } = world;
    const call = (): ReturnType<TestTenant['call']> => tenant.call();
    const told = <Result>(
      effect: { readonly hides?: readonly Hiding[]; readonly shows?: readonly Hiding[] },
      ask: () => Promise<Result>,
    ): Promise<Result> => ledger.record(effect, () => retried(ask));
    switch (next.kind) {
      case 'publish':
        return publish(world, next);
      case 'follow': {
        const { from: follower, to: followee } = next.pair;
        return told({ shows: [`not-following ${follower} ${followee}`] }, () =>
          flows.relate.follow(call(), { follower, followee }),
        );
      }
      case 'unfollow': {
        const { from: follower, to: followee } = next.pair;
        return told({ hides: [`not-following ${follower} ${followee}`] }, () =>
          flows.relate.unfollow(call(), { follower, followee }),
        );
      }
      case 'removeFollower': {
        const { from: author, to: follower } = next.pair;
        return told({ hides: [`not-following ${follower} ${author}`] }, () =>
          flows.relate.removeFollower(call(), { author, follower }),
        );
      }
      case 'block': {
        const { from: blocker, to: blocked } = next.pair;
        const hides: readonly Hiding[] = [
          `blocked ${blocker} ${blocked}`,
          `not-following ${blocker} ${blocked}`,
          `not-following ${blocked} ${blocker}`,
        ];
        return told({ hides }, () => flows.relate.block(call(), { blocker, blocked }));
      }
      case 'unblock': {
        const { from: blocker, to: blocked } = next.pair;
        return told({ shows: [`blocked ${blocker} ${blocked}`] }, () =>
          flows.relate.unblock(call(), { blocker, blocked }),
        );
      }
      case 'mute': {
        const { from: muter, to: muted } = next.pair;
        return told({ hides: [`muted ${muter} ${muted}`] }, () => flows.relate.mute(call(), { muter, muted }));
      }
      case 'muteForMs': {
        const { from: muter, to: muted } = next.pair;
        const untilMs = clock.nowMs() + next.ms;
        const mute = (): Promise<void> =>
          flows.relate.mute(call(), { muter, muted, untilMs: Math.max(untilMs, clock.nowMs() + 1) });
        if (next.ms >= 60_000) return told({ hides: [`muted ${muter} ${muted}`] }, mute);
        return told({ shows: [`muted ${muter} ${muted}`] }, mute).finally(() => {
          world.mutesEndMs = Math.max(world.mutesEndMs, clock.nowMs() + next.ms + 1);
        });
      }
      case 'unmute': {
        const { from: muter, to: muted } = next.pair;
        return told({ shows: [`muted ${muter} ${muted}`] }, () => flows.relate.unmute(call(), { muter, muted }));
      }
      case 'delete': {
        const post = postOf(world, next.nth);
        if (!post) return Promise.resolve();
        return told({ hides: [`deleted ${post.id}`] }, () =>
          flows.remove(call(), { author: post.author, postId: post.id }),
        );
      }
      case 'edit': {
        const post = postOf(world, next.nth);
        if (!post) return Promise.resolve();
        const text = next.text === undefined ? {} : { text: next.text };
        const closed: Hiding = `followers-only ${post.id}`;
        const own: Hiding = `private ${post.id}`;
        const effect = {
          public: { shows: [closed, own] },
          followers: { shows: [own], hides: [closed] },
          private: { hides: [closed, own] },
        }[next.visibility];
        return told(effect, () =>
          flows.edit(call(), { author: post.author, postId: post.id, visibility: next.visibility, ...text }),
        );
      }
      case 'moderate': {
        const post = postOf(world, next.nth);
        if (!post) return Promise.resolve();
        const hiding: readonly Hiding[] = [`moderated ${post.id}`];
        return told(next.state === 'hidden' ? { hides: hiding } : { shows: hiding }, () =>
          administer.moderatePost(call(), { postId: post.id, state: next.state }),
        );
      }
      case 'suspend':
        return told({ hides: [`suspended ${next.who}`] }, () => administer.suspendAuthor(call(), next.who));
      case 'restore':
        return told({ shows: [`suspended ${next.who}`] }, () => administer.restoreAuthor(call(), next.who));
      case 'putAuthor': {
        const hiding: readonly Hiding[] = [`protected ${next.who}`];
        return told(next.protected ? { hides: hiding } : { shows: hiding }, () =>
          flows.relate.putAuthor(call(), {
            author: next.who,
            displayName: '',
            avatarAddress: '',
            bio: '',
            protected: next.protected,
          }),
        );
      }
      case 'takeHead':
        return takeHead(world, next.who, next.size);
      case 'readNewer':
        return settle(world).then(() => readNewer(world, next.nth, next.size));
      case 'check':
        return settle(world).then(() => checkViewer(world, next.who, { pageSizes: [next.size] }));
      case 'evict':
        return cache.evict(next.prefix, tenant.id, next.nth);
      case 'flush':
        return cache.flush();
      case 'restartCache':
        return restart(() => cache.restart('stop'));
      case 'killCache':
        return restart(() => cache.restart('kill'));
      case 'restartQueue':
        return restart(() => queueServer.restart());
      case 'restartRelay':
        return restartRole('relay');
      case 'restartWorker':
        return restartRole('worker');
      case 'awaitClasses':
        return awaitClasses(world);
      case 'runJobsAgain':
        return service.database.sql(
          `UPDATE fanout_jobs SET done_at = NULL, lease_until = NULL, lease_token = NULL, hinted_at = '-infinity',
             follower_cursor = CASE WHEN $2 THEN follower_cursor ELSE '' END
           WHERE tenant_id = $1 AND done_at IS NOT NULL AND random() < 0.5`,
          [tenant.id, next.fromCheckpoint],
        );
      case 'runEventsAgain':
        return service.database.sql(
          'UPDATE outbox SET done_at = NULL, lease_until = NULL WHERE tenant_id = $1 AND done_at IS NOT NULL AND random() < 0.3',
          [tenant.id],
        );
      case 'forceRebuild':
        return retried(() => elsewhere.forceRebuild(call(), next.who));
      case 'abandonRebuild':
        return abandonRebuild(world, next.who);
      case 'slowly':
        if (next.what === 'cleanUp') return toggleFollow(world, next);
        if (next.what === 'rebuild') return overtakeRebuild(world, next);
        return Promise.resolve(slowly(world, next));
      default:
        throw new Error(`unknown step: ${JSON.stringify(next satisfies never)}`);
    }
  }

  async function publish(world: World, next: Extract<Step, { kind: 'publish' }>): Promise<void> {
    const target = next.link === 'none' ? undefined : postOf(world, next.nth);
    const bare = next.link === 'repost' && target !== undefined;
    world.requests += 1;
    const requestId = `request-${world.requests}`;
    const quiet = world.ledger.underWay() === 0;
    const changes = world.ledger.changes();
    const { post, ownTimelinePending } = await retried(() =>
      flows.publish(world.tenant.call(), {
        author: next.who,
        text: bare ? '' : `post ${world.posts.length}`,
        media: [],
        visibility: next.visibility,
        requestId,
        ...(target && next.link === 'reply' ? { replyTo: target.id } : {}),
        ...(target && next.link !== 'reply' ? { repostOf: target.id } : {}),
      }),
    );
    const { postId } = post.meta;
    world.ledger.published(postId, next.visibility);
    world.posts.push({ id: postId, author: next.who });
    if (ownTimelinePending || bare) return;
    const page = await retried(() =>
      flows.home.page(world.tenant.call(), { viewer: next.who, pageSize: 100, pageToken: '' }),
    );
    // Nobody was hiding anything meanwhile: then authors see their own post at once.
    if (!quiet || world.ledger.changes() !== changes || page.views.length === 100) return;
    assert.ok(
      page.views.some((view) => view.post.meta.postId === postId),
      `${next.who} does not see their own post ${postId} at once`,
    );
  }

  /** One at a time, whichever history asks. */
  function restart(server: () => Promise<void>): Promise<void> {
    restarting = restarting.then(async () => {
      disturb();
      try {
        await server();
      } finally {
        disturb();
      }
    });
    return restarting;
  }

  function restartRole(role: 'relay' | 'worker'): Promise<void> {
    restarting = restarting.then(async () => {
      await roles[role].stop();
      roles[role] = await startRole(role);
    });
    return restarting;
  }

  /** Until nobody is between pushing and pulling. */
  function awaitClasses(world: World): Promise<void> {
    return eventually(
      async () => {
        const [row] = await service.database.sql<{ changing: number }>(
          `SELECT (SELECT count(*) FROM authors WHERE tenant_id = $1 AND fanout_class = 'both')::int
             + (SELECT count(*) FROM counter_deltas WHERE tenant_id = $1)::int AS changing`,
          [world.tenant.id],
        );
        if (row?.changing !== 0) throw new Error(`${row?.changing} authors or counts are changing`);
      },
      { timeoutMs: PATIENCE_MS, everyMs: 50 },
    );
  }

  /** A process that begins to rebuild and dies. */
  async function abandonRebuild(world: World, viewer: UserId): Promise<void> {
    const of = { tenant: world.tenant.id, viewer };
    disturb();
    await retried(async () => {
      await elsewhere.timelines.drop(world.tenant.call().signal, of);
      await elsewhere.timelines.begin(world.tenant.call().signal, { ...of, token: 'of-the-dead' });
    });
  }

  /**
   * What a process does that is held up between its load and its storing, while everything else goes on. It may come late or in vain, and must do no harm: nobody waits for it but
   * the next look.
   */
  function slowly(world: World, { what, pair, ms }: Extract<Step, { kind: 'slowly' }>): void {
    const { from: viewer, to: author } = pair;
    const call = world.tenant.call();
    const of = { tenant: world.tenant.id, viewer };
    const heldUp = async <Value>(load: Promise<Value>): Promise<Value> => {
      const value = await load;
      await pause(ms);
      return value;
    };
    const entries = createFollowEntries({
      timelines: elsewhere.timelines,
      clock: systemClock,
      cap: config.timeline.cap,
      entriesMax: entriesMaxOf(config.timeline),
      follows: async () =>
        (await loadRelations(elsewhereDatabase, call.signal, { ...of, authors: [author] })).get(author)?.follows ??
        false,
      loadRelation: async () => (await elsewhere.people.loadRelations(call, viewer, [author])).get(author),
      loadNewestPushedOf: (_, query) => heldUp(loadNewestPushedOf(elsewhereDatabase, call.signal, { ...of, ...query })),
      findWrittenBy: (_, writer, postIds) =>
        heldUp(findWrittenBy(elsewhereDatabase, call.signal, { ...of, author: writer, postIds })),
      events: { followEntriesChanged: () => undefined },
    });
    const done = {
      async rebuild() {
        await elsewhere.timelines.drop(call.signal, of);
        await slowRebuilder(ms)(call, { viewer }, 'absent');
      },
      cleanUp: async () => void (await entries.cleanUp(call, viewer, author)),
      backfill: () => entries.backfill(call, viewer, author),
      fill: () => fillSlowly(world, viewer, heldUp),
    }[what]();
    // A rebuild that a restart cuts off is as good as abandoned.
    world.slow.push(done.catch(() => disturb()));
  }

  /** The clean-up of an ended follow is still under way when the follow begins anew. */
  async function toggleFollow(world: World, next: Extract<Step, { kind: 'slowly' }>): Promise<void> {
    await act(world, { kind: 'unfollow', pair: next.pair });
    slowly(world, next);
    await act(world, { kind: 'follow', pair: next.pair });
  }

  /** A post comes after the snapshot; then, at times, the timeline is lost, and whoever rebuilds it next dies at it. */
  async function overtakeRebuild(world: World, next: Extract<Step, { kind: 'slowly' }>): Promise<void> {
    const { from: viewer } = next.pair;
    slowly(world, next);
    await publish(world, { kind: 'publish', who: viewer, link: 'none', nth: 0, visibility: 'public' });
    if (next.ms % 2 === 0) await abandonRebuild(world, viewer);
  }

  /** Evicts the facts of a viewer's relations, of all authors and of the newest posts, and stores them again as they were a moment ago, if that may be. */
  async function fillSlowly(
    world: World,
    viewer: UserId,
    heldUp: <Value>(load: Promise<Value>) => Promise<Value>,
  ): Promise<void> {
    const call = world.tenant.call();
    const { tenant, signal } = call;
    const events = { lookedUp: () => undefined, filled: () => undefined };
    const scope = { tenant, viewer };
    const postIds = world.posts.slice(-12).map((post) => post.id);
    await Promise.all([
      relationFacts.forget(signal, scope, USERS),
      authorFacts.forget(signal, tenant, USERS),
      postFacts.forget(signal, tenant, postIds),
    ]);
    await Promise.all([
      createLeaseFill({ facts: relationFacts, newToken, events })(call, scope, USERS, (authors) =>
        heldUp(loadRelations(elsewhereDatabase, signal, { ...scope, authors })),
      ),
      createLeaseFill({ facts: authorFacts, newToken, events })(call, tenant, USERS, async (authors) => {
        const loaded = await heldUp(loadAuthors(elsewhereDatabase, signal, { tenant, authors }));
        return new Map(
          [...loaded].map(([id, { state, profile }]) => [id, { state, profileVersion: profile?.profileVersion ?? 0 }]),
        );
      }),
      createLeaseFill({ facts: postFacts, newToken, events })(call, tenant, postIds, async (ids) => {
        const { entries } = await heldUp(loadPostsById(elsewhereDatabase, signal, { tenant, postIds: ids }));
        return new Map(entries.flatMap(({ postId, post }) => (post ? [[postId, post.meta] as const] : [])));
      }),
    ]);
  }

  function slowRebuilder(ms: number): Rebuild<{ readonly viewer: UserId }> {
    return createRebuild<{ readonly viewer: UserId }>({
      clock,
      sets: elsewhere.timelines,
      nameOf: (of) => of.viewer,
      newToken,
      random: systemRandom,
      leaseMs: config.rebuild.leaseMs,
      concurrencyMax: config.rebuild.concurrencyMax,
      async loadSnapshot(signal, query) {
        const snapshot = await loadSnapshot(elsewhereDatabase, signal, { ...query, cap: config.timeline.cap });
        await pause(ms);
        return snapshot;
      },
      events: {
        rebuilt: ({ outcome }) => outcome === 'failed' && disturb(),
        joined: () => undefined,
        failed: () => undefined,
      },
    });
  }

  function postOf(world: World, nth: number): World['posts'][number] | undefined {
    return world.posts.at(-1 - nth);
  }

  // ---- who looks

  async function settle(world: World): Promise<void> {
    await Promise.all(world.slow.splice(0));
    await eventually(
      async () => {
        const [row] = await service.database.sql<{ open: number }>(
          `SELECT (SELECT count(*) FROM fanout_jobs WHERE done_at IS NULL AND tenant_id = $1)::int
             + (SELECT count(*) FROM outbox WHERE done_at IS NULL AND tenant_id = $1)::int AS open`,
          [world.tenant.id],
        );
        if (row?.open !== 0) throw new Error(`${row?.open} jobs and events are open`);
        if (clock.nowMs() < world.mutesEndMs) throw new Error('a short mute has not ended');
      },
      { timeoutMs: PATIENCE_MS, everyMs: 5 },
    );
  }

  interface Look {
    readonly completeness: Set<Completeness>;
    readonly seen: PostView[];
  }

  function homeFrom(
    world: World,
    viewer: UserId,
    pageSize: number,
    look: Look,
    read: (query: { viewer: UserId; pageSize: number; pageToken: string }) => Promise<HomePage>,
  ): ReadPage {
    return async (pageToken) => {
      const startedMs = performance.now();
      const page = await retried(() => read({ viewer, pageSize, pageToken }));
      world.ledger.judge({ viewer, surface: 'home', startedMs, views: page.views });
      look.completeness.add(page.completeness);
      look.seen.push(...page.views);
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

  const fromCache =
    (world: World) =>
    (query: { viewer: UserId; pageSize: number; pageToken: string }): Promise<HomePage> =>
      flows.home.page(world.tenant.call(), query);
  const fromPostgres =
    (world: World) =>
    (query: { viewer: UserId; pageSize: number; pageToken: string }): Promise<HomePage> =>
      postgresHome.page(world.tenant.call(), query);

  function authorPages(world: World, viewer: UserId, author: UserId, pageSize: number): ReadPage {
    return async (pageToken) => {
      const startedMs = performance.now();
      const page = await retried(() => flows.authorPosts(world.tenant.call(), { viewer, author, pageSize, pageToken }));
      world.ledger.judge({ viewer, surface: 'author', startedMs, views: page.views });
      return {
        ids: page.views.map((view) => String(view.post.meta.postId)),
        nextPageToken: page.nextPageToken,
        headToken: '',
      };
    };
  }

  /** Walks until every page calls itself complete: soon where nothing was away or abandoned lately (a busy machine may make a reader wait in vain for a rebuild), and right in any case. */
  async function completeWalk<Result>(what: string, walk: (look: Look) => Promise<Result>): Promise<Result> {
    const startedMs = performance.now();
    for (;;) {
      const look: Look = { completeness: new Set(), seen: [] };
      const result = await walk(look);
      look.completeness.delete('complete');
      if (look.completeness.size === 0) return result;
      const faults = [...look.completeness].join(', ');
      assert.ok(
        performance.now() < Math.max(startedMs, disturbedMs) + DISTURBED_FOR_MS,
        `${what} calls itself ${faults}`,
      );
      await pause(20);
    }
  }

  /** `everywhere`: on every surface and from Postgres alone too, not only on the home that the cache serves. */
  async function checkViewer(
    world: World,
    viewer: UserId,
    { pageSizes, everywhere = true }: { readonly pageSizes: readonly number[]; readonly everywhere?: boolean },
  ): Promise<void> {
    const oracle = await world.tenant.oracle(viewer);
    for (const pageSize of pageSizes) {
      await completeWalk(`home of ${viewer}`, async (look) => {
        const walk = await walkOlder(homeFrom(world, viewer, pageSize, look, fromCache(world)), { pageSize });
        assertHome(look, walk.ids, oracle.home, `home of ${viewer} by ${pageSize}`);
        // A page is short only where it ends the walk, or ran out of rounds over what is hidden.
        for (const view of look.seen) assertTargets(view, oracle);
      });
      if (!everywhere) continue;
      const look: Look = { completeness: new Set(), seen: [] };
      const walk = await walkOlder(homeFrom(world, viewer, pageSize, look, fromPostgres(world)), { pageSize });
      assert.deepEqual(walk.ids, oracle.home, `home of ${viewer} by ${pageSize} from Postgres`);
    }
    if (!everywhere) return;
    const pageSize = pageSizes.at(-1) ?? 50;
    for (const author of USERS) {
      const walk = await walkOlder(authorPages(world, viewer, author, pageSize), { pageSize });
      assert.deepEqual(walk.ids, oracle.byAuthor(author), `posts of ${author} for ${viewer}`);
    }
    if (world.posts.length === 0) return;
    const asked = world.posts.slice(-100).map((post) => post.id);
    const batch = await retried(() => flows.posts.batch(world.tenant.call(), { viewer, postIds: asked }));
    assert.deepEqual(
      batch.views.map((view) => String(view.post.meta.postId)),
      asked.map(String).filter((id) => oracle.entry(id)),
      `batch for ${viewer}`,
    );
    for (const view of batch.views) assertTargets(view, oracle);
  }

  /** Pages that say so may lack what the cache does not know, while Postgres does not answer; never do they show more. */
  function assertHome(look: Look, ids: readonly string[], home: readonly string[], what: string): void {
    const mayLack = look.completeness.has('stale') || look.completeness.has('unavailable');
    const called = [...look.completeness].join(' ');
    assert.deepEqual(ids, mayLack ? home.filter((id) => ids.includes(id)) : home, `${what}, ${called}`);
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
    const look: Look = { completeness: new Set(), seen: [] };
    const page = await homeFrom(world, viewer, pageSize, look, fromCache(world))('');
    const oldest = page.ids.at(-1);
    // Below the oldest entry of a page that is not the last, an older page goes on.
    const above = page.nextPageToken === '' ? 0 : oldest === undefined ? Number.MAX_SAFE_INTEGER : Number(oldest);
    world.heads.push({ viewer, token: page.headToken, shown: new Set(page.ids), above });
  }

  /**
   * From a head token up: all that belongs on home above what the page held and was not shown, however late it came to the timeline, within the freshness
   * objective; and nothing twice.
   */
  async function readNewer(world: World, nth: number, pageSize: number): Promise<void> {
    const at = world.heads.length === 0 ? 0 : nth % world.heads.length;
    const head = world.heads[at];
    if (!head) return;
    const { home } = await world.tenant.oracle(head.viewer);
    const walk = await completeWalk(`newer entries of ${head.viewer}`, (look) =>
      walkNewer(head.token, homeFrom(world, head.viewer, pageSize, look, fromCache(world)), { pageSize }),
    );
    const { newCount } = await completeWalk(`head of ${head.viewer}`, async (look) => {
      const found = await retried(() =>
        flows.home.head(world.tenant.call(), { viewer: head.viewer, sinceToken: head.token }),
      );
      look.completeness.add(found.completeness);
      return found;
    });
    assert.equal(newCount, Math.min(walk.ids.length, LIMITS.newCountMax), `count of newer entries of ${head.viewer}`);
    const known = new Set([...head.shown, ...walk.ids]);
    const newest = [...known].reduce((most, id) => Math.max(most, Number(id)), 0);
    const lookBackMs = newest === 0 ? 0 : postIdMs(postIdFrom(newest)) - LIMITS.freshnessObjectiveMs;
    const missing = home.filter(
      (id) => Number(id) > head.above && postIdMs(postIdFrom(Number(id))) >= lookBackMs && !known.has(id),
    );
    assert.deepEqual(missing, [], `newer entries of ${head.viewer} by ${pageSize}`);
    const wrong = walk.ids.filter((id) => head.shown.has(id) || !home.includes(id));
    assert.deepEqual(wrong, [], `entries of ${head.viewer} that were shown before or are not on home`);
    const again = await completeWalk(`a second look of ${head.viewer}`, (look) =>
      walkNewer(walk.headToken, homeFrom(world, head.viewer, pageSize, look, fromCache(world)), { pageSize }),
    );
    assert.deepEqual(again.ids, [], `a second look by ${head.viewer} at the same moment`);
    world.heads[at] = { viewer: head.viewer, token: again.headToken, shown: known, above: head.above };
  }

  async function checkApart([one, two]: readonly World[]): Promise<void> {
    if (!one || !two) throw new Error('a history has two tenants');
    for (const [here, there] of [
      [one, two],
      [two, one],
    ] as const) {
      const foreign = there.posts.slice(-100).map((post) => post.id);
      if (foreign.length === 0) continue;
      const read = (viewer: UserId) => flows.posts.batch(here.tenant.call(), { viewer, postIds: foreign });
      for (const viewer of USERS) {
        const { views } = await retried(() => read(viewer));
        assert.deepEqual(views, [], 'posts of one tenant are nothing in another');
      }
    }
  }

  /** Looks at random places, at random moments, until told to stop; rejects with the first thing that must not have been shown. */
  async function readBeside(worlds: readonly World[], pauseMs: number, stopped: AbortSignal): Promise<void> {
    const any = <Item>(items: readonly Item[]): Item => items[Math.floor(Math.random() * items.length)] as Item;
    while (!stopped.aborted) {
      const world = any(worlds);
      const viewer = any(USERS);
      const startedMs = performance.now();
      const surface = any(['home', 'home', 'author', 'batch'] as const);
      try {
        const { views } = await readOnce(world, viewer, surface, any(PAGE_SIZES));
        world.ledger.judge({ viewer, surface, startedMs, views });
      } catch (error) {
        if (!(error instanceof TributaryError) || outcomeOf(error) !== 'unavailable') throw error;
      }
      counts.reads += 1;
      await pause(pauseMs);
    }

    function readOnce(world: World, viewer: UserId, surface: 'home' | 'author' | 'batch', pageSize: number) {
      const call = world.tenant.call();
      const postIds = world.posts.slice(-20).map((post) => post.id);
      switch (surface) {
        case 'home':
          return flows.home.page(call, { viewer, pageSize, pageToken: '' });
        case 'author':
          return flows.authorPosts(call, { viewer, author: any(USERS), pageSize, pageToken: '' });
        case 'batch':
          return postIds.length === 0 ? Promise.resolve({ views: [] }) : flows.posts.batch(call, { viewer, postIds });
        default:
          throw new Error(`unknown surface: ${surface satisfies never}`);
      }
    }
  }

  async function newWorld(): Promise<World> {
    const strangers = USERS.flatMap((viewer) => USERS.map((author) => [viewer, author] as const));
    return {
      tenant: await service.tenant(),
      posts: [],
      heads: [],
      ledger: createHiddenLedger(strangers.filter(([viewer, author]) => viewer !== author)),
      mutesEndMs: 0,
      slow: [],
      requests: 0,
    };
  }

  async function playTurns(worlds: readonly World[], turns: readonly Turn[]): Promise<void> {
    let together: Promise<void>[] = [];
    const isLook = ({ step }: Turn): boolean => step.kind === 'check' || step.kind === 'readNewer';
    for (const [at, turn] of turns.entries()) {
      const before = turns[at - 1];
      if (!turn.beside || isLook(turn) || together.length >= 8 || (before && isLook(before))) {
        await Promise.all(together);
        together = [];
      }
      const world = worlds[turn.tenant];
      if (!world) throw new Error('a history has two tenants');
      const performed = perform(world, turn.step);
      performed.catch(() => undefined);
      together.push(performed);
    }
    await Promise.all(together);
  }

  return {
    service,
    counts,
    async beside() {
      const { operations } = counts;
      for (let looks = 0; looks < 50 && counts.operations < operations + 5; looks += 1) await pause(10);
    },
    async play(turns, { thorough }) {
      const worlds = [await newWorld(), await newWorld()];
      const stopReading = new AbortController();
      const { count, pauseMs } = thorough ? READERS.thorough : READERS.else;
      const readers = Promise.all(Array.from({ length: count }, () => readBeside(worlds, pauseMs, stopReading.signal)));
      readers.catch(() => undefined);
      try {
        await Promise.race([playTurns(worlds, turns), readers]);
        for (const [index, world] of worlds.entries()) {
          await settle(world);
          await Promise.all(
            USERS.map((viewer, at) => {
              if (thorough) return checkViewer(world, viewer, { pageSizes: PAGE_SIZES });
              const some = [PAGE_SIZES[(at + index + turns.length) % 2 === 0 ? 0 : 1], 50];
              return at === turns.length % USERS.length
                ? checkViewer(world, viewer, { pageSizes: some })
                : checkViewer(world, viewer, { pageSizes: [50], everywhere: false });
            }),
          );
          for (let at = 0; at < world.heads.length; at += 1) await readNewer(world, at, 2);
        }
        await checkApart(worlds);
      } finally {
        stopReading.abort();
        await readers;
      }
    },
    async close() {
      await Promise.all([roles.relay.stop(), roles.worker.stop()]);
      await Promise.all([service.stop(), postgresHome.close(), elsewhereCache.close(), elsewhereDatabase.close()]);
      await Promise.all([cache.close(), queueServer.stop()]);
      await removeServers(folder);
    },
  };
}
