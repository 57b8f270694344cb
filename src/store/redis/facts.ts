/**
 * Owns lease fill: the one way in which a mutable fact is cached. A lookup that misses leaves the reader's token; the fill stores only where that
 * token still stands; a change deletes the key, and with it every token. So nothing that was loaded before a change can be stored after it.
 *
 * Four results: hit, miss (the token is yours: load and fill), loading (somebody else's token), error. An error is never a miss.
 */
import type { TributaryError } from '../../errors.ts';
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';
import type { PostMeta, Relation } from '../../timeline/post.ts';
import type { PulledAuthors } from '../../timeline/pulled.ts';
import { type Cache, isForeignType, type KeyResult } from './client.ts';
import {
  type AuthorFact,
  decodeAuthor,
  decodeMeta,
  decodePulled,
  decodeRelation,
  encodeAuthor,
  encodeMeta,
  encodePulled,
  encodeRelation,
} from './fact-codec.ts';
import { KEYS_PER_CALL_MAX, type Keys } from './keys.ts';
import { createTurnCalls } from './turn-calls.ts';

export type { AuthorFact };

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
/** By viewer. */
export type PulledFacts = Facts<TenantId, UserId, PulledAuthors>;
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

/** One value for each viewer, and not a hash, since it is always read and replaced as a whole; so a viewer without pulled authors is known as such. */
export function createPulledFacts(cache: Cache, keys: Keys, options: FactOptions): PulledFacts {
  return stringFacts(
    cache,
    options,
    (tenant, viewer) => keys.pulledAuthors(tenant, viewer),
    encodePulled,
    decodePulled,
  );
}

interface FieldsAsk {
  readonly key: string;
  readonly token: string;
  readonly fields: readonly UserId[];
}

export function createRelationFacts(cache: Cache, keys: Keys, options: FactOptions): RelationFacts {
  const keyOf = ({ tenant, viewer }: ViewerScope): string => keys.relations(tenant, viewer);
  const forget: RelationFacts['forget'] = (signal, scope, authors) =>
    cache.removeFields(
      signal,
      authors.map((author) => ({ key: keyOf(scope), field: author })),
    );

  /** Of several viewers. */
  const lookUpFields = createTurnCalls<FieldsAsk, KeyResult>({
    // Of slots of a cluster apart, as home entries.
    nameOf: ({ key }) => `${cache.slotOf(key)}`,
    sizeOf: ({ fields }) => fields.length,
    sizeMax: KEYS_PER_CALL_MAX,
    send: (signal, asks) =>
      cache.runEach(
        signal,
        'leaseGetFields',
        asks.map(({ key }) => key),
        [options.tokenLifeMs, shortened(options)],
        asks.map(({ token, fields }) => `${token},${fields.join(',')}`),
      ),
  });

  return {
    async lookUp(signal, scope, authors, token) {
      const lookups = await inCalls(signal, authors, errored, async (some) => {
        const result = await lookUpFields(signal, { key: keyOf(scope), token, fields: some });
        if ('error' in result) throw result.error;
        const lines = (result.value as string).split('\n');
        return some.map((_, index) => meaningOf(lines[index] as string, decodeRelation));
      });
      await removeForeign(cache, signal, lookups.some(isForeign) ? [keyOf(scope)] : []);
      return withoutUnreadable(lookups, authors, (some) => forget(signal, scope, some));
    },

    fill: (signal, scope, token, entries) =>
      inCalls(
        signal,
        entries,
        () => 'failed' as const,
        async (some) => {
          const args = some.flatMap(([author, relation]) => [author, encodeRelation(relation)]);
          const stored = await cache.run(signal, 'leaseFillFields', [keyOf(scope)], [token, ...args]);
          return (stored as readonly number[]).map((done) => (done === 1 ? 'won' : 'voided'));
        },
      ),

    forget,
  };
}

function stringFacts<Id, Value>(
  cache: Cache,
  options: FactOptions,
  keyOf: (tenant: TenantId, id: Id) => string,
  encode: (value: Value) => string,
  decode: (text: string, id: Id) => Value | undefined,
): Facts<TenantId, Id, Value> {
  const forget: Facts<TenantId, Id, Value>['forget'] = (signal, tenant, ids) =>
    cache.remove(
      signal,
      ids.map((id) => keyOf(tenant, id)),
    );

  return {
    async lookUp(signal, tenant, ids, token) {
      const keys = ids.map((id) => keyOf(tenant, id));
      const results = await cache.runEach(signal, 'leaseGet', keys, [token, options.tokenLifeMs]);
      const lookups = results.map((result, index) =>
        'error' in result
          ? errored(result.error)
          : meaningOf(result.value as string, (text) => decode(text, ids[index] as Id)),
      );
      const foreign = keys.filter((_, index) => isForeign(lookups[index] as Meaning<Value>));
      await removeForeign(cache, signal, foreign);
      return withoutUnreadable(lookups, ids, (some) => forget(signal, tenant, some));
    },

    async fill(signal, tenant, token, entries) {
      const keys = entries.map(([id]) => keyOf(tenant, id));
      const values = entries.map(([, value]) => encode(value));
      const results = await cache.runEach(signal, 'leaseFill', keys, [token, shortened(options)], values);
      return results.map((result) => ('error' in result ? 'failed' : result.value === 1 ? 'won' : 'voided'));
    },

    forget,
  };
}

export type Meaning<Value> = Lookup<Value> | { readonly kind: 'unreadable' };

/** What a script answered: '' and '~' are its own, `v…` is a fact. */
export function meaningOf<Value>(value: string, decode: (text: string) => Value | undefined): Meaning<Value> {
  if (value === '') return { kind: 'miss' };
  if (value === '~') return { kind: 'loading' };
  const fact = decode(value);
  return fact === undefined ? { kind: 'unreadable' } : { kind: 'hit', value: fact };
}

/**
 * What does not read is somebody's corruption. It goes away, which is always safe to do with a fact, and the next reader misses; this one has no token, and so is told what a reader
 * without one is told: load it, and do not store.
 */
async function withoutUnreadable<Id, Value>(
  meanings: readonly Meaning<Value>[],
  ids: readonly Id[],
  forget: (ids: readonly Id[]) => Promise<void>,
): Promise<readonly Lookup<Value>[]> {
  const unreadable = ids.filter((_, index) => meanings[index]?.kind === 'unreadable');
  // Where this fails the next reader tries again, and the end of the fact's life comes at last.
  if (unreadable.length > 0) await forget(unreadable).catch(() => undefined);
  return meanings.map((meaning) => (meaning.kind === 'unreadable' ? { kind: 'loading' } : meaning));
}

const isForeign = (meaning: Meaning<unknown>): boolean => meaning.kind === 'error' && isForeignType(meaning.error);

/** What is of another type was written by nobody here, and no script can read past it: it goes, and the next reader misses. */
async function removeForeign(cache: Cache, signal: AbortSignal, keys: readonly string[]): Promise<void> {
  // Where this fails the next reader tries again.
  if (keys.length > 0) await cache.remove(signal, keys).catch(() => undefined);
}

/** Runs over fields of one hash in calls of bounded size. The fault of one call is answered for its own items only. */
async function inCalls<Item, Result>(
  signal: AbortSignal,
  items: readonly Item[],
  onError: (error: TributaryError) => Result,
  call: (some: readonly Item[]) => Promise<readonly Result[]>,
): Promise<readonly Result[]> {
  const results: Result[] = [];
  for (let from = 0; from < items.length; from += KEYS_PER_CALL_MAX) {
    const some = items.slice(from, from + KEYS_PER_CALL_MAX);
    try {
      results.push(...(await call(some)));
    } catch (error) {
      if (signal.aborted) throw error;
      results.push(...some.map(() => onError(error as TributaryError)));
    }
  }
  return results;
}

function errored(error: TributaryError): { readonly kind: 'error'; readonly error: TributaryError } {
  return { kind: 'error', error };
}

function shortened({ lifeMs, random }: FactOptions): number {
  return Math.max(1, Math.floor(lifeMs * (1 - random() / 10)));
}
