/**
 * Owns where the entries of pulled authors come from: the lists of those with the most followers, and one query for whoever is beyond the bound or has no list that is READY.
 *
 * Invariant: every author asked for is in one of the sources, from the list or from the query; so a page is whole, whatever became of the lists.
 */
import { TributaryError } from '../errors.ts';
import type { PageRange } from '../store/redis/entry-sets.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { Source } from '../timeline/merge.ts';
import type { PulledAuthor } from '../timeline/pulled.ts';
import { onPostgres, type ReadCall } from './batches.ts';
import type { ListMemory, ListPage } from './list-memory.ts';

export interface PulledEntries {
  readonly lists: readonly { readonly of: PulledAuthor; readonly source: Source }[];
  /** Of all authors whom no list speaks for. */
  readonly queried?: Source;
}

/** `asking` is told before Redis is asked for lists. */
export type ReadPulledEntries = (
  call: ReadCall,
  authors: readonly PulledAuthor[],
  range: PageRange,
  asking?: () => void,
) => Promise<PulledEntries>;

export interface PulledEntriesParts {
  readonly lists: Pick<ListMemory, 'pages'>;
  readonly rebuild: (call: ReadCall, list: PulledAuthor) => Promise<'done' | 'busy' | 'refused'>;
  readonly loadNewestOfMany: (
    call: ReadCall,
    query: PageRange & { readonly authors: readonly UserId[] },
  ) => Promise<readonly PostId[]>;
  /** Lists that are read; authors beyond them are asked of Postgres. */
  readonly listsMax: number;
  readonly events: { queried(why: 'beyond' | 'not_ready'): void };
}

/** Lists that one fetch has rebuilt: as many as are rebuilt at once. The query gives the rest, and the next readers rebuild them. */
const REBUILDS_MAX = 8;

export function createReadPulledEntries(parts: PulledEntriesParts): ReadPulledEntries {
  const { lists, events } = parts;

  return async function readPulledEntries(call, authors, range, asking) {
    if (authors.length === 0) return { lists: [] };
    const listed = authors.slice(0, parts.listsMax);
    const pages = await lists.pages(call, listed, range, asking);
    const made = await rebuildSome(call, listed, pages);
    const later = new Map((await lists.pages(call, made, range)).map((page, at) => [made[at], page]));

    const found: { readonly of: PulledAuthor; readonly source: Source }[] = [];
    const unlisted = [...authors.slice(parts.listsMax)];
    listed.forEach((of, at) => {
      const page = later.get(of) ?? (pages[at] as ListPage);
      if (!(page instanceof TributaryError) && page.state === 'ready') found.push({ of, source: page });
      else unlisted.push(of);
    });
    if (unlisted.length === 0) return { lists: found };
    events.queried(found.length === listed.length ? 'beyond' : 'not_ready');
    const query = { ...range, authors: unlisted.map(({ author }) => author) };
    const ids = await onPostgres(call, () => parts.loadNewestOfMany(call, query));
    return { lists: found, queried: { floor: 0, ids } };
  };

  /** One attempt at each of the first that are not READY; answers those that are then. */
  async function rebuildSome(
    call: ReadCall,
    listed: readonly PulledAuthor[],
    pages: readonly ListPage[],
  ): Promise<readonly PulledAuthor[]> {
    const missing = listed.filter((_, at) => {
      const page = pages[at];
      return page !== undefined && !(page instanceof TributaryError) && page.state !== 'ready';
    });
    const some = missing.slice(0, REBUILDS_MAX);
    const outcomes = await Promise.all(some.map((of) => parts.rebuild(call, of)));
    return some.filter((_, at) => outcomes[at] === 'done');
  }
}
