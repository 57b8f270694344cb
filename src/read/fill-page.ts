/**
 * Owns the filling of a page. A round is four stages: candidates (IDs) → their facts → the judging, which is pure → what is shown of those that are visible. Candidates are fetched beyond
 * what the page needs, and again when too many were hidden, in a bounded number of rounds. A page may come out short, even empty, while more follows: only `end` says that nothing does.
 *
 * A round of a warm page asks Redis four times, one after the other, and Postgres never: the viewer's shard; meta of the candidates; relations, states and meta of targets; bodies, profiles
 * and counters of what is shown. Where lists of pulled authors have to be read, the meta of the timeline's entries goes out with them, and the authors' facts with the meta of theirs: four
 * again, but for a post of such a list that names a target, which costs one more. Cold facts are loaded from Postgres behind the second and the third, so twice at most.
 */
import type { PostId, UserId } from '../timeline/ids.ts';
import { LIMITS } from '../timeline/limits.ts';
import type { AuthorProfile, PostMeta } from '../timeline/post.ts';
import type { HiddenReason, VisibilityFacts } from '../timeline/visibility.ts';
import type { PostView } from './page.ts';
import type { Candidates, PageFacts } from './page-facts.ts';
import type { Presenter } from './present.ts';

export interface FillRequest {
  readonly pageSize: number;
  /** At most `limit` candidates beyond the position, in the page's order; fewer mean that there are no more. `early` may be told of IDs that will probably be among them. */
  readonly fetch: (position: number, limit: number, early: (postIds: readonly PostId[]) => void) => Promise<Candidates>;
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
  /** Posts that are shown, in the page's order. */
  readonly shown: readonly PostId[];
  /** As `shown`; empty where nothing was to be presented. */
  readonly views: readonly PostView[];
  readonly authors: ReadonlyMap<UserId, AuthorProfile>;
  /** First and last entry examined, in the page's order; absent where there was none. */
  readonly firstExamined?: PostId;
  readonly lastExamined?: PostId;
  /** Whether no visible entry follows the page. */
  readonly end: boolean;
  readonly reduced: boolean;
  /** Whether posts were left out because something about them is not known. */
  readonly leftOut: boolean;
  readonly rounds: number;
  /** Entries examined whose posts are gone for good. */
  readonly gone: readonly PostId[];
}

/** Candidates fetched beyond the page size in the first round: enough for an ordinary share of hidden posts. */
const SPARE = 10;
/** Candidates in the rounds after that: a page of which little was visible is likely to go on so. */
const REFILL_MIN = 200;
const REFILL_MAX = 800;

/** Without a presenter the page tells only which posts it would show. */
export async function fillPage(
  request: FillRequest,
  facts: PageFacts,
  presenter: Presenter | undefined,
  events: FillEvents,
): Promise<FilledPage> {
  const shown: PostId[] = [];
  const views: PostView[] = [];
  const authors = new Map<UserId, AuthorProfile>();
  const gone: PostId[] = [];
  let position = request.position;
  let firstExamined: PostId | undefined;
  let lastExamined: PostId | undefined;
  let reduced = false;
  let leftOut = false;
  let end = false;
  let rounds = 0;

  while (rounds < LIMITS.pageRoundsMax && shown.length < request.pageSize && !end) {
    rounds += 1;
    const limit = candidatesFor(request, rounds);
    const need = request.pageSize - shown.length;
    const candidates = await request.fetch(position, limit, facts.begin);
    const { ids } = candidates;
    const judged = ids.filter((id) => !request.skip.has(id));
    await facts.gather({ ...candidates, ids: judged }, (metas) => presenter?.begin(metas.slice(0, need + SPARE)));
    gone.push(...judged.filter((id) => !facts.isUnknown(id) && (facts.meta(id)?.deleted ?? true)));

    const taken: PostMeta[] = [];
    let more = false;
    for (const id of ids) {
      const full = taken.length === need;
      const visible = visibleMeta(id, full);
      if (full) {
        // Past the page: only whether anything visible follows is of interest.
        more ||= visible !== undefined;
        if (more) break;
        continue;
      }
      firstExamined ??= id;
      lastExamined = id;
      if (visible) taken.push(visible);
    }
    if (presenter) {
      const presented = await presenter.present(taken, request.judge);
      views.push(...presented.views);
      shown.push(...presented.views.map(({ post }) => post.meta.postId));
      for (const [author, profile] of presented.authors) authors.set(author, profile);
      reduced ||= presented.reduced;
      leftOut ||= presented.leftOut;
      for (let missing = 0; missing < presented.missing; missing += 1) events.missingEntry();
    } else shown.push(...taken.map(({ postId }) => postId));
    end = ids.length < limit && !more;
    if (lastExamined !== undefined) position = request.beyond(lastExamined);
  }

  return {
    shown,
    views,
    authors,
    end,
    reduced,
    leftOut: leftOut || facts.lacks(),
    rounds,
    gone,
    ...(firstExamined !== undefined && { firstExamined }),
    ...(lastExamined !== undefined && { lastExamined }),
  };

  function visibleMeta(id: PostId, peeking: boolean): PostMeta | undefined {
    if (request.skip.has(id)) return undefined;
    if (facts.isUnknown(id)) {
      if (!peeking) events.entryFiltered('unknown');
      return undefined;
    }
    const meta = facts.meta(id);
    if (!meta) {
      if (!peeking) events.missingEntry();
      return undefined;
    }
    const reason = request.judge(meta, facts);
    if (reason !== undefined && !peeking) events.entryFiltered(reason);
    return reason === undefined ? meta : undefined;
  }
}

function candidatesFor(request: FillRequest, round: number): number {
  if (round === 1) return request.pageSize + SPARE + request.skip.size;
  return Math.min(REFILL_MAX, Math.max(REFILL_MIN, request.pageSize * 4) * 2 ** (round - 2));
}
