/**
 * Owns the stage for tests of the write path: rows in a database of its own, timelines in the shared cache under tenants of its own, and a deliverer of which a test may
 * replace any part. The verbs are the product's; nothing runs by itself.
 */
import { randomUUID } from 'node:crypto';
import { inject } from 'vitest';
import { systemClock, systemRandom } from '../../src/runtime.ts';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import { buryJob } from '../../src/store/postgres/fanout-dead.ts';
import * as fanoutJobs from '../../src/store/postgres/fanout-jobs.ts';
import { insertPost } from '../../src/store/postgres/publish.ts';
import { type Cache, type CacheOptions, createCache } from '../../src/store/redis/client.ts';
import { createKeys, type Keys } from '../../src/store/redis/keys.ts';
import { createPulledLists, type PulledLists } from '../../src/store/redis/pulled-lists.ts';
import { createTimelines, type Timelines } from '../../src/store/redis/timelines.ts';
import {
  composePostId,
  type PostId,
  parseTenantId,
  parseUserId,
  type TenantId,
  type UserId,
} from '../../src/timeline/ids.ts';
import type { Visibility } from '../../src/timeline/post.ts';
import { createBlame } from '../../src/write/fanout-blame.ts';
import { createDeliver, type Deliver, type DeliverParts } from '../../src/write/fanout-deliver.ts';
import { createPushPost, type PushPostParts } from '../../src/write/push-post.ts';
import { createPushToList, type PushToListParts } from '../../src/write/push-to-list.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import { storeFollowers } from '../harness/rows.ts';

export interface JobRow {
  readonly follower_cursor: string;
  readonly delivered: number;
  readonly skipped: number;
  readonly attempts: number;
  readonly error: string | null;
  readonly lane: string;
  readonly blamed: number;
  readonly dead: boolean;
  readonly done: boolean;
  readonly leased: boolean;
}

export interface FanoutStage {
  readonly rows: TestDatabase;
  readonly database: Database;
  /** The row's verbs, of which a test may replace some. */
  readonly jobs: DeliverParts['jobs'];
  readonly timelines: Timelines;
  readonly keys: Keys;
  readonly lists: PulledLists;
  readonly tenant: TenantId;
  readonly events: DeliverEventLog;
  /** Stores the edges and makes the timelines of those who are to be resident, empty and ready. */
  arrange(graph: {
    readonly author: string;
    readonly followers: readonly string[];
    readonly resident: readonly string[];
  }): Promise<void>;
  publish(author: string, visibility?: Visibility): Promise<PostId>;
  deliverer(parts?: Partial<DeliverParts>, push?: Partial<PushPostParts>, list?: Partial<PushToListParts>): Deliver;
  job(postId: PostId): Promise<JobRow>;
  /** Entries of a timeline, each as often as it is there; undefined where it is not resident. */
  entries(viewer: string): Promise<readonly number[] | undefined>;
  /** Those of the viewers whose timelines hold the post. */
  holders(postId: PostId, viewers: readonly string[]): Promise<readonly string[]>;
  close(): Promise<void>;
}

export interface DeliverEventLog {
  readonly delivered: { readonly count: number; readonly seconds: number }[];
  readonly ended: string[];
  readonly failed: unknown[];
  readonly died: string[];
  readonly moved: string[];
  readonly retried: number[];
  /** Pushes that were not confirmed, in each try. */
  readonly unconfirmed: number[];
  dropped: number;
}

export function soon(ms = 20_000): AbortSignal {
  return AbortSignal.timeout(ms);
}

export function user(text: string): UserId {
  const parsed = parseUserId(text);
  if (parsed === undefined) throw new Error(`not a user ID: ${text}`);
  return parsed;
}

/** `f000`, `f001` …: in the order of pages. */
export function followers(count: number): readonly string[] {
  return Array.from({ length: count }, (_, index) => `f${String(index).padStart(3, '0')}`);
}

/** Attempts against a job that make it a dead letter. */
export const ATTEMPTS_MAX = 5;

/** Does what takes hold of something, and has the process told to stop before the answer is there: the caller learns of the one or of the other. */
export async function toldToStop<Held>(
  stop: AbortController,
  signal: AbortSignal,
  hold: () => Promise<Held>,
): Promise<Held> {
  const held = await hold();
  stop.abort();
  signal.throwIfAborted();
  return held;
}

let sequence = 0;

/** On the shared cache, or on another. */
export async function openStage(of: Partial<CacheOptions> = {}): Promise<FanoutStage> {
  const rows = await createTestDatabase();
  const database = createDatabase({
    url: rows.url,
    pool: 'stage',
    connectionsMax: 8,
    acquireTimeoutMs: 10_000,
    statementTimeoutMs: 10_000,
    lockTimeoutMs: 10_000,
    waitersMax: 200,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
  const cache: Cache = createCache({
    urls: [inject('servers').cacheUrl],
    cluster: false,
    commandTimeoutMs: 5_000,
    connectTimeoutMs: 5_000,
    clientFailed: () => undefined,
    ...of,
  });
  const keys = createKeys(256);
  const sets = { cap: 800, stride: 64, lifeMs: 600_000, rebuildLeaseMs: 5_000 };
  const timelines = createTimelines(cache, keys, sets);
  const lists = createPulledLists(cache, keys, sets);
  const tenant = parseTenantId(`stage-${randomUUID()}`) as TenantId;
  await eventually(() => timelines.begin(soon(), { tenant, viewer: user('nobody'), token: 'probe' }));
  const events: DeliverEventLog = {
    delivered: [],
    ended: [],
    failed: [],
    died: [],
    moved: [],
    retried: [],
    unconfirmed: [],
    dropped: 0,
  };

  const jobs: DeliverParts['jobs'] = {
    takeLease: (signal, job) => fanoutJobs.takeLease(database, signal, { ...job, attemptsMax: ATTEMPTS_MAX }),
    checkpoint: (signal, job) => fanoutJobs.checkpoint(database, signal, job),
    finish: (signal, job) => fanoutJobs.finishJob(database, signal, job),
    fail: (signal, job) => fanoutJobs.failJob(database, signal, { ...job, attemptsMax: ATTEMPTS_MAX }),
    giveWay: (signal, job) => fanoutJobs.giveWay(database, signal, job),
    bury: (signal, job) => buryJob(database, signal, { ...job, attemptsMax: ATTEMPTS_MAX }),
  };

  const entries = async (viewer: string): Promise<readonly number[] | undefined> => {
    const of = { tenant, viewer: user(viewer), direction: 'newer', position: 0, count: 1_000 } as const;
    const page = await timelines.page(soon(), of);
    return page.state === 'absent' ? undefined : page.ids;
  };

  return {
    rows,
    database,
    jobs,
    timelines,
    keys,
    lists,
    tenant,
    events,
    async arrange({ author, followers: all, resident }) {
      await storeFollowers(rows, tenant, { followee: author, followers: all });
      await Promise.all(
        resident.map(async (name) => {
          const of = { tenant, viewer: user(name), token: 'arranged' };
          await timelines.begin(soon(), of);
          await timelines.commit(soon(), { ...of, floor: 0 });
        }),
      );
    },
    async publish(author, visibility = 'public') {
      sequence += 1;
      const postId = composePostId({ ms: Date.now(), generator: 118, sequence: sequence % 32 });
      const post = { tenant, author: user(author), postId, text: 'hi', media: [], plainRepost: false, visibility };
      const outcome = await insertPost(database, soon(), post);
      if (outcome.kind !== 'published') throw new Error(`not published: ${outcome.kind}`);
      return postId;
    },
    deliverer: (parts = {}, push = {}, list = {}) =>
      createDeliver({
        jobs,
        turn: { othersWait: async () => false, isEnding: () => false },
        blame: createBlame(),
        loadSubject: (signal, query) => fanoutJobs.loadSubject(database, signal, query),
        loadFollowers: (signal, query) => fanoutJobs.loadFollowerPage(database, signal, query),
        pushPost: createPushPost({
          push: (signal, post) => timelines.push(signal, post),
          drop: (signal, of) => timelines.drop(signal, of),
          random: systemRandom,
          events: {
            pushesFailed: (count) => events.unconfirmed.push(count),
            pushesRetried: (count) => events.retried.push(count),
            timelineDropped: () => {
              events.dropped += 1;
            },
          },
          ...push,
        }),
        pushToList: createPushToList({
          push: (signal, post) => lists.push(signal, post),
          drop: (signal, of) => lists.drop(signal, of),
          random: systemRandom,
          events: {
            pushesFailed: () => undefined,
            pushesRetried: (count) => events.retried.push(count),
            timelineDropped: () => {
              events.dropped += 1;
            },
          },
          ...list,
        }),
        clock: systemClock,
        random: systemRandom,
        events: {
          delivered: ({ count, seconds }) => count > 0 && events.delivered.push({ count, seconds }),
          skipped: () => undefined,
          jobEnded: ({ outcome }) => events.ended.push(outcome),
          jobFailed: (_job, error) => events.failed.push(error),
          jobDied: ({ error }) => events.died.push(error),
          jobMoved: ({ lane }) => events.moved.push(lane),
        },
        followerPage: 10,
        leaseMs: 30_000,
        ...parts,
      }),
    async job(postId) {
      const [row] = await rows.sql<JobRow & Record<string, unknown>>(
        `SELECT follower_cursor, delivered, skipped, attempts, error, lane, blamed, dead_at IS NOT NULL AS dead, done_at IS NOT NULL AS done, lease_token IS NOT NULL AS leased
         FROM fanout_jobs WHERE tenant_id = $1 AND post_id = $2 ORDER BY generation DESC LIMIT 1`,
        [tenant, postId],
      );
      if (!row) throw new Error('no such job');
      return row;
    },
    entries,
    async holders(postId, viewers) {
      const held = await Promise.all(viewers.map(async (viewer) => (await entries(viewer)) ?? []));
      return viewers.filter((_, index) => held[index]?.includes(postId));
    },
    async close() {
      await Promise.all([database.close(), cache.close()]);
      await rows.drop();
    },
  };
}
