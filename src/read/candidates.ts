/**
 * Owns where the entries of a home page come from: the resident timeline merged with the posts of pulled authors above the line, Postgres at and below it. A reader for whom the timeline
 * cannot be read or made in time is served from Postgres, and the page is marked PARTIAL. While Postgres is away what the cache knows is served, and the page is marked STALE where it may
 * lack something for that.
 */
import { TributaryError } from '../errors.ts';
import type { HomeQuery } from '../store/postgres/home-pages.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { PageRange } from '../store/redis/entry-sets.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import { lineOf, mergeNewer, mergeOlder, type Source } from '../timeline/merge.ts';
import type { PulledAuthor } from '../timeline/pulled.ts';
import { onPostgres, type ReadCall } from './batches.ts';
import { type Candidates, candidatesOf } from './page-facts.ts';
import type { ReadPulledEntries } from './pulled-entries.ts';
import type { ReadResidentHome } from './resident-home.ts';

type Early = (postIds: readonly PostId[]) => void;

/** The candidates of one request; what Redis holds may change from one fetch to the next. */
export interface HomeSource {
  /** At most `limit` entries at or below the position, newest first; fewer mean that there are no more. `early` is told of what the timeline gave, where lists have to be read after it. */
  older(position: number, limit: number, early: Early): Promise<Candidates>;
  /** At most `limit` entries above the position, oldest first; fewer mean that there are no more now. */
  newer(position: number, limit: number, early: Early): Promise<Candidates>;
  /** Whether something had to be read without the timeline that should have been there. */
  readonly partial: () => boolean;
  /** Whether something may lack because Postgres was away: an answer with fewer than `limit` entries may then be all that could be had, and not the end. */
  readonly stale: () => boolean;
  /** Takes entries whose posts are gone for good out of where they came from, behind the reader's back. */
  tidy(gone: readonly PostId[]): void;
}

export type OpenHomeSource = (call: ReadCall, viewer: UserId) => HomeSource;

/** Entries to be taken out of a viewer's timeline, and out of lists. */
export interface DeadEntries {
  readonly viewer: UserId;
  readonly postIds: readonly PostId[];
  readonly lists: readonly (PulledAuthor & { readonly postIds: readonly PostId[] })[];
}

export interface HomeSourceParts {
  readonly readResident: ReadResidentHome;
  readonly readPulled: ReadPulledEntries;
  readonly loadOlder: (signal: AbortSignal, query: HomeQuery) => Promise<LoadedPosts>;
  readonly loadNewer: (signal: AbortSignal, query: HomeQuery) => Promise<LoadedPosts>;
  readonly removeDead: (call: ReadCall, dead: DeadEntries) => void;
  readonly withoutDatabase?: SourceWithoutDatabase;
  readonly events: { pulledAuthors(count: number): void };
}

/** What serves while Postgres is away. */
export interface SourceWithoutDatabase {
  readonly hasDatabase: () => boolean;
  /** Of the lists that are there. */
  readonly readPulled: ReadPulledEntries;
}

export function createOpenHomeSource(parts: HomeSourceParts): OpenHomeSource {
  return function openHomeSource(call, viewer) {
    const { tenant, signal } = call;
    let partial = false;
    let stale = false;
    /** Lists that gave entries to this request. */
    const listOf = new Map<PostId, PulledAuthor>();

    /** Undefined where Postgres must serve. */
    async function sourcesOf(range: PageRange, early: Early): Promise<readonly Source[] | undefined> {
      const resident = await parts.readResident(call, viewer, range);
      if (typeof resident === 'string') {
        partial ||= resident === 'unavailable';
        return undefined;
      }
      const { authors } = resident.pulled;
      parts.events.pulledAuthors(authors.length);
      stale ||= resident.pulledUnknown;
      const tellEarly = (): void => early(resident.page.ids);
      const pulled = await orWithout(
        () => parts.readPulled(call, authors, range, tellEarly),
        async ({ readPulled }) => {
          const found = await readPulled(call, authors, range, tellEarly);
          stale ||= found.lists.length < authors.length;
          return found;
        },
      );
      for (const { of, source } of pulled.lists) for (const id of source.ids) listOf.set(id, of);
      const lists = pulled.lists.map(({ source }) => source);
      return pulled.queried ? [resident.page, ...lists, pulled.queried] : [resident.page, ...lists];
    }

    function cached(ids: readonly PostId[]): Candidates {
      const authors = ids.flatMap((id) => listOf.get(id)?.author ?? []);
      return { ids, authors: new Set(authors) };
    }

    const fromPostgres = async (load: typeof parts.loadOlder, position: number, limit: number): Promise<Candidates> =>
      candidatesOf(await onPostgres(call, () => load(signal, { tenant, viewer, position, limit })));

    /** What `usual` gives; while Postgres is away, also where that shows only now, what there is without it. */
    async function orWithout<Result>(
      usual: () => Promise<Result>,
      without: (rest: SourceWithoutDatabase) => Promise<Result>,
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

    return {
      partial: () => partial,
      stale: () => stale,

      async older(position, limit, early) {
        const sources = await sourcesOf({ direction: 'older', position, count: limit }, early);
        if (!sources) return fromPostgres(parts.loadOlder, position, limit);
        const line = lineOf(sources);
        const above = cached(mergeOlder(sources, limit));
        if (above.ids.length === limit || line === 0) return above;
        // Nothing between the last entry and the line is missing from the sources: go on at the line.
        if (above.ids.length > 0) early(above.ids);
        const below = await orWithout(
          () => fromPostgres(parts.loadOlder, Math.min(position, line), limit - above.ids.length),
          async () => {
            stale = true;
            return NOTHING;
          },
        );
        return { ...above, ...below, ids: [...above.ids, ...below.ids] };
      },

      async newer(position, limit, early) {
        const sources = await sourcesOf({ direction: 'newer', position, count: limit }, early);
        // Below the line the sources have holes that only Postgres can fill.
        if (!sources || position < lineOf(sources)) return fromPostgres(parts.loadNewer, position, limit);
        return cached(mergeNewer(sources, limit));
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

const NOTHING: Candidates = { ids: [] };
