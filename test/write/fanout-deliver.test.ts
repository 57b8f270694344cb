/** Owns the promise of fan-out: every resident follower has the post, once, and nobody else has it, whatever happens to the workers on the way. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { type FanoutJobKey, loadFollowerPage, takeLease } from '../../src/store/postgres/fanout-jobs.ts';
import { appendFanoutGeneration } from '../../src/store/postgres/posts.ts';
import { eventually, within } from '../harness/eventually.ts';
import { createTestClock } from '../harness/test-clock.ts';
import { type FanoutStage, followers, openStage, soon, toldToStop, user } from './fanout-stage.ts';

let stage: FanoutStage;
beforeEach(async () => {
  stage = await openStage();
});
afterEach(() => stage.close());

const ALL = followers(35);
/** Every third is not resident. */
const RESIDENT = ALL.filter((_, index) => index % 3 !== 0);

async function publish(): Promise<FanoutJobKey> {
  await stage.arrange({ author: 'ada', followers: ALL, resident: [...RESIDENT, 'ada', 'stranger'] });
  return { tenant: stage.tenant, postId: await stage.publish('ada'), generation: 1 };
}

describe('a fan-out', () => {
  it('reaches every resident follower and the author, once, and makes nobody resident', async () => {
    const job = await publish();
    const deliver = stage.deliverer();
    expect(await deliver(soon(), job)).toBe('delivered');
    expect(await deliver(soon(), job)).toBe('not_held');

    for (const viewer of [...RESIDENT, 'ada']) expect(await stage.entries(viewer)).toEqual([job.postId]);
    for (const viewer of ALL.filter((each) => !RESIDENT.includes(each)))
      expect(await stage.entries(viewer)).toBeUndefined();
    expect(await stage.entries('stranger')).toEqual([]);
    expect(await stage.job(job.postId)).toMatchObject({
      done: true,
      delivered: RESIDENT.length + 1,
      skipped: ALL.length - RESIDENT.length,
    });
    expect(stage.events.delivered.reduce((sum, { count }) => sum + count, 0)).toBe(RESIDENT.length + 1);
  });

  it('run again, as a further generation, changes nothing and counts no delivery twice', async () => {
    const job = await publish();
    const deliver = stage.deliverer();
    await deliver(soon(), job);
    const counted = stage.events.delivered.length;
    await stage.database.transaction(soon(), (transaction) =>
      appendFanoutGeneration(transaction, { tenant: stage.tenant, author: user('ada'), postId: job.postId }),
    );
    expect(await deliver(soon(), { ...job, generation: 2 })).toBe('delivered');
    for (const viewer of [...RESIDENT, 'ada']) expect(await stage.entries(viewer)).toEqual([job.postId]);
    expect(stage.events.delivered).toHaveLength(counted);
  });

  it('of a private post reaches the author alone', async () => {
    await stage.arrange({ author: 'ada', followers: ALL, resident: [...RESIDENT, 'ada'] });
    const postId = await stage.publish('ada', 'private');
    expect(await stage.deliverer()(soon(), { tenant: stage.tenant, postId, generation: 1 })).toBe('author_only');
    expect(await stage.holders(postId, [...ALL, 'ada'])).toEqual(['ada']);
  });

  it('measures by the clock of Postgres, wherever its own stands', async () => {
    const job = await publish();
    await stage.deliverer({ clock: createTestClock({ offsetMs: -3_600_000 }) })(soon(), job);
    for (const { seconds } of stage.events.delivered) expect(seconds).toBeLessThan(10);
    const [{ seconds } = { seconds: -1 }] = stage.events.delivered;
    expect(seconds).toBeGreaterThan(0);
  });
});

describe('a worker that vanishes half-way', () => {
  it('leaves the rest to another, which goes on from the checkpoint; each has the post once, nobody else has it', async () => {
    const job = await publish();
    const hung = Promise.withResolvers<void>();
    const release = Promise.withResolvers<void>();
    let pages = 0;
    const dying = stage.deliverer(
      { leaseMs: 300 },
      {
        async push(signal, post) {
          pages += 1;
          // Half of the third page arrives, and then nothing more is heard of the worker.
          const reached = pages === 3 ? post.viewers.slice(0, 5) : post.viewers;
          const results = await stage.timelines.push(signal, { ...post, viewers: reached });
          if (pages < 3) return results;
          hung.resolve();
          await release.promise;
          return stage.timelines.push(signal, post);
        },
      },
    )(soon(), job);
    await hung.promise;
    const at = await stage.job(job.postId);
    expect(at).toMatchObject({ follower_cursor: ALL[19], done: false, leased: true });

    const started: string[] = [];
    const second = stage.deliverer({
      loadFollowers: (signal, query) => {
        started.push(query.after);
        return loadFollowerPage(stage.database, signal, query);
      },
    });
    await eventually(async () => expect(await second(soon(), job)).toBe('delivered'));
    expect(started[0]).toBe(ALL[19]);
    for (const viewer of [...RESIDENT, 'ada']) expect(await stage.entries(viewer)).toEqual([job.postId]);
    expect(await stage.holders(job.postId, ['stranger', ...ALL])).toEqual(RESIDENT);
    expect(await stage.job(job.postId)).toMatchObject({ done: true, delivered: RESIDENT.length + 1, attempts: 2 });

    release.resolve();
    expect(await dying).toBe('lost');
    expect(await stage.job(job.postId)).toMatchObject({ done: true, delivered: RESIDENT.length + 1 });
  });

  it('cannot mark done what another holds now', async () => {
    const job = await publish();
    const other = Promise.withResolvers<void>();
    const deliver = stage.deliverer(
      { followerPage: 100, leaseMs: 1 },
      {
        async push(signal, post) {
          await eventually(async () => {
            expect(await takeLease(stage.database, soon(), { ...job, leaseMs: 60_000 })).toBeDefined();
          });
          other.resolve();
          return stage.timelines.push(signal, post);
        },
      },
    );
    expect(await deliver(soon(), job)).toBe('lost');
    await other.promise;
    expect(await stage.job(job.postId)).toMatchObject({ done: false, leased: true, attempts: 2 });
  });

  it('because it was told to stop gives the lease back at once', async () => {
    const job = await publish();
    const stop = new AbortController();
    const deliver = stage.deliverer(
      {},
      {
        push(signal) {
          stop.abort();
          return Promise.reject(signal.reason);
        },
      },
    );
    expect(await deliver(stop.signal, job)).toBe('stopped');
    expect(await stage.job(job.postId)).toMatchObject({ done: false, leased: false });
    // No fault of anybody's: the log has none.
    expect(stage.events.failed).toEqual([]);
    await eventually(async () => expect(await stage.deliverer()(soon(), job)).toBe('delivered'));
  });

  it('because it was told to stop while it took the lease gives that back at once', async () => {
    const job = await publish();
    const stop = new AbortController();
    const { jobs } = stage;
    const deliver = stage.deliverer({
      jobs: {
        ...jobs,
        takeLease: (signal, of) => toldToStop(stop, signal, () => jobs.takeLease(soon(), of)),
      },
    });
    expect(await deliver(stop.signal, job)).toBe('stopped');
    expect(await stage.job(job.postId)).toMatchObject({ done: false, leased: false });
  });
});

describe('a post that is deleted', () => {
  it('in mid fan-out is pushed to no further page', async () => {
    const job = await publish();
    let pages = 0;
    const deliver = stage.deliverer(
      {},
      {
        async push(signal, post) {
          pages += 1;
          const results = await stage.timelines.push(signal, post);
          if (pages === 2) await stage.rows.sql('UPDATE posts SET deleted_at = now() WHERE post_id = $1', [job.postId]);
          return results;
        },
      },
    );
    expect(await deliver(soon(), job)).toBe('nothing');
    expect(pages).toBe(2);
    expect(await stage.holders(job.postId, ALL.slice(20))).toEqual([]);
    expect(await stage.job(job.postId)).toMatchObject({ done: true });
  });

  it('before the first page is pushed to nobody', async () => {
    const job = await publish();
    await stage.rows.sql('UPDATE posts SET deleted_at = now() WHERE post_id = $1', [job.postId]);
    expect(await stage.deliverer()(soon(), job)).toBe('nothing');
    expect(await stage.holders(job.postId, [...ALL, 'ada'])).toEqual([]);
  });
});

describe('pushes that are not confirmed', () => {
  const refused = new TributaryError('CACHE_UNAVAILABLE', { message: 'away' });

  it('are tried again by themselves', async () => {
    const job = await publish();
    const tried: (readonly string[])[] = [];
    const deliver = stage.deliverer(
      { followerPage: 100 },
      {
        async push(signal, post) {
          tried.push(post.viewers);
          const broken = tried.length <= 2 ? new Set<string>(['f001', 'f002']) : new Set<string>();
          const results = await stage.timelines.push(signal, {
            ...post,
            viewers: post.viewers.filter((viewer) => !broken.has(viewer)),
          });
          const good = results.values();
          return post.viewers.map((viewer) => (broken.has(viewer) ? refused : (good.next().value ?? refused)));
        },
      },
    );
    expect(await deliver(soon(), job)).toBe('delivered');
    expect(tried).toEqual([
      ['ada', ...ALL],
      ['f001', 'f002'],
      ['f001', 'f002'],
    ]);
    expect(stage.events.retried).toEqual([2, 2]);
    expect(await stage.holders(job.postId, ALL)).toEqual(RESIDENT);
  });

  it('to the end hold back the checkpoint and not the pages after, and the next run completes the page', async () => {
    const job = await publish();
    const lost: readonly string[] = ['f011', 'f025'];
    let broken = true;
    const deliver = stage.deliverer(
      {},
      {
        async push(signal, post) {
          const results = await stage.timelines.push(signal, {
            ...post,
            viewers: post.viewers.filter((viewer) => !broken || !lost.includes(viewer)),
          });
          const good = results.values();
          return post.viewers.map((viewer) =>
            broken && lost.includes(viewer) ? refused : (good.next().value ?? refused),
          );
        },
      },
    );
    expect(await deliver(soon(), job)).toBe('failed');
    expect(await stage.job(job.postId)).toMatchObject({ follower_cursor: ALL[9], done: false, leased: false });
    expect((await stage.job(job.postId)).error).toContain('not confirmed: away');
    expect(await stage.holders(job.postId, ALL)).toEqual(RESIDENT.filter((viewer) => !lost.includes(viewer)));
    // Of the first page alone: the others do not wait for what the next run does in any case.
    expect(stage.events.retried).toEqual([1, 1, 1]);

    broken = false;
    await eventually(async () => expect(await deliver(soon(), job)).toBe('delivered'));
    for (const viewer of RESIDENT) expect(await stage.entries(viewer)).toEqual([job.postId]);
  });

  it('because a timeline takes nothing at all end with that timeline dropped, to be rebuilt', async () => {
    const job = await publish();
    await stage.rows.sql('UPDATE fanout_jobs SET attempts = 2 WHERE post_id = $1', [job.postId]);
    const deliver = stage.deliverer(
      {},
      {
        async push(signal, post) {
          // One broken key makes the whole call fail, as a script does.
          return post.viewers.includes(user('f011'))
            ? post.viewers.map(() => refused)
            : stage.timelines.push(signal, post);
        },
      },
    );
    expect(await deliver(soon(), job)).toBe('delivered');
    expect(stage.events.dropped).toBe(1);
    expect(await stage.entries('f011')).toBeUndefined();
    expect(await stage.holders(job.postId, ALL)).toEqual(RESIDENT.filter((viewer) => viewer !== 'f011'));
  });

  it('while Redis is away end the run, and the pause before the next grows', async () => {
    const job = await publish();
    let drops = 0;
    const deliver = stage.deliverer(
      {},
      {
        push: async (_signal, post) => post.viewers.map(() => refused),
        drop() {
          drops += 1;
          return Promise.reject(refused);
        },
      },
    );
    const pauses: number[] = [];
    for (let run = 0; run < 4; run += 1) {
      expect(await within(deliver(soon(), job), 10_000)).toBe('failed');
      const [row] = await stage.rows.sql<{ ms: number }>(
        `UPDATE fanout_jobs SET lease_until = NULL WHERE post_id = $1
         RETURNING (SELECT extract(epoch FROM old.lease_until - clock_timestamp())::float8 * 1000 FROM fanout_jobs old WHERE old.post_id = $1) AS ms`,
        [job.postId],
      );
      pauses.push(row?.ms ?? 0);
    }
    expect(pauses[3]).toBeGreaterThan((pauses[0] ?? 0) * 2);
    expect(await stage.job(job.postId)).toMatchObject({ follower_cursor: '', done: false, attempts: 4 });
    // In the last resort too the first one tells that it is Redis: the others do not wait it out one by one.
    expect(drops).toBe(2);
  });
});
