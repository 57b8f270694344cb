/**
 * Owns the promise that it does not matter which instance is asked: what was changed by one holds for the next read of another, whatever that one had read, and keeps in its memory, before.
 * What is shown anew may take an instance as long as it goes without looking at a list.
 */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import type { AuthorProfile } from '../../src/gen/tributary/v1/author_pb.ts';
import type { Post, PostView } from '../../src/gen/tributary/v1/post_pb.ts';
import { type Clients, connectClients, PROTOCOLS } from '../harness/clients.ts';
import { eventually } from '../harness/eventually.ts';
import { createHeldEvents, type HeldEvents } from '../harness/held-events.ts';
import type { Cast } from '../harness/play.ts';
import { storeClass } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';

let service: TestService;
let other: TestService;
let events: HeldEvents;
beforeAll(async () => {
  service = await startTestService();
  events = await createHeldEvents(service.database);
  other = await startTestService({
    database: service.database,
    clock: service.clock,
    env: { TRIBUTARY_ROLE: 'api' },
  });
});
afterAll(async () => {
  await other.stop();
  await service.stop();
});

let tenant: TestTenant;
let cast: Cast;
let elsewhere: readonly Clients[];
beforeEach(async () => {
  tenant = await service.tenant();
  cast = tenant.cast();
  const { grpcPort, httpPort } = other.service;
  elsewhere = PROTOCOLS.map((protocol) => connectClients({ protocol, grpcPort, httpPort, key: tenant.key }));
  return async () => {
    for (const clients of elsewhere) clients.close();
    await events.release();
  };
});

/** A post as it is shown: its text, its author's name, and the same of what is inside it. */
type Shown = readonly string[];

function shownOf(view: PostView | undefined, authors: { [author: string]: AuthorProfile }): Shown | undefined {
  const one = (post: Post | undefined): Shown | undefined =>
    post && [post.postId, post.text, authors[post.authorId]?.displayName ?? ''];
  const outer = one(view?.post);
  const inner = one(view?.replyTo ?? view?.repostOf);
  return outer && inner ? [...outer, ...inner] : outer;
}

/** What the surfaces of the other instance show rita, by both protocols. */
async function look(): Promise<readonly (readonly (Shown | undefined)[])[]> {
  const viewerId = 'rita';
  const postIds = [...cast.ids('post', 'quote', 'reply')];
  const looks = await Promise.all(
    elsewhere.map(async ({ timeline, posts }) => {
      const [home, list, batch, ...singles] = await Promise.all([
        timeline.getHomeTimeline({ viewerId }),
        posts.listAuthorPosts({ viewerId, authorId: 'ada' }),
        posts.batchGetPosts({ viewerId, postIds }),
        ...postIds.map((postId) => posts.getPost({ viewerId, postId }).catch(() => undefined)),
      ]);
      return [
        home.entries.map((view) => shownOf(view, home.authors)),
        list.entries.map((view) => shownOf(view, list.authors)),
        batch.views.map((view) => shownOf(view, batch.authors)),
        singles.flatMap((answer) => (answer ? [shownOf(answer.view, answer.authors)] : [])),
      ];
    }),
  );
  expect(looks[1]).toEqual(looks[0]);
  return looks[0] ?? [];
}

/** The same from Postgres alone. */
async function truth(): Promise<readonly (readonly (Shown | undefined)[])[]> {
  const rows = await service.database.sql<{ post_id: string; text: string; name: string | null }>(
    `SELECT post_id::text, text, display_name AS name FROM posts LEFT JOIN authors USING (tenant_id, author_id) WHERE tenant_id = $1`,
    [tenant.id],
  );
  const oracle = await tenant.oracle('rita');
  const shown = (postId: string): Shown | undefined => {
    const entry = oracle.entry(postId);
    const row = (id: string | undefined): Shown | undefined => {
      const found = rows.find(({ post_id }) => post_id === id);
      return found && [found.post_id, found.text, found.name ?? ''];
    };
    const outer = entry && row(postId);
    const inner = row(entry?.replyTo ?? entry?.repostOf);
    return outer && inner ? [...outer, ...inner] : outer;
  };
  const asked = cast
    .ids('post', 'quote', 'reply')
    .map(shown)
    .filter((entry) => entry !== undefined);
  return [oracle.home.map(shown), oracle.byAuthor('ada').map(shown), asked, asked];
}

describe.each(['push', 'pull'] as const)('of authors of class %s', (fanoutClass) => {
  it('every change made on one instance is what the other shows next', { timeout: 90_000 }, async () => {
    await storeClass(service.database, tenant.id, { authors: ['ada'], fanoutClass });
    await cast.play('rita follows ada, ben; ada is open; ben is open');
    // A timeline that is there before the posts are: one that a reader of the other instance made.
    await Promise.all(elsewhere.map(({ timeline }) => timeline.getHomeTimeline({ viewerId: 'rita' })));
    await cast.play(
      'ada posts "first words" as post; ben quotes post "look" as quote; ben replies to post "yes" as reply',
    );
    await service.settle();
    await eventually(async () => expect(await look()).toEqual(await truth()));

    for (const change of [
      'ada edits post "other words"; ben edits quote "no, look"',
      'ada edits post "last words"; rita mutes ben',
      'rita unmutes ben; moderation hides post',
      'moderation clears post; ada is suspended',
      'ada is restored; ada shows post to nobody',
      'ada shows post to followers; ada is protected; ada removes follower rita',
      'rita follows ada; ben blocks rita',
      'ada edits post "words after all"; ben unblocks rita; rita follows ben',
      'ada deletes post',
    ]) {
      await events.hold();
      await cast.play(change);
      await expectTruth(change);
    }
  });

  async function expectTruth(change: string): Promise<void> {
    const due = await truth();
    const [home = [], ...others] = await look();
    expect([change, ...others]).toEqual([change, ...due.slice(1)]);
    // Nothing but the truth at once, by the call alone, and soon all of it.
    expect([change, due[0]]).toEqual([change, expect.arrayContaining([...home])]);
    await events.release();
    await service.settle();
    await eventually(async () => expect([change, ...(await look())]).toEqual([change, ...due]));
  }
});

it('a profile is shown as it was last stored, by whomever it was asked for', async () => {
  await cast.play(
    'rita follows ada; ada posts "a" as post; ada replies to post "b" as reply; ada quotes post "c" as quote',
  );
  await service.settle();
  for (const displayName of ['Ada', 'Ada L.', 'Countess']) {
    await events.hold();
    await tenant.graph.putAuthor({ authorId: 'ada', displayName });
    const seen = await look();
    expect(seen).toEqual(await truth());
    expect(seen.flat(2)).toContain(displayName);
    await events.release();
  }
});
