/**
 * Owns lease fill: the one way in which a mutable fact is cached. A lookup that misses leaves the reader's token; the fill stores only where that
 * token still stands; a change deletes the key, and with it every token. So nothing that was loaded before a change can be stored after it.
 *
 * Four results: hit, miss (the token is yours: load and fill), loading (somebody else's token), error. An error is never a miss.
 */
import type { TributaryError } from '../../errors.ts';
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import type { AuthorState, PostMeta, Relation } from '../../timeline/post.ts';
import type { Cache } from './client.ts';
import { decodeAuthor, decodeMeta, decodeRelation, encodeAuthor, encodeMeta, encodeRelation } from './fact-codec.ts';
import type { Keys } from './keys.ts';

export type Lookup<Value> =
  | { readonly kind: 'hit'; readonly value: Value }
  | { readonly kind: 'miss' }
  | { readonly kind: 'loading' }
  | { readonly kind: 'error'; readonly error: TributaryError };

export type FillOutcome = 'won' | 'voided' | 'failed';

/** Facts of one kind. `Scope` says whose they are: a tenant, or a tenant and a viewer. */
export interface Facts<Scope, Id, Value> {
  /** One result for each ID, in order. `token` must be new for each lookup. */
  lookUp(signal: AbortSignal, scope: Scope, ids: readonly Id[], token: string): Promise<readonly Lookup<Value>[]>;
  /** Stores what was loaded after a lookup with this token had missed. */
  fill(
    signal: AbortSignal,
    scope: Scope,
    token: string,
    entries: readonly (readonly [Id, Value])[],
  ): Promise<readonly FillOutcome[]>;
  /** Deletes facts and tokens. Throws unless Redis confirmed it. */
  forget(signal: AbortSignal, scope: Scope, ids: readonly Id[]): Promise<void>;
}

/** An author's state, and the version of the profile that goes with it (0: none). */
export interface AuthorFact {
  readonly state: AuthorState;
  readonly profileVersion: number;
}

export interface ViewerScope {
  readonly tenant: TenantId;
  readonly viewer: UserId;
}

export interface FactOptions {
  /** Life of a fact: a bound on the harm of what nobody thought of; shortened by up to a tenth, so that facts filled together do not end together. */
  readonly lifeMs: number;
  /** Life of a token: longer than a load may take. */
  readonly tokenLifeMs: number;
  readonly random: () => number;
}

export type PostFacts = Facts<TenantId, PostId, PostMeta>;
export type AuthorFacts = Facts<TenantId, UserId, AuthorFact>;
export type RelationFacts = Facts<ViewerScope, UserId, Relation>;

export function createPostFacts(cache: Cache, keys: Keys, options: FactOptions): PostFacts {
  return stringFacts(
    cache,
    options,
    (tenant, postId) => keys.postMeta(tenant, postId),
    encodeMeta,
    (text, postId) => decodeMeta(text, postId),
  );
}

export function createAuthorFacts(cache: Cache, keys: Keys, options: FactOptions): AuthorFacts {
  return stringFacts(cache, options, (tenant, author) => keys.authorState(tenant, author), encodeAuthor, decodeAuthor);
}

export function createRelationFacts(cache: Cache, keys: Keys, options: FactOptions): RelationFacts {
  return {
    async lookUp(signal, { tenant, viewer }, authors, token) {
      if (authors.length === 0) return [];
      try {
        const args = [token, options.tokenLifeMs, shortened(options), ...authors];
        const values = (await cache.run(
          signal,
          'leaseGetFields',
          [keys.relations(tenant, viewer)],
          args,
        )) as readonly string[];
        return values.map((value) => lookupFrom(value, decodeRelation));
      } catch (error) {
        if (signal.aborted) throw error;
        return authors.map(() => ({ kind: 'error', error: error as TributaryError }));
      }
    },
    async fill(signal, { tenant, viewer }, token, entries) {
      if (entries.length === 0) return [];
      const args = entries.flatMap(([author, relation]) => [author, encodeRelation(relation)]);
      try {
        const stored = (await cache.run(
          signal,
          'leaseFillFields',
          [keys.relations(tenant, viewer)],
          [token, ...args],
        )) as readonly number[];
        return stored.map((done) => (done === 1 ? 'won' : 'voided'));
      } catch (error) {
        if (signal.aborted) throw error;
        return entries.map(() => 'failed');
      }
    },
    forget: (signal, { tenant, viewer }, authors) =>
      cache.removeFields(
        signal,
        authors.map((author) => ({ key: keys.relations(tenant, viewer), field: author })),
      ),
  };
}

function stringFacts<Id, Value>(
  cache: Cache,
  options: FactOptions,
  keyOf: (tenant: TenantId, id: Id) => string,
  encode: (value: Value) => string,
  decode: (text: string, id: Id) => Value | undefined,
): Facts<TenantId, Id, Value> {
  return {
    async lookUp(signal, tenant, ids, token) {
      const keys = ids.map((id) => keyOf(tenant, id));
      const results = await cache.runEach(signal, 'leaseGet', keys, [token, options.tokenLifeMs]);
      return results.map((result, index) =>
        'error' in result
          ? { kind: 'error', error: result.error }
          : lookupFrom(result.value as string, (text) => decode(text, ids[index] as Id)),
      );
    },
    async fill(signal, tenant, token, entries) {
      const keys = entries.map(([id]) => keyOf(tenant, id));
      const results = await cache.runEach(
        signal,
        'leaseFill',
        keys,
        [token, shortened(options)],
        entries.map(([, value]) => encode(value)),
      );
      return results.map((result) => ('error' in result ? 'failed' : result.value === 1 ? 'won' : 'voided'));
    },
    forget: (signal, tenant, ids) =>
      cache.remove(
        signal,
        ids.map((id) => keyOf(tenant, id)),
      ),
  };
}

/** What a value means: '' and '~' come from the scripts, `v…` is a fact. What does not read is somebody's corruption: load it, and do not store. */
function lookupFrom<Value>(value: string, decode: (text: string) => Value | undefined): Lookup<Value> {
  if (value === '') return { kind: 'miss' };
  const fact = value.startsWith('v') ? decode(value) : undefined;
  return fact === undefined ? { kind: 'loading' } : { kind: 'hit', value: fact };
}

function shortened({ lifeMs, random }: FactOptions): number {
  return Math.floor(lifeMs * (1 - random() / 10));
}
