/**
 * Owns where the entries of a home page come from: the resident timeline merged with the posts of pulled authors above the line, Postgres at and below it. A reader for whom the timeline
 * cannot be read or made in time is served from Postgres, and the page is marked PARTIAL. While Postgres is away what the cache knows is served, and the page is marked STALE where it may
 * lack something for that.
 */
import { TributaryError } from '../errors.ts';
import type { Call } from '../runtime.ts';
import type { HomeQuery } from '../store/postgres/home-pages.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { PageRange } from '../store/redis/entry-sets.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import { lineOf, mergeNewer, mergeOlder, type Source } from '../timeline/merge.ts';
import type { PulledAuthor } from '../timeline/pulled.ts';
import type { LoadPosts } from './cached-posts.ts';
import type { KnownFacts } from './known-facts.ts';
import type { ReadPulledEntries } from './pulled-entries.ts';
import type { ReadResidentHome } from './resident-home.ts';

/** The candidates of one request; what Redis holds may change from one fetch to the next. */
export interface Candidates {
  /** At most `limit` entries at or below the position, newest first; fewer mean that there are no more. */
  older(position: number, limit: number): Promise<LoadedPosts>;
  /** At most `limit` entries above the position, oldest first; fewer mean that there are no more now. */
  newer(position: number, limit: number): Promise<LoadedPosts>;
  /** Whether something had to be read without the timeline or the list that should have been there. */
  readonly partial: () => boolean;
  /** Whether something may lack because Postgres was away. */
  readonly stale: () => boolean;
  /** Whether an answer with fewer than `limit` entries was not the end, but all that could be had while Postgres was away. */
  readonly cutShort: () => boolean;
  /** Takes entries whose posts are gone for good out of where they came from, behind the reader's back. */
  tidy(gone: readonly PostId[]): void;
}

export type OpenCandidates = (call: Call, viewer: UserId) => Candidates;

/** Entries to be taken out of a viewer's timeline, and out of lists. */
export interface DeadEntries {
  readonly viewer: UserId;
  readonly postIds: readonly PostId[];
  readonly lists: readonly (PulledAuthor & { readonly postIds: readonly PostId[] })[];
}

export interface CandidatesParts {
  readonly readResident: ReadResidentHome;
  readonly readPulled: ReadPulledEntries;
  readonly loadPosts: LoadPosts;
  readonly loadOlder: (signal: AbortSignal, query: HomeQuery) => Promise<LoadedPosts>;
  readonly loadNewer: (signal: AbortSignal, query: HomeQuery) => Promise<LoadedPosts>;
  readonly removeDead: (call: Call, dead: DeadEntries) => void;
  readonly withoutDatabase?: CandidatesWithoutDatabase;
  readonly events: { pulledAuthors(count: number): void };
}

/** What serves while Postgres is away. */
export interface CandidatesWithoutDatabase {
  readonly hasDatabase: () => boolean;
  /** Of the lists that are there. */
  readonly readPulled: ReadPulledEntries;
  readonly loadPosts: KnownFacts['posts'];
}

export function createCandidates(parts: CandidatesParts): OpenCandidates {
  return function openCandidates(call, viewer) {
    const { tenant, signal } = call;
    let partial = false;
    let stale = false;
    let cutShort = false;
    /** Entries of which it could not be told what they are: not loaded is not gone. */
    const unknown = new Set<PostId>();
    /** Lists that gave entries to this request. */
    const listOf = new Map<PostId, PulledAuthor>();

    /** Undefined where Postgres must serve. */
    async function sourcesOf(range: PageRange): Promise<readonly Source[] | undefined> {
      const resident = await parts.readResident(call, viewer, range);
      if (typeof resident === 'string') {
        partial ||= resident === 'unavailable';
        return undefined;
      }
      const { authors } = resident.pulled;
      parts.events.pulledAuthors(authors.length);
      stale ||= resident.pulledUnknown;
      const pulled = await orWithout(
        () => parts.readPulled(call, authors, range),
        async ({ readPulled }) => {
          const found = await readPulled(call, authors, range);
          stale ||= found.lists.length < authors.length;
          return { ...found, partial: false };
        },
      );
      partial ||= pulled.partial;
      for (const { of, source } of pulled.lists) for (const id of source.ids) listOf.set(id, of);
      const lists = pulled.lists.map(({ source }) => source);
      return pulled.queried ? [resident.page, ...lists, pulled.queried] : [resident.page, ...lists];
    }

    /** What `usual` gives; while Postgres is away, also where that shows only now, what there is without it. */
    async function orWithout<Result>(
      usual: () => Promise<Result>,
      without: (rest: CandidatesWithoutDatabase) => Promise<Result>,
    ): Promise<Result> {
      const rest = parts.withoutDatabase;
      if (!rest) return usual();
      if (!rest.hasDatabase()) return without(rest);
      try {
        return await usual();
      } catch (error) {
        if (signal.aborted || rest.hasDatabase() || !(error instanceof TributaryError)) throw error;
        return without(rest);
      }
    }

    const load = (postIds: readonly PostId[]): Promise<LoadedPosts> =>
      orWithout(
        () => parts.loadPosts(call, postIds),
        async ({ loadPosts }) => {
          const known = await loadPosts(call, postIds);
          for (const postId of known.unknown) unknown.add(postId);
          stale ||= known.unknown.size > 0;
          return known;
        },
      );

    return {
      partial: () => partial,
      stale: () => stale,
      cutShort: () => cutShort,

      async older(position, limit) {
        const sources = await sourcesOf({ direction: 'older', position, count: limit });
        if (!sources) return parts.loadOlder(signal, { tenant, viewer, position, limit });
        const line = lineOf(sources);
        const above = mergeOlder(sources, limit);
        if (above.length === limit || line === 0) return load(above);
        // Nothing between the last entry and the line is missing from the sources: go on at the line.
        const below = { tenant, viewer, position: Math.min(position, line), limit: limit - above.length };
        const [fromCache, fromPostgres] = await Promise.all([
          load(above),
          orWithout(
            () => parts.loadOlder(signal, below),
            async () => {
              cutShort = true;
              stale = true;
              return NOTHING;
            },
          ),
        ]);
        return joined(fromCache, fromPostgres);
      },

      async newer(position, limit) {
        const sources = await sourcesOf({ direction: 'newer', position, count: limit });
        // Below the line the sources have holes that only Postgres can fill.
        if (!sources || position < lineOf(sources)) return parts.loadNewer(signal, { tenant, viewer, position, limit });
        return load(mergeNewer(sources, limit));
      },

      tidy(examined) {
        const gone = examined.filter((id) => !unknown.has(id));
        if (gone.length === 0) return;
        const byList = Map.groupBy(
          gone.filter((id) => listOf.has(id)),
          (id) => listOf.get(id) as PulledAuthor,
        );
        const lists = [...byList].map(([of, postIds]) => ({ ...of, postIds }));
        parts.removeDead(call, { viewer, postIds: gone, lists });
      },
    };
  };
}

const NOTHING: LoadedPosts = { entries: [], targets: new Map() };

function joined(first: LoadedPosts, second: LoadedPosts): LoadedPosts {
  return { entries: [...first.entries, ...second.entries], targets: new Map([...second.targets, ...first.targets]) };
}
