/**
 * Owns reading what Redis holds of one viewer's home: the timeline, rebuilt first where it is absent, and who of the viewer's follows is pulled, loaded first where that is not known.
 *
 * Invariants: a timeline that is not READY is never read as complete. Who is pulled is known before the timeline is read: an author who stops being pulled is brought back
 * into timelines before anybody may learn of it. Where it cannot be known, since Postgres is away, the timeline is read all the same, and whoever asked is told.
 */
import { pause } from '../runtime.ts';
import type { PageRange, TimelinePage } from '../store/redis/entry-sets.ts';
import type { FillOutcome, Lookup, PulledFacts } from '../store/redis/facts.ts';
import type { HomeEntries, ReadHomeEntries } from '../store/redis/home-entries.ts';
import type { UserId } from '../timeline/ids.ts';
import type { PulledAuthors } from '../timeline/pulled.ts';
import { onPostgres, onRedis, type ReadCall } from './batches.ts';

export interface ResidentHome {
  readonly page: Extract<TimelinePage, { ids: unknown }>;
  /** Nobody where it cannot be told who is pulled. */
  readonly pulled: PulledAuthors;
  readonly pulledUnknown: boolean;
}

/**
 * Postgres must serve where it is none of these. `unavailable`: something should have been there and could not be read or made in time. `elsewhere`: Redis cannot hold it.
 */
export type ReadResidentHome = (
  call: ReadCall,
  viewer: UserId,
  range: PageRange,
) => Promise<ResidentHome | 'unavailable' | 'elsewhere'>;

export interface ResidentHomeParts {
  readonly readEntries: ReadHomeEntries;
  readonly pulledFacts: Pick<PulledFacts, 'fill'>;
  /** Undefined where it cannot be told now. */
  readonly loadPulled: (call: ReadCall, viewer: UserId) => Promise<PulledAuthors | undefined>;
  /** Undefined where nothing can be loaded under it: a token would only keep others from storing what they load later. */
  readonly newToken: () => string | undefined;
  /** Starts a rebuild or joins one; answers once it has ended, or that another process is at it. */
  readonly rebuild: (call: ReadCall, viewer: UserId) => Promise<'done' | 'busy' | 'refused'>;
  /** Longest wait for a rebuild of another process, in milliseconds. */
  readonly waitMs: number;
  readonly events: {
    timelineRead(state: TimelinePage['state'] | 'error'): void;
    pulledRead(result: Lookup<unknown>['kind']): void;
    pulledFilled(outcome: FillOutcome): void;
  };
}

/** Pause between two looks at a timeline that another process rebuilds, in milliseconds. */
const LOOK_EVERY_MS = 20;
/** Rebuilds that one fetch asks for before it does without. */
const REBUILDS_MAX = 2;
/** How long a reader waits for another's load of who is pulled, in milliseconds: about as long as it takes. */
const LOAD_WAIT_MS = 15;
const NOBODY: PulledAuthors = { authors: [], tooMany: false };

export function createReadResidentHome(parts: ResidentHomeParts): ReadResidentHome {
  const { events } = parts;

  return async function readResidentHome(call, viewer, range) {
    const token = parts.newToken();
    const first = await look(token);
    if (first === undefined) return 'unavailable';
    events.pulledRead(first.pulled.kind);
    const pulled = first.pulled.kind === 'hit' ? first.pulled.value : await load(first.pulled.kind, token);
    if (pulled?.tooMany) return 'elsewhere';
    const page = await readyPage(first.pulled.kind === 'hit' ? first : await look());
    return typeof page === 'string' ? page : { page, pulled: pulled ?? NOBODY, pulledUnknown: pulled === undefined };

    async function look(own?: string): Promise<HomeEntries | undefined> {
      const { tenant, signal } = call;
      try {
        const asked = { tenant, viewer, ...range, ...(own !== undefined && { token: own }) };
        const entries = await onRedis(call, () => parts.readEntries(signal, asked));
        events.timelineRead(entries.page.state);
        return entries;
      } catch (error) {
        if (signal.aborted) throw error;
        events.timelineRead('error');
        return undefined;
      }
    }

    async function load(kind: 'miss' | 'loading', own: string | undefined): Promise<PulledAuthors | undefined> {
      if (kind === 'loading') {
        await pause(call.signal, LOAD_WAIT_MS);
        const again = await look();
        if (again?.pulled.kind === 'hit') return again.pulled.value;
        // Without the right to store.
        return onPostgres(call, () => parts.loadPulled(call, viewer));
      }
      const loaded = await onPostgres(call, () => parts.loadPulled(call, viewer));
      if (!loaded || own === undefined) return loaded;
      const fill = () => parts.pulledFacts.fill(call.signal, call.tenant, own, [[viewer, loaded]]);
      const outcomes = await onRedis(call, fill);
      for (const outcome of outcomes) events.pulledFilled(outcome);
      return loaded;
    }

    /** The page of a READY timeline, after a rebuild where it takes one. */
    async function readyPage(
      from: HomeEntries | undefined,
    ): Promise<ResidentHome['page'] | 'unavailable' | 'elsewhere'> {
      let page = from?.page;
      let waitedMs = 0;
      let rebuilds = 0;
      // Also one that somebody builds is asked for: whoever did may be dead, and its lease over.
      while (page && page.state !== 'ready') {
        const outcome = await parts.rebuild(call, viewer);
        if (outcome === 'refused') break;
        if (outcome === 'busy') {
          if (waitedMs >= parts.waitMs) break;
          waitedMs += LOOK_EVERY_MS;
          await pause(call.signal, LOOK_EVERY_MS);
        } else {
          rebuilds += 1;
          // A key that vanishes as soon as it is there will not be there the next time either; Postgres knows it all.
          if (rebuilds > REBUILDS_MAX) return 'elsewhere';
        }
        page = (await look())?.page;
      }
      return page?.state === 'ready' ? page : 'unavailable';
    }
  };
}
