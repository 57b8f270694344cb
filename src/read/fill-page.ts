/**
 * Owns the filling of a page: candidates are fetched beyond what the page needs, judged, and fetched again when too many were hidden, in a
 * bounded number of rounds. A page may come out short, even empty, while more follows: only `end` says that nothing does.
 */
import type { Call } from '../runtime.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import { LIMITS } from '../timeline/limits.ts';
import type { AuthorProfile, PostMeta } from '../timeline/post.ts';
import type { HiddenReason, VisibilityFacts } from '../timeline/visibility.ts';
import type { Hydrate } from './hydrate.ts';
import type { PostView } from './page.ts';

export interface FillRequest {
  readonly viewer: UserId;
  readonly pageSize: number;
  /** At most `limit` candidates beyond the position, in the page's order; fewer mean that there are no more. */
  readonly fetch: (position: number, limit: number) => Promise<LoadedPosts>;
  readonly position: number;
  /** The position beyond an entry, in the direction of the page. */
  readonly beyond: (postId: PostId) => number;
  readonly judge: (post: PostMeta, facts: VisibilityFacts) => HiddenReason | undefined;
  /** Entries that are passed over without being judged. */
  readonly skip: ReadonlySet<PostId>;
}

export interface FillEvents {
  entryFiltered(reason: HiddenReason): void;
  /** An entry named a post that is not there. */
  missingEntry(): void;
}

export interface FilledPage {
  readonly views: readonly PostView[];
  readonly authors: ReadonlyMap<UserId, AuthorProfile>;
  /** First and last entry examined, in the page's order; absent where there was none. */
  readonly firstExamined?: PostId;
  readonly lastExamined?: PostId;
  /** Whether no visible entry follows the page. */
  readonly end: boolean;
  readonly reduced: boolean;
  readonly rounds: number;
  /** Entries examined whose posts are gone for good. */
  readonly gone: readonly PostId[];
}

/** Candidates fetched beyond the page size in the first round: enough for an ordinary share of hidden posts. */
const SPARE = 10;
/** Candidates in the rounds after that: a page of which little was visible is likely to go on so. */
const REFILL_MIN = 200;
const REFILL_MAX = 800;

export async function fillPage(
  call: Call,
  request: FillRequest,
  hydrate: Hydrate,
  events: FillEvents,
): Promise<FilledPage> {
  const views: PostView[] = [];
  const authors = new Map<UserId, AuthorProfile>();
  let position = request.position;
  let firstExamined: PostId | undefined;
  let lastExamined: PostId | undefined;
  let reduced = false;
  let end = false;
  let rounds = 0;
  const gone: PostId[] = [];

  while (rounds < LIMITS.pageRoundsMax && views.length < request.pageSize && !end) {
    rounds += 1;
    const limit = candidatesFor(request, rounds);
    const loaded = await request.fetch(position, limit);
    const exhausted = loaded.entries.length < limit;
    const hydrated = await hydrate(call, request.viewer, loaded);
    reduced ||= hydrated.reduced;
    gone.push(...goneForGood(loaded.entries));

    const taken: PostView[] = [];
    let more = false;
    for (const entry of loaded.entries) {
      const full = views.length + taken.length === request.pageSize;
      const visible = isVisible(entry, hydrated.facts, full);
      if (full) {
        // Past the page: only whether anything visible follows is of interest.
        more ||= visible;
        if (more) break;
        continue;
      }
      firstExamined ??= entry.postId;
      lastExamined = entry.postId;
      if (visible && entry.post) taken.push(hydrated.view(entry.post));
    }
    views.push(...taken);
    for (const [author, profile] of hydrated.profilesOf(taken)) authors.set(author, profile);
    end = exhausted && !more;
    if (lastExamined !== undefined) position = request.beyond(lastExamined);
  }

  return {
    views,
    authors,
    end,
    reduced,
    rounds,
    gone,
    ...(firstExamined !== undefined && { firstExamined }),
    ...(lastExamined !== undefined && { lastExamined }),
  };

  function isVisible(entry: LoadedPosts['entries'][number], facts: VisibilityFacts, peeking: boolean): boolean {
    if (request.skip.has(entry.postId)) return false;
    if (!entry.post) {
      if (!peeking) events.missingEntry();
      return false;
    }
    const reason = request.judge(entry.post.meta, facts);
    if (reason !== undefined && !peeking) events.entryFiltered(reason);
    return reason === undefined;
  }
}

/** Nobody will ever be shown these: their posts are not there any more, or are deleted, which is for ever. */
function goneForGood(entries: LoadedPosts['entries']): readonly PostId[] {
  return entries.filter(({ post }) => !post || post.meta.deleted).map(({ postId }) => postId);
}

function candidatesFor(request: FillRequest, round: number): number {
  if (round === 1) return request.pageSize + SPARE + request.skip.size;
  return Math.min(REFILL_MAX, Math.max(REFILL_MIN, request.pageSize * 4) * 2 ** (round - 2));
}
