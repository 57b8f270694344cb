/**
 * Owns where the entries of a home page come from: the resident timeline above its floor, Postgres at and below it. A timeline that is absent is rebuilt first; a reader who
 * would wait too long for that, or finds the cache not answering, is served from Postgres, and the page is marked PARTIAL.
 *
 * Invariant: a timeline that is not READY is never read as complete.
 */
import { type Call, pause } from '../runtime.ts';
import type { HomeQuery } from '../store/postgres/home-pages.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { TimelinePage, Timelines } from '../store/redis/timelines.ts';
import type { UserId } from '../timeline/ids.ts';
import type { LoadPosts } from './cached-posts.ts';

/** The candidates of one request; the state of the timeline may change from one fetch to the next. */
export interface Candidates {
  /** At most `limit` entries at or below the position, newest first; fewer mean that there are no more. */
  older(position: number, limit: number): Promise<LoadedPosts>;
  /** At most `limit` entries above the position, oldest first; fewer mean that there are no more now. */
  newer(position: number, limit: number): Promise<LoadedPosts>;
  /** Whether something had to be read without the timeline that should have been there. */
  readonly partial: () => boolean;
}

export type OpenCandidates = (call: Call, viewer: UserId) => Candidates;

export interface CandidatesParts {
  readonly timelines: Timelines;
  readonly loadPosts: LoadPosts;
  readonly loadOlder: (signal: AbortSignal, query: HomeQuery) => Promise<LoadedPosts>;
  readonly loadNewer: (signal: AbortSignal, query: HomeQuery) => Promise<LoadedPosts>;
  /** Starts a rebuild or joins one; answers once it has ended, or that another process is at it. */
  readonly rebuild: (call: Call, viewer: UserId) => Promise<'done' | 'busy' | 'refused'>;
  /** Longest wait for a rebuild of another process, in milliseconds. */
  readonly waitMs: number;
  readonly events: { timelineRead(state: 'ready' | 'absent' | 'building' | 'error'): void };
}

type ReadyPage = Extract<TimelinePage, { ids: unknown }>;

/** Pause between two looks at a timeline that another process rebuilds, in milliseconds. */
const LOOK_EVERY_MS = 20;
/** Rebuilds that one fetch asks for before it does without. */
const REBUILDS_MAX = 2;

export function createCandidates(parts: CandidatesParts): OpenCandidates {
  return function openCandidates(call, viewer) {
    const { tenant, signal } = call;
    let partial = false;

    async function look(
      direction: 'older' | 'newer',
      position: number,
      count: number,
    ): Promise<TimelinePage | undefined> {
      try {
        const page = await parts.timelines.page(signal, { tenant, viewer, direction, position, count });
        parts.events.timelineRead(page.state);
        return page;
      } catch (error) {
        if (signal.aborted) throw error;
        parts.events.timelineRead('error');
        return undefined;
      }
    }

    /** The page of a READY timeline, after a rebuild where it takes one; undefined where Postgres must serve. */
    async function ready(
      direction: 'older' | 'newer',
      position: number,
      count: number,
    ): Promise<ReadyPage | undefined> {
      let page = await look(direction, position, count);
      let waitedMs = 0;
      let rebuilds = 0;
      // Also one that somebody builds is asked for: whoever did may be dead, and its lease over.
      while (page && page.state !== 'ready') {
        const outcome = await parts.rebuild(call, viewer);
        if (outcome === 'refused') break;
        if (outcome === 'busy') {
          if (waitedMs >= parts.waitMs) break;
          waitedMs += LOOK_EVERY_MS;
          await pause(signal, LOOK_EVERY_MS);
        } else {
          rebuilds += 1;
          // A key that vanishes as soon as it is there will not be there the next time either; Postgres knows it all.
          if (rebuilds > REBUILDS_MAX) return undefined;
        }
        page = await look(direction, position, count);
      }
      if (page?.state === 'ready') return page;
      partial = true;
      return undefined;
    }

    return {
      partial: () => partial,

      async older(position, limit) {
        const page = await ready('older', position, limit);
        if (!page) return parts.loadOlder(signal, { tenant, viewer, position, limit });
        const above = page.ids.filter((id) => id > page.floor);
        if (above.length === limit || page.floor === 0) return parts.loadPosts(call, above);
        // Nothing between the last entry and the floor is missing from the list: go on at the floor.
        const below = { tenant, viewer, position: Math.min(position, page.floor), limit: limit - above.length };
        const [fromCache, fromPostgres] = await Promise.all([
          parts.loadPosts(call, above),
          parts.loadOlder(signal, below),
        ]);
        return joined(fromCache, fromPostgres);
      },

      async newer(position, limit) {
        const page = await ready('newer', position, limit);
        // Below the floor the list has holes that only Postgres can fill.
        if (!page || position < page.floor) return parts.loadNewer(signal, { tenant, viewer, position, limit });
        return parts.loadPosts(call, page.ids);
      },
    };
  };
}

function joined(first: LoadedPosts, second: LoadedPosts): LoadedPosts {
  return { entries: [...first.entries, ...second.entries], targets: new Map([...second.targets, ...first.targets]) };
}
