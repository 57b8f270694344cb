/**
 * Owns reading what the cache knows of facts, for the time when Postgres is away: hits, and nothing but hits. What is not known is named, never filled in: who asks leaves it out.
 *
 * Its look-ups leave no token where they miss: nothing will be loaded under it, and whoever comes when Postgres is back must be able to store.
 */
import { RETRY_AFTER_MS } from '../degradation/ladder.ts';
import { TributaryError } from '../errors.ts';
import type { AuthorFact, AuthorFacts, Facts, PostFacts, RelationFacts } from '../store/redis/facts.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { PostMeta, Relation } from '../timeline/post.ts';
import { onRedis, type ReadCall } from './batches.ts';

export interface Known<Id, Value> {
  readonly values: ReadonlyMap<Id, Value>;
  readonly unknown: ReadonlySet<Id>;
}

export interface KnownFacts {
  metas(call: ReadCall, postIds: readonly PostId[]): Promise<Known<PostId, PostMeta>>;
  relations(call: ReadCall, viewer: UserId, authors: readonly UserId[]): Promise<Known<UserId, Relation>>;
  states(call: ReadCall, authors: readonly UserId[]): Promise<Known<UserId, AuthorFact>>;
}

/** What a read falls back to. */
export interface Fallback {
  readonly known: KnownFacts;
  /** Whether Postgres is worth asking; where it is, an unknown fact fails the call, which may be repeated at once. */
  readonly hasDatabase: () => boolean;
  /** Whether posts may be left out for what is not known, on a page that says so. */
  readonly mayLeaveOut: boolean;
}

const NO_TOKEN = '';

export function createKnownFacts(parts: {
  readonly posts: Pick<PostFacts, 'lookUp'>;
  readonly relations: Pick<RelationFacts, 'lookUp'>;
  readonly authors: Pick<AuthorFacts, 'lookUp'>;
}): KnownFacts {
  async function hits<Scope, Id, Value>(
    facts: Pick<Facts<Scope, Id, Value>, 'lookUp'>,
    call: ReadCall,
    scope: Scope,
    ids: readonly Id[],
  ): Promise<Known<Id, Value>> {
    const values = new Map<Id, Value>();
    const unknown = new Set<Id>();
    const results = ids.length === 0 ? [] : await onRedis(call, () => facts.lookUp(call.signal, scope, ids, NO_TOKEN));
    results.forEach((result, at) => {
      const id = ids[at] as Id;
      if (result.kind === 'hit') values.set(id, result.value);
      else unknown.add(id);
    });
    return { values, unknown };
  }

  return {
    metas: (call, postIds) => hits(parts.posts, call, call.tenant, postIds),
    relations: (call, viewer, authors) => hits(parts.relations, call, { tenant: call.tenant, viewer }, authors),
    states: (call, authors) => hits(parts.authors, call, call.tenant, authors),
  };
}

/** What `load` gives; else what is known, where that is enough, or where more cannot be had and the page may do without. */
export async function orKnown<Id, Value>(
  call: ReadCall,
  fallback: Fallback | undefined,
  load: () => Promise<ReadonlyMap<Id, Value>>,
  ask: (known: KnownFacts) => Promise<Known<Id, Value>>,
): Promise<Known<Id, Value>> {
  if (fallback && !fallback.hasDatabase()) {
    // A look-up that takes the right to store would only keep it from whoever can load.
    const facts = await ask(fallback.known);
    if (facts.unknown.size === 0 || fallback.mayLeaveOut) return facts;
    throw new TributaryError('DATABASE_UNAVAILABLE', {
      message: 'what is not cached cannot be loaded now',
      retryAfterMs: RETRY_AFTER_MS,
    });
  }
  try {
    return { values: await load(), unknown: new Set() };
  } catch (error) {
    if (!fallback || call.signal.aborted || !(error instanceof TributaryError)) throw error;
    const facts = await ask(fallback.known);
    if (facts.unknown.size > 0 && !(fallback.mayLeaveOut && !fallback.hasDatabase())) throw error;
    return facts;
  }
}
