/** Owns the rules of visibility, one test each, and the laws that hold for all of them. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { parseUserId, postIdFrom, type UserId } from '../../src/timeline/ids.ts';
import {
  AUTHOR_STATES,
  type AuthorState,
  MODERATION_STATES,
  NO_RELATION,
  type PostMeta,
  type PostRef,
  type Relation,
  UNKNOWN_AUTHOR,
  VISIBILITIES,
} from '../../src/timeline/post.ts';
import {
  hiddenAsTarget,
  hiddenFromHome,
  hiddenReason,
  targetsOf,
  type VisibilityFacts,
} from '../../src/timeline/visibility.ts';
import { postMeta } from '../harness/post-meta.ts';

const NOW_MS = 1_700_000_000_000;
const [ALICE, BOB, CAROL] = ['alice', 'bob', 'carol'].map((name) => parseUserId(name) as UserId) as [
  UserId,
  UserId,
  UserId,
];

function post(change: Partial<PostMeta> = {}): PostMeta {
  return postMeta({ postId: postIdFrom(100), author: BOB, ...change });
}

function refTo(target: PostMeta): PostRef {
  return { postId: target.postId, author: target.author };
}

interface World {
  readonly viewer?: UserId;
  readonly relations?: Readonly<Record<string, Partial<Relation>>>;
  readonly authors?: Readonly<Record<string, Partial<AuthorState>>>;
  readonly targets?: readonly PostMeta[];
}

function facts({ viewer = ALICE, relations = {}, authors = {}, targets = [] }: World = {}): VisibilityFacts {
  return {
    viewer,
    nowMs: NOW_MS,
    authorState: (author) => ({ ...UNKNOWN_AUTHOR, ...authors[author] }),
    relation: (author) => ({ ...NO_RELATION, ...relations[author] }),
    target: (postId) => targets.find((target) => target.postId === postId),
  };
}

const GONE = [
  { reason: 'deleted', change: { deleted: true }, authors: {} },
  { reason: 'moderated', change: { moderation: 'hidden' }, authors: {} },
  { reason: 'author_suspended', change: {}, authors: { bob: { lifecycle: 'suspended' } } },
  { reason: 'author_erased', change: {}, authors: { bob: { lifecycle: 'erased' } } },
] as const;

describe('what nobody sees', () => {
  for (const { reason, change, authors } of GONE) {
    it(`hides from everybody, its author too: ${reason}`, () => {
      const follower = facts({ authors, relations: { bob: { follows: true } } });
      expect(hiddenReason(post(change), follower)).toBe(reason);
      expect(hiddenReason(post(change), facts({ viewer: BOB, authors }))).toBe(reason);
    });
  }

  it('serves a post that moderation marked as sensitive', () => {
    expect(hiddenReason(post({ moderation: 'sensitive' }), facts())).toBeUndefined();
  });
});

describe('an author looking at their own post', () => {
  it.each(VISIBILITIES)('sees it when it is %s', (visibility) => {
    expect(
      hiddenReason(post({ visibility }), facts({ viewer: BOB, authors: { bob: { protected: true } } })),
    ).toBeUndefined();
    expect(hiddenFromHome(post({ visibility }), facts({ viewer: BOB }))).toBeUndefined();
  });

  it('sees it although it answers somebody they block', () => {
    const answered = post({ postId: postIdFrom(5), author: CAROL });
    const world = facts({ viewer: BOB, relations: { carol: { blocks: true } }, targets: [answered] });
    expect(hiddenReason(post({ replyTo: refTo(answered) }), world)).toBeUndefined();
  });
});

describe('somebody else', () => {
  it('does not see a private post, followers included', () => {
    expect(hiddenReason(post({ visibility: 'private' }), facts({ relations: { bob: { follows: true } } }))).toBe(
      'private',
    );
  });

  it.each([
    { reason: 'blocked', relation: { blocks: true } },
    { reason: 'blocked_by', relation: { blockedBy: true } },
    { reason: 'muted', relation: { mutedUntilMs: Number.POSITIVE_INFINITY } },
    { reason: 'muted', relation: { mutedUntilMs: NOW_MS + 1 } },
  ])('does not see a post when $relation', ({ reason, relation }) => {
    expect(hiddenReason(post(), facts({ relations: { bob: { follows: true, ...relation } } }))).toBe(reason);
  });

  it('sees a post again in the millisecond in which the mute ends', () => {
    expect(hiddenReason(post(), facts({ relations: { bob: { mutedUntilMs: NOW_MS } } }))).toBeUndefined();
  });

  it('sees a followers-only post only while following', () => {
    const narrow = post({ visibility: 'followers' });
    expect(hiddenReason(narrow, facts())).toBe('not_follower');
    expect(hiddenReason(narrow, facts({ relations: { bob: { follows: true } } }))).toBeUndefined();
  });

  it('sees a public post of a protected author only while following', () => {
    const authors = { bob: { protected: true } };
    expect(hiddenReason(post(), facts({ authors }))).toBe('not_follower');
    expect(hiddenReason(post(), facts({ authors, relations: { bob: { follows: true } } }))).toBeUndefined();
  });

  for (const link of ['replyTo', 'repostOf'] as const) {
    it.each([{ blocks: true }, { blockedBy: true }, { mutedUntilMs: NOW_MS + 1 }])(
      `does not see a post whose ${link} is by somebody with whom %j stands`,
      (relation) => {
        const target = post({ postId: postIdFrom(5), author: CAROL });
        const world = facts({ relations: { bob: { follows: true }, carol: relation }, targets: [target] });
        expect(hiddenReason(post({ [link]: refTo(target) }), world)).toBe('target_author');
      },
    );
  }

  it('sees an answer to their own post', () => {
    const own = post({ postId: postIdFrom(5), author: ALICE });
    expect(hiddenReason(post({ replyTo: refTo(own) }), facts({ targets: [own] }))).toBeUndefined();
  });
});

describe('a plain repost', () => {
  const target = post({ postId: postIdFrom(5), author: CAROL });
  const repost = post({ plainRepost: true, repostOf: refTo(target) });

  it('is shown while its target is', () => expect(hiddenReason(repost, facts({ targets: [target] }))).toBeUndefined());

  it('is hidden when the target is gone, for its author too', () => {
    expect(hiddenReason(repost, facts())).toBe('target_hidden');
    expect(hiddenReason(repost, facts({ viewer: BOB }))).toBe('target_hidden');
  });

  it('is hidden when the target is hidden from the viewer, for its author too', () => {
    const world = { targets: [{ ...target, visibility: 'private' }] } as const;
    expect(hiddenReason(repost, facts(world))).toBe('target_hidden');
    expect(hiddenReason(repost, facts({ ...world, viewer: BOB }))).toBe('target_hidden');
    expect(hiddenReason(repost, facts({ ...world, viewer: CAROL }))).toBeUndefined();
  });
});

describe('a quote or a reply', () => {
  it.each(['replyTo', 'repostOf'] as const)('stays when its %s is gone', (link) => {
    expect(hiddenReason(post({ [link]: { postId: postIdFrom(5), author: CAROL } }), facts())).toBeUndefined();
  });
});

describe('home', () => {
  it('shows no author whom the viewer does not follow now', () => {
    expect(hiddenFromHome(post(), facts())).toBe('not_followed');
    expect(hiddenFromHome(post(), facts({ relations: { bob: { follows: true } } }))).toBeUndefined();
  });
});

describe('for all posts and viewers', () => {
  const user = fc.constantFrom(ALICE, BOB, CAROL);
  const relation: fc.Arbitrary<Relation> = fc
    .record({
      follows: fc.boolean(),
      blocks: fc.boolean(),
      blockedBy: fc.boolean(),
      mutedUntilMs: fc.option(fc.constantFrom(NOW_MS - 1, NOW_MS, NOW_MS + 1), { nil: undefined }),
    })
    .map(({ mutedUntilMs, ...rest }) => ({ ...rest, ...(mutedUntilMs === undefined ? {} : { mutedUntilMs }) }));
  const plain = fc.record({
    author: user,
    visibility: fc.constantFrom(...VISIBILITIES),
    moderation: fc.constantFrom(...MODERATION_STATES),
    deleted: fc.boolean(),
  });
  const world = fc
    .record({
      outer: plain,
      inner: plain,
      link: fc.constantFrom('none', 'replyTo', 'repostOf', 'plain'),
      viewer: user,
      relations: fc.record({ alice: relation, bob: relation, carol: relation }),
      authors: fc.dictionary(
        user,
        fc.record({ lifecycle: fc.constantFrom(...AUTHOR_STATES), protected: fc.boolean() }),
      ),
      innerIsThere: fc.boolean(),
    })
    .map(({ outer, inner, link, innerIsThere, ...rest }) => {
      const target = post({ ...inner, postId: postIdFrom(5) });
      const subject = post({
        ...outer,
        ...(link === 'replyTo' ? { replyTo: refTo(target) } : {}),
        ...(link === 'repostOf' || link === 'plain' ? { repostOf: refTo(target) } : {}),
        plainRepost: link === 'plain',
      });
      return { subject, facts: facts({ ...rest, targets: innerIsThere ? [target] : [] }), ...rest };
    });

  it('what is hidden as a target is hidden as a post, and what is hidden as a post is hidden from home', () => {
    fc.assert(
      fc.property(world, ({ subject, facts: known }) => {
        if (hiddenAsTarget(subject, known) !== undefined)
          expect(hiddenReason(subject, known)).toBe(hiddenAsTarget(subject, known));
        if (hiddenReason(subject, known) !== undefined) expect(hiddenFromHome(subject, known)).toBeDefined();
      }),
    );
  });

  it('a fact that was not fetched throws instead of showing the post', () => {
    const missing = (): never => {
      throw new Error('not fetched');
    };
    const blind: VisibilityFacts = {
      viewer: ALICE,
      nowMs: NOW_MS,
      authorState: missing,
      relation: missing,
      target: missing,
    };
    expect(() => hiddenReason(post(), blind)).toThrow('not fetched');
  });

  it('shows nothing to others that a block, a running mute or a private setting forbids', () => {
    fc.assert(
      fc.property(world, ({ subject, facts: known, viewer, relations }) => {
        if (subject.author === viewer || hiddenReason(subject, known) !== undefined) return;
        for (const author of [subject.author, ...targetsOf(subject).map((target) => target.author)]) {
          if (author === viewer) continue;
          const stands = relations[author as 'alice' | 'bob' | 'carol'];
          expect(stands.blocks || stands.blockedBy || (stands.mutedUntilMs ?? 0) > NOW_MS).toBe(false);
        }
        expect(subject.visibility).not.toBe('private');
      }),
    );
  });
});

describe('an author of whom something is not known', () => {
  const { authorState: _state, relation: _relation, ...rest } = facts();
  const never = (): never => {
    throw new Error('asked for what is not known');
  };
  const of = (unknown: readonly UserId[], targets: readonly PostMeta[] = []): VisibilityFacts => ({
    ...rest,
    unknown: new Set(unknown),
    authorState: (author) => (unknown.includes(author) ? never() : UNKNOWN_AUTHOR),
    relation: (author) => (unknown.includes(author) ? never() : { ...NO_RELATION, follows: true }),
    target: (postId) => targets.find((target) => target.postId === postId),
  });

  it('shows nothing, to anybody, on any surface, and is not asked about', () => {
    for (const judge of [hiddenFromHome, hiddenReason, hiddenAsTarget]) {
      expect(judge(post(), of([BOB]))).toBe('unknown');
      expect(judge(post({ author: ALICE }), of([ALICE]))).toBe('unknown');
      expect(judge(post(), of([CAROL]))).toBeUndefined();
    }
  });

  it('hides what answers or reposts them, but for one’s own', () => {
    const target = post({ postId: postIdFrom(99), author: CAROL });
    const answer = post({ replyTo: refTo(target) });
    expect(hiddenFromHome(answer, of([CAROL], [target]))).toBe('unknown');
    expect(hiddenFromHome(post({ plainRepost: true, repostOf: refTo(target) }), of([CAROL], [target]))).toBe('unknown');
    expect(hiddenFromHome({ ...answer, author: ALICE }, of([CAROL], [target]))).toBeUndefined();
    const bare = post({ author: ALICE, plainRepost: true, repostOf: refTo(target) });
    expect(hiddenFromHome(bare, of([CAROL], [target]))).toBe('target_hidden');
  });
});
