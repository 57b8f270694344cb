/** Owns what lanes promise: nobody waits behind a larger fan-out, and large ones take turns without losing a follower. */
import { afterEach, beforeEach, describe, expect, inject, it } from 'vitest';
import { createFanoutQueue } from '../../src/queue/fanout-queue.ts';
import type { FanoutHint } from '../../src/queue/payload.ts';
import { countDeadJobs } from '../../src/store/postgres/fanout-dead.ts';
import * as fanoutJobs from '../../src/store/postgres/fanout-jobs.ts';
import { appendFanoutGeneration } from '../../src/store/postgres/posts.ts';
import type { PostId } from '../../src/timeline/ids.ts';
import { LANES, type Lane } from '../../src/timeline/lanes.ts';
import { createFanoutRelay, type FanoutRelay } from '../../src/write/fanout-relay.ts';
import { eventually } from '../harness/eventually.ts';
import { postIdOf, startTestService, type TestService } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';
import { openQueueStage, type QueueStage } from '../queue/queue-stage.ts';
import { type FanoutStage, followers, openStage, soon, user } from './fanout-stage.ts';

let stage: FanoutStage;
let queueStage: QueueStage;
beforeEach(async () => {
  stage = await openStage();
  queueStage = await openQueueStage(inject('servers').queueUrl);
});
afterEach(async () => {
  await queueStage.close();
  await stage.close();
});

const hintOf = (postId: PostId): FanoutHint => ({ tenant: stage.tenant, postId, generation: 1 });

/** As if the author had so many followers: the lane goes by the count. */
async function count(author: string, followerCount: number): Promise<void> {
  await stage.rows.sql(
    `INSERT INTO authors (tenant_id, author_id, follower_count) VALUES ($1, $2, $3)
     ON CONFLICT (tenant_id, author_id) DO UPDATE SET follower_count = excluded.follower_count`,
    [stage.tenant, author, followerCount],
  );
}

describe('two large fan-outs and one worker', () => {
  const ALL = followers(60);

  /** Publishes a post of each author and works on both with one hand; answers whose pages were pushed, in order. */
  async function fanOut(authors: readonly string[], pages: number): Promise<readonly string[]> {
    for (const author of authors)
      await stage.arrange({ author, followers: ALL, resident: author === 'ada' ? ALL : [] });
    const posts = new Map<number, string>();
    for (const author of authors) posts.set(await stage.publish(author), author);
    const pushed: string[] = [];
    const deliver = stage.deliverer({
      turn: {
        pages,
        othersWait: async (signal) => (await queueStage.queue.countWaiting(signal)) > 0,
        isEnding: () => false,
      },
      loadSubject(signal, of) {
        pushed.push(of.author);
        return fanoutJobs.loadSubject(stage.database, signal, of);
      },
    });
    await queueStage.queue.add(
      soon(),
      [...posts.keys()].map((postId) => hintOf(postId as PostId)),
    );
    queueStage.worker(
      async (signal, hint, turn) => {
        if ((await deliver(signal, hint)) === 'gave_way') turn.takeAnother();
      },
      { concurrency: 1 },
    );
    await eventually(async () => {
      for (const postId of posts.keys()) expect(await stage.job(postId as PostId)).toMatchObject({ done: true });
    });
    for (const follower of ALL) {
      expect([...((await stage.entries(follower)) ?? [])].sort()).toEqual([...posts.keys()].sort());
    }
    return pushed;
  }

  it('take turns, page by page, with no relay to send the hints again; every follower has both posts', async () => {
    const pushed = await fanOut(['ada', 'ben'], 2);
    const turns = pushed.filter((author, at) => author !== pushed[at - 1]);
    expect(turns).toEqual(['ada', 'ben', 'ada', 'ben', 'ada', 'ben', 'ada', 'ben']);
    expect(pushed.slice(0, 4)).toEqual(['ada', 'ada', 'ben', 'ben']);
    expect(stage.events.failed).toEqual([]);
  });

  it('that have nobody to give way to go on to their end in one go', async () => {
    expect(await fanOut(['ada'], 1)).toHaveLength(7);
    expect(stage.events.ended).toEqual(['delivered']);
  });

  it('give the lease back with the checkpoint, due at once, and count no attempt for it', async () => {
    await stage.arrange({ author: 'ada', followers: ALL, resident: ALL });
    const postId = await stage.publish('ada');
    const deliver = stage.deliverer({ turn: { pages: 2, othersWait: async () => true, isEnding: () => false } });
    expect(await deliver(soon(), hintOf(postId))).toBe('gave_way');
    expect(await stage.job(postId)).toMatchObject({
      follower_cursor: ALL[19],
      delivered: 20,
      leased: false,
      attempts: 0,
    });
    const due = await fanoutJobs.claimDueJobs(stage.database, soon(), { most: 10, hintAgainMs: 10_000 });
    expect(due.map((job) => job.postId)).toEqual([postId]);
  });

  it('stop at the next page when their worker ends, for another to go on', async () => {
    await stage.arrange({ author: 'ada', followers: ALL, resident: ALL });
    const postId = await stage.publish('ada');
    let ending = false;
    const turn = { othersWait: async () => false, isEnding: () => ending };
    const deliver = stage.deliverer({
      turn,
      loadSubject(signal, of) {
        ending = true;
        return fanoutJobs.loadSubject(stage.database, signal, of);
      },
    });
    expect(await deliver(soon(), hintOf(postId))).toBe('gave_way');
    expect(await stage.job(postId)).toMatchObject({ follower_cursor: ALL[9], leased: false });
    expect(await stage.deliverer()(soon(), hintOf(postId))).toBe('delivered');
    expect(await stage.holders(postId, ALL)).toEqual(ALL);
  });
});

it('a post with more followers than its lane is for moves to the lane that is, and goes on from there', async () => {
  const many = Array.from({ length: 1_300 }, (_, index) => `m${String(index).padStart(5, '0')}`);
  await stage.arrange({ author: 'ada', followers: many, resident: [] });
  const postId = await stage.publish('ada');
  expect(await stage.job(postId)).toMatchObject({ lane: 'small' });
  const deliver = stage.deliverer({ followerPage: 600 });
  expect(await deliver(soon(), hintOf(postId))).toBe('moved');
  expect(stage.events.moved).toEqual(['medium']);
  expect(await stage.job(postId)).toMatchObject({ lane: 'medium', follower_cursor: many[1_199], leased: false });
  expect(await deliver(soon(), hintOf(postId))).toBe('delivered');
  expect(await stage.job(postId)).toMatchObject({ done: true, skipped: 1_301 });
});

it('a post with just as many followers as its lane is for stays there, however its pages fall', async () => {
  const many = Array.from({ length: 1_000 }, (_, index) => `m${String(index).padStart(5, '0')}`);
  await stage.arrange({ author: 'ada', followers: many, resident: [] });
  const postId = await stage.publish('ada');
  expect(await stage.deliverer({ followerPage: 500 })(soon(), hintOf(postId))).toBe('delivered');
  expect(stage.events.moved).toEqual([]);
});

describe('the relay', () => {
  const hinted: Lane[] = [];
  let waiting: Partial<Record<Lane, number>> = {};
  const createRelay = (): FanoutRelay =>
    createFanoutRelay({
      claimDueJobs: (signal, input) => fanoutJobs.claimDueJobs(stage.database, signal, input),
      forgetHints: (signal, jobs) => fanoutJobs.forgetHints(stage.database, signal, jobs),
      async addHints(_signal, jobs) {
        hinted.push(...jobs.map((job) => job.lane));
        return [];
      },
      countWaiting: async (_signal, lane) => waiting[lane] ?? 0,
      loadOpenFigures: (signal) => fanoutJobs.loadOpenFigures(stage.database, signal),
      countDeadJobs: (signal) => countDeadJobs(stage.database, signal),
      monotonicMs: () => performance.now(),
      events: { hinted: () => undefined, openJobs: () => undefined, deadJobs: () => undefined },
    });
  beforeEach(() => {
    hinted.length = 0;
    waiting = {};
  });

  const backlog = (lane: Lane, jobs: number) =>
    stage.rows.sql(
      `INSERT INTO fanout_jobs (tenant_id, post_id, author_id, lane) SELECT $1, n, 'ada', $2 FROM generate_series($3::bigint, $3::bigint + $4 - 1) n`,
      [stage.tenant, lane, LANES.indexOf(lane) * 10_000 + 1, jobs],
    );

  it('hints at a small post with the first round, whatever the backlog of the other lanes', async () => {
    await backlog('bulk', 1_000);
    await backlog('medium', 1_000);
    await stage.publish('ada');
    expect(await createRelay().runOnce(soon())).toBe(true);
    expect(hinted.filter((lane) => lane === 'small')).toHaveLength(1);
    expect(hinted.filter((lane) => lane === 'bulk').length).toBeGreaterThan(0);
  });

  it('leaves the rows of a lane where they are while its queue has plenty, nudges included', async () => {
    await backlog('small', 10);
    await backlog('bulk', 10);
    waiting = { bulk: 5_000 };
    const relay = createRelay();
    await relay.runOnce(soon());
    expect(new Set(hinted)).toEqual(new Set(['small']));
    relay.nudge({ ...hintOf(20_001 as PostId), lane: 'bulk' });
    relay.nudge({ ...hintOf(1 as PostId), lane: 'small' });
    await eventually(() => expect(hinted).toHaveLength(11));
    waiting = {};
    await relay.runOnce(soon());
    expect(hinted.filter((lane) => lane === 'bulk')).toHaveLength(10);
  });

  it('sends no further nudges to a lane with plenty from a process that has no rounds', async () => {
    waiting = { small: 5_000 };
    const relay = createRelay();
    relay.nudge({ ...hintOf(1 as PostId), lane: 'small' });
    await eventually(() => expect(hinted).toEqual(['small']));
    for (let post = 2; post <= 10; post += 1) relay.nudge({ ...hintOf(post as PostId), lane: 'small' });
    relay.nudge({ ...hintOf(11 as PostId), lane: 'medium' });
    await eventually(() => expect(hinted).toEqual(['small', 'medium']));
  });
});

it('a post goes to the lane of its author’s follower count; so do its later generations', async () => {
  const cases = [
    ['small', 1_000],
    ['medium', 1_001],
    ['medium', 10_000],
    ['bulk', 10_001],
  ] as const;
  for (const [lane, followerCount] of cases) {
    const author = `of-${followerCount}`;
    await count(author, followerCount);
    const postId = await stage.publish(author);
    expect(await stage.job(postId)).toMatchObject({ lane });
    // What is done is removed after some minutes.
    await stage.rows.sql('DELETE FROM fanout_jobs');
    await stage.database.transaction(soon(), (transaction) =>
      appendFanoutGeneration(transaction, { tenant: stage.tenant, author: user(author), postId }),
    );
    expect(await stage.job(postId)).toMatchObject({ lane });
  }
});

describe('a service whose only bulk hand is busy', { timeout: 60_000 }, () => {
  let service: TestService;
  beforeEach(async () => {
    service = await startTestService({
      env: { FANOUT_BULK_CONCURRENCY: '1', FANOUT_FOLLOWER_PAGE: '2', DATABASE_LOCK_TIMEOUT_MS: '30000' },
    });
  });
  afterEach(() => service.stop());

  const isDone = async (postId: string): Promise<boolean> => {
    const found = 'SELECT 1 FROM fanout_jobs WHERE post_id = $1 AND done_at IS NOT NULL';
    return (await service.database.sql(found, [postId])).length > 0;
  };

  it('delivers small posts, and the large one that waits as soon as it can', async () => {
    const tenant = await service.tenant();
    const cast = tenant.cast();
    await cast.play('rita follows big, ada; big posts "first" as first');
    await wholeHome(tenant, 'rita');
    await service.settle();
    await service.database.sql(
      `INSERT INTO authors (tenant_id, author_id, follower_count) VALUES ($1, 'big', 20000)
       ON CONFLICT (tenant_id, author_id) DO UPDATE SET follower_count = 20000`,
      [tenant.id],
    );
    // A job that the relay does not see, and whose row is locked: whoever takes it waits.
    const first = cast.post('first').postId;
    await service.database.sql(
      `INSERT INTO fanout_jobs (tenant_id, post_id, generation, author_id, lane, hinted_at) VALUES ($1, $2, 2, 'big', 'bulk', 'infinity')`,
      [tenant.id, first],
    );
    const holder = await service.database.session();
    await holder.query('BEGIN');
    await holder.query('SELECT 1 FROM fanout_jobs WHERE generation = 2 FOR UPDATE');
    const queue = createFanoutQueue({
      url: service.config.redisQueueUrl,
      lane: 'bulk',
      prefix: service.config.fanout.queuePrefix,
      events: {
        connectionFailed: () => undefined,
        addFailed: () => undefined,
        memoryFull: () => undefined,
        evictionPossible: () => undefined,
      },
    });
    await eventually(async () => {
      const held = { tenant: tenant.id, postId: postIdOf(first), generation: 2 };
      expect(await queue.add(soon(), [held])).toEqual([]);
    });
    await eventually(async () => expect(await queue.look(soon())).toMatchObject({ active: 1 }));

    await cast.play('big posts "large" as large; ada posts "little" as little');
    await eventually(async () => expect(await isDone(cast.post('little').postId)).toBe(true));
    expect(await isDone(cast.post('large').postId)).toBe(false);
    await eventually(async () => expect((await queue.look(soon())).waiting).toBe(1));
    await holder.query('ROLLBACK');
    await service.settle();
    expect(await wholeHome(tenant, 'rita')).toEqual([...cast.ids('first', 'large', 'little')].reverse());
    await queue.close();
  });
});
