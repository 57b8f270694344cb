/** Owns loading authors and relations through the cache: states and relations by lease fill, profiles by their version. */
import type { Call } from '../runtime.ts';
import type { LoadedAuthor } from '../store/postgres/authors.ts';
import type { AuthorProfiles } from '../store/redis/bodies.ts';
import type { AuthorFact, ViewerScope } from '../store/redis/facts.ts';
import type { TenantId, UserId } from '../timeline/ids.ts';
import { type AuthorProfile, type Relation, UNKNOWN_AUTHOR } from '../timeline/post.ts';
import type { LeaseFill } from './lease-fill.ts';

export interface CachedPeopleParts {
  readonly fillRelations: LeaseFill<ViewerScope, UserId, Relation>;
  readonly fillAuthors: LeaseFill<TenantId, UserId, AuthorFact>;
  readonly profiles: AuthorProfiles;
  readonly loadRelations: (
    call: Call,
    viewer: UserId,
    authors: readonly UserId[],
  ) => Promise<ReadonlyMap<UserId, Relation>>;
  readonly loadAuthors: (call: Call, authors: readonly UserId[]) => Promise<ReadonlyMap<UserId, LoadedAuthor>>;
  readonly events: {
    profileRead(result: 'hit' | 'miss' | 'corrupt' | 'error'): void;
    /** Profiles could not be stored; the next reader stores them. */
    profilesNotStored(error: unknown): void;
  };
}

export interface CachedPeople {
  /** Answers every author asked for. */
  loadRelations(call: Call, viewer: UserId, authors: readonly UserId[]): Promise<ReadonlyMap<UserId, Relation>>;
  /** Answers every author asked for; a profile is absent where there is none. */
  loadAuthors(call: Call, authors: readonly UserId[]): Promise<ReadonlyMap<UserId, LoadedAuthor>>;
}

export function createCachedPeople(parts: CachedPeopleParts): CachedPeople {
  return {
    loadRelations: (call, viewer, authors) =>
      parts.fillRelations(call, { tenant: call.tenant, viewer }, authors, (missing) =>
        parts.loadRelations(call, viewer, missing),
      ),

    async loadAuthors(call, authors) {
      const rows = new Map<UserId, LoadedAuthor>();
      const facts = await parts.fillAuthors(call, call.tenant, authors, async (missing) => {
        const loaded = await parts.loadAuthors(call, missing);
        for (const author of missing) rows.set(author, loaded.get(author) ?? { state: UNKNOWN_AUTHOR });
        return new Map(missing.map((author) => [author, factOf(rows.get(author))]));
      });
      return withProfiles(call, facts, rows);
    },
  };

  async function withProfiles(
    call: Call,
    facts: ReadonlyMap<UserId, AuthorFact>,
    rows: Map<UserId, LoadedAuthor>,
  ): Promise<ReadonlyMap<UserId, LoadedAuthor>> {
    const authors = new Map<UserId, LoadedAuthor>();
    const toStore: AuthorProfile[] = [];
    const wanted: { id: UserId; version: number; fact: AuthorFact }[] = [];
    for (const [id, fact] of facts) {
      const row = rows.get(id);
      if (row) {
        authors.set(id, row);
        if (row.profile) toStore.push(row.profile);
      } else if (fact.profileVersion === 0) authors.set(id, { state: fact.state });
      else wanted.push({ id, version: fact.profileVersion, fact });
    }
    const found = await parts.profiles.read(call.signal, call.tenant, wanted);
    const unread = new Map<UserId, boolean>();
    found.forEach((result, index) => {
      const { id, fact } = wanted[index] as (typeof wanted)[number];
      parts.events.profileRead(result.kind);
      if (result.kind === 'hit') authors.set(id, { state: fact.state, profile: result.value });
      else unread.set(id, result.kind !== 'error');
    });
    if (unread.size > 0) {
      const loaded = await parts.loadAuthors(call, [...unread.keys()]);
      for (const [id, mayStore] of unread) {
        const row = loaded.get(id) ?? { state: UNKNOWN_AUTHOR };
        authors.set(id, row);
        if (mayStore && row.profile) toStore.push(row.profile);
      }
    }
    await store(call, toStore);
    return authors;
  }

  async function store(call: Call, profiles: readonly AuthorProfile[]): Promise<void> {
    if (profiles.length === 0) return;
    const values = profiles.map((profile) => ({ id: profile.author, version: profile.profileVersion, value: profile }));
    await parts.profiles.store(call.signal, call.tenant, values).catch((error: unknown) => {
      if (call.signal.aborted) throw error;
      parts.events.profilesNotStored(error);
    });
  }
}

function factOf(author: LoadedAuthor | undefined): AuthorFact {
  return { state: author?.state ?? UNKNOWN_AUTHOR, profileVersion: author?.profile?.profileVersion ?? 0 };
}
