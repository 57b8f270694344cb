/** Owns how one run of a fan-out job is put together: Postgres for the job and the followers, the cache for the timelines. Belongs to the composition root; the benchmarks measure this very thing. */
import type { CacheAssembly } from './cache-assembly.ts';
import type { Config } from './config.ts';
import type { Metrics } from './metrics/metrics.ts';
import type { Runtime } from './runtime.ts';
import type { Database } from './store/postgres/client.ts';
import * as jobs from './store/postgres/fanout-jobs.ts';
import { createDeliver, type Deliver } from './write/fanout-deliver.ts';
import { createPushPost } from './write/push-post.ts';

export function assembleDeliver(parts: {
  readonly config: Pick<Config, 'fanout'>;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  readonly database: Database;
  readonly cache: Pick<CacheAssembly, 'timelines'>;
}): Deliver {
  const { config, runtime, metrics, database, cache } = parts;
  const { clock, log, random } = runtime;
  return createDeliver({
    jobs: {
      takeLease: (signal, job) => jobs.takeLease(database, signal, job),
      checkpoint: (signal, job) => jobs.checkpoint(database, signal, job),
      finish: (signal, job) => jobs.finishJob(database, signal, job),
      fail: (signal, job) => jobs.failJob(database, signal, job),
    },
    loadSubject: (signal, post) => jobs.loadSubject(database, signal, post),
    loadFollowers: (signal, query) => jobs.loadFollowerPage(database, signal, query),
    pushPost: createPushPost({
      push: (signal, post) => cache.timelines.push(signal, post),
      drop: (signal, of) => cache.timelines.drop(signal, of),
      random,
      events: metrics,
    }),
    clock,
    random,
    followerPage: config.fanout.followerPage,
    leaseMs: config.fanout.leaseMs,
    events: {
      delivered: (page) => metrics.fanoutDelivered(page),
      skipped: (page) => metrics.fanoutSkipped(page),
      jobEnded: (job) => metrics.fanoutJobEnded(job),
      jobFailed: ({ tenant, postId, generation }, error) =>
        log.warn({ err: error, tenant, postId, generation }, 'a fan-out job failed and is done again'),
    },
  });
}
