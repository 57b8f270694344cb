/** Owns what publishing promises to callers: seen at once, once per request ID, whole or not at all. */
import { randomUUID } from 'node:crypto';
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Visibility } from '../../src/gen/tributary/v1/post_pb.ts';
import { refusalOf } from '../harness/clients.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { createTestClock } from '../harness/test-clock.ts';
import { wholeAuthorList, wholeHome } from '../harness/walk.ts';

let service: TestService;
let tenant: TestTenant;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(() => service.stop());
beforeEach(async () => {
  tenant = await service.tenant();
});

const rowsOf = async (table: string): Promise<number> => {
  const [row] = await service.database.sql<{ rows: number }>(
    `SELECT count(*) AS rows FROM ${table} WHERE tenant_id = $1`,
    [tenant.id],
  );
  return row?.rows ?? 0;
};

describe('a published post', () => {
  it('is in its author’s home with the next read, and in every follower’s home once it has been fanned out', async () => {
    const cast = tenant.cast();
    await cast.play('bob follows ada; cyd follows ada');
    for (let round = 1; round <= 10; round += 1) {
      await cast.play(`ada posts "number ${round}" as a${round}`);
      const { postId } = cast.post(`a${round}`);
      expect((await wholeHome(tenant, 'ada'))[0]).toBe(postId);
      await service.settle();
      for (const viewer of ['bob', 'cyd']) expect((await wholeHome(tenant, viewer))[0]).toBe(postId);
    }
  });

  it('shows to nobody else when it is private, and to the author at once', async () => {
    const cast = tenant.cast();
    await cast.play('bob follows ada');
    for (const viewer of ['ada', 'bob']) expect(await wholeHome(tenant, viewer)).toEqual([]);
    await cast.play('ada posts "mine" to nobody as a1');
    expect(await wholeHome(tenant, 'ada')).toEqual(cast.ids('a1'));
    await service.settle();
    expect(await wholeHome(tenant, 'bob')).toEqual([]);
  });

  it('is answered as it is read: text, media, times, versions', async () => {
    const media = [
      { address: 'sha256:ab', mediaType: 'image/webp', altText: 'a cat', widthPixels: 640, heightPixels: 480 },
    ];
    const { post, ownTimelinePending } = await tenant.posts.publishPost({
      authorId: 'ada',
      text: 'grüße 🐈',
      media,
      visibility: Visibility.FOLLOWERS,
    });
    expect(ownTimelinePending).toBe(false);
    const { view } = await tenant.posts.getPost({ viewerId: 'ada', postId: post?.postId ?? '' });
    expect(view?.post).toEqual(post);
    expect(post).toMatchObject({
      text: 'grüße 🐈',
      visibility: Visibility.FOLLOWERS,
      metaVersion: 1n,
      bodyVersion: 1n,
    });
    expect(post?.media).toMatchObject(media);
    const publishedMs = Number(post?.publishedAt?.seconds) * 1_000 + Number(post?.publishedAt?.nanos) / 1_000_000;
    expect(Math.floor(Number(post?.postId) / 4_096) + 1_577_836_800_000).toBe(publishedMs);
    expect(Math.abs(publishedMs - Date.now())).toBeLessThan(60_000);
  });

  it('is one row in each table that must know of it', async () => {
    await tenant.posts.publishPost({ authorId: 'ada', text: 'hello' });
    const tables = ['posts', 'self_entries', 'post_stats', 'fanout_jobs', 'outbox'];
    expect(await Promise.all(tables.map(rowsOf))).toEqual([1, 1, 1, 1, 1]);
    await tenant.posts.publishPost({ authorId: 'ada', text: 'mine', visibility: Visibility.PRIVATE });
    expect(await Promise.all(tables.map(rowsOf))).toEqual([2, 2, 2, 2, 2]);
  });

  it('of a plain repost is a repost of the original', async () => {
    const cast = tenant.cast();
    await cast.play(
      'ada posts "hi" as a1; bob reposts a1 as b1; cyd reposts b1 as c1; dan quotes b1 "see" as d1; eve replies to b1 "yes" as e1',
    );
    for (const label of ['c1', 'd1']) {
      const { view } = await tenant.posts.getPost({ viewerId: 'ada', postId: cast.post(label).postId });
      expect(view?.post?.repostOf).toMatchObject({ postId: cast.post('a1').postId, authorId: 'ada' });
    }
    const { view } = await tenant.posts.getPost({ viewerId: 'ada', postId: cast.post('e1').postId });
    expect(view?.replyTo?.postId).toBe(cast.post('a1').postId);
  });
});

describe('a request ID', () => {
  const publish = (text: string, requestId: string) => tenant.posts.publishPost({ authorId: 'ada', text, requestId });

  it('gets the first answer again, and publishes once', async () => {
    const requestId = randomUUID();
    const first = await publish('once', requestId);
    expect(await publish('once', requestId)).toEqual(first);
    expect(await tenant.by.json.posts.publishPost({ authorId: 'ada', text: 'once', requestId })).toEqual(first);
    expect(await wholeHome(tenant, 'ada')).toEqual([first.post?.postId]);
    expect(await rowsOf('outbox')).toBe(1);
  });

  it('sent by 20 callers at once publishes once, and all get the same answer', async () => {
    const requestId = randomUUID();
    const answers = await Promise.all(Array.from({ length: 20 }, () => publish('once', requestId)));
    expect(new Set(answers.map((answer) => answer.post?.postId)).size).toBe(1);
    expect(await rowsOf('posts')).toBe(1);
    expect(await rowsOf('fanout_jobs')).toBe(1);
  });

  it('with other content is refused, whatever the difference is', async () => {
    const requestId = randomUUID();
    await publish('once', requestId);
    const target = await tenant.posts.publishPost({ authorId: 'bob', text: 'target' });
    const others = [
      { authorId: 'ada', text: 'twice' },
      { authorId: 'bob', text: 'once' },
      { authorId: 'ada', text: 'once', visibility: Visibility.PRIVATE },
      { authorId: 'ada', text: 'once', replyToPostId: target.post?.postId ?? '' },
      { authorId: 'ada', text: 'once', repostOfPostId: target.post?.postId ?? '' },
      { authorId: 'ada', text: 'once', media: [{ address: 'sha256:ab', mediaType: 'image/webp' }] },
    ];
    for (const other of others) {
      expect(await refusalOf(tenant.posts.publishPost({ ...other, requestId }))).toMatchObject({
        code: 'ALREADY_EXISTS',
        reason: 'REQUEST_ID_REUSED',
      });
    }
    expect(await wholeHome(tenant, 'ada')).toHaveLength(1);
  });

  it('still gets its first answer when the target is gone and the author suspended', async () => {
    const cast = tenant.cast();
    await cast.play('bob posts "target" as b1');
    const requestId = randomUUID();
    const reply = { authorId: 'ada', text: 'yes', replyToPostId: cast.post('b1').postId, requestId };
    const first = await tenant.posts.publishPost(reply);
    await cast.play('bob deletes b1; ada is suspended');
    expect(await tenant.posts.publishPost(reply)).toEqual(first);
  });

  it('belongs to its tenant', async () => {
    const requestId = randomUUID();
    const other = await service.tenant();
    const here = await publish('once', requestId);
    const there = await other.posts.publishPost({ authorId: 'ada', text: 'something else', requestId });
    expect(there.post?.postId).not.toBe(here.post?.postId);
  });

  it('whose publish failed can be used again', async () => {
    const cast = tenant.cast();
    await cast.play('ada is suspended');
    const requestId = randomUUID();
    expect((await refusalOf(publish('once', requestId))).reason).toBe('AUTHOR_SUSPENDED');
    await cast.play('ada is restored');
    const answer = await publish('once', requestId);
    expect(await wholeHome(tenant, 'ada')).toEqual([answer.post?.postId]);
  });
});

describe('a publish is refused', () => {
  it('for a suspended author, and leaves nothing behind', async () => {
    await tenant.cast().play('ada is suspended');
    const refusal = await refusalOf(tenant.posts.publishPost({ authorId: 'ada', text: 'hi' }));
    expect(refusal).toMatchObject({ code: 'FAILED_PRECONDITION', reason: 'AUTHOR_SUSPENDED' });
    expect(await Promise.all(['posts', 'self_entries', 'post_stats', 'fanout_jobs'].map(rowsOf))).toEqual([0, 0, 0, 0]);
  });

  it.each([
    { why: 'was deleted', script: 'bob deletes b1' },
    { why: 'is hidden by moderation', script: 'moderation hides b1' },
    { why: 'is private', script: 'bob shows b1 to nobody' },
    { why: 'is for followers and the author follows not', script: 'bob shows b1 to followers' },
    { why: 'is by a protected author', script: 'bob is protected' },
    { why: 'is by a suspended author', script: 'bob is suspended' },
    { why: 'is by somebody who blocks the author', script: 'bob blocks ada' },
    { why: 'is by somebody whom the author blocks', script: 'ada blocks bob' },
    { why: 'is by somebody whom the author mutes', script: 'ada mutes bob' },
  ])('when the target $why, the same as when it never was', async ({ script }) => {
    const cast = tenant.cast();
    await cast.play(`bob posts "hi" as b1; ${script}`);
    for (const postId of [cast.post('b1').postId, '4096']) {
      for (const target of [
        { replyToPostId: postId, text: 'yes' },
        { repostOfPostId: postId },
        { repostOfPostId: postId, text: 'look' },
      ]) {
        const refusal = await refusalOf(tenant.posts.publishPost({ authorId: 'ada', ...target }));
        expect(refusal).toMatchObject({ code: 'NOT_FOUND', reason: 'TARGET_NOT_FOUND' });
      }
    }
    expect(await wholeAuthorList(tenant, 'ada', 'ada')).toEqual([]);
  });

  it('with UNAVAILABLE when the clock is too far off to mint an ID safely, and works once it is right', async () => {
    const clock = createTestClock();
    const off = await startTestService({ clock });
    try {
      const there = await off.tenant();
      const publish = () => there.posts.publishPost({ authorId: 'ada', text: 'hi' });
      const first = await publish();
      for (const stepMs of [3_600_000, -7_200_000]) {
        clock.step(stepMs);
        expect(await refusalOf(publish())).toMatchObject({ code: 'UNAVAILABLE', reason: 'ID_LEASE_UNAVAILABLE' });
      }
      clock.step(3_600_000);
      const last = await publish();
      expect(Number(last.post?.postId)).toBeGreaterThan(Number(first.post?.postId));
    } finally {
      await off.stop();
    }
  });
});
