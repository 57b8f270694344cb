/**
 * Owns the reconciler: it samples resident timelines at a bounded rate, compares each above its floor with what Postgres says it should hold, mends it and tells. Nothing relies on it: it shows whether
 * the protocols keep the cache true, and mends what they have not.
 *
 * What is merely under way is no drift. The timeline is read after the truth, and once more after it was asked whether anything explains the difference; and that is asked again after it. So
 * whatever happens in between makes the difference go away, or explains it.
 */
import type { Call, Clock, Random } from '../runtime.ts';
import type { Snapshot } from '../store/postgres/home-snapshot.ts';
import type { Stranger, ViewerOf } from '../store/postgres/reconcile.ts';
import type { TimelinePage, Timelines } from '../store/redis/timelines.ts';
import { POST_ID_MAX, type PostId, positionBeforeMs, type UserId } from '../timeline/ids.ts';
import type { RebuildOutcome } from './rebuild.ts';

export const RECONCILE_RESULTS = ['true', 'drifted', 'unsettled', 'failed'] as const;
/** `unsettled`: the timeline went, or was being rebuilt, while it was looked at. `failed`: Redis or Postgres did not answer. */
export type ReconcileResult = (typeof RECONCILE_RESULTS)[number];

export interface ReconcileParts {
  readonly claimNextViewers: (signal: AbortSignal, most: number) => Promise<readonly ViewerOf[]>;
  /** Reads that do not lengthen the life of a timeline: what nobody else reads must expire. */
  readonly looks: Pick<Timelines, 'floors' | 'page'>;
  readonly timelines: Pick<Timelines, 'addOlder' | 'removeEntries'>;
  readonly loadSnapshot: (signal: AbortSignal, of: ViewerOf & { readonly cap: number }) => Promise<Snapshot>;
  readonly findOverdue: (
    signal: AbortSignal,
    query: ViewerOf & { readonly postIds: readonly PostId[]; readonly settleMs: number },
  ) => Promise<ReadonlySet<PostId>>;
  readonly findStrangers: (
    signal: AbortSignal,
    query: ViewerOf & { readonly postIds: readonly PostId[] },
  ) => Promise<readonly Stranger[]>;
  /** Guarded: takes nothing that a new follow has brought. */
  readonly cleanUp: (call: Call, viewer: UserId, author: UserId) => Promise<boolean>;
  readonly forceRebuild: (call: Call, viewer: UserId) => Promise<RebuildOutcome>;
  /** Entries that a timeline holds at most. */
  readonly entriesMax: number;
  /** Timelines compared in one round. */
  readonly perRound: number;
  /** Posts, follows and classes that are younger are still under way. */
  readonly settleMs: number;
  readonly clock: Clock;
  readonly random: Pick<Random, 'fraction'>;
  readonly events: ReconcileEvents;
}

export interface ReconcileEvents {
  timelineReconciled(result: ReconcileResult): void;
  driftFound(drift: ViewerOf & { readonly missing: readonly PostId[]; readonly foreign: readonly PostId[] }): void;
  driftRepaired(how: 'added' | 'removed' | 'rebuilt'): void;
  notReconciled(error: unknown): void;
}

/** Viewers looked at in one round, most of whom may not be resident: one call to Redis. */
const VIEWERS_PER_ROUND = 128;
/** More missing entries than this are no hole but a floor that is wrong: the timeline is made anew. */
const HOLE_MAX = 100;

type Ready = Extract<TimelinePage, { ids: unknown }>;

/** One round; there is never more to do at once: the rate is what bounds it. */
export function createReconcile(parts: ReconcileParts): (signal: AbortSignal) => Promise<boolean> {
  const { looks, events } = parts;

  return async function runOnce(signal) {
    for (const of of await sample(signal)) {
      if (signal.aborted) break;
      try {
        events.timelineReconciled(await reconcile(signal, of));
      } catch (error) {
        if (signal.aborted) break;
        events.timelineReconciled('failed');
        events.notReconciled(error);
      }
    }
    return false;
  };

  /** Some of the resident ones among the next viewers. */
  async function sample(signal: AbortSignal): Promise<readonly ViewerOf[]> {
    const next = await parts.claimNextViewers(signal, VIEWERS_PER_ROUND);
    const residents: ViewerOf[] = [];
    for (const [tenant, some] of Map.groupBy(next, (of) => of.tenant)) {
      const floors = await looks.floors(signal, { tenant, viewers: some.map(({ viewer }) => viewer) });
      residents.push(...some.filter((_, at) => typeof floors[at] === 'number'));
    }
    // At random, so that the same neighbours do not always come first.
    while (residents.length > parts.perRound)
      residents.splice(Math.floor(parts.random.fraction() * residents.length), 1);
    return residents;
  }

  async function reconcile(signal: AbortSignal, of: ViewerOf): Promise<ReconcileResult> {
    const snapshot = await parts.loadSnapshot(signal, { ...of, cap: parts.entriesMax });
    const page = await look(signal, of);
    if (!page) return 'unsettled';
    const held = new Set(page.ids);
    const due = new Set(snapshot.postIds);
    const line = Math.max(page.floor, snapshot.floor);
    const young = positionBeforeMs(parts.clock.nowMs() - parts.settleMs);
    const missing = snapshot.postIds.filter((id) => id > line && id <= young && !held.has(id));
    const extra = page.ids.filter((id) => id > line && !due.has(id));
    if (missing.length + extra.length === 0) return 'true';

    const overdue = await unexplained(signal, { ...of, missing, extra });
    const again = await look(signal, of);
    if (!again) return 'unsettled';
    const stillHeld = new Set(again.ids);
    const found = await unexplained(signal, {
      ...of,
      missing: overdue.missing.filter((id) => id > again.floor && !stillHeld.has(id)),
      extra: overdue.strangers.map(({ postId }) => postId).filter((id) => stillHeld.has(id)),
    });
    if (found.missing.length + found.strangers.length === 0) return 'true';
    events.driftFound({ ...of, missing: found.missing, foreign: found.strangers.map(({ postId }) => postId) });
    await repair(signal, of, found);
    return 'drifted';
  }

  async function look(signal: AbortSignal, of: ViewerOf): Promise<Ready | undefined> {
    const query = { ...of, direction: 'older', position: POST_ID_MAX, count: parts.entriesMax } as const;
    const page = await looks.page(signal, query);
    return page.state === 'ready' ? page : undefined;
  }

  async function unexplained(
    signal: AbortSignal,
    { missing, extra, ...of }: ViewerOf & { readonly missing: readonly PostId[]; readonly extra: readonly PostId[] },
  ): Promise<{ readonly missing: readonly PostId[]; readonly strangers: readonly Stranger[] }> {
    const overdue = await parts.findOverdue(signal, { ...of, postIds: missing, settleMs: parts.settleMs });
    const strangers = await parts.findStrangers(signal, { ...of, postIds: extra });
    return { missing: missing.filter((id) => overdue.has(id)), strangers };
  }

  async function repair(
    signal: AbortSignal,
    of: ViewerOf,
    { missing, strangers }: { readonly missing: readonly PostId[]; readonly strangers: readonly Stranger[] },
  ): Promise<void> {
    const call: Call = { tenant: of.tenant, signal };
    if (missing.length > HOLE_MAX) {
      const outcome = await parts.forceRebuild(call, of.viewer);
      // Else it is absent, and its next reader rebuilds it.
      if (outcome === 'rebuilt' || outcome === 'ready') events.driftRepaired('rebuilt');
      return;
    }
    if (missing.length > 0) {
      await parts.timelines.addOlder(signal, { ...of, postIds: missing });
      events.driftRepaired('added');
    }
    const authors = new Set(strangers.flatMap(({ author }) => (author === undefined ? [] : [author])));
    for (const author of authors) await parts.cleanUp(call, of.viewer, author);
    const ofNobody = strangers.filter(({ author }) => author === undefined).map(({ postId }) => postId);
    if (ofNobody.length > 0) await parts.timelines.removeEntries(signal, { ...of, postIds: ofNobody });
    if (strangers.length > 0) events.driftRepaired('removed');
  }
}
