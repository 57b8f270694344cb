/** Owns what holds when an answer does not come: of a publish nobody knows the outcome of, and of calls whose connections are cut. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { refusalFrom, refusalOf } from '../harness/clients.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { eventually } from '../harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

/** A probe of readiness may get the fault that was meant for a publish. */
const ATTEMPTS_MAX = 20;

let database: TestDatabase;
let proxy: FaultProxy;
let service: TestService;
let tenant: TestTenant;
beforeAll(async () => {
  database = await createTestDatabase();
  proxy = await startFaultProxy({ port: Number(new URL(database.url).port) });
  service = await startTestService({
    database,
    databaseUrl: proxy.through(database.url),
    env: { TRIBUTARY_ROLE: 'api', DATABASE_LOCK_TIMEOUT_MS: '20000' },
  });
});
afterAll(async () => {
  await proxy.restore();
  await service.stop();
  await proxy.stop();
  await database.drop();
});
beforeEach(async () => {
  tenant = await service.tenant();
  // The key is known and IDs can be minted: the next statement of a publish is its own.
  await tenant.posts.publishPost({ authorId: 'ada', text: 'warm' });
});

async function storedUnder(requestId: string): Promise<readonly string[]> {
  const rows = await database.sql<{ post_id: number }>(
    'SELECT p.post_id FROM publish_requests r JOIN posts p USING (tenant_id, author_id, post_id) WHERE r.tenant_id = $1 AND r.request_id = $2',
    [tenant.id, requestId],
  );
  return rows.map((row) => String(row.post_id));
}

describe('a publish', () => {
  it('whose answer was lost is UNAVAILABLE and there; its retry gets that post, and no second one', async () => {
    const publish = (requestId: string) => tenant.posts.publishPost({ authorId: 'ada', text: 'once', requestId });
    let requestId = '';
    let outcome: ReturnType<typeof refusalFrom> | undefined;
    for (let attempt = 0; attempt < ATTEMPTS_MAX && outcome === undefined; attempt += 1) {
      requestId = randomUUID();
      proxy.cutAfter(0);
      outcome = await publish(requestId).then(() => undefined, refusalFrom);
    }
    expect(outcome).toMatchObject({ code: 'UNAVAILABLE', reason: 'DATABASE_UNAVAILABLE' });

    const stored = await eventually(async () => {
      const found = await storedUnder(requestId);
      expect(found).toHaveLength(1);
      return found;
    });
    const { post } = await publish(requestId);
    expect(post?.postId).toBe(stored[0]);
    expect((await wholeHome(tenant, 'ada')).filter((id) => id === stored[0])).toHaveLength(1);
  });

  it('that timed out leaves nothing running, and its retry publishes once', async () => {
    const requestId = randomUUID();
    const publish = (timeoutMs?: number) =>
      tenant.posts.publishPost(
        { authorId: 'ada', text: 'in time', requestId },
        timeoutMs === undefined ? {} : { timeoutMs },
      );
    const holder = await database.session();
    await holder.query('BEGIN');
    await holder.query('LOCK TABLE posts IN SHARE MODE');
    expect((await refusalOf(publish(300))).code).toBe('DEADLINE_EXCEEDED');
    // The statement is stopped although what it waits for is still held.
    await eventually(async () =>
      expect(
        await database.sql(
          "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        ),
      ).toEqual([]),
    );
    await holder.query('ROLLBACK');
    expect(await storedUnder(requestId)).toEqual([]);

    const first = await publish();
    const again = await publish();
    expect(again.post?.postId).toBe(first.post?.postId);
    expect(await storedUnder(requestId)).toEqual([first.post?.postId]);
  });
});

describe('the loss of every connection to the database', () => {
  it('fails the calls on them as UNAVAILABLE, and those that follow are answered', async () => {
    const read = () => tenant.posts.listAuthorPosts({ viewerId: 'ada', authorId: 'ada' });
    const before = await wholeHome(tenant, 'ada');
    const holder = await database.session();
    await holder.query('BEGIN');
    await holder.query('LOCK TABLE posts IN ACCESS EXCLUSIVE MODE');
    const waiting = Array.from({ length: 8 }, read).map((call) => refusalOf(call));
    await eventually(async () =>
      expect(
        await database.sql(
          "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
        ),
      ).toHaveLength(8),
    );
    // What stands in the cache is read without the database.
    expect(await wholeHome(tenant, 'ada')).toEqual(before);
    await database.sql(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'tributary-%' AND datname = current_database()",
    );
    for (const refusal of await Promise.all(waiting)) {
      expect(refusal).toMatchObject({ code: 'UNAVAILABLE', reason: 'DATABASE_UNAVAILABLE' });
    }
    await holder.query('ROLLBACK');
    await eventually(async () => expect(await wholeHome(tenant, 'ada')).toEqual(before));
  });
});
