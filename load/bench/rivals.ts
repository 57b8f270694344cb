/**
 * Owns three usual ways to fan a post out, written from their published shapes: one queue job for each follower; one client pipeline of ZADD and ZREMRANGEBYRANK over all followers; the same with
 * LPUSH and LTRIM.
 *
 * Invariant: each answers only deliveries that Redis has confirmed, and is handed its followers ready in memory: reading them is on our side alone.
 */
import { Queue, Worker } from 'bullmq';
import type { ChainableCommander, Redis } from 'ioredis';
import type { PostId } from '../../src/timeline/ids.ts';
import { copyKeys, filledIds } from './crowd.ts';

export const RIVAL_CAP = 800;
/** Jobs of one worker at once: BullMQ's own advice for jobs that wait for something else. */
const JOBS_AT_ONCE = 100;

/** Pushes one post to all followers; answers how many timelines confirmed it. */
export type Rival = (postId: PostId, followers: readonly string[]) => Promise<number>;

/** Where sets are kept, and how. */
export interface SetStore {
  readonly redis: Redis;
  /** By −ID, as ours; else by ID, as usual. */
  readonly newestFirst: boolean;
}

/** Fills `count` sets to the cap. */
export async function seedSets(signal: AbortSignal, { redis, newestFirst }: SetStore, count: number): Promise<void> {
  const ids = filledIds(RIVAL_CAP);
  await redis.zadd(TEMPLATE, ...ids.flatMap((id) => [newestFirst ? -id : id, String(id)]));
  await copyKeys(signal, redis, () => copiesFor(count, setOf));
  await redis.del(TEMPLATE);
}

/** Fills `count` lists to the cap. */
export async function seedLists(signal: AbortSignal, redis: Redis, count: number): Promise<void> {
  await redis.rpush(TEMPLATE, ...filledIds(RIVAL_CAP).map(String));
  await copyKeys(signal, redis, () => copiesFor(count, listOf));
  await redis.del(TEMPLATE);
}

function* copiesFor(count: number, nameOf: (follower: string) => string): Generator<{ from: string; to: string }> {
  for (let index = 0; index < count; index += 1) yield { from: TEMPLATE, to: nameOf(followerAt(index)) };
}

export function followerAt(index: number): string {
  return `v${String(index).padStart(9, '0')}`;
}

const TEMPLATE = 'template';
const setOf = (follower: string): string => `timeline:${follower}`;
const listOf = (follower: string): string => `list:${follower}`;

export function createZaddPipeline(store: SetStore): Rival {
  const { from, to } = trimOf(store);
  return (postId, followers) =>
    inOnePipeline(store.redis, followers, (pipeline, follower) => {
      const key = setOf(follower);
      pipeline.zadd(key, store.newestFirst ? -postId : postId, String(postId)).zremrangebyrank(key, from, to);
    });
}

function trimOf({ newestFirst }: SetStore): { readonly from: number; readonly to: number } {
  return newestFirst ? { from: RIVAL_CAP, to: -1 } : { from: 0, to: -RIVAL_CAP - 1 };
}

export function createListPipeline(redis: Redis): Rival {
  return (postId, followers) =>
    inOnePipeline(redis, followers, (pipeline, follower) => {
      const key = listOf(follower);
      pipeline.lpush(key, String(postId)).ltrim(key, 0, RIVAL_CAP - 1);
    });
}

async function inOnePipeline(
  redis: Redis,
  followers: readonly string[],
  add: (pipeline: ChainableCommander, follower: string) => void,
): Promise<number> {
  const pipeline = redis.pipeline();
  for (const follower of followers) add(pipeline, follower);
  for (const [error] of (await pipeline.exec()) ?? []) if (error) throw error;
  return followers.length;
}

interface FollowerJob {
  readonly postId: string;
  readonly follower: string;
}

export interface JobPerFollower {
  readonly push: Rival;
  close(): Promise<void>;
}

/** `queue` and `worker`: connections to the queue's server that are the rival's own. */
export function openJobPerFollower(parts: {
  readonly queue: Redis;
  readonly worker: Redis;
  readonly store: SetStore;
}): JobPerFollower {
  const { redis, newestFirst } = parts.store;
  const { from, to } = trimOf(parts.store);
  const queue = new Queue<FollowerJob>('job-per-follower', {
    connection: parts.queue,
    defaultJobOptions: { removeOnComplete: true, removeOnFail: true },
  });
  let left = 0;
  let waiting = newWait();
  const worker = new Worker<FollowerJob>(
    'job-per-follower',
    async ({ data: { postId, follower } }) => {
      const key = setOf(follower);
      const added = redis.zadd(key, newestFirst ? `-${postId}` : postId, postId);
      await Promise.all([added, redis.zremrangebyrank(key, from, to)]);
    },
    { connection: parts.worker, concurrency: JOBS_AT_ONCE },
  );
  worker.on('completed', () => {
    left -= 1;
    if (left === 0) waiting.resolve();
  });
  worker.on('failed', (_job, error) => waiting.reject(error));
  worker.on('error', (error) => waiting.reject(error));
  return {
    async push(postId, followers) {
      left = followers.length;
      waiting = newWait();
      const data = followers.map((follower) => ({ name: 'push', data: { postId: String(postId), follower } }));
      await Promise.all([queue.addBulk(data), waiting.promise]);
      return followers.length;
    },
    async close() {
      await Promise.allSettled([worker.close(true), queue.close()]);
    },
  };
}

/** Whoever awaits it is told; it may fail when nobody does. */
function newWait(): PromiseWithResolvers<void> {
  const wait = Promise.withResolvers<void>();
  wait.promise.catch(() => undefined);
  return wait;
}
