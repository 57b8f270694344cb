/**
 * Owns where the entries of a home page come from: the resident timeline merged with the posts of pulled authors above the line, Postgres at and below it. A reader for whom the timeline
 * cannot be read or made in time is served from Postgres, and the page is marked PARTIAL.
 */
import type { Call } from '../runtime.ts';
import type { HomeQuery } from '../store/postgres/home-pages.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { PageRange } from '../store/redis/entry-sets.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import { lineOf, mergeNewer, mergeOlder, type Source } from '../timeline/merge.ts';
import type { PulledAuthor } from '../timeline/pulled.ts';
import type { LoadPosts } from './cached-posts.ts';
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
  readonly events: { pulledAuthors(count: number): void };
}

export function createCandidates(parts: CandidatesParts): OpenCandidates {
  return function openCandidates(call, viewer) {
    const { tenant, signal } = call;
    let partial = false;
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
      const pulled = await parts.readPulled(call, authors, range);
      partial ||= pulled.partial;
      for (const { of, source } of pulled.lists) for (const id of source.ids) listOf.set(id, of);
      const lists = pulled.lists.map(({ source }) => source);
      return pulled.queried ? [resident.page, ...lists, pulled.queried] : [resident.page, ...lists];
    }

    return {
      partial: () => partial,

      async older(position, limit) {
        const sources = await sourcesOf({ direction: 'older', position, count: limit });
        if (!sources) return parts.loadOlder(signal, { tenant, viewer, position, limit });
        const line = lineOf(sources);
        const above = mergeOlder(sources, limit);
        if (above.length === limit || line === 0) return parts.loadPosts(call, above);
        // Nothing between the last entry and the line is missing from the sources: go on at the line.
        const below = { tenant, viewer, position: Math.min(position, line), limit: limit - above.length };
        const [fromCache, fromPostgres] = await Promise.all([
          parts.loadPosts(call, above),
          parts.loadOlder(signal, below),
        ]);
        return joined(fromCache, fromPostgres);
      },

      async newer(position, limit) {
        const sources = await sourcesOf({ direction: 'newer', position, count: limit });
        // Below the line the sources have holes that only Postgres can fill.
        if (!sources || position < lineOf(sources)) return parts.loadNewer(signal, { tenant, viewer, position, limit });
        return parts.loadPosts(call, mergeNewer(sources, limit));
      },

      tidy(gone) {
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

function joined(first: LoadedPosts, second: LoadedPosts): LoadedPosts {
  return { entries: [...first.entries, ...second.entries], targets: new Map([...second.targets, ...first.targets]) };
}
