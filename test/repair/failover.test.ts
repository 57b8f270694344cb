/** Owns what a failover of the cache or the queue costs: a moment. What the new server lacks of the last minutes is brought to it, once, whoever notices. */
import { randomUUID } from 'node:crypto';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { createFailoverWatch, type FailoverParts } from '../../src/repair/failover.ts';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import { noticeLineages, rerunBatch, type SeenLineage } from '../../src/store/postgres/failovers.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import { startRedisPair } from '../harness/redis-pair.ts';
import { openResidents } from '../harness/residents.ts';
import { storeFollowers, storePosts } from '../harness/rows.ts';
import { startTestService, type TestTenant } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

const POST_EVERY_MS = 10;
/** From the failover to the first write that succeeds. */
const WRITES_WITHIN_MS = 10_000;
const PATIENT = { timeoutMs: 40_000, everyMs: 100 };
const READERS = Array.from({ length: 10 }, (_, at) => `reader-${at}`);

/** Publishes at a steady rate, whatever becomes of it; a publish that fails is tried again until it is answered. */
function startPosting(tenant: TestTenant): { readonly posted: readonly string[]; stop(): Promise<void> } {
  const posted: string[] = [];
  const open = new Set<Promise<void>>();
  async function publish(): Promise<void> {
    const post = { authorId: 'ada', text: 'news', requestId: randomUUID() };
    const answer = await eventually(() => tenant.posts.publishPost(post), PATIENT);
    posted.push(answer.post?.postId ?? '');
  }
  const timer = setInterval(() => {
    const one = publish().finally(() => open.delete(one));
    open.add(one);
  }, POST_EVERY_MS);
  return {
    posted,
    async stop() {
      clearInterval(timer);
      await Promise.all(open);
    },
  };
}

describe('a failover to a replica that lagged, while posts are written', { timeout: 120_000 }, () => {
  it.each(['cache', 'queue'] as const)(
    'of the %s: writes succeed again within ten seconds, every post made meanwhile is on every follower’s timeline, and what was deleted stays so',
    async (which) => {
      const pair = await startRedisPair(which);
      const service = await startTestService({
        env: {
          [which === 'cache' ? 'REDIS_CACHE_URL' : 'REDIS_QUEUE_URL']: pair.url,
          CACHE_COMMAND_TIMEOUT_MS: '1000',
          FANOUT_LEASE_MS: '4000',
        },
      });
      try {
        const tenant = await service.tenant();
        await storeFollowers(service.database, tenant.id, { followee: 'ada', followers: READERS });
        await tenant.cast().play('ada posts 3 times');
        await service.settle();
        const [doomed = ''] = await wholeHome(tenant, 'reader-0');
        for (const reader of READERS) expect(await wholeHome(tenant, reader)).toHaveLength(3);
        await pair.caughtUp();

        const posting = startPosting(tenant);
        await eventually(() => expect(posting.posted.length).toBeGreaterThan(50), PATIENT);
        pair.lag();
        const lagged = posting.posted.length;
        await tenant.posts.deletePost({ authorId: 'ada', postId: doomed });
        await eventually(() => expect(posting.posted.length).toBeGreaterThan(lagged + 50), PATIENT);
        await pair.failOver();
        const late = await eventually(
          async () => {
            await tenant.graph.mute({ muterId: 'reader-0', mutedId: 'zoe' });
            return tenant.posts.publishPost({ authorId: 'ada', text: 'after' });
          },
          { timeoutMs: WRITES_WITHIN_MS },
        );
        expect(late.ownTimelinePending).toBe(false);
        await posting.stop();

        const residents = await openResidents(tenant.id, which === 'cache' ? { url: pair.replicaUrl } : {});
        await eventually(async () => {
          await service.settle();
          const { home } = await tenant.oracle('reader-0');
          expect(home).toEqual(expect.arrayContaining([...posting.posted, late.post?.postId]));
          for (const reader of READERS) expect(await wholeHome(tenant, reader)).toEqual(home);
          const oldestFirst = [...home].reverse();
          for (const entries of await residents.entries(READERS)) expect(entries).toEqual(oldestFirst);
        }, PATIENT);
        await residents.close();
        const told = service.logLines.filter((line) => line.includes('took over the cache'));
        expect(told).toHaveLength(which === 'cache' ? 1 : 0);
      } finally {
        await service.stop();
        await pair.stop();
      }
    },
  );
});

describe('the watch', () => {
  let rows: TestDatabase;
  let database: Database;
  let lineages: readonly SeenLineage[];
  let told: string[];
  beforeEach(async () => {
    rows = await createTestDatabase();
    database = createDatabase({
      url: rows.url,
      pool: 'watch',
      connectionsMax: 8,
      acquireTimeoutMs: 10_000,
      statementTimeoutMs: 10_000,
      lockTimeoutMs: 10_000,
      waitersMax: 100,
      events: { clientFailed: () => undefined, statementCancelled: () => undefined },
    });
    lineages = [{ replicationId: 'a', promoted: false }];
    told = [];
  });
  afterEach(async () => {
    await database.close();
    await rows.drop();
  });

  const soon = () => AbortSignal.timeout(20_000);
  const watch = (parts: Partial<FailoverParts> = {}) =>
    createFailoverWatch({
      loadLineages: async () => lineages,
      noticeLineages: (signal, input) => noticeLineages(database, signal, input),
      rerunBatch: (signal, most) => rerunBatch(database, signal, most),
      monotonicMs: () => performance.now(),
      settleMs: 0,
      events: {
        failedOver: (servers) => told.push(`failed over ${servers}`),
        runAgain: ({ jobs, events }) => told.push(`again ${jobs} ${events}`),
      },
      ...parts,
    });
  /** Until nothing more is due. */
  async function drain(runOnce: (signal: AbortSignal) => Promise<boolean>): Promise<void> {
    while (await runOnce(soon()));
    while ((await rows.sql('SELECT 1 FROM cache_reruns')).length > 0) await runOnce(soon());
  }
  async function storeDone(count: number): Promise<void> {
    await storePosts(
      rows,
      'acme',
      Array.from({ length: count }, (_, index) => ({ author: `author-${index % 7}`, postId: index + 1 })),
      { fanOut: true },
    );
    await rows.sql(
      `INSERT INTO outbox (tenant_id, kind, payload) SELECT 'acme', 'post_changed', jsonb_build_object('postId', n::text) FROM generate_series(1, $1) n`,
      [count],
    );
    await rows.sql("UPDATE fanout_jobs SET done_at = now() - post_id * interval '1 ms'");
    await rows.sql("UPDATE outbox SET done_at = now() - event_id * interval '1 ms'");
  }
  const openJobs = () =>
    rows.sql<{ post_id: number; generation: number }>(
      'SELECT post_id, generation FROM fanout_jobs WHERE done_at IS NULL ORDER BY post_id',
    );
  const openEvents = async () => (await rows.sql('SELECT 1 FROM outbox WHERE done_at IS NULL')).length;

  it('takes the first server it sees, and one that came back empty, for no failover', async () => {
    await storeDone(3);
    lineages = [{ replicationId: 'a', promoted: true }];
    await drain(watch());
    lineages = [{ replicationId: 'b', promoted: false }];
    await drain(watch());
    expect(told).toEqual([]);
    expect(await openEvents()).toBe(0);
  });

  it('runs the jobs and events of the last minutes again, each once, however many processes notice; older ones not', async () => {
    await drain(watch());
    await storeDone(2_500);
    await rows.sql("UPDATE fanout_jobs SET done_at = now() - interval '6 min' WHERE post_id = 7");
    await rows.sql("UPDATE outbox SET done_at = now() - interval '6 min' WHERE event_id = 7");
    lineages = [{ replicationId: 'b', promoted: true }];
    await Promise.all(Array.from({ length: 5 }, () => drain(watch())));
    expect(told.filter((line) => line.startsWith('failed over'))).toEqual(['failed over 1']);
    const jobs = await openJobs();
    expect(jobs.every(({ generation }) => generation === 2)).toBe(true);
    expect(jobs.map(({ post_id }) => post_id)).toEqual(
      Array.from({ length: 2_500 }, (_, index) => index + 1).filter((post) => post !== 7),
    );
    expect(await openEvents()).toBe(2_499);
    // Seen before: no news, also for a process that starts now.
    told = [];
    await drain(watch());
    lineages = [{ replicationId: 'a', promoted: true }];
    await drain(watch());
    expect(told).toEqual([]);
  });

  it('runs a job again that is under way beyond its first page, and leaves alone what has not begun', async () => {
    await drain(watch());
    await storePosts(
      rows,
      'acme',
      [
        { author: 'ada', postId: 1 },
        { author: 'ada', postId: 2 },
      ],
      { fanOut: true },
    );
    await rows.sql("UPDATE fanout_jobs SET follower_cursor = 'f' WHERE post_id = 1");
    lineages = [{ replicationId: 'b', promoted: true }];
    await drain(watch());
    expect(await openJobs()).toEqual([
      { post_id: 1, generation: 1 },
      { post_id: 1, generation: 2 },
      { post_id: 2, generation: 1 },
    ]);
  });

  it('runs again later what was finished just after a failover was seen', async () => {
    await drain(watch());
    lineages = [{ replicationId: 'b', promoted: true }];
    const runOnce = watch({ settleMs: 3_600_000 });
    await runOnce(soon());
    await storeDone(3);
    await rows.sql("UPDATE fanout_jobs SET done_at = clock_timestamp() + interval '1 s'");
    await rows.sql("UPDATE outbox SET done_at = clock_timestamp() + interval '1 s'");
    await runOnce(soon());
    expect([await openJobs(), await openEvents()]).toEqual([[], 0]);
    await rows.sql('UPDATE cache_reruns SET due_at = now()');
    await drain(runOnce);
    expect([(await openJobs()).length, await openEvents()]).toEqual([3, 3]);
  });

  it('goes on where a process died in the middle', async () => {
    await drain(watch());
    await storeDone(1_500);
    lineages = [{ replicationId: 'b', promoted: true }];
    const dying = watch();
    await dying(soon());
    expect(await openEvents()).toBeLessThan(1_500);
    await drain(watch());
    expect([(await openJobs()).length, await openEvents()]).toEqual([1_500, 1_500]);
  });

  it('sends authors down again from the start who were on the way from pulling to pushing, or had just come to its end', async () => {
    await drain(watch());
    await rows.sql(
      `INSERT INTO authors (tenant_id, author_id, fanout_class, class_target, class_epoch, class_changed_at, backfill_cursor, backfill_finished) VALUES
      ('acme', 'under-way', 'both', 'push', 5, now() - interval '1 hour', 'm', false),
      ('acme', 'done', 'both', 'push', 5, now() - interval '1 hour', 'z', true),
      ('acme', 'just-down', 'push', 'push', 5, now() - interval '1 min', '', false),
      ('acme', 'long-down', 'push', 'push', 5, now() - interval '1 day', '', false),
      ('acme', 'going-up', 'both', 'pull', 5, now(), '', false),
      ('acme', 'up', 'pull', 'pull', 5, now(), '', false)`,
    );
    lineages = [{ replicationId: 'b', promoted: true }];
    await drain(watch());
    const authors = await rows.sql(
      `SELECT author_id, fanout_class || '>' || class_target AS way, class_epoch = 5 AS same_list, backfill_cursor, backfill_finished
      FROM authors ORDER BY author_id`,
    );
    const fresh = { backfill_cursor: '', backfill_finished: false };
    expect(authors).toEqual([
      { author_id: 'done', way: 'both>push', same_list: true, ...fresh },
      { author_id: 'going-up', way: 'both>pull', same_list: true, ...fresh },
      { author_id: 'just-down', way: 'both>push', same_list: false, ...fresh },
      { author_id: 'long-down', way: 'push>push', same_list: true, ...fresh },
      { author_id: 'under-way', way: 'both>push', same_list: true, ...fresh },
      { author_id: 'up', way: 'pull>pull', same_list: true, ...fresh },
    ]);
  });

  it('looks back to when anybody last looked', async () => {
    await drain(watch());
    await storeDone(3);
    await rows.sql("UPDATE fanout_jobs SET done_at = now() - interval '20 min'");
    await rows.sql("UPDATE outbox SET done_at = now() - interval '20 min'");
    await rows.sql("UPDATE cache_lineages SET seen_at = now() - interval '30 min'");
    lineages = [{ replicationId: 'b', promoted: true }];
    await drain(watch());
    expect([(await openJobs()).length, await openEvents()]).toEqual([3, 3]);
  });

  it('looks back to when the master was last seen that a replica took over from, however lately others were', async () => {
    lineages = [
      { replicationId: 'a', promoted: false },
      { replicationId: 'other', promoted: false },
    ];
    await drain(watch());
    await storeDone(3);
    await rows.sql("UPDATE fanout_jobs SET done_at = now() - interval '8 min'");
    await rows.sql("UPDATE outbox SET done_at = now() - interval '8 min'");
    await rows.sql("UPDATE cache_lineages SET seen_at = now() - interval '7 min' WHERE replication_id = 'a'");
    lineages = [
      { replicationId: 'b', promoted: true, before: 'a' },
      { replicationId: 'other', promoted: false },
    ];
    await drain(watch());
    expect([(await openJobs()).length, await openEvents()]).toEqual([3, 3]);
  });

  it('runs what is due also while the cache is away', async () => {
    await drain(watch());
    await storeDone(3);
    lineages = [{ replicationId: 'b', promoted: true }];
    await noticeLineages(database, soon(), { lineages, lookBackMs: 60_000, settleMs: 0 });
    lineages = [];
    await drain(watch());
    expect(told).toEqual(['again 3 3']);
  });
});
