/** Owns what changes of the graph promise: idempotent, counted once, and never a follow across a block. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { BatchFollowResult_Refusal } from '../../src/gen/tributary/v1/graph_service_pb.ts';
import { refusalOf } from '../harness/clients.ts';
import { eventually } from '../harness/eventually.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';

let service: TestService;
let tenant: TestTenant;
beforeAll(async () => {
  service = await startTestService({ env: { FOLLOWS_MAX: '12' } });
});
afterAll(() => service.stop());
beforeEach(async () => {
  tenant = await service.tenant();
});

const relationship = (viewerId: string, otherId: string) => tenant.graph.getRelationship({ viewerId, otherId });

async function followerDelta(author: string): Promise<number> {
  const [row] = await service.database.sql<{ total: number }>(
    `SELECT coalesce((SELECT sum(delta) FROM counter_deltas WHERE tenant_id = $1 AND author_id = $2 AND counter = 'followers'), 0)
      + coalesce((SELECT follower_count FROM authors WHERE tenant_id = $1 AND author_id = $2), 0) AS total`,
    [tenant.id, author],
  );
  return Number(row?.total);
}

/** Until the call has ended, or waits for a lock in the database. */
async function settledOrWaiting(call: Promise<unknown>): Promise<void> {
  let settled = false;
  const end = (): void => {
    settled = true;
  };
  call.then(end, end);
  await eventually(async () => {
    const waiting = await service.database.sql(
      "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'",
    );
    if (!settled && waiting.length === 0) throw new Error('neither ended nor waiting');
  });
}

describe('a follow', () => {
  it('holds once, however often and however many at once ask for it', async () => {
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => tenant.graph.follow({ followerId: 'ada', followeeId: 'bob' })),
    );
    expect(new Set(answers.map((answer) => answer.relationVersion))).toEqual(new Set([1n]));
    expect(await followerDelta('bob')).toBe(1);
    expect(await relationship('ada', 'bob')).toMatchObject({ following: true, followedBy: false });
    expect(await relationship('bob', 'ada')).toMatchObject({ following: false, followedBy: true });
  });

  it('ended by 20 calls at once is one edge less, and the version rises with every real change', async () => {
    await tenant.cast().play('ada follows bob');
    const answers = await Promise.all(
      Array.from({ length: 20 }, () => tenant.graph.unfollow({ followerId: 'ada', followeeId: 'bob' })),
    );
    expect(new Set(answers.map((answer) => answer.relationVersion))).toEqual(new Set([2n]));
    expect(await followerDelta('bob')).toBe(0);
    expect((await tenant.graph.follow({ followerId: 'ada', followeeId: 'bob' })).relationVersion).toBe(3n);
  });

  it('that never was is ended with OK and version 0', async () => {
    expect((await tenant.graph.unfollow({ followerId: 'ada', followeeId: 'bob' })).relationVersion).toBe(0n);
    await tenant.graph.removeFollower({ authorId: 'ada', followerId: 'bob' });
  });

  it('is ended from the other side by removing the follower', async () => {
    await tenant.cast().play('ada follows bob; bob removes follower ada');
    expect((await relationship('ada', 'bob')).following).toBe(false);
  });

  it('of oneself is INVALID_ARGUMENT', async () => {
    expect((await refusalOf(tenant.graph.follow({ followerId: 'ada', followeeId: 'ada' }))).code).toBe(
      'INVALID_ARGUMENT',
    );
    expect((await refusalOf(tenant.graph.block({ blockerId: 'ada', blockedId: 'ada' }))).code).toBe('INVALID_ARGUMENT');
    expect((await refusalOf(tenant.graph.mute({ muterId: 'ada', mutedId: 'ada' }))).code).toBe('INVALID_ARGUMENT');
  });

  it('never passes the limit, however many batches come at once', async () => {
    const batches = await Promise.all(
      Array.from({ length: 8 }, (_, batch) =>
        tenant.graph.batchFollow({
          followerId: 'ada',
          followeeIds: Array.from({ length: 10 }, (_, at) => `author-${batch}-${at}`),
        }),
      ),
    );
    const refusals = batches.flatMap(({ results }) => results.map((result) => result.refusal));
    expect(refusals.filter((refusal) => refusal === BatchFollowResult_Refusal.UNSPECIFIED)).toHaveLength(12);
    expect((await tenant.graph.listFollowing({ userId: 'ada' })).userIds).toHaveLength(12);
  });

  it('at the limit is refused to as many as come at once by whatever connection, until one has ended', async () => {
    const second = tenant.by.json.graph;
    await tenant.graph.batchFollow({
      followerId: 'ada',
      followeeIds: Array.from({ length: 11 }, (_, at) => `author-${at}`),
    });
    // One place is left.
    const asked = await Promise.allSettled(
      Array.from({ length: 10 }, (_, at) =>
        (at % 2 === 0 ? tenant.graph : second).follow({ followerId: 'ada', followeeId: `other-${at}` }),
      ),
    );
    expect(asked.filter(({ status }) => status === 'fulfilled')).toHaveLength(1);
    for (const at of asked.keys()) {
      const followeeId = `other-${at}`;
      if (asked[at]?.status === 'fulfilled') continue;
      const refusal = await refusalOf(tenant.graph.follow({ followerId: 'ada', followeeId }));
      expect(refusal).toMatchObject({ code: 'FAILED_PRECONDITION', reason: 'FOLLOW_LIMIT_REACHED' });
      expect(refusal.message).toMatch(/12/);
    }
    // One goes, and one of many who ask meanwhile takes the place: never two.
    await Promise.allSettled([
      tenant.graph.unfollow({ followerId: 'ada', followeeId: 'author-0' }),
      ...Array.from({ length: 10 }, (_, at) => second.follow({ followerId: 'ada', followeeId: `new-${at}` })),
    ]);
    await second.follow({ followerId: 'ada', followeeId: 'last' }).catch(() => undefined);
    expect((await tenant.graph.listFollowing({ userId: 'ada' })).userIds).toHaveLength(12);
  });

  it('waits for another connection that is about to take the last place, and does not pass the limit after it', async () => {
    await tenant.graph.batchFollow({
      followerId: 'ada',
      followeeIds: Array.from({ length: 11 }, (_, at) => `author-${at}`),
    });
    const session = await service.database.session();
    await session.query('BEGIN');
    await session.query('SELECT start_follows($1, $2, $3, 12)', [tenant.id, 'ada', ['last']]);
    const asked = refusalOf(tenant.graph.follow({ followerId: 'ada', followeeId: 'beyond' }));
    await settledOrWaiting(asked);
    await session.query('COMMIT');
    expect((await asked).reason).toBe('FOLLOW_LIMIT_REACHED');
    expect((await tenant.graph.listFollowing({ userId: 'ada' })).userIds).toHaveLength(12);
  });

  it('waits for a block that is about to be, from either side, and is refused after it', async () => {
    for (const [blocker, blocked] of [
      ['ada', 'bob'],
      ['dan', 'cyd'],
    ] as const) {
      const session = await service.database.session();
      await session.query('BEGIN');
      // As a block does: the lock that follows take alone, shared, then the row.
      for (const user of [blocker, blocked]) {
        await session.query("SELECT pg_advisory_xact_lock_shared(hashtextextended($2 || ' ' || $1, 0))", [
          tenant.id,
          user,
        ]);
      }
      await session.query('INSERT INTO blocks (tenant_id, blocker_id, blocked_id) VALUES ($1, $2, $3)', [
        tenant.id,
        blocker,
        blocked,
      ]);
      const [followerId, followeeId] = blocker === 'ada' ? [blocker, blocked] : [blocked, blocker];
      const asked = refusalOf(tenant.graph.follow({ followerId, followeeId }));
      await settledOrWaiting(asked);
      await session.query('COMMIT');
      expect((await asked).reason).toBe('BLOCKED');
    }
  });

  it('of a batch has a result of its own: what a block forbids and what has no place stop nothing else', async () => {
    await tenant.cast().play('ada follows held; ada blocks foe; shy blocks ada');
    const { results } = await tenant.graph.batchFollow({
      followerId: 'ada',
      followeeIds: ['foe', 'held', ...Array.from({ length: 11 }, (_, at) => `author-${at}`), 'shy', 'too-many'],
    });
    const { UNSPECIFIED, BLOCKED, FOLLOW_LIMIT_REACHED } = BatchFollowResult_Refusal;
    expect(results.map(({ refusal }) => refusal)).toEqual([
      BLOCKED,
      UNSPECIFIED,
      ...Array.from({ length: 11 }, () => UNSPECIFIED),
      BLOCKED,
      FOLLOW_LIMIT_REACHED,
    ]);
    expect((await tenant.graph.listFollowing({ userId: 'ada' })).userIds).toHaveLength(12);
  });

  it('named twice in a batch is refused with its place, and nothing of the batch is done', async () => {
    const refusal = await refusalOf(
      tenant.graph.batchFollow({ followerId: 'ada', followeeIds: ['ben', 'cyd', 'ben'] }),
    );
    expect(refusal).toMatchObject({ code: 'INVALID_ARGUMENT', reason: 'INVALID_FIELD' });
    expect(refusal.message).toContain('followee_ids[2]');
    expect((await tenant.graph.listFollowing({ userId: 'ada' })).userIds).toEqual([]);
  });

  it('beyond the limit is refused; one that holds already is not', async () => {
    const followeeIds = Array.from({ length: 14 }, (_, at) => `user-${at}`);
    const { results } = await tenant.graph.batchFollow({ followerId: 'ada', followeeIds });
    expect(results.map((result) => result.followeeId)).toEqual(followeeIds);
    expect(results.filter((result) => result.refusal === BatchFollowResult_Refusal.FOLLOW_LIMIT_REACHED)).toHaveLength(
      2,
    );
    expect(await refusalOf(tenant.graph.follow({ followerId: 'ada', followeeId: 'one-more' }))).toMatchObject({
      code: 'FAILED_PRECONDITION',
      reason: 'FOLLOW_LIMIT_REACHED',
    });
    expect((await tenant.graph.follow({ followerId: 'ada', followeeId: 'user-3' })).relationVersion).toBe(1n);
    await tenant.cast().play('ada unfollows user-3; ada follows one-more');
    expect((await relationship('ada', 'one-more')).following).toBe(true);
  });
});

describe('a block', () => {
  it('ends follows both ways, forbids new ones both ways, and brings none back when it ends', async () => {
    const cast = tenant.cast();
    await cast.play('ada follows bob; bob follows ada; ada blocks bob');
    expect(await relationship('ada', 'bob')).toMatchObject({
      following: false,
      followedBy: false,
      blocking: true,
      blockedBy: false,
    });
    for (const [followerId, followeeId] of [
      ['ada', 'bob'],
      ['bob', 'ada'],
    ] as const) {
      expect(await refusalOf(tenant.graph.follow({ followerId, followeeId }))).toMatchObject({
        code: 'FAILED_PRECONDITION',
        reason: 'BLOCKED',
      });
    }
    const { results } = await tenant.graph.batchFollow({ followerId: 'bob', followeeIds: ['ada', 'cyd'] });
    expect(results.map((result) => result.refusal)).toEqual([
      BatchFollowResult_Refusal.BLOCKED,
      BatchFollowResult_Refusal.UNSPECIFIED,
    ]);
    await cast.play('ada unblocks bob; ada unblocks bob');
    expect(await relationship('ada', 'bob')).toMatchObject({ following: false, followedBy: false, blocking: false });
    await cast.play('ada follows bob');
    expect(await followerDelta('bob')).toBe(1);
    expect(await followerDelta('ada')).toBe(0);
  });

  it('of two who follow and block each other at once ends both follows, and neither waits for the other', async () => {
    for (let round = 0; round < 10; round += 1) {
      const [left, right] = [`ann-${round}`, `ben-${round}`];
      await tenant.cast().play(`${left} follows ${right}; ${right} follows ${left}`);
      await Promise.all([
        tenant.graph.block({ blockerId: left, blockedId: right }),
        tenant.graph.block({ blockerId: right, blockedId: left }),
      ]);
      expect(await relationship(left, right)).toMatchObject({ following: false, followedBy: false, blocking: true });
      expect(await followerDelta(left)).toBe(0);
    }
  });

  it('that meets a follow at the same moment leaves no follow beside it', async () => {
    for (let round = 0; round < 10; round += 1) {
      const pair = [`left-${round}`, `right-${round}`] as const;
      await Promise.allSettled([
        tenant.graph.follow({ followerId: pair[0], followeeId: pair[1] }),
        tenant.graph.block({ blockerId: pair[1], blockedId: pair[0] }),
        tenant.graph.follow({ followerId: pair[1], followeeId: pair[0] }),
        tenant.graph.batchFollow({ followerId: pair[0], followeeIds: [pair[1], 'somebody'] }),
      ]);
      expect(await relationship(...pair)).toMatchObject({ following: false, followedBy: false, blockedBy: true });
    }
  });
});

describe('a mute', () => {
  it('is known to its muter alone, has the end it was given last, and ends with OK twice', async () => {
    const cast = tenant.cast();
    await cast.play('ada mutes bob for 1 hour');
    const timed = await relationship('ada', 'bob');
    expect(timed.muting).toBe(true);
    expect(Math.abs(Number(timed.mutedUntil?.seconds) * 1_000 - Date.now() - 3_600_000)).toBeLessThan(60_000);
    await cast.play('ada mutes bob');
    const endless = await relationship('ada', 'bob');
    expect([endless.muting, endless.mutedUntil]).toEqual([true, undefined]);
    expect((await relationship('bob', 'ada')).muting).toBe(false);
    await cast.play('ada unmutes bob; ada unmutes bob');
    expect((await relationship('ada', 'bob')).muting).toBe(false);
  });
});

describe('a profile', () => {
  it('is stored whole, and its version rises only when something changed', async () => {
    const profile = {
      authorId: 'ada',
      displayName: 'Ada',
      avatarAddress: 'sha256:ab',
      bio: 'Countess',
      protected: false,
    };
    expect((await tenant.graph.putAuthor(profile)).author).toMatchObject({ ...profile, profileVersion: 1n });
    expect((await tenant.graph.putAuthor(profile)).author?.profileVersion).toBe(1n);
    expect((await tenant.graph.putAuthor({ ...profile, bio: '' })).author).toMatchObject({
      bio: '',
      profileVersion: 2n,
    });
    await tenant.cast().play('ada is suspended; ada is restored');
    await tenant.posts.publishPost({ authorId: 'ada', text: 'hi' });
    const page = await tenant.timeline.getHomeTimeline({ viewerId: 'ada' });
    expect(page.authors['ada']).toMatchObject({ displayName: 'Ada', profileVersion: 2n });
  });
});
