/** Owns the promise of the relays: whatever was committed is hinted and handled, at least once, however late it commits and whatever is away meanwhile. */
import { Redis } from 'ioredis';
import { afterEach, beforeEach, describe, expect, inject, it } from 'vitest';
import { createRetention } from '../../src/repair/retention.ts';
import { systemRandom } from '../../src/runtime.ts';
import { countDeadJobs } from '../../src/store/postgres/fanout-dead.ts';
import * as fanoutJobs from '../../src/store/postgres/fanout-jobs.ts';
import type { OutboxEvent } from '../../src/store/postgres/outbox.ts';
import * as outbox from '../../src/store/postgres/outbox.ts';
import { postIdFrom } from '../../src/timeline/ids.ts';
import { createFanoutRelay, type FanoutRelay, type FanoutRelayParts } from '../../src/write/fanout-relay.ts';
import { createOutboxRelay, type OutboxRelayParts } from '../../src/write/outbox-relay.ts';
import { eventually } from '../harness/eventually.ts';
import { openQueueStage, type QueueStage } from '../queue/queue-stage.ts';
import { type FanoutStage, followers, openStage, soon, toldToStop } from './fanout-stage.ts';

let stage: FanoutStage;
beforeEach(async () => {
  stage = await openStage();
});
afterEach(() => stage.close());

describe('the outbox relay', () => {
  const handled: OutboxEvent[] = [];
  let failing: (event: OutboxEvent) => boolean = () => false;
  const lags: number[] = [];
  beforeEach(() => {
    handled.length = 0;
    lags.length = 0;
    failing = () => false;
  });

  const createRelay = (parts: Partial<OutboxRelayParts> = {}) =>
    createOutboxRelay({
      claimEvents: (signal, input) => outbox.claimEvents(stage.database, signal, input),
      finishEvents: (signal, ids) => outbox.finishEvents(stage.database, signal, ids),
      releaseEvents: (signal, events) => outbox.releaseEvents(stage.database, signal, events),
      async handle(_signal, event) {
        handled.push(event);
        if (failing(event)) throw new Error('on purpose');
      },
      loadOldestEventSeconds: (signal) => outbox.loadOldestEventSeconds(stage.database, signal),
      monotonicMs: () => performance.now(),
      random: systemRandom,
      events: {
        eventHandled: () => undefined,
        eventFailed: () => undefined,
        relayLag: (seconds) => lags.push(seconds),
      },
      ...parts,
    });

  const openEvents = async (): Promise<number> =>
    (await stage.rows.sql<{ count: number }>('SELECT count(*) AS count FROM outbox WHERE done_at IS NULL'))[0]?.count ??
    -1;
  const postsOf = (events: readonly OutboxEvent[]): readonly string[] =>
    events.map(({ payload }) => String(payload['postId']));

  it('hands every event on, with its tenant, kind and IDs, and finishes it', async () => {
    const postId = await stage.publish('ada');
    expect(await createRelay()(soon())).toBe(false);
    expect(handled).toMatchObject([
      {
        tenant: stage.tenant,
        kind: 'post_published',
        payload: { postId: String(postId), authorId: 'ada' },
        attempts: 1,
      },
    ]);
    expect(await openEvents()).toBe(0);
    expect(lags).toEqual([0]);
  });

  it('tries what failed again, after a pause, and lets it hold nothing up', async () => {
    const bad = String(await stage.publish('ada'));
    const good = String(await stage.publish('ben'));
    failing = ({ payload }) => payload['postId'] === bad;
    const runOnce = createRelay();
    await runOnce(soon());
    expect([...postsOf(handled)].sort()).toEqual([bad, good].sort());
    expect(await openEvents()).toBe(1);
    // The pause, made longer than this machine can be slow.
    await stage.rows.sql("UPDATE outbox SET lease_until = lease_until + interval '1 h'");
    await runOnce(soon());
    expect(handled).toHaveLength(2);

    await stage.rows.sql("UPDATE outbox SET lease_until = lease_until - interval '1 h'");
    failing = () => false;
    await eventually(async () => {
      await runOnce(soon());
      expect(await openEvents()).toBe(0);
    });
    expect(handled.at(-1)).toMatchObject({ payload: { postId: bad }, attempts: 2 });
  });

  it('meets what commits late, with a smaller number than what it has seen, and stops at no gap', async () => {
    const append = `INSERT INTO outbox (tenant_id, kind, payload) VALUES ('${stage.tenant}', 'post_published', '{"postId": "$"}')`;
    const [late, doomed] = [await stage.rows.session(), await stage.rows.session()];
    await late.query(`BEGIN; ${append.replace('$', '1')}`);
    await doomed.query(`BEGIN; ${append.replace('$', '2')}`);
    await stage.rows.sql(append.replace('$', '3'));
    const runOnce = createRelay();
    await runOnce(soon());
    expect(postsOf(handled)).toEqual(['3']);
    await doomed.query('ROLLBACK');
    await late.query('COMMIT');
    await runOnce(soon());
    expect(postsOf(handled)).toEqual(['3', '1']);
    expect(handled[1]?.eventId).toBeLessThan(handled[0]?.eventId ?? 0);
    expect(await openEvents()).toBe(0);
  });

  it('twenty times at once hands each event on, and leaves none', async () => {
    await stage.rows.sql(
      `INSERT INTO outbox (tenant_id, kind, payload) SELECT $1, 'post_changed', jsonb_build_object('postId', n::text) FROM generate_series(1, 1500) n`,
      [stage.tenant],
    );
    const flaky = new Set<string>();
    failing = ({ payload }) => {
      const post = String(payload['postId']);
      if (Number(post) % 50 !== 0 || flaky.has(post)) return false;
      flaky.add(post);
      return true;
    };
    await Promise.all(
      Array.from({ length: 20 }, async () => {
        const runOnce = createRelay();
        await eventually(
          async () => {
            await runOnce(soon());
            expect(await openEvents()).toBe(0);
          },
          { timeoutMs: 20_000 },
        );
      }),
    );
    expect(new Set(postsOf(handled)).size).toBe(1_500);
    expect(handled.length).toBe(1_500 + flaky.size);
  });

  it('that is told to stop gives back what it has not handled', async () => {
    for (let count = 0; count < 20; count += 1) await stage.publish('ada');
    const stop = new AbortController();
    const failed: unknown[] = [];
    const events = {
      eventHandled: ({ outcome }: { readonly outcome: string }) => outcome === 'failed' && failed.push(outcome),
      eventFailed: (event: unknown) => failed.push(event),
      relayLag: () => undefined,
    };
    let cutOff = 0;
    const handle = async (signal: AbortSignal, event: OutboxEvent): Promise<void> => {
      if (stop.signal.aborted) {
        cutOff += 1;
        signal.throwIfAborted();
      }
      handled.push(event);
      // The others that are handled at the same time are cut off by it.
      if (handled.length === 3) stop.abort();
    };
    // Each waits for a turn, so that some are under way at the stop.
    const inTurn = (signal: AbortSignal, event: OutboxEvent) => Promise.resolve().then(() => handle(signal, event));
    await createRelay({ handle: inTurn, events })(stop.signal).catch(() => undefined);
    expect(cutOff).toBeGreaterThan(0);
    // No fault of anybody's: neither measures nor the log have one.
    expect(failed).toEqual([]);
    const open = await openEvents();
    expect(open).toBe(20 - handled.length);
    await eventually(async () => {
      await createRelay()(soon());
      expect(await openEvents()).toBe(0);
    });
    expect(handled).toHaveLength(20);
  });

  it('that is told to stop while its claim is under way gives back all of it', async () => {
    for (let count = 0; count < 5; count += 1) await stage.publish('ada');
    const stop = new AbortController();
    const relay = createRelay({
      claimEvents: (signal, input) => toldToStop(stop, signal, () => outbox.claimEvents(stage.database, soon(), input)),
    });
    await relay(stop.signal).catch(() => undefined);
    expect(handled).toEqual([]);
    const held = 'SELECT event_id FROM outbox WHERE lease_until > now()';
    expect(await stage.rows.sql(held)).toEqual([]);
    expect(await openEvents()).toBe(5);
  });
});

describe('the fan-out relay', () => {
  let queueStage: QueueStage;
  let results: string[];
  beforeEach(async () => {
    results = [];
    queueStage = await openQueueStage(inject('servers').queueUrl);
  });
  afterEach(() => queueStage.close());

  const createRelay = (parts: Partial<FanoutRelayParts> = {}): FanoutRelay =>
    createFanoutRelay({
      claimDueJobs: (signal, input) => fanoutJobs.claimDueJobs(stage.database, signal, input),
      forgetHints: (signal, jobs) => fanoutJobs.forgetHints(stage.database, signal, jobs),
      addHints: (signal, jobs) => queueStage.queue.add(signal, jobs),
      countWaiting: (signal) => queueStage.queue.countWaiting(signal),
      countDeadJobs: (signal) => countDeadJobs(stage.database, signal),
      loadOpenFigures: (signal) => fanoutJobs.loadOpenFigures(stage.database, signal),
      monotonicMs: () => performance.now(),
      events: {
        hinted: ({ by, result, count }) => results.push(`${by} ${result} ${count}`),
        openJobs: () => undefined,
        deadJobs: () => undefined,
      },
      ...parts,
    });

  const deliverHints = (): void => {
    const deliver = stage.deliverer();
    queueStage.worker(async (signal, hint) => {
      await deliver(signal, hint);
    });
  };

  it('brings what was published to every resident follower, by way of the queue', async () => {
    await stage.arrange({ author: 'ada', followers: followers(25), resident: followers(25) });
    deliverHints();
    const relay = createRelay();
    const nudged = await stage.publish('ada');
    relay.nudge({ tenant: stage.tenant, postId: nudged, generation: 1, lane: 'small' });
    await eventually(async () => expect(await stage.job(nudged)).toMatchObject({ done: true, delivered: 25 }));
    const found = await stage.publish('ada');
    expect(await relay.runOnce(soon())).toBe(false);
    await eventually(async () => expect(await stage.job(found)).toMatchObject({ done: true }));
    expect(await stage.entries('f012')).toEqual([nudged, found]);
    await eventually(() => expect(results).toEqual(['nudge added 1', 'round added 1']));
  });

  it('that is told to stop while its claim is under way hints all of it', async () => {
    for (let count = 0; count < 3; count += 1) await stage.publish('ada');
    const stop = new AbortController();
    const relay = createRelay({
      claimDueJobs: (signal, input) =>
        toldToStop(stop, signal, () => fanoutJobs.claimDueJobs(stage.database, soon(), input)),
    });
    await relay.runOnce(stop.signal).catch(() => undefined);
    expect(results).toEqual(['round added 3']);
    expect(await queueStage.queue.countWaiting(soon())).toBe(3);
  });

  it('hints again what the queue has forgotten', async () => {
    const postId = await stage.publish('ada');
    const relay = createRelay();
    await relay.runOnce(soon());
    expect(await queueStage.queue.countWaiting(soon())).toBe(1);
    const raw = new Redis(inject('servers').queueUrl);
    await raw.del(await raw.keys(`${queueStage.prefix}:*`));
    raw.disconnect();
    await relay.runOnce(soon());
    expect(await queueStage.queue.countWaiting(soon())).toBe(0);

    // As if the time for which a hint is trusted had passed.
    await stage.rows.sql("UPDATE fanout_jobs SET hinted_at = hinted_at - interval '11 s'");
    await relay.runOnce(soon());
    deliverHints();
    await eventually(async () => expect(await stage.job(postId)).toMatchObject({ done: true }));
  });

  it('waits for nothing while the queue is away, and hints with the first round after', async () => {
    const postId = await stage.publish('ada');
    let away = true;
    const relay = createRelay({
      addHints: (signal, jobs) => (away ? Promise.resolve(jobs) : queueStage.queue.add(signal, jobs)),
    });
    relay.nudge({ tenant: stage.tenant, postId, generation: 1, lane: 'small' });
    expect(await relay.runOnce(soon())).toBe(false);
    expect(await relay.runOnce(soon())).toBe(false);
    // A nudge waits some milliseconds for others, whatever the rounds do meanwhile.
    await eventually(() => expect([...results].sort()).toEqual(['nudge failed 1', 'round failed 1', 'round failed 1']));
    away = false;
    await relay.runOnce(soon());
    expect(await queueStage.queue.countWaiting(soon())).toBe(1);
  });

  it('nudges at most so many at once, and never throws', async () => {
    const hang = Promise.withResolvers<never>();
    let asked = 0;
    const relay = createRelay({
      addHints: (_signal, jobs) => {
        asked += jobs.length;
        return hang.promise;
      },
    });
    for (let post = 1; post <= 100; post += 1)
      relay.nudge({ tenant: stage.tenant, postId: postIdFrom(post), generation: 1, lane: 'small' });
    expect(results).toEqual(Array(98).fill('nudge dropped 1'));
    await eventually(() => expect(asked).toBe(2));
    hang.reject(new Error('on purpose'));
    await eventually(() => expect(results.filter((result) => result === 'nudge failed 2')).toHaveLength(1));
  });

  it('goes on from the checkpoint of a worker that died, when its lease has run out', async () => {
    await stage.arrange({ author: 'ada', followers: followers(25), resident: followers(25) });
    const postId = await stage.publish('ada');
    const job = { tenant: stage.tenant, postId, generation: 1 };
    const lease = await fanoutJobs.takeLease(stage.database, soon(), { ...job, leaseMs: 200 });
    const at = {
      ...job,
      token: lease?.token ?? '',
      cursor: 'f009',
      delivered: 11,
      skipped: 0,
      pushingMs: 0,
      leaseMs: 200,
    };
    await fanoutJobs.checkpoint(stage.database, soon(), at);
    deliverHints();
    const relay = createRelay();
    await eventually(async () => {
      await relay.runOnce(soon());
      expect(await stage.job(postId)).toMatchObject({ done: true, delivered: 26, attempts: 2 });
    });
    expect(await stage.holders(postId, followers(25))).toEqual(followers(25).slice(10));
  });
});

it('what is done is kept for ten minutes and then removed', async () => {
  await stage.publish('ada');
  await stage.publish('ada');
  const retention = createRetention({
    removeDoneJobs: (signal, input) => fanoutJobs.removeDoneJobs(stage.database, signal, input),
    removeDoneEvents: (signal, input) => outbox.removeDoneEvents(stage.database, signal, input),
  });
  const left = () => stage.rows.sql('SELECT 1 FROM outbox UNION ALL SELECT 1 FROM fanout_jobs');
  await stage.rows.sql("UPDATE outbox SET done_at = now() - interval '9 min'");
  await stage.rows.sql("UPDATE fanout_jobs SET done_at = now() - interval '9 min'");
  await retention(soon());
  expect(await left()).toHaveLength(4);
  await stage.rows.sql(
    "UPDATE outbox SET done_at = now() - interval '11 min' WHERE event_id = (SELECT min(event_id) FROM outbox)",
  );
  await stage.rows.sql(
    "UPDATE fanout_jobs SET done_at = now() - interval '11 min' WHERE post_id = (SELECT min(post_id) FROM fanout_jobs)",
  );
  expect(await retention(soon())).toBe(false);
  expect(await left()).toHaveLength(2);
});
