/** Owns loading relations and authors through the cache: relations and states by lease fill, which decide; then profiles by their version, of who is shown. */
import type { LoadedAuthor } from '../store/postgres/authors.ts';
import type { AuthorProfiles, Version } from '../store/redis/bodies.ts';
import type { AuthorFact, ViewerScope } from '../store/redis/facts.ts';
import type { TenantId, UserId } from '../timeline/ids.ts';
import { type AuthorProfile, type Relation, UNKNOWN_AUTHOR } from '../timeline/post.ts';
import type { ReadCall } from './batches.ts';
import type { LeaseFill } from './lease-fill.ts';
import { createTurnReads, type TurnReadsParts } from './turn-reads.ts';
import { createVersionedCache, type VersionedCacheParts } from './versioned-cache.ts';

export interface CachedPeopleParts {
  readonly fillRelations: LeaseFill<ViewerScope, UserId, Relation>;
  readonly fillAuthors: LeaseFill<TenantId, UserId, AuthorFact>;
  readonly profiles: AuthorProfiles;
  readonly loadRelations: (
    call: ReadCall,
    viewer: UserId,
    authors: readonly UserId[],
  ) => Promise<ReadonlyMap<UserId, Relation>>;
  /** Those about whom something is stored. */
  readonly loadAuthors: (call: ReadCall, authors: readonly UserId[]) => Promise<ReadonlyMap<UserId, LoadedAuthor>>;
  readonly bytesMax: number;
  /** Longest life of a read that several wait for. */
  readonly limitMs: number;
  readonly events: {
    readonly relation: TurnReadsParts<unknown, unknown, unknown>['events'];
    readonly state: TurnReadsParts<unknown, unknown, unknown>['events'];
    readonly profile: VersionedCacheParts<UserId, AuthorProfile, LoadedAuthor>['events'];
  };
}

export interface CachedPeople {
  /** Answers every author asked for. */
  loadRelations(call: ReadCall, viewer: UserId, authors: readonly UserId[]): Promise<ReadonlyMap<UserId, Relation>>;
  /** Answers every author asked for. Requests of one turn ask together. */
  loadStates(call: ReadCall, authors: readonly UserId[]): Promise<ReadonlyMap<UserId, AuthorFact>>;
  /** Profiles of these authors; absent where there is none. */
  loadProfiles(call: ReadCall, authors: ReadonlyMap<UserId, AuthorFact>): Promise<ReadonlyMap<UserId, AuthorProfile>>;
  /** Those of the profiles that are known without Postgres. */
  knownProfiles(call: ReadCall, authors: ReadonlyMap<UserId, AuthorFact>): Promise<ReadonlyMap<UserId, AuthorProfile>>;
  /** Bytes of profiles held by the process, and reads under way. */
  size(): { readonly bytes: number; readonly underWay: number };
}

export function createCachedPeople(parts: CachedPeopleParts): CachedPeople {
  const profiles = createVersionedCache<UserId, AuthorProfile, LoadedAuthor>({
    store: parts.profiles,
    loadRows: parts.loadAuthors,
    heldBy: ({ profile }) => profile && { id: profile.author, version: profile.profileVersion, value: profile },
    // What is encoded, and an object of some hundred bytes about it.
    bytesOf: (profile) => 100 + profile.body.byteLength + 2 * profile.author.length,
    bytesMax: parts.bytesMax,
    limitMs: parts.limitMs,
    events: parts.events.profile,
  });

  const loadStates = createTurnReads<TenantId, UserId, AuthorFact>({
    nameOf: (tenant) => tenant,
    tenantOf: (tenant) => tenant,
    read: (call, tenant, authors, found) =>
      parts.fillAuthors(
        call,
        tenant,
        authors,
        async (missing) => {
          const rows = await parts.loadAuthors(call, missing);
          profiles.keep(call, rows.values());
          return new Map(missing.map((author) => [author, factOf(rows.get(author))]));
        },
        found,
      ),
    limitMs: parts.limitMs,
    events: parts.events.state,
  });

  // Less to be joined by others than not to wait until what was loaded has been stored.
  const loadRelations = createTurnReads<ViewerScope, UserId, Relation>({
    nameOf: ({ tenant, viewer }) => `${tenant}:${viewer}`,
    tenantOf: ({ tenant }) => tenant,
    read: (call, scope, authors, found) =>
      parts.fillRelations(call, scope, authors, (missing) => parts.loadRelations(call, scope.viewer, missing), found),
    limitMs: parts.limitMs,
    events: parts.events.relation,
  });

  return {
    loadRelations: (call, viewer, authors) => loadRelations(call, { tenant: call.tenant, viewer }, authors),

    loadStates: (call, authors) => loadStates(call, call.tenant, authors),

    async loadProfiles(call, authors) {
      const found = await profiles.read(call, profilesOf(authors));
      return new Map(
        [...found].flatMap(([author, result]): (readonly [UserId, AuthorProfile])[] => {
          const profile = result.kind === 'value' ? result.value : result.row.profile;
          return profile ? [[author, profile]] : [];
        }),
      );
    },

    knownProfiles: (call, authors) => profiles.readKnown(call, profilesOf(authors)),

    size: () => ({
      bytes: profiles.size().bytes,
      underWay: profiles.size().underWay + loadStates.open() + loadRelations.open(),
    }),
  };
}

/** Versions of those who have a profile. */
function profilesOf(authors: ReadonlyMap<UserId, AuthorFact>): readonly Version<UserId>[] {
  return [...authors].flatMap(([id, { profileVersion: version }]) => (version === 0 ? [] : [{ id, version }]));
}

function factOf(author: LoadedAuthor | undefined): AuthorFact {
  return { state: author?.state ?? UNKNOWN_AUTHOR, profileVersion: author?.profile?.profileVersion ?? 0 };
}
