/**
 * Owns what must hold of every page and walk, under any load: order by ID, nothing twice, nothing longer than asked for.
 * Invariant: names of checks are fixed, and their `kind` says what they are about: `truth` must hold always, `complete` may give way
 * under pressure, and the answer says so.
 */
import { check } from 'k6';
import type { Caller, PageMessage, Purpose } from './calls.ts';

export const TRUTH = { kind: 'truth' };
export const COMPLETE = { kind: 'complete' };

export interface Page {
  /** Decimal post IDs. */
  readonly ids: readonly string[];
  readonly nextPageToken: string;
  readonly headToken: string;
}

type ReadPage = (pageToken: string) => Page | undefined;

/** A walk that has not ended after so many pages will not end. */
const PAGES_MAX = 1_000;
const WALK_PAGE_SIZE = 100;

/** Undefined where the call failed. */
export function readHome(
  caller: Caller,
  viewerId: string,
  options: { readonly pageSize: number; readonly pageToken?: string; readonly purpose?: Purpose },
): Page | undefined {
  const { pageSize, pageToken = '', purpose } = options;
  const answer = caller.call('GetHomeTimeline', { viewerId, pageSize, pageToken }, purpose);
  return answer && { ...checkPage(answer, pageSize), headToken: answer.headToken ?? '' };
}

/** The whole home timeline, newest first; undefined where a call failed. */
export function walkHome(caller: Caller, viewerId: string): readonly string[] | undefined {
  return walk((pageToken) => readHome(caller, viewerId, { pageSize: WALK_PAGE_SIZE, pageToken }));
}

/** All posts of an author as the author sees them. */
export function walkAuthor(caller: Caller, authorId: string): readonly string[] | undefined {
  return walk((pageToken) => {
    const pageSize = WALK_PAGE_SIZE;
    const answer = caller.call('ListAuthorPosts', { viewerId: authorId, authorId, pageSize, pageToken });
    return answer && { ...checkPage(answer, pageSize), headToken: '' };
  });
}

function walk(read: ReadPage): readonly string[] | undefined {
  const ids: string[] = [];
  let token = '';
  let pages = 0;
  do {
    const page = read(token);
    if (page === undefined) return undefined;
    ids.push(...page.ids);
    token = page.nextPageToken;
    pages += 1;
  } while (token !== '' && pages < PAGES_MAX);
  check(
    ids,
    {
      'a walk ends': () => token === '',
      'a walk holds nothing twice': () => new Set(ids).size === ids.length,
      'a walk falls by ID': () => falls(ids),
    },
    TRUTH,
  );
  return ids;
}

function checkPage(answer: PageMessage, pageSize: number): Omit<Page, 'headToken'> {
  const ids = (answer.entries ?? []).map((entry) => entry.post?.postId ?? '');
  check(
    ids,
    {
      'a page is no longer than asked for': () => ids.length <= pageSize,
      'a page falls by ID': () => falls(ids),
      'IDs are exact numbers': () => ids.every((id) => Number.isSafeInteger(Number(id)) && String(Number(id)) === id),
    },
    TRUTH,
  );
  check(answer, { 'a page is complete': () => isComplete(answer.completeness) }, COMPLETE);
  return { ids, nextPageToken: answer.nextPageToken ?? '' };
}

/** REDUCED leaves out counts and profiles, never an entry. */
export function isComplete(completeness: string | undefined): boolean {
  return completeness === 'COMPLETENESS_COMPLETE' || completeness === 'COMPLETENESS_REDUCED';
}

/** IDs have at most 53 bits, so that numbers hold them exactly. */
function falls(ids: readonly string[]): boolean {
  return ids.every((id, at) => at === 0 || Number(ids[at - 1]) > Number(id));
}
