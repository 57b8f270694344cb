/** Owns an author's page: their posts, newest first, as a viewer may see them. Following is no condition here, unlike on home. */
import type { Call, Clock } from '../runtime.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import { POST_ID_MAX, type PostId, type UserId } from '../timeline/ids.ts';
import { hiddenReason } from '../timeline/visibility.ts';
import { fillPage } from './fill-page.ts';
import type { Hydrate } from './hydrate.ts';
import { measureRead, type ReadEvents } from './measure.ts';
import type { PostPage } from './page.ts';
import type { PageTokens, TokenOwner } from './page-token.ts';

/** Throws INVALID_PAGE_TOKEN before any store is touched. */
export type ListAuthorPosts = (
  call: Call,
  input: { readonly viewer: UserId; readonly author: UserId; readonly pageSize: number; readonly pageToken: string },
) => Promise<PostPage>;

export interface AuthorPostsParts {
  readonly clock: Clock;
  readonly tokens: PageTokens;
  readonly loadPosts: (
    call: Call,
    query: { readonly author: UserId; readonly position: number; readonly limit: number },
  ) => Promise<LoadedPosts>;
  readonly hydrate: Hydrate;
  readonly events: ReadEvents;
}

const NOTHING_SHOWN: ReadonlySet<PostId> = new Set();

export function createListAuthorPosts(parts: AuthorPostsParts): ListAuthorPosts {
  const { tokens, events } = parts;
  return async function listAuthorPosts(call, { viewer, author, pageSize, pageToken }) {
    const owner: TokenOwner = { tenant: call.tenant, viewer, subject: author };
    const position = pageToken === '' ? POST_ID_MAX : tokens.open(owner, ['author'], pageToken).from;
    return measureRead(parts.clock, events, 'author', async () => {
      const filled = await fillPage(
        call,
        {
          viewer,
          pageSize,
          position,
          beyond: (postId) => postId - 1,
          fetch: (from, limit) => parts.loadPosts(call, { author, position: from, limit }),
          judge: hiddenReason,
          skip: NOTHING_SHOWN,
        },
        parts.hydrate,
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
