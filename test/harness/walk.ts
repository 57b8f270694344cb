/**
 * Owns walks: pages read until the token is empty. Every walk checks what holds for all of them: a bounded number of pages, no page
 * longer than asked for, strict order on every page and across them, no entry twice.
 */
import assert from 'node:assert/strict';
import type { Clients } from './clients.ts';

export interface WalkPage {
  /** Decimal post IDs in the order of the page. */
  readonly ids: readonly string[];
  readonly nextPageToken: string;
  /** '' where the list has no head. */
  readonly headToken: string;
}

export type ReadPage = (pageToken: string) => Promise<WalkPage>;

export interface Walk {
  readonly ids: readonly string[];
  readonly pages: readonly WalkPage[];
  /** Reads what is newer than the first page of an older walk, or than the last page of a newer one. */
  readonly headToken: string;
}

/** More pages than this are taken for a walk that never ends. */
const PAGES_MAX = 2_000;

export interface WalkOptions {
  readonly pageSize: number;
  /** Called between two pages. */
  readonly between?: (pagesRead: number) => Promise<unknown>;
  readonly pagesMax?: number;
}

/** From the newest entry down to the oldest. */
export async function walkOlder(read: ReadPage, options: WalkOptions): Promise<Walk> {
  const pages = await walkFrom('', read, options);
  const ids = pages.flatMap((page) => page.ids);
  assertStrictOrder(ids, 'falls');
  return { ids, pages, headToken: pages[0]?.headToken ?? '' };
}

/** From a head token up to the newest entry. Late entries come first, so the order holds from the oldest of them. */
export async function walkNewer(headToken: string, read: ReadPage, options: WalkOptions): Promise<Walk> {
  assert.notEqual(headToken, '', 'a walk to newer entries starts at a head token');
  const pages = await walkFrom(headToken, read, options);
  for (const page of pages) assertStrictOrder(page.ids, 'rises');
  const ids = pages.flatMap((page) => page.ids);
  assert.equal(new Set(ids).size, ids.length, `an entry came twice: ${ids.join(' ')}`);
  return { ids, pages, headToken: pages.at(-1)?.headToken ?? '' };
}

async function walkFrom(
  first: string,
  read: ReadPage,
  { pageSize, between, pagesMax = PAGES_MAX }: WalkOptions,
): Promise<WalkPage[]> {
  const pages: WalkPage[] = [];
  let token = first;
  do {
    assert.ok(pages.length < pagesMax, `the walk did not end within ${pagesMax} pages`);
    if (pages.length > 0) await between?.(pages.length);
    const page = await read(token);
    assert.ok(page.ids.length <= pageSize, `a page of ${pageSize} holds ${page.ids.length} entries`);
    pages.push(page);
    token = page.nextPageToken;
  } while (token !== '');
  return pages;
}

function assertStrictOrder(ids: readonly string[], direction: 'rises' | 'falls'): void {
  for (const [at, id] of ids.entries()) {
    const before = ids[at - 1];
    if (before === undefined) continue;
    const rises = BigInt(before) < BigInt(id);
    assert.ok(
      before !== id && rises === (direction === 'rises'),
      `the order breaks at ${before}, ${id}: ${ids.join(' ')}`,
    );
  }
}

/** Reads a viewer's home timeline by RPC. */
export function homePages(clients: Clients, viewer: string, pageSize: number): ReadPage {
  return async (pageToken) => {
    const page = await clients.timeline.getHomeTimeline({ viewerId: viewer, pageSize, pageToken });
    return {
      ids: page.entries.map((view) => view.post?.postId ?? ''),
      nextPageToken: page.nextPageToken,
      headToken: page.headToken,
    };
  };
}

/** Reads an author's list by RPC. */
export function authorPages(clients: Clients, viewer: string, author: string, pageSize: number): ReadPage {
  return async (pageToken) => {
    const page = await clients.posts.listAuthorPosts({ viewerId: viewer, authorId: author, pageSize, pageToken });
    return {
      ids: page.entries.map((view) => view.post?.postId ?? ''),
      nextPageToken: page.nextPageToken,
      headToken: '',
    };
  };
}

/** The whole home timeline of a viewer, newest first. */
export async function wholeHome(clients: Clients, viewer: string, pageSize = 50): Promise<readonly string[]> {
  return (await walkOlder(homePages(clients, viewer, pageSize), { pageSize })).ids;
}

/** The whole list of an author as a viewer sees it, newest first. */
export async function wholeAuthorList(
  clients: Clients,
  viewer: string,
  author: string,
  pageSize = 50,
): Promise<readonly string[]> {
  return (await walkOlder(authorPages(clients, viewer, author, pageSize), { pageSize })).ids;
}
