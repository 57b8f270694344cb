/**
 * Owns the process's copies of pulled authors' lists: the newest entries of each, for about a second. They are what keeps a large author's list from being read once for every reader: an
 * instance reads it about once a second, whatever the load.
 *
 * A list gives IDs and decides nothing: whoever reads from a copy may meet a new post a second late, and never one that is hidden. A post published by this process is met at once, since
 * the copy goes with the push. Only lists that are READY are kept.
 *
 * A copy is a beginning of its list. It serves a page only where it is certain that what it lacks does not belong on it; any other page is read from Redis. Single flight: a list that is being
 * read is waited for, by each for as long as they like; a read that fails is not kept, and one that does not settle is dropped.
 */
import { LRUCache } from 'lru-cache';
import { TributaryError } from '../errors.ts';
import type { Clock, Random } from '../runtime.ts';
import type { PageRange, TimelinePage } from '../store/redis/entry-sets.ts';
import type { PulledLists } from '../store/redis/pulled-lists.ts';
import { POST_ID_MAX, type PostId, type TenantId } from '../timeline/ids.ts';
import type { PulledAuthor } from '../timeline/pulled.ts';
import { onRedis, type ReadCall, tellKinds } from './batches.ts';
import { createSharedLoad, type SharedLoad } from './shared-load.ts';

export type ListPage = TimelinePage | TributaryError;

export interface ListMemory {
  /** As the lists themselves answer (`PulledLists.pages`). `asking` is told before Redis is asked. */
  pages(
    call: ReadCall,
    lists: readonly PulledAuthor[],
    range: PageRange,
    asking?: () => void,
  ): Promise<readonly ListPage[]>;
  /** The next page is read from Redis. */
  forget(tenant: TenantId, list: PulledAuthor): void;
  /** Bytes held, and lists being read. */
  size(): { readonly bytes: number; readonly underWay: number };
}

export interface ListMemoryParts {
  readonly lists: Pick<PulledLists, 'pages'>;
  readonly clock: Clock;
  readonly random: Pick<Random, 'fraction'>;
  /** Longest life of a copy; shortened by up to a fifth, so that lists read together are not read together again. 0 keeps none. */
  readonly ageMaxMs: number;
  readonly bytesMax: number;
  /** Longest life of a read that several wait for. */
  readonly limitMs: number;
  readonly events: {
    /** Of copies: `hit` served a page; `short` was there and did not reach far enough. */
    heldRead(result: 'hit' | 'miss' | 'short', lists: number): void;
    listRead(state: TimelinePage['state'] | 'error', lists: number): void;
    joined(lists: number): void;
    held(bytes: number): void;
  };
}

interface Held {
  readonly floor: number;
  /** Newest first, without a hole. */
  readonly ids: readonly PostId[];
  /** Whether nothing follows. */
  readonly whole: boolean;
  /** By the monotonic clock, from before it was read. */
  readonly untilMs: number;
}

/** What a list in Redis gave: a copy, or why there is none. */
type Answer = Held | Exclude<ListPage, { readonly state: 'ready' }>;

/** Entries read to be kept: a page of the largest size, and some more. */
const HELD_MIN = 128;
const ENTRY_BYTES = 300;
const ID_BYTES = 8;

export function createListMemory(parts: ListMemoryParts): ListMemory {
  const { clock, events } = parts;
  const copies = new LRUCache<string, Held>({
    // The library takes 0 for no bound; nothing is smaller than 1 byte.
    maxSize: Math.max(1, parts.bytesMax),
    sizeCalculation: ({ ids }) => ENTRY_BYTES + ID_BYTES * ids.length,
  });
  const flights = new Map<string, SharedLoad<ReadonlyMap<string, Answer>>>();
  const nameOf = (tenant: TenantId, { author, epoch }: PulledAuthor): string => `${tenant}:${author}:${epoch}`;

  async function ask(call: ReadCall, lists: readonly PulledAuthor[], range: PageRange): Promise<readonly ListPage[]> {
    const pages = await parts.lists.pages(call.signal, { tenant: call.tenant, lists, ...range });
    tellKinds(
      pages.map((page) => ({ kind: page instanceof TributaryError ? ('error' as const) : page.state })),
      events.listRead,
    );
    return pages;
  }

  /** The beginnings of lists, for whoever asks for them until they are there. */
  function fly(call: ReadCall, lists: readonly PulledAuthor[], count: number): SharedLoad<ReadonlyMap<string, Answer>> {
    const names = lists.map((list) => nameOf(call.tenant, list));
    const untilMs = clock.monotonicMs() + parts.ageMaxMs * (1 - parts.random.fraction() / 5);
    const flight = createSharedLoad(parts.limitMs, async (signal) => {
      const range = { direction: 'older', position: POST_ID_MAX, count } as const;
      const pages = await ask({ tenant: call.tenant, signal }, lists, range);
      const answers = answersOf(pages, count, untilMs);
      const answered = new Map<string, Answer>();
      names.forEach((name, at) => {
        const answer = answers[at] as Answer;
        answered.set(name, answer);
        // Not where the list has changed meanwhile.
        if ('whole' in answer && flights.get(name) === flight) copies.set(name, answer);
      });
      events.held(copies.calculatedSize);
      return answered;
    });
    for (const name of names) flights.set(name, flight);
    void flight.settled.then(() => {
      for (const name of names) if (flights.get(name) === flight) flights.delete(name);
    });
    return flight;
  }

  /** Copies of these lists and of no others, or what Redis says instead: those that are not there yet are read. */
  async function beginnings(
    call: ReadCall,
    lists: readonly PulledAuthor[],
    count: number,
    asking: () => void,
  ): Promise<ReadonlyMap<string, Answer>> {
    const waited = new Set<SharedLoad<ReadonlyMap<string, Answer>>>();
    const flown: PulledAuthor[] = [];
    let joins = 0;
    for (const list of lists) {
      const flight = flights.get(nameOf(call.tenant, list));
      if (flight?.isOpen()) {
        joins += 1;
        waited.add(flight);
      } else flown.push(list);
    }
    if (joins > 0) events.joined(joins);
    if (flown.length > 0) waited.add(fly(call, flown, Math.max(count, HELD_MIN)));
    asking();
    const found = await onRedis(call, () => Promise.all([...waited].map((flight) => flight.join(call.signal))));
    // Others' lists were read with some of them: their entries must not count among the best of this page.
    const wanted = new Set(lists.map((list) => nameOf(call.tenant, list)));
    return new Map(found.flatMap((answers) => [...(answers ?? [])].filter(([name]) => wanted.has(name))));
  }

  return {
    async pages(call, lists, range, asking = () => undefined) {
      if (lists.length === 0) return [];
      const nowMs = clock.monotonicMs();
      const names = lists.map((list) => nameOf(call.tenant, list));
      const known = new Map<string, Answer>();
      for (const name of names) {
        const copy = copies.get(name);
        if (copy && copy.untilMs > nowMs) known.set(name, copy);
      }
      const copied = new Set(known.keys());
      const absent = lists.filter((_, at) => !copied.has(names[at] as string));
      // Deep in the past a beginning would not reach.
      const isNear = range.direction === 'newer' || range.position === POST_ID_MAX;
      if (absent.length > 0 && isNear && parts.ageMaxMs > 0)
        for (const [name, answer] of await beginnings(call, absent, range.count, asking)) known.set(name, answer);

      const pages = pagesOf(names, known, range);
      const resultAt = (name: string, at: number): 'hit' | 'miss' | 'short' => {
        if (!copied.has(name)) return 'miss';
        return pages[at] === undefined ? 'short' : 'hit';
      };
      tellKinds(
        names.map((name, at) => ({ kind: resultAt(name, at) })),
        events.heldRead,
      );
      const rest = lists.filter((_, at) => pages[at] === undefined);
      if (rest.length === 0) return pages as readonly ListPage[];
      asking();
      const asked = await onRedis(call, () => ask(call, rest, range));
      const read = new Map(rest.map((list, at) => [nameOf(call.tenant, list), asked[at] as ListPage]));
      return names.map((name, at) => pages[at] ?? (read.get(name) as ListPage));
    },

    forget(tenant, list) {
      const name = nameOf(tenant, list);
      copies.delete(name);
      // What is under way may have been read before: whoever waits for it gets it, and it is not kept.
      flights.delete(name);
    },

    size: () => ({ bytes: copies.calculatedSize, underWay: flights.size }),
  };
}

/**
 * What was read from the newest on. A list that stops short of the best `count` of all stops because it has no more: the script would have gone on with it (`PAGES` in entry-scripts.ts).
 */
function answersOf(pages: readonly ListPage[], count: number, untilMs: number): readonly Answer[] {
  const all = pages.flatMap((page) => ('ids' in page ? page.ids : [])).sort((a, b) => b - a);
  const last = all[count - 1];
  return pages.map((page): Answer => {
    if (page instanceof TributaryError || page.state !== 'ready') return page;
    const { floor, ids } = page;
    const oldest = ids.at(-1);
    return { floor, ids, whole: last === undefined || oldest === undefined || oldest > last, untilMs };
  });
}

/** The page of each list; undefined where the copy is not enough for it. */
function pagesOf(
  names: readonly string[],
  known: ReadonlyMap<string, Answer>,
  { direction, position, count }: PageRange,
): readonly (ListPage | undefined)[] {
  const older = direction === 'older';
  /** What a copy holds beyond the position, in the page's order. */
  const beyond = new Map<Answer, readonly PostId[]>();
  for (const answer of known.values()) {
    if (!('whole' in answer)) continue;
    const cut = answer.ids.findIndex((id) => id <= position);
    const newer = cut < 0 ? answer.ids : answer.ids.slice(0, cut);
    beyond.set(answer, older ? answer.ids.slice(newer.length) : [...newer].reverse());
  }
  const last = lastOf(beyond.values(), count, older);
  return names.map((name) => {
    const answer = known.get(name);
    if (!answer || !('whole' in answer)) return answer;
    const oldest = answer.ids.at(-1);
    // What a copy lacks is older than its oldest entry: it must not be wanted.
    const line = older ? last : position;
    if (!answer.whole && (line === undefined || oldest === undefined || oldest > line)) return undefined;
    const ids = (beyond.get(answer) ?? []).filter((id) => last === undefined || (older ? id >= last : id <= last));
    return { state: 'ready', floor: answer.floor, ids };
  });
}

/** The last of the best `count` of all; undefined where there are fewer. Looks at little more than those, however many lists there are. */
function lastOf(lists: Iterable<readonly PostId[]>, count: number, older: boolean): PostId | undefined {
  const isBetter = (a: PostId, b: PostId): boolean => (older ? a > b : a < b);
  const best: PostId[] = [];
  for (const ids of lists) {
    for (const id of ids) {
      const worst = best.at(-1);
      if (best.length === count && worst !== undefined && !isBetter(id, worst)) break;
      let at = best.length;
      while (at > 0 && isBetter(id, best[at - 1] as PostId)) at -= 1;
      best.splice(at, 0, id);
      if (best.length > count) best.pop();
    }
  }
  return best.length === count ? best.at(-1) : undefined;
}
