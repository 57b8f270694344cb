/**
 * Owns a viewer's home timeline: older pages downwards from the newest entry, newer pages upwards from a head token, and the head itself.
 *
 * Invariants: a token names the last entry examined, not the last one shown; an empty token is the only end mark; every newer page looks back
 * below the head as far as the freshness objective, and passes over what its token says was shown, so that an entry that arrives late is
 * delivered, once. Where nothing at all can be loaded the page is empty and says so, and its tokens ask for the same again: it is never an end.
 */
import { RETRY_AFTER_MS } from '../degradation/ladder.ts';
import { TributaryError } from '../errors.ts';
import type { Call, Clock } from '../runtime.ts';
import { POST_ID_MAX, type PostId, positionBeforeMs, postIdFrom, postIdMs, type UserId } from '../timeline/ids.ts';
import { LIMITS } from '../timeline/limits.ts';
import { type HiddenReason, hiddenFromHome } from '../timeline/visibility.ts';
import type { ReadCall } from './batches.ts';
import type { HomeSource, OpenHomeSource } from './candidates.ts';
import { type FilledPage, fillPage } from './fill-page.ts';
import { measureRead, type ReadEvents, type Surface } from './measure.ts';
import type { Completeness, HomePage } from './page.ts';
import type { OpenPageFacts } from './page-facts.ts';
import type { NewerPosition, PageTokens, TokenOwner } from './page-token.ts';
import type { OpenPresenter } from './present.ts';

export interface HomeHead {
  readonly newCount: number;
  readonly newestPostId?: PostId;
  readonly headToken: string;
  readonly completeness: Completeness;
}

export interface HomeTimeline {
  /** `pageSize` is 1 to 100; `pageToken` is what the caller sent, '' for the newest page. Throws INVALID_PAGE_TOKEN before any store is touched. */
  page(
    call: Call,
    input: { readonly viewer: UserId; readonly pageSize: number; readonly pageToken: string },
  ): Promise<HomePage>;
  head(call: Call, input: { readonly viewer: UserId; readonly sinceToken: string }): Promise<HomeHead>;
}

export interface HomeParts {
  readonly clock: Clock;
  readonly tokens: PageTokens;
  readonly openSource: OpenHomeSource;
  readonly openFacts: OpenPageFacts;
  readonly openPresenter: OpenPresenter;
  /** Milliseconds after which to try again, where the error means that nothing can be loaded for as long as an outage lasts: a page says that itself. Other errors fail the call. */
  readonly outage?: (error: unknown) => number | undefined;
  readonly events: ReadEvents;
}

const NOTHING_SHOWN: ReadonlySet<PostId> = new Set();
const NOTHING_EXAMINED = { shown: [], end: false, lacking: false };
/** Position of a newer walk that has seen nothing yet: all entries are new to it. */
const FROM_THE_START: NewerPosition = { kind: 'home_newer', after: 0, high: 0, low: 0, shown: [] };

export function createHomeTimeline(parts: HomeParts): HomeTimeline {
  const { tokens, events } = parts;

  /** A filled page, and where its entries came from. */
  interface Filled extends FilledPage {
    readonly completeness: Completeness;
    /** Whether entries may have been passed over that can be shown later. */
    readonly lacking: boolean;
  }

  function settle(filled: FilledPage, source: HomeSource, direction: 'older' | 'newer'): Filled {
    if (filled.gone.length > 0) source.tidy(filled.gone);
    const lacking = source.stale() || filled.leftOut;
    const noEnd = direction === 'older' && lacking;
    // Nothing was examined, and what there is lies below what can be had now, or is not known.
    if (noEnd && filled.lastExamined === undefined)
      throw new TributaryError('DATABASE_UNAVAILABLE', {
        message: 'older entries cannot be loaded now',
        retryAfterMs: RETRY_AFTER_MS,
      });
    // The gravest that is true: what may lack an entry says so, whatever else it was read without.
    const completeness = lacking ? 'stale' : source.partial() ? 'partial' : filled.reduced ? 'reduced' : 'complete';
    return { ...filled, lacking, end: filled.end && !noEnd, completeness };
  }

  /** The page that `read` makes, or an empty one whose tokens ask for the same again. */
  async function measurePage(
    call: Call,
    { surface, pageSize }: { readonly surface: Surface; readonly pageSize: number },
    again: { readonly nextPageToken: () => string; readonly headToken: () => string },
    read: (call: ReadCall) => Promise<HomePage>,
  ): Promise<HomePage> {
    try {
      return await measureRead(parts, call, surface, read);
    } catch (error) {
      const retryAfterMs = parts.outage?.(error);
      if (retryAfterMs === undefined) throw error;
      events.pageServed({ surface, completeness: 'unavailable', rounds: 1, entries: 0, pageSize, end: false });
      return {
        views: [],
        authors: new Map(),
        completeness: 'unavailable',
        nextPageToken: again.nextPageToken(),
        headToken: again.headToken(),
        retryAfterMs,
      };
    }
  }

  /** The head is told which posts a page would show, and nothing of what is in them. */
  async function fillOlder(
    call: ReadCall,
    viewer: UserId,
    query: { from: number; pageSize: number; surface: 'home' | 'head' },
  ): Promise<Filled> {
    const { from, pageSize, surface } = query;
    const source = parts.openSource(call, viewer);
    const facts = parts.openFacts(call, viewer);
    const filled = await fillPage(
      {
        pageSize,
        position: from,
        beyond: (postId) => postId - 1,
        fetch: source.older,
        judge: hiddenFromHome,
        skip: NOTHING_SHOWN,
      },
      facts,
      surface === 'home' ? parts.openPresenter(call, facts) : undefined,
      fillEvents(surface),
    );
    return settle(filled, source, 'older');
  }

  function fillEvents(surface: Surface): { entryFiltered(reason: HiddenReason): void; missingEntry(): void } {
    return {
      entryFiltered: (reason) => events.entryFiltered({ surface, reason }),
      missingEntry: () => events.missingEntry(surface),
    };
  }

  async function olderPage(call: Call, owner: TokenOwner, from: number, pageSize: number): Promise<HomePage> {
    const again = {
      nextPageToken: () => tokens.seal(owner, { kind: 'home_older', from }),
      headToken: () => tokens.seal(owner, headOf(NOTHING_EXAMINED, from)),
    };
    return measurePage(call, { surface: 'home', pageSize }, again, async (read) => {
      const filled = await fillOlder(read, owner.viewer, { from, pageSize, surface: 'home' });
      const { lastExamined } = filled;
      const nextPageToken =
        filled.end || lastExamined === undefined
          ? ''
          : tokens.seal(owner, { kind: 'home_older', from: lastExamined - 1 });
      const page = pageFrom(filled, nextPageToken, tokens.seal(owner, headOf(filled, from)));
      events.pageServed({
        surface: 'home',
        completeness: page.completeness,
        rounds: filled.rounds,
        entries: page.views.length,
        pageSize,
        end: filled.end,
      });
      return page;
    });
  }

  async function newerPage(call: Call, owner: TokenOwner, state: NewerPosition, pageSize: number): Promise<HomePage> {
    const same = (): string => tokens.seal(owner, state);
    const again = { nextPageToken: same, headToken: same };
    return measurePage(call, { surface: 'home_newer', pageSize }, again, async (read) => {
      const { viewer } = owner;
      const source = parts.openSource(read, viewer);
      const facts = parts.openFacts(read, viewer);
      const examined = await fillPage(
        {
          pageSize,
          position: state.after,
          beyond: (postId) => postId,
          fetch: source.newer,
          judge: hiddenFromHome,
          skip: new Set(state.shown),
        },
        facts,
        parts.openPresenter(read, facts),
        fillEvents('home_newer'),
      );
      const filled = settle(examined, source, 'newer');
      const next = afterNewer(state, filled);
      const head: NewerPosition = { ...next, after: next.low };
      // Every page looks back, since a walk that chases a busy writer may be long. One that showed nothing goes on from where it got to:
      // what it passed over is hidden, and the next page would pass over it again.
      const goOn = filled.shown.length > 0 ? head : next;
      const page = pageFrom(filled, filled.end ? '' : tokens.seal(owner, goOn), tokens.seal(owner, head));
      events.pageServed({
        surface: 'home_newer',
        completeness: page.completeness,
        rounds: filled.rounds,
        entries: page.views.length,
        pageSize,
        end: filled.end,
      });
      return page;
    });
  }

  return {
    async page(call, { viewer, pageSize, pageToken }) {
      const owner: TokenOwner = { tenant: call.tenant, viewer };
      if (pageToken === '') return olderPage(call, owner, POST_ID_MAX, pageSize);
      const position = tokens.open(owner, ['home_older', 'home_newer'], pageToken);
      return position.kind === 'home_older'
        ? olderPage(call, owner, position.from, pageSize)
        : newerPage(call, owner, position, pageSize);
    },

    async head(call, { viewer, sinceToken }) {
      const owner: TokenOwner = { tenant: call.tenant, viewer };
      const since = sinceToken === '' ? FROM_THE_START : tokens.open(owner, ['home_newer'], sinceToken, 'since_token');
      return measureRead(parts, call, 'head', async (read) => {
        // Enough to find all that is counted among what was shown already.
        const pageSize = LIMITS.newCountMax + since.shown.length;
        const filled = await fillOlder(read, viewer, { from: POST_ID_MAX, pageSize, surface: 'head' });
        const shown = new Set(since.shown);
        const fresh = filled.shown.filter((postId) => postId > since.after && !shown.has(postId)).length;
        // A page that is not full and did not reach the end ran out of rounds: there may be more than it counts.
        const cutShort = !filled.end && filled.shown.length < pageSize && (filled.lastExamined ?? 0) > since.after;
        const [newest] = filled.shown;
        return {
          newCount: Math.min(fresh, LIMITS.newCountMax),
          headToken: tokens.seal(owner, headOf(filled, POST_ID_MAX)),
          completeness: cutShort ? 'partial' : filled.completeness,
          ...(newest !== undefined && { newestPostId: newest }),
        };
      });
    },
  };
}

function pageFrom(
  filled: FilledPage & { readonly completeness: Completeness },
  nextPageToken: string,
  headToken: string,
): HomePage {
  return {
    views: filled.views,
    authors: filled.authors,
    completeness: filled.completeness,
    nextPageToken,
    headToken,
  };
}

/**
 * The head token of an older page that started at or below `from`. What the page showed is behind it. The oldest entry examined is not, where
 * it was hidden: it may come back. Below it an older page goes on; where there is none, what arrives late there has no other way to be seen.
 */
function headOf(
  filled: Pick<FilledPage, 'shown' | 'firstExamined' | 'lastExamined' | 'end'> & { readonly lacking: boolean },
  from: number,
): NewerPosition {
  const high = filled.firstExamined;
  const oldest = filled.lastExamined;
  if (high === undefined || oldest === undefined) {
    const at = from === POST_ID_MAX ? 0 : from;
    return { ...FROM_THE_START, after: at, high: at, low: at };
  }
  const below = filled.end ? 0 : oldest - 1;
  // What could not be told now is met again, however old it is.
  return remembering({ high, low: filled.lacking ? below : Math.max(below, lookBackFrom(high)), shown: filled.shown });
}

/** Where a newer walk stands after a page. */
function afterNewer(state: NewerPosition, filled: FilledPage & { readonly lacking: boolean }): NewerPosition {
  const after = Math.max(state.after, filled.lastExamined ?? 0);
  const high = Math.max(state.high, after);
  const low = filled.lacking ? state.low : Math.max(state.low, lookBackFrom(high));
  const shown = [...new Set([...state.shown, ...filled.shown])].sort((a, b) => a - b);
  return { ...remembering({ high, low, shown }), after };
}

/** A position that knows the newest shown IDs; where there are more than it may hold, it looks back no further than it knows. */
function remembering(known: { high: number; low: number; shown: readonly PostId[] }): NewerPosition {
  const above = known.shown.filter((id) => id > known.low).sort((a, b) => a - b);
  const dropped = above.length > LIMITS.shownIdsMax ? above[above.length - LIMITS.shownIdsMax - 1] : undefined;
  const low = dropped ?? known.low;
  return { kind: 'home_newer', after: low, high: known.high, low, shown: above.filter((id) => id > low) };
}

function lookBackFrom(high: number): number {
  return high === 0 ? 0 : positionBeforeMs(postIdMs(postIdFrom(high)) - LIMITS.freshnessObjectiveMs);
}
