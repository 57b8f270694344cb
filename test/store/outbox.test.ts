/**
 * Owns the promise of the outbox rows: a claim that marks rows one by one meets every event and fan-out job once, in whatever order their
 * transactions commit, and a transaction that was rolled back holds nothing up.
 */

import type pg from 'pg';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import { claimDueJobs } from '../../src/store/postgres/fanout-jobs.ts';
import * as outbox from '../../src/store/postgres/outbox.ts';
import { PUBLISH, publishValues } from '../../src/store/postgres/publish.ts';
import { composePostId } from '../../src/timeline/ids.ts';
import { startTestService, type TestService, type TestTenant, userId } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

let service: TestService;
let tenant: TestTenant;
let database: Database;
beforeAll(async () => {
  // No relay of its own: the claims are the test's.
  service = await startTestService({ env: { TRIBUTARY_ROLE: 'api' } });
  database = createDatabase({
    url: service.database.url,
    pool: 'claims',
    connectionsMax: 2,
    acquireTimeoutMs: 10_000,
    statementTimeoutMs: 10_000,
    lockTimeoutMs: 10_000,
    waitersMax: 10,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
});
afterAll(async () => {
  await database.close();
  await service.stop();
});
beforeEach(async () => {
  tenant = await service.tenant();
});

const soon = (): AbortSignal => AbortSignal.timeout(10_000);

let sequence = 0;

/** A publish whose transaction the test ends. */
async function publishIn(session: pg.Client, author: string): Promise<string> {
  sequence += 1;
  const postId = composePostId({ ms: service.clock.nowMs(), generator: 119, sequence: sequence % 32 });
  await session.query('BEGIN');
  const post = {
    tenant: tenant.id,
    author: userId(author),
    postId,
    text: 'slow',
    media: [],
    plainRepost: false,
    visibility: 'public',
  } as const;
  await session.query(PUBLISH.text, [...publishValues(post)]);
  return String(postId);
}

/** What a relay's turn does with events, and the posts of this tenant that it met. */
async function claimEvents(most = 100): Promise<readonly string[]> {
  const events = await outbox.claimEvents(database, soon(), { most, leaseMs: 30_000 });
  await outbox.finishEvents(
    database,
    soon(),
    events.map((event) => event.eventId),
  );
  return events.filter((event) => event.tenant === tenant.id).map(({ payload }) => String(payload['postId']));
}

async function claimJobs(most = 100): Promise<readonly string[]> {
  const jobs = await claimDueJobs(database, soon(), { most, hintAgainMs: 3_600_000 });
  return jobs.filter((job) => job.tenant === tenant.id).map((job) => String(job.postId));
}

async function numberOf(postId: string): Promise<number> {
  const [row] = await service.database.sql<{ event_id: number }>(
    "SELECT event_id FROM outbox WHERE tenant_id = $1 AND payload->>'postId' = $2",
    [tenant.id, postId],
  );
  return row?.event_id ?? 0;
}

describe('transactions that overlap', () => {
  it('deliver their events and jobs when they commit, the one with the smaller number last, and a gap holds nothing up', async () => {
    await tenant.cast().play('rita follows ada, ben');
    await claimEvents();
    const slow = await service.database.session();
    const doomed = await service.database.session();
    const late = await publishIn(slow, 'ada');
    const lost = await publishIn(doomed, 'ada');
    const quick = (await tenant.posts.publishPost({ authorId: 'ben', text: 'quick' })).post?.postId ?? '';

    expect(await claimEvents()).toEqual([quick]);
    expect(await claimJobs()).toEqual([quick]);
    expect(await claimEvents()).toEqual([]);
    await doomed.query('ROLLBACK');
    await slow.query('COMMIT');
    expect(await numberOf(late)).toBeLessThan(await numberOf(quick));
    expect(await claimEvents()).toEqual([late]);
    expect(await claimJobs()).toEqual([late]);
    expect([await claimEvents(), await claimJobs()]).toEqual([[], []]);
    const home = await wholeHome(tenant, 'rita');
    expect([...home].sort()).toEqual([late, quick].sort());
    expect(home).not.toContain(lost);
  });

  it('of which one claims and dies leave its rows to the next', async () => {
    const { post } = await tenant.posts.publishPost({ authorId: 'ada', text: 'hi' });
    const claimer = await service.database.session();
    await claimer.query('BEGIN');
    await claimer.query('SELECT event_id FROM outbox WHERE tenant_id = $1 AND done_at IS NULL FOR UPDATE SKIP LOCKED', [
      tenant.id,
    ]);
    expect(await claimEvents()).toEqual([]);
    await claimer.end();
    expect(await claimEvents()).toEqual([post?.postId]);
  });
});

it('50 writers that commit in any order, and two claimers beside them: every post is claimed once', async () => {
  const published: string[] = [];
  const claimed: { events: string[]; jobs: string[] } = { events: [], jobs: [] };
  let writing = true;
  const writers = Promise.all(
    Array.from({ length: 50 }, async (_, writer) => {
      for (let post = 0; post < 10; post += 1) {
        const answer = await tenant.posts.publishPost({ authorId: `writer-${writer}`, text: `${post}` });
        published.push(answer.post?.postId ?? '');
      }
    }),
  ).finally(() => {
    writing = false;
  });
  const claimers = Array.from({ length: 2 }, async () => {
    for (let last = false; !last; ) {
      last = !writing;
      claimed.events.push(...(await claimEvents(7)));
      claimed.jobs.push(...(await claimJobs(7)));
    }
  });
  await Promise.all([writers, ...claimers]);
  for (let more = true; more; ) {
    const [events, jobs] = await Promise.all([claimEvents(), claimJobs()]);
    claimed.events.push(...events);
    claimed.jobs.push(...jobs);
    more = events.length + jobs.length > 0;
  }
  expect(published).toHaveLength(500);
  const expected = [...published].sort();
  expect([...claimed.events].sort()).toEqual(expected);
  expect([...claimed.jobs].sort()).toEqual(expected);
});
