/**
 * Owns where the entries of pulled authors come from: the lists in Redis of those with the most followers, and one query for whoever is beyond the bound or has no list that is READY.
 *
 * Invariant: every author asked for is in one of the sources, from the list or from the query.
 */
import { TributaryError } from '../errors.ts';
import type { Call } from '../runtime.ts';
import type { PageRange, TimelinePage } from '../store/redis/entry-sets.ts';
import type { PulledLists } from '../store/redis/pulled-lists.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { Source } from '../timeline/merge.ts';
import type { PulledAuthor } from '../timeline/pulled.ts';

export interface PulledEntries {
  readonly lists: readonly { readonly of: PulledAuthor; readonly source: Source }[];
  /** Of all authors whom no list speaks for. */
  readonly queried?: Source;
  /** A list could not be read, or not be made in time. */
  readonly partial: boolean;
}

export type ReadPulledEntries = (
  call: Call,
  authors: readonly PulledAuthor[],
  range: PageRange,
) => Promise<PulledEntries>;

export interface PulledEntriesParts {
  readonly lists: Pick<PulledLists, 'pages'>;
  readonly rebuild: (call: Call, list: PulledAuthor) => Promise<'done' | 'busy' | 'refused'>;
  readonly loadNewestOfMany: (
    call: Call,
    query: PageRange & { readonly authors: readonly UserId[] },
  ) => Promise<readonly PostId[]>;
  /** Lists that are read; authors beyond them are asked of Postgres. */
  readonly listsMax: number;
  readonly events: {
    listRead(state: TimelinePage['state'] | 'error'): void;
    queried(why: 'beyond' | 'not_ready'): void;
  };
}

/** Lists that one fetch has rebuilt: as many as are rebuilt at once. The query gives the rest, and the next readers rebuild them. */
const REBUILDS_MAX = 8;

type Page = TimelinePage | TributaryError;

export function createReadPulledEntries(parts: PulledEntriesParts): ReadPulledEntries {
  const { lists, events } = parts;

  return async function readPulledEntries(call, authors, range) {
    if (authors.length === 0) return { lists: [], partial: false };
    const listed = authors.slice(0, parts.listsMax);
    const pages = await read(call, listed, range);
    const rebuilt = await rebuildSome(call, listed, pages);
    const made = listed.filter((of) => rebuilt.get(of) === 'done');
    const later = new Map(made.length === 0 ? [] : (await read(call, made, range)).map((page, at) => [made[at], page]));

    const found: { readonly of: PulledAuthor; readonly source: Source }[] = [];
    const unlisted = [...authors.slice(parts.listsMax)];
    let failed = [...rebuilt.values()].some((outcome) => outcome !== 'done');
    listed.forEach((of, at) => {
      const page = later.get(of) ?? (pages[at] as Page);
      if (page instanceof TributaryError) failed = true;
      if (!(page instanceof TributaryError) && page.state === 'ready') found.push({ of, source: page });
      else unlisted.push(of);
    });
    if (unlisted.length === 0) return { lists: found, partial: failed };
    events.queried(found.length === listed.length ? 'beyond' : 'not_ready');
    const ids = await parts.loadNewestOfMany(call, { ...range, authors: unlisted.map(({ author }) => author) });
    return { lists: found, queried: { floor: 0, ids }, partial: failed };
  };

  async function read(call: Call, some: readonly PulledAuthor[], range: PageRange): Promise<readonly Page[]> {
    const pages = await lists.pages(call.signal, { tenant: call.tenant, lists: some, ...range });
    for (const page of pages) events.listRead(page instanceof TributaryError ? 'error' : page.state);
    return pages;
  }

  /** One attempt at each of the first that are not READY. */
  async function rebuildSome(
    call: Call,
    listed: readonly PulledAuthor[],
    pages: readonly Page[],
  ): Promise<ReadonlyMap<PulledAuthor, 'done' | 'busy' | 'refused'>> {
    const missing = listed.filter((_, at) => {
      const page = pages[at];
      return page !== undefined && !(page instanceof TributaryError) && page.state !== 'ready';
    });
    const some = missing.slice(0, REBUILDS_MAX);
    const outcomes = await Promise.all(some.map((of) => parts.rebuild(call, of)));
    return new Map(outcomes.map((outcome, at) => [some[at] as PulledAuthor, outcome]));
  }
}
