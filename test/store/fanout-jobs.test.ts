/** Owns what the rows of fan-out promise: one worker at a time, progress that never goes back, an end that stays, and a hint for whatever lies open. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import * as jobs from '../../src/store/postgres/fanout-jobs.ts';
import { type FanoutStage, followers, openStage, soon, user } from '../write/fanout-stage.ts';

let stage: FanoutStage;
beforeAll(async () => {
  stage = await openStage();
});
afterAll(() => stage.close());

async function open(): Promise<jobs.FanoutJobKey> {
  return { tenant: stage.tenant, postId: await stage.publish('ada'), generation: 1 };
}

async function claim(most = 1_000, hintAgainMs = 10_000): Promise<readonly number[]> {
  const due = await jobs.claimDueJobs(stage.database, soon(), { most, hintAgainMs });
  return due.map((job) => job.postId);
}

const take = (job: jobs.FanoutJobKey, leaseMs = 60_000) => jobs.takeLease(stage.database, soon(), { ...job, leaseMs });

describe('a lease', () => {
  it('goes to one of many that ask', async () => {
    const job = await open();
    const taken = await Promise.all(Array.from({ length: 8 }, () => take(job)));
    expect(taken.filter((lease) => lease !== undefined)).toHaveLength(1);
    const [lease] = taken.filter((each) => each !== undefined);
    expect(lease).toMatchObject({ author: 'ada', lane: 'small', cursor: '', delivered: 0, skipped: 0, attempts: 1 });
    expect(Math.abs((lease?.databaseNowMs ?? 0) - Date.now())).toBeLessThan(5_000);
    expect((lease?.databaseNowMs ?? 0) - (lease?.createdAtMs ?? 0)).toBeGreaterThan(0);
  });

  it('that ran out is given to another, with the progress; the old token writes nothing any more', async () => {
    const job = await open();
    const first = await take(job, 0);
    const at = {
      ...job,
      token: first?.token ?? '',
      cursor: 'f010',
      delivered: 7,
      skipped: 3,
      pushingMs: 1.5,
      leaseMs: 0,
    };
    expect(await jobs.checkpoint(stage.database, soon(), at)).toBe(true);
    const second = await take(job);
    const late = { error: 'late', retryInMs: 0, blamed: true, attemptsMax: 5 };
    expect(second).toMatchObject({ cursor: 'f010', delivered: 7, skipped: 3, pushingMs: 1.5, attempts: 2 });

    expect(await jobs.checkpoint(stage.database, soon(), { ...at, cursor: 'f020' })).toBe(false);
    expect(await jobs.finishJob(stage.database, soon(), { ...at, toFollowers: true })).toBe(false);
    expect(await jobs.failJob(stage.database, soon(), { ...at, ...late })).toBe('lost');
    expect(await stage.job(job.postId)).toMatchObject({
      follower_cursor: 'f010',
      done: false,
      error: null,
      leased: true,
    });
  });

  it('moves the cursor forward only, and may write the same progress twice', async () => {
    const job = await open();
    const token = (await take(job))?.token ?? '';
    const at = { ...job, token, cursor: 'f010', delivered: 7, skipped: 3, pushingMs: 1.5, leaseMs: 60_000 };
    expect(await jobs.checkpoint(stage.database, soon(), at)).toBe(true);
    expect(await jobs.checkpoint(stage.database, soon(), at)).toBe(true);
    expect(await jobs.checkpoint(stage.database, soon(), { ...at, cursor: 'f009' })).toBe(false);
    expect(await stage.job(job.postId)).toMatchObject({ follower_cursor: 'f010', delivered: 7, skipped: 3 });
  });

  it('of a finished job is given to nobody', async () => {
    const job = await open();
    const token = (await take(job))?.token ?? '';
    const done = { ...job, token, delivered: 5, skipped: 0, pushingMs: 1.5, toFollowers: true };
    expect(await jobs.finishJob(stage.database, soon(), done)).toBe(true);
    expect(await jobs.finishJob(stage.database, soon(), done)).toBe(false);
    expect(await take(job)).toBeUndefined();
    expect(await claim()).not.toContain(job.postId);
  });

  it('given back after a failure waits its pause out, with a bounded text of what was wrong', async () => {
    const job = await open();
    const held = {
      ...job,
      token: (await take(job))?.token ?? '',
      error: 'x'.repeat(5_000),
      blamed: true,
      attemptsMax: 5,
    };
    expect(await jobs.failJob(stage.database, soon(), { ...held, retryInMs: 60_000 })).toBe('due');
    expect(await take(job)).toBeUndefined();
    expect(await claim()).not.toContain(job.postId);
    expect((await stage.job(job.postId)).error).toHaveLength(500);
    await stage.rows.sql("UPDATE fanout_jobs SET lease_until = now() - interval '1 ms' WHERE post_id = $1", [
      job.postId,
    ]);
    expect(await claim()).toContain(job.postId);
    expect(await take(job)).toMatchObject({ attempts: 2 });
  });
});

describe('a job that lies open', () => {
  it('is hinted once in a while, not with every look, and never while somebody works on it', async () => {
    const [idle, held] = [await open(), await open()];
    await take(held);
    const first = await claim();
    expect(first).toContain(idle.postId);
    expect(first).not.toContain(held.postId);
    expect(await claim()).toEqual([]);
    expect(await claim(1_000, 0)).toContain(idle.postId);
    await jobs.forgetHints(stage.database, soon(), [idle]);
    expect(await claim()).toEqual([idle.postId]);
  });

  it('is claimed by one of many relays, in bounded batches', async () => {
    const opened: number[] = [];
    for (let count = 0; count < 30; count += 1) opened.push((await open()).postId);
    const claimed = await Promise.all(Array.from({ length: 8 }, () => claim(4)));
    for (const batch of claimed) expect(batch.length).toBeLessThanOrEqual(4);
    const rest = await claim();
    expect([...claimed.flat(), ...rest].sort()).toEqual([...opened].sort());
  });

  it('counts in the figures of its lane', async () => {
    await open();
    const [small, ...others] = await jobs.loadOpenFigures(stage.database, soon());
    expect(others).toEqual([]);
    expect(small?.lane).toBe('small');
    expect(small?.open).toBeGreaterThan(0);
    expect(small?.oldestSeconds).toBeGreaterThan(0);
  });
});

it('followers come in pages, in byte order, those of now only', async () => {
  const all = ['B', 'Z', '_', 'a', ...followers(25), '~'];
  await stage.arrange({ author: 'paged', followers: all, resident: [] });
  await stage.rows.sql("UPDATE follows SET ended_at = now() WHERE followee_id = 'paged' AND follower_id = 'f007'");
  const met: string[] = [];
  for (let after = '', last = false; !last; after = met.at(-1) ?? '') {
    const page = await jobs.loadFollowerPage(stage.database, soon(), {
      tenant: stage.tenant,
      author: user('paged'),
      after,
      limit: 7,
    });
    met.push(...page);
    last = page.length < 7;
  }
  expect(met).toEqual(all.filter((name) => name !== 'f007'));
  const nobody = { tenant: stage.tenant, author: user('lonely'), after: '', limit: 7 };
  expect(await jobs.loadFollowerPage(stage.database, soon(), nobody)).toEqual([]);
});

it('done jobs are removed after their time, a batch at a time, and open ones never', async () => {
  await stage.rows.sql('UPDATE fanout_jobs SET done_at = now()');
  const kept = await open();
  const young = await stage.rows.sql(
    "UPDATE fanout_jobs SET done_at = now() - interval '9 min' WHERE done_at IS NOT NULL RETURNING 1",
  );
  expect(await jobs.removeDoneJobs(stage.database, soon(), { minutes: 10, most: 5 })).toBe(0);
  await stage.rows.sql(
    "UPDATE fanout_jobs SET done_at = now() - interval '11 min', created_at = now() - interval '1 h' WHERE done_at IS NOT NULL",
  );
  let removed = 0;
  for (let batch = 5; batch === 5; removed += batch) {
    batch = await jobs.removeDoneJobs(stage.database, soon(), { minutes: 10, most: 5 });
  }
  expect(removed).toBe(young.length);
  expect(await stage.job(kept.postId)).toMatchObject({ done: false });
});
