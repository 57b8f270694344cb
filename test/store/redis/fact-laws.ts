/** Owns the laws of lease fill, as a suite that runs on one server and on a cluster: no race between a load and a change leaves the past in the cache. */
import fc from 'fast-check';
import { beforeAll, describe, expect, it } from 'vitest';
import { encodeMeta, encodeRelation } from '../../../src/store/redis/fact-codec.ts';
import {
  createAuthorFacts,
  createPostFacts,
  createRelationFacts,
  type FactOptions,
  type Facts,
  type ViewerScope,
} from '../../../src/store/redis/facts.ts';
import type { PostId, TenantId, UserId } from '../../../src/timeline/ids.ts';
import { postIdFrom } from '../../../src/timeline/ids.ts';
import { NO_RELATION, type PostMeta, type Relation } from '../../../src/timeline/post.ts';
import { eventually } from '../../harness/eventually.ts';
import { postMeta } from '../../harness/post-meta.ts';
import { type CacheUnderTest, ids, newTenant, newToken, soon, user } from './cache-under-test.ts';

const AUTHOR = user('author');

function metaOf(postId: PostId, metaVersion = 1): PostMeta {
  return postMeta({ postId, author: AUTHOR, metaVersion });
}

export function factLaws(open: () => CacheUnderTest): void {
  let under: CacheUnderTest;
  beforeAll(() => {
    under = open();
  });
  const options = (changed: Partial<FactOptions> = {}): FactOptions => ({
    lifeMs: 60_000,
    tokenLifeMs: 20_000,
    random: Math.random,
    ...changed,
  });

  const kinds = [
    {
      what: 'facts of posts',
      lawsOf: () =>
        lawsOf<TenantId, PostId, PostMeta>({
          facts: (changed) => createPostFacts(under.cache, under.keys, options(changed)),
          scope: newTenant,
          id: postIdFrom(8_999_999_999_999_999),
          other: postIdFrom(3),
          value: (version) => metaOf(postIdFrom(8_999_999_999_999_999), version),
        }),
    },
    {
      what: 'states of authors',
      lawsOf: () =>
        lawsOf({
          facts: (changed) => createAuthorFacts(under.cache, under.keys, options(changed)),
          scope: newTenant,
          id: AUTHOR,
          other: user('other'),
          value: (profileVersion) => ({ state: { lifecycle: 'suspended', protected: true }, profileVersion }),
        }),
    },
    {
      what: 'relations of a viewer',
      lawsOf: () =>
        lawsOf<ViewerScope, UserId, Relation>({
          facts: (changed) => createRelationFacts(under.cache, under.keys, options(changed)),
          scope: () => ({ tenant: newTenant(), viewer: user('viewer') }),
          id: AUTHOR,
          other: user('other'),
          value: (until) => ({ follows: true, blocks: false, blockedBy: true, mutedUntilMs: until }),
        }),
    },
  ];

  for (const { what, lawsOf: laws } of kinds) describe(what, laws);

  function lawsOf<Scope, Id, Value>(kind: {
    readonly facts: (changed?: Partial<FactOptions>) => Facts<Scope, Id, Value>;
    readonly scope: () => Scope;
    readonly id: Id;
    readonly other: Id;
    readonly value: (version: number) => Value;
  }): void {
    const { id, other, value } = kind;
    const lookUp = async (facts: Facts<Scope, Id, Value>, scope: Scope, token = newToken()) => {
      const [lookup] = await facts.lookUp(soon(), scope, [id], token);
      return lookup;
    };

    it('miss once, are being loaded for everybody else, and hit when they are filled', async () => {
      const [facts, scope, token] = [kind.facts(), kind.scope(), newToken()];
      expect(await lookUp(facts, scope, token)).toEqual({ kind: 'miss' });
      expect(await lookUp(facts, scope)).toEqual({ kind: 'loading' });
      expect(await facts.fill(soon(), scope, token, [[id, value(1)]])).toEqual(['won']);
      expect(await lookUp(facts, scope)).toEqual({ kind: 'hit', value: value(1) });
    });

    it('are stored by one of two readers', async () => {
      const [facts, scope] = [kind.facts(), kind.scope()];
      const tokens = [newToken(), newToken()];
      const lookups = await Promise.all(tokens.map((token) => lookUp(facts, scope, token)));
      expect(lookups.map((lookup) => lookup?.kind).sort()).toEqual(['loading', 'miss']);
      const fills = await Promise.all(
        tokens.map((token, index) => facts.fill(soon(), scope, token, [[id, value(index)]])),
      );
      expect(fills.flat().sort()).toEqual(['voided', 'won']);
      expect(await lookUp(facts, scope)).toEqual({ kind: 'hit', value: value(fills.flat().indexOf('won')) });
    });

    it('that were forgotten between the lookup and the fill are not stored', async () => {
      const [facts, scope, token] = [kind.facts(), kind.scope(), newToken()];
      await lookUp(facts, scope, token);
      await facts.forget(soon(), scope, [id]);
      expect(await facts.fill(soon(), scope, token, [[id, value(1)]])).toEqual(['voided']);
      expect(await lookUp(facts, scope)).toEqual({ kind: 'miss' });
    });

    it('are not stored by a load from before a change, when the load after it has a token or a value', async () => {
      const [facts, scope, before, after] = [kind.facts(), kind.scope(), newToken(), newToken()];
      await lookUp(facts, scope, before);
      await facts.forget(soon(), scope, [id]);
      expect(await lookUp(facts, scope, after)).toEqual({ kind: 'miss' });
      expect(await facts.fill(soon(), scope, before, [[id, value(1)]])).toEqual(['voided']);
      expect(await facts.fill(soon(), scope, after, [[id, value(2)]])).toEqual(['won']);
      expect(await facts.fill(soon(), scope, before, [[id, value(1)]])).toEqual(['voided']);
      expect(await lookUp(facts, scope)).toEqual({ kind: 'hit', value: value(2) });
    });

    it('are not filled twice by one token, or without a lookup', async () => {
      const [facts, scope, token] = [kind.facts(), kind.scope(), newToken()];
      expect(await facts.fill(soon(), scope, token, [[id, value(1)]])).toEqual(['voided']);
      await lookUp(facts, scope, token);
      await facts.fill(soon(), scope, token, [[id, value(1)]]);
      expect(await facts.fill(soon(), scope, token, [[id, value(2)]])).toEqual(['voided']);
    });

    it('are loaded by another when the token has ended, and then stored by that one alone', async () => {
      const [facts, scope, dead, next] = [kind.facts({ tokenLifeMs: 40 }), kind.scope(), newToken(), newToken()];
      await lookUp(facts, scope, dead);
      await eventually(async () => expect(await lookUp(facts, scope, next)).toEqual({ kind: 'miss' }));
      const lasting = kind.facts();
      expect(await lasting.fill(soon(), scope, dead, [[id, value(1)]])).toEqual(['voided']);
    });

    it('that are asked for again by the same token are still its own to load', async () => {
      const [facts, scope, token] = [kind.facts(), kind.scope(), newToken()];
      const [first, second] = await facts.lookUp(soon(), scope, [id, id], token);
      expect([first, second]).toEqual([{ kind: 'miss' }, { kind: 'miss' }]);
      expect(await lookUp(facts, scope, token)).toEqual({ kind: 'miss' });
      expect(await facts.fill(soon(), scope, token, [[id, value(1)]])).toEqual(['won']);
    });

    it('end after their life, or up to a tenth before it', async () => {
      const scope = kind.scope();
      const facts = kind.facts({ lifeMs: 80, random: () => 0.999 });
      const token = newToken();
      await lookUp(facts, scope, token);
      expect(await facts.fill(soon(), scope, token, [[id, value(1)]])).toEqual(['won']);
      await eventually(async () => expect((await lookUp(facts, scope))?.kind).not.toBe('hit'));
    });

    it('answer in the order they were asked, whatever became of each', async () => {
      const [facts, scope, token] = [kind.facts(), kind.scope(), newToken()];
      await lookUp(facts, scope, token);
      await facts.fill(soon(), scope, token, [[id, value(1)]]);
      const lookups = await facts.lookUp(soon(), scope, [other, id, other], newToken());
      expect(lookups.map((lookup) => lookup.kind)).toEqual(['miss', 'hit', 'miss']);
      expect(await facts.lookUp(soon(), scope, [], newToken())).toEqual([]);
      expect(await facts.fill(soon(), scope, token, [])).toEqual([]);
      await facts.forget(soon(), scope, []);
    });

    it('hold what was loaded after the last change, in any order of lookups, fills and changes', async () => {
      type Act = { readonly act: 'lookUp' | 'fill'; readonly reader: number } | { readonly act: 'change' };
      const acts = fc.array(
        fc.oneof(
          fc.record({
            act: fc.constantFrom('lookUp' as const, 'fill' as const),
            reader: fc.integer({ min: 0, max: 2 }),
          }),
          fc.constant<Act>({ act: 'change' }),
        ),
        { maxLength: 40 },
      );
      await fc.assert(
        fc.asyncProperty(acts, async (script) => {
          const [facts, scope] = [kind.facts(), kind.scope()];
          let truth = 1;
          const readers = new Map<number, { readonly token: string; readonly loaded: number }>();
          for (const each of script) {
            if (each.act === 'change') {
              truth += 1;
              await facts.forget(soon(), scope, [id]);
            } else if (each.act === 'lookUp') {
              const token = newToken();
              const lookup = await lookUp(facts, scope, token);
              if (lookup?.kind === 'hit') expect(lookup.value).toEqual(value(truth));
              if (lookup?.kind === 'miss') readers.set(each.reader, { token, loaded: truth });
            } else {
              const reader = readers.get(each.reader);
              if (reader) await facts.fill(soon(), scope, reader.token, [[id, value(reader.loaded)]]);
            }
          }
          const last = await lookUp(facts, scope);
          if (last?.kind === 'hit') expect(last.value).toEqual(value(truth));
        }),
        { numRuns: 40 },
      );
    });
  }

  describe('many at once', () => {
    it('of posts: each has its own result, over calls and slots', async () => {
      const facts = createPostFacts(under.cache, under.keys, options());
      const [scope, token] = [newTenant(), newToken()];
      const postIds = ids(...Array.from({ length: 500 }, (_, index) => 4_000_000 + index));
      const even = postIds.filter((_, index) => index % 2 === 0);
      await facts.lookUp(soon(), scope, even, token);
      expect(
        new Set(
          await facts.fill(
            soon(),
            scope,
            token,
            even.map((id) => [id, metaOf(id)] as const),
          ),
        ),
      ).toEqual(new Set(['won']));
      const lookups = await facts.lookUp(soon(), scope, postIds, newToken());
      expect(lookups).toEqual(
        postIds.map((id, index) => (index % 2 === 0 ? { kind: 'hit', value: metaOf(id) } : { kind: 'miss' })),
      );
      await facts.forget(soon(), scope, postIds);
      expect(new Set((await facts.lookUp(soon(), scope, postIds, newToken())).map(({ kind }) => kind))).toEqual(
        new Set(['miss']),
      );
    });

    it('of one viewer: more authors than go into a call', async () => {
      const facts = createRelationFacts(under.cache, under.keys, options());
      const [scope, token] = [{ tenant: newTenant(), viewer: user('viewer') }, newToken()];
      const authors = Array.from({ length: 300 }, (_, index) => user(`a${index}`));
      expect((await facts.lookUp(soon(), scope, authors, token)).every(({ kind }) => kind === 'miss')).toBe(true);
      await facts.fill(
        soon(),
        scope,
        token,
        authors.map((author) => [author, NO_RELATION] as const),
      );
      expect((await facts.lookUp(soon(), scope, authors, newToken())).every(({ kind }) => kind === 'hit')).toBe(true);
      await facts.forget(soon(), scope, authors);
      expect(await under.raw.exists(under.keys.relations(scope.tenant, scope.viewer))).toBe(0);
    });
  });

  describe('what does not read', () => {
    const POST = postIdFrom(77);
    it.each([
      'v',
      'v[]',
      'v[1',
      'garbage',
      '',
      't',
      encodeMeta(metaOf(POST)).replace('[],[]', '[],["x"]'),
      encodeMeta(metaOf(POST)).replace(',1,1,', ',1,null,'),
    ])('as meta is never a hit, and is loaded and stored anew: %j', async (text) => {
      const facts = createPostFacts(under.cache, under.keys, options({ tokenLifeMs: 200 }));
      const scope = newTenant();
      await under.raw.set(under.keys.postMeta(scope, POST), text, 'PX', 300);
      const token = newToken();
      await eventually(async () => {
        const [lookup] = await facts.lookUp(soon(), scope, [POST], token);
        expect(lookup?.kind).not.toBe('hit');
        expect(lookup).toEqual({ kind: 'miss' });
      });
      expect(await facts.fill(soon(), scope, token, [[POST, metaOf(POST)]])).toEqual(['won']);
    });

    it.each(['v', 'v1', 'v1000x', 'v200', 'v100-5', 'garbage', '', 't', 't:', 'tx:soon'])(
      'as a relation is never a hit, and is loaded and stored anew: %j',
      async (text) => {
        const facts = createRelationFacts(under.cache, under.keys, options());
        const [scope, token] = [{ tenant: newTenant(), viewer: user('viewer') }, newToken()];
        await under.raw.hset(under.keys.relations(scope.tenant, scope.viewer), AUTHOR, text);
        await eventually(async () => {
          const [lookup] = await facts.lookUp(soon(), scope, [AUTHOR], token);
          expect(lookup?.kind).not.toBe('hit');
          expect(lookup).toEqual({ kind: 'miss' });
        });
        expect(await facts.fill(soon(), scope, token, [[AUTHOR, NO_RELATION]])).toEqual(['won']);
      },
    );

    it('for its type is an error of that key, and of no other in the batch', async () => {
      const facts = createPostFacts(under.cache, under.keys, options());
      const scope = newTenant();
      const postIds = ids(...Array.from({ length: 40 }, (_, index) => 900 + index));
      await under.raw.lpush(under.keys.postMeta(scope, postIds[7] as PostId), 'x');
      const kindsFound = (await facts.lookUp(soon(), scope, postIds, newToken())).map(({ kind }) => kind);
      expect(kindsFound).toEqual(postIds.map((_, index) => (index === 7 ? 'error' : 'miss')));
    });
  });

  describe('relations', () => {
    const relations: fc.Arbitrary<Relation> = fc
      .record({
        follows: fc.boolean(),
        blocks: fc.boolean(),
        blockedBy: fc.boolean(),
        mutedUntilMs: fc.option(fc.oneof(fc.maxSafeNat(), fc.constant(Number.POSITIVE_INFINITY)), { nil: undefined }),
      })
      .map(({ mutedUntilMs, ...rest }) => ({
        ...rest,
        ...(mutedUntilMs !== undefined && {
          mutedUntilMs: mutedUntilMs === Number.MAX_SAFE_INTEGER ? Number.POSITIVE_INFINITY : mutedUntilMs,
        }),
      }));

    it('come back as they went, each author their own', async () => {
      await fc.assert(
        fc.asyncProperty(fc.array(relations, { minLength: 1, maxLength: 12 }), async (values) => {
          const facts = createRelationFacts(under.cache, under.keys, options());
          const [scope, token] = [{ tenant: newTenant(), viewer: user('viewer') }, newToken()];
          const authors = values.map((_, index) => user(`a${index}`));
          await facts.lookUp(soon(), scope, authors, token);
          await facts.fill(
            soon(),
            scope,
            token,
            values.map((value, index) => [authors[index] as UserId, value] as const),
          );
          expect(await facts.lookUp(soon(), scope, authors, newToken())).toEqual(
            values.map((value) => ({ kind: 'hit', value })),
          );
        }),
        { numRuns: 40 },
      );
    });

    it('of an author who was forgotten leave those of others', async () => {
      const facts = createRelationFacts(under.cache, under.keys, options());
      const [scope, token] = [{ tenant: newTenant(), viewer: user('viewer') }, newToken()];
      const [a, b] = [user('a'), user('b')];
      await facts.lookUp(soon(), scope, [a, b], token);
      await facts.fill(soon(), scope, token, [
        [a, NO_RELATION],
        [b, NO_RELATION],
      ]);
      await facts.forget(soon(), scope, [a]);
      const lookups = await facts.lookUp(soon(), scope, [a, b], newToken());
      expect(lookups.map(({ kind }) => kind)).toEqual(['miss', 'hit']);
    });

    it('always have an end, whoever stores last', async () => {
      const facts = createRelationFacts(under.cache, under.keys, options());
      const [scope, token] = [{ tenant: newTenant(), viewer: user('viewer') }, newToken()];
      await facts.lookUp(soon(), scope, [AUTHOR], token);
      await facts.fill(soon(), scope, token, [[AUTHOR, NO_RELATION]]);
      expect(await under.raw.pttl(under.keys.relations(scope.tenant, scope.viewer))).toBeGreaterThan(0);
    });

    it('that somebody else made to live for ever have an end once they are read, and so has a token among them', async () => {
      const facts = createRelationFacts(under.cache, under.keys, options());
      const scope = { tenant: newTenant(), viewer: user('viewer') };
      const key = under.keys.relations(scope.tenant, scope.viewer);
      await under.raw.hset(key, AUTHOR, encodeRelation(NO_RELATION), 'other', 'tx:9000000000000000');
      const lookups = await facts.lookUp(soon(), scope, [AUTHOR, user('other')], newToken());
      expect(lookups.map(({ kind }) => kind)).toEqual(['hit', 'loading']);
      const life = await under.raw.pttl(key);
      expect(life).toBeGreaterThan(0);
      await under.raw.pexpire(key, 5_000);
      await facts.lookUp(soon(), scope, [AUTHOR], newToken());
      expect(await under.raw.pttl(key)).toBeLessThanOrEqual(5_000);
    });
  });

  describe('clean-up after an unfollow', () => {
    async function followed(relation: Relation | undefined) {
      const timelines = under.timelines({});
      const facts = createRelationFacts(under.cache, under.keys, options());
      const scope = { tenant: newTenant(), viewer: user('viewer') };
      const token = newToken();
      await timelines.begin(soon(), { ...scope, token });
      await timelines.addOlder(soon(), { ...scope, token, postIds: ids(1, 2, 3) });
      await timelines.commit(soon(), { ...scope, token, floor: 0 });
      await facts.lookUp(soon(), scope, [AUTHOR], token);
      if (relation) await facts.fill(soon(), scope, token, [[AUTHOR, relation]]);
      const held = async () => {
        const page = await timelines.page(soon(), { ...scope, direction: 'older', position: 9, count: 9 });
        return page.state === 'absent' ? undefined : page.ids;
      };
      return { timelines, facts, scope, token, held };
    }

    it('takes the entries away where the fact says that the viewer does not follow', async () => {
      const { timelines, scope, held } = await followed(NO_RELATION);
      expect(await timelines.cleanAuthor(soon(), { ...scope, author: AUTHOR, postIds: ids(1, 3, 9) })).toBe(2);
      expect(await held()).toEqual([2]);
    });

    it.each([
      { what: 'follows', relation: { ...NO_RELATION, follows: true } },
      { what: 'is being loaded', relation: undefined },
    ])('takes nothing where the viewer $what', async ({ relation }) => {
      const { timelines, scope, held } = await followed(relation);
      expect(await timelines.cleanAuthor(soon(), { ...scope, author: AUTHOR, postIds: ids(1, 2, 3) })).toBeUndefined();
      expect(await held()).toEqual([3, 2, 1]);
    });

    it('takes nothing once a new follow has forgotten the fact, nor when an old load comes late', async () => {
      const { timelines, facts, scope, held, token } = await followed(undefined);
      // The follow: committed, fact forgotten. Then a load from before it tries to store "does not follow".
      await facts.forget(soon(), scope, [AUTHOR]);
      expect(await facts.fill(soon(), scope, token, [[AUTHOR, NO_RELATION]])).toEqual(['voided']);
      expect(await timelines.cleanAuthor(soon(), { ...scope, author: AUTHOR, postIds: ids(1, 2, 3) })).toBeUndefined();
      expect(await held()).toEqual([3, 2, 1]);
    });

    it('reads the fact as it is written: a mute or a block says nothing of following', () => {
      expect(encodeRelation({ follows: false, blocks: true, blockedBy: true }).slice(0, 2)).toBe('v0');
      expect(encodeRelation({ follows: true, blocks: false, blockedBy: false, mutedUntilMs: 0 }).slice(0, 2)).toBe(
        'v1',
      );
    });
  });
}
