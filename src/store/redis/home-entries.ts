/**
 * Owns the one call that reads what a viewer's shard holds for a home page: a page of the timeline and, in the same moment, who of the viewer's follows is pulled. A viewer without pulled
 * authors pays no round trip for that.
 */
import { TributaryError } from '../../errors.ts';
import type { PulledAuthors } from '../../timeline/pulled.ts';
import { type Cache, isForeignType, type KeyResult } from './client.ts';
import { type EntrySetOptions, type PageRange, pageArgs, type TimelinePage } from './entry-sets.ts';
import { decodePulled } from './fact-codec.ts';
import { type FactOptions, type Lookup, meaningOf } from './facts.ts';
import type { Keys } from './keys.ts';
import { readPartByPart, unlessRefused } from './part-by-part.ts';
import { askParts, partSizesFor } from './timeline-parts.ts';
import type { TimelineOf } from './timelines.ts';
import { createTurnCalls } from './turn-calls.ts';

export interface HomeEntries {
  readonly page: TimelinePage;
  readonly pulled: Exclude<Lookup<PulledAuthors>, { kind: 'error' }>;
}

/**
 * With a token a miss gives the right to store who is pulled, as any lookup of a fact does; without one it gives none. Throws CACHE_UNAVAILABLE where Redis did not answer: then neither is
 * known.
 */
export type ReadHomeEntries = (
  signal: AbortSignal,
  query: TimelineOf & PageRange & { readonly token?: string },
) => Promise<HomeEntries>;

/** A page that does not read. */
const CORRUPT = ['?'];
/** Viewers of one call: some twenty microseconds of Redis each, and what others may have to wait behind. */
const VIEWERS_PER_CALL = 16;

interface HeadAsk {
  readonly timeline: string;
  readonly pulled: string;
  readonly token: string;
  readonly range: PageRange;
}

export function createReadHomeEntries(
  cache: Cache,
  keys: Keys,
  options: Pick<EntrySetOptions, 'cap' | 'lifeMs'> & Pick<FactOptions, 'tokenLifeMs'>,
): ReadHomeEntries {
  const sizes = partSizesFor(options.cap);
  /** The heads of several viewers' timelines. */
  const readHead = createTurnCalls<HeadAsk, KeyResult>({
    // Of slots of a cluster apart, which are asked in calls of their own: nobody waits for a slot that moves, or for a node that is silent, because others ask it.
    nameOf: ({ timeline, range: { direction, position, count } }) =>
      `${cache.slotOf(timeline)} ${direction} ${position} ${count}`,
    sizeOf: () => 1,
    sizeMax: VIEWERS_PER_CALL,
    send(signal, asks) {
      const [{ range }] = asks as readonly [HeadAsk];
      return cache.runEachSet(
        signal,
        'homes',
        asks.map(({ timeline, pulled }) => [timeline, pulled]),
        [...pageArgs(range, options), options.tokenLifeMs],
        asks.map(({ token }) => token),
      );
    },
  });

  return async function readHomeEntries(signal, { tenant, viewer, token = '', ...range }) {
    const [timeline, pulled] = [keys.timeline(tenant, viewer), keys.pulledAuthors(tenant, viewer)] as const;
    const ringOf = (): readonly string[] => keys.timelineRing(tenant, viewer);
    const args = [...pageArgs(range, options), token, options.tokenLifeMs];
    /** The fact, and the page. */
    async function ask(withRing: boolean): Promise<readonly [string, unknown]> {
      if (!withRing) {
        const result = await readHead(signal, { timeline, pulled, token, range });
        if ('error' in result) throw result.error;
        return headIn(result.value as string);
      }
      // The second call has the token that the first one left.
      return (await cache.run(signal, 'home', [timeline, pulled, ...ringOf()], args)) as readonly [string, unknown];
    }
    /** While a slot moves its keys are asked one by one: who is pulled first, as whoever reads the timeline must know. */
    async function askApart() {
      const [result] = await cache.runEach(signal, 'leaseGet', [pulled], args.slice(-2));
      if (!result || 'error' in result) throw result?.error ?? new Error('a lookup was not answered');
      const page = await readPartByPart(cache, signal, [timeline, ...ringOf()], range, args.slice(0, -2));
      return { reply: [result.value as string, undefined] as const, page };
    }
    let asked: Awaited<ReturnType<typeof askParts<readonly [string, unknown]>>>;
    try {
      asked = await unlessRefused(() => askParts(range, sizes, ask, ([, entries]) => entries), askApart);
    } catch (error) {
      if (!(error instanceof TributaryError && isForeignType(error))) throw error;
      // Which of them is somebody else's is not said; all can be made anew.
      await cache.remove(signal, [timeline, pulled, ...ringOf()]);
      return { page: { state: 'absent' }, pulled: { kind: 'loading' } };
    }
    const {
      page,
      reply: [fact],
    } = asked;
    const meaning = meaningOf(fact, decodePulled);
    const unreadable = [
      ...(page === 'corrupt' ? [timeline, ...ringOf()] : []),
      ...(meaning.kind === 'unreadable' ? [pulled] : []),
    ];
    if (unreadable.length > 0) await cache.remove(signal, unreadable);
    return {
      page: page === 'corrupt' ? { state: 'absent' } : page,
      // Read without the right to store: the next reader misses.
      pulled: meaning.kind === 'hit' || meaning.kind === 'miss' ? meaning : { kind: 'loading' },
    };
  };
}

/** What was answered for one viewer, as the script for one answers it. Where something holds a line too many nothing of ours has written that. */
function headIn(text: string): readonly [string, readonly string[]] {
  const [fact = '', count, ...lines] = text.split('\n');
  if (count === '0') return [fact, []];
  return [fact, Number(count) === lines.length ? lines : CORRUPT];
}
