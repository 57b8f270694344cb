/** Owns what changing and deleting a post promise: versions that rise by one, and nothing hidden that shows again. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { Visibility } from '../../src/gen/tributary/v1/post_pb.ts';
import { refusalOf } from '../harness/clients.ts';
import type { Cast } from '../harness/play.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

let service: TestService;
let tenant: TestTenant;
let cast: Cast;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(() => service.stop());
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
});

async function read(label: string, viewerId = 'ada') {
  const { view } = await tenant.posts.getPost({ viewerId, postId: cast.post(label).postId });
  if (!view?.post) throw new Error('a read post has no view');
  return view.post;
}

async function generationsOf(label: string): Promise<number> {
  const rows = await service.database.sql('SELECT 1 FROM fanout_jobs WHERE tenant_id = $1 AND post_id = $2', [
    tenant.id,
    cast.post(label).postId,
  ]);
  return rows.length;
}

describe('a changed post', () => {
  it('raises both versions with its text, one with its visibility, none with what is there already', async () => {
    await cast.play('ada posts "one" as a1; ada edits a1 "two"');
    expect(await read('a1')).toMatchObject({ text: 'two', metaVersion: 2n, bodyVersion: 2n });
    expect((await read('a1')).editedAt).toBeDefined();
    await cast.play('ada shows a1 to followers');
    expect(await read('a1')).toMatchObject({ visibility: Visibility.FOLLOWERS, metaVersion: 3n, bodyVersion: 2n });
    await cast.play('ada shows a1 to followers; ada edits a1 "two"');
    expect(await read('a1')).toMatchObject({ metaVersion: 3n, bodyVersion: 2n });
  });

  it('is not edited by a change of visibility or moderation', async () => {
    await cast.play('ada posts "one" as a1; ada shows a1 to followers; moderation marks a1');
    expect((await read('a1')).editedAt).toBeUndefined();
  });

  it('cannot be changed or read by a change while moderation hides it, and can again after that', async () => {
    await cast.play('ada posts "one" as a1; moderation hides a1');
    const change = { authorId: 'ada', postId: cast.post('a1').postId };
    for (const fields of [{}, { text: 'two' }, { visibility: Visibility.PRIVATE }]) {
      expect((await refusalOf(tenant.posts.updatePost({ ...change, ...fields }))).reason).toBe('POST_NOT_FOUND');
    }
    await cast.play('moderation clears a1; ada edits a1 "two"');
    expect((await read('a1')).text).toBe('two');
  });

  it('is refused at another version than the expected one, and changes at that', async () => {
    await cast.play('ada posts "one" as a1; ada edits a1 "two"');
    const change = { authorId: 'ada', postId: cast.post('a1').postId, text: 'three' };
    expect(await refusalOf(tenant.posts.updatePost({ ...change, expectedMetaVersion: 1n }))).toMatchObject({
      code: 'ABORTED',
      reason: 'VERSION_MISMATCH',
    });
    await tenant.posts.updatePost({ ...change, expectedMetaVersion: 2n });
    expect((await read('a1')).text).toBe('three');
  });

  it('goes through once of 10 changes at once that expect the same version', async () => {
    await cast.play('ada posts "one" as a1');
    const { postId } = cast.post('a1');
    const outcomes = await Promise.allSettled(
      Array.from({ length: 10 }, (_, at) =>
        tenant.posts.updatePost({ authorId: 'ada', postId, text: `text ${at}`, expectedMetaVersion: 1n }),
      ),
    );
    expect(outcomes.filter((outcome) => outcome.status === 'fulfilled')).toHaveLength(1);
    expect((await read('a1')).metaVersion).toBe(2n);
  });

  it('keeps its kind: a plain repost takes no text, and a post keeps something to show', async () => {
    await cast.play('bob posts "hi" as b1; ada reposts b1 as a1; ada posts "words" as a2');
    const change = (label: string, text: string) =>
      tenant.posts.updatePost({ authorId: 'ada', postId: cast.post(label).postId, text });
    expect((await refusalOf(change('a1', 'now a quote'))).reason).toBe('POST_KIND_FIXED');
    expect((await refusalOf(change('a2', ''))).code).toBe('INVALID_ARGUMENT');
  });

  it('is found by its author alone', async () => {
    await cast.play('ada posts "one" as a1');
    const { postId } = cast.post('a1');
    expect((await refusalOf(tenant.posts.updatePost({ authorId: 'bob', postId, text: 'mine' }))).reason).toBe(
      'POST_NOT_FOUND',
    );
    expect((await refusalOf(tenant.posts.deletePost({ authorId: 'bob', postId }))).reason).toBe('POST_NOT_FOUND');
    expect((await read('a1')).text).toBe('one');
  });

  it('asks for a new fan-out when others may see it again, and only then', async () => {
    await cast.play('ada posts "one" as a1; ada edits a1 "two"; ada shows a1 to followers');
    expect(await generationsOf('a1')).toBe(1);
    await cast.play('ada shows a1 to nobody');
    expect(await generationsOf('a1')).toBe(1);
    await cast.play('ada shows a1 to everybody');
    expect(await generationsOf('a1')).toBe(2);
    await cast.play('moderation hides a1; moderation clears a1');
    expect(await generationsOf('a1')).toBe(3);
  });
});

describe('a deleted post', () => {
  it('shows to nobody with the next read, its author included, and its text is gone from the database', async () => {
    await cast.play('bob follows ada; ada posts "regret" as a1; ada deletes a1');
    for (const viewer of ['ada', 'bob']) {
      expect(await wholeHome(tenant, viewer)).toEqual([]);
      expect(await refusalOf(tenant.posts.getPost({ viewerId: viewer, postId: cast.post('a1').postId }))).toMatchObject(
        { code: 'NOT_FOUND', reason: 'POST_NOT_FOUND' },
      );
    }
    expect(await service.database.sql("SELECT 1 FROM posts WHERE tenant_id = $1 AND text <> ''", [tenant.id])).toEqual(
      [],
    );
  });

  it('is deleted again with OK, changed no more, and was never there for others', async () => {
    await cast.play('ada posts "regret" as a1; ada deletes a1; ada deletes a1');
    const { postId } = cast.post('a1');
    expect((await refusalOf(tenant.posts.updatePost({ authorId: 'ada', postId, text: 'back' }))).reason).toBe(
      'POST_NOT_FOUND',
    );
    expect((await refusalOf(tenant.posts.deletePost({ authorId: 'ada', postId: '4096' }))).reason).toBe(
      'POST_NOT_FOUND',
    );
  });

  it('stays deleted whatever changes at the same time', async () => {
    await cast.play('ada posts "one" as a1');
    const { postId } = cast.post('a1');
    const calls = Array.from({ length: 10 }, (_, at) =>
      at === 5
        ? tenant.posts.deletePost({ authorId: 'ada', postId })
        : tenant.posts.updatePost({ authorId: 'ada', postId, text: `text ${at}` }),
    );
    await Promise.allSettled(calls);
    expect(await wholeHome(tenant, 'ada')).toEqual([]);
    expect(
      await service.database.sql("SELECT 1 FROM posts WHERE tenant_id = $1 AND (text <> '' OR deleted_at IS NULL)", [
        tenant.id,
      ]),
    ).toEqual([]);
  });
});
