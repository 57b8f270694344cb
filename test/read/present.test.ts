/** Owns what is shown of a page when parts of it cannot be loaded: profiles and counters are left out and the page says so; a body that turns out to be gone, or hidden by a later meta, takes its post along. */
import { expect, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { createNamedPeople } from '../../src/read/named-people.ts';
import { createOpenPageFacts } from '../../src/read/page-facts.ts';
import { createOpenPresenter, type PresenterParts } from '../../src/read/present.ts';
import { encodeBody, encodeProfile } from '../../src/store/encode-bodies.ts';
import type { PostId } from '../../src/timeline/ids.ts';
import { NO_RELATION, type PostMeta, UNKNOWN_AUTHOR } from '../../src/timeline/post.ts';
import { hiddenFromHome } from '../../src/timeline/visibility.ts';
import { postMeta } from '../harness/post-meta.ts';
import { createTestLog } from '../harness/service.ts';
import { createTestClock } from '../harness/test-clock.ts';
import { ids, newTenant, soon, user } from '../store/redis/cache-under-test.ts';

const RITA = user('rita');
const ADA = user('ada');
const POSTS = ids(9, 8, 7);
const away = new TributaryError('DATABASE_UNAVAILABLE', { message: 'away' });

const metaOf = (postId: PostId, more: Partial<PostMeta> = {}): PostMeta => postMeta({ postId, author: ADA, ...more });

async function present(parts: Partial<PresenterParts>) {
  const call = { tenant: newTenant(), signal: soon() };
  const facts = createOpenPageFacts({
    clock: createTestClock(),
    named: createNamedPeople(),
    posts: { loadMetas: async (_call, wanted) => new Map(wanted.map((id) => [id, metaOf(id)])) },
    people: {
      loadRelations: async (_call, _viewer, authors) =>
        new Map(authors.map((author) => [author, { ...NO_RELATION, follows: true }])),
      loadStates: async (_call, authors) =>
        new Map(authors.map((author) => [author, { state: UNKNOWN_AUTHOR, profileVersion: 1 }])),
    },
  })(call, RITA);
  await facts.gather({ ids: POSTS });
  const log: string[] = [];
  const presenter = createOpenPresenter({
    log: createTestLog(log),
    posts: {
      loadBodies: async (_call, metas) =>
        new Map(
          metas.map((meta) => [meta.postId, { meta, body: encodeBody({ text: `text ${meta.postId}`, media: [] }) }]),
        ),
    },
    people: {
      loadProfiles: async () =>
        new Map([
          [
            ADA,
            encodeProfile({
              author: ADA,
              displayName: 'Ada',
              avatarAddress: '',
              bio: '',
              protected: false,
              profileVersion: 1,
            }),
          ],
        ]),
    },
    loadCounts: async (_call, wanted) => new Map(wanted.map((id) => [id, { reposts: 2 }])),
    ...parts,
  })(call, facts);
  const shown = await presenter.present(
    POSTS.map((id) => metaOf(id)),
    hiddenFromHome,
  );
  return { shown, log, ids: shown.views.map(({ post }) => post.meta.postId) };
}

it('shows all of it where all of it is there', async () => {
  const { shown, ids: shownIds } = await present({});
  expect(shownIds).toEqual(POSTS);
  expect(shown.views[0]).toMatchObject({
    post: { body: encodeBody({ text: 'text 9', media: [] }) },
    counts: { reposts: 2 },
  });
  expect({ reduced: shown.reduced, names: [...shown.authors.keys()] }).toEqual({ reduced: false, names: [ADA] });
});

it('leaves counters out where they cannot be loaded, and says so', async () => {
  const { shown, log, ids: shownIds } = await present({ loadCounts: () => Promise.reject(away) });
  expect(shownIds).toEqual(POSTS);
  expect(shown.views.map(({ counts }) => counts)).toEqual([undefined, undefined, undefined]);
  expect(shown.reduced).toBe(true);
  expect(log.join()).toContain('counters left out');
});

it('leaves profiles out where they cannot be loaded, and says so', async () => {
  const { shown, ids: shownIds } = await present({ people: { loadProfiles: () => Promise.reject(away) } });
  expect(shownIds).toEqual(POSTS);
  expect({ reduced: shown.reduced, authors: shown.authors.size }).toEqual({ reduced: true, authors: 0 });
});

it('never leaves a body out: without it the page fails', async () => {
  await expect(present({ posts: { loadBodies: () => Promise.reject(away) } })).rejects.toBe(away);
});

it('shows no post whose body is gone, and none that came with a later meta which hides it', async () => {
  const { ids: shownIds } = await present({
    posts: {
      loadBodies: async (_call, metas) =>
        new Map(
          metas
            .filter(({ postId }) => postId !== POSTS[0])
            .map(({ postId }) => [
              postId,
              {
                meta: metaOf(postId, postId === POSTS[1] ? { metaVersion: 2, visibility: 'private' } : {}),
                body: encodeBody({ text: '', media: [] }),
              },
            ]),
        ),
    },
  });
  expect(shownIds).toEqual([POSTS[2]]);
});

it('says that it left a post out whose body was not known while Postgres was away, also where Postgres is back a moment later', async () => {
  let away = true;
  const { shown, ids: shownIds } = await present({
    fallback: {
      mayLeaveOut: true,
      hasDatabase: () => !away,
      async knownBodies(_call, metas) {
        away = false;
        const known = metas.filter(({ postId }) => postId !== POSTS[1]);
        return new Map(known.map((meta) => [meta.postId, { meta, body: encodeBody({ text: '', media: [] }) }]));
      },
      knownProfiles: async () => new Map(),
    },
  });
  expect({ ids: shownIds, leftOut: shown.leftOut }).toEqual({ ids: [POSTS[0], POSTS[2]], leftOut: true });
});
