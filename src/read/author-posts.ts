/** Owns an author's page: their posts, newest first, as a viewer may see them. Following is no condition here, unlike on home. */
import type { Call, Clock } from '../runtime.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import { POST_ID_MAX, type PostId, type UserId } from '../timeline/ids.ts';
import { hiddenReason } from '../timeline/visibility.ts';
import { onPostgres, type ReadCall } from './batches.ts';
import { fillPage } from './fill-page.ts';
import { measureRead, type ReadEvents } from './measure.ts';
import type { PostPage } from './page.ts';
import { candidatesOf, type OpenPageFacts } from './page-facts.ts';
import type { PageTokens, TokenOwner } from './page-token.ts';
import type { OpenPresenter } from './present.ts';

/** Throws INVALID_PAGE_TOKEN before any store is touched. */
export type ListAuthorPosts = (
  call: Call,
  input: { readonly viewer: UserId; readonly author: UserId; readonly pageSize: number; readonly pageToken: string },
) => Promise<PostPage>;

export interface AuthorPostsParts {
  readonly clock: Clock;
  readonly tokens: PageTokens;
  readonly loadPosts: (
    call: ReadCall,
    query: { readonly author: UserId; readonly position: number; readonly limit: number },
  ) => Promise<LoadedPosts>;
  readonly openFacts: OpenPageFacts;
  readonly openPresenter: OpenPresenter;
  readonly events: ReadEvents;
}

const NOTHING_SHOWN: ReadonlySet<PostId> = new Set();

export function createListAuthorPosts(parts: AuthorPostsParts): ListAuthorPosts {
  const { tokens, events } = parts;
  return async function listAuthorPosts(call, { viewer, author, pageSize, pageToken }) {
    const owner: TokenOwner = { tenant: call.tenant, viewer, subject: author };
    const position = pageToken === '' ? POST_ID_MAX : tokens.open(owner, ['author'], pageToken).from;
    return measureRead(parts, call, 'author', async (read) => {
      const facts = parts.openFacts(read, viewer);
      const filled = await fillPage(
        {
          pageSize,
          position,
          beyond: (postId) => postId - 1,
          fetch: async (from, limit) =>
            candidatesOf(await onPostgres(read, () => parts.loadPosts(read, { author, position: from, limit }))),
          judge: hiddenReason,
          skip: NOTHING_SHOWN,
        },
        facts,
        parts.openPresenter(read, facts),
        {
          entryFiltered: (reason) => events.entryFiltered({ surface: 'author', reason }),
          missingEntry: () => events.missingEntry('author'),
        },
      );
      const { lastExamined } = filled;
      const completeness = filled.reduced ? 'reduced' : 'complete';
      events.pageServed({
        surface: 'author',
        completeness,
        rounds: filled.rounds,
        entries: filled.views.length,
        pageSize,
        end: filled.end,
      });
      return {
        views: filled.views,
        authors: filled.authors,
        completeness,
        nextPageToken:
          filled.end || lastExamined === undefined
            ? ''
            : tokens.seal(owner, { kind: 'author', from: lastExamined - 1 }),
      };
    });
  };
}
