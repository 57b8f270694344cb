/**
 * Owns one run of a fan-out job: lease, plan, pages of followers, checkpoints, end. Never marks a job done before every page was confirmed, and never writes a word
 * about a job whose lease it has lost. It may run twice, late or half: pushing again changes nothing, and the next run goes on from the checkpoint.
 *
 * One page is pushed while the next is fetched. The post is read again before every page, so that a deletion stops the fan-out. A page of which only a part was
 * confirmed (one node of a cluster is gone) holds back the checkpoint, but not the followers on the pages after it.
 */
import { type Clock, type Random, withGrace } from '../runtime.ts';
import type {
  DueJob,
  FailOutcome,
  FanoutJobKey,
  FanoutLease,
  FanoutProgress,
  FanoutSubject,
  HeldJob,
} from '../store/postgres/fanout-jobs.ts';
import type { PostId, TenantId, UserId } from '../timeline/ids.ts';
import type { Lane } from '../timeline/lanes.ts';
import type { Blame } from './fanout-blame.ts';
import { type FanoutPlan, planFanout } from './fanout-plan.ts';
import { laneToGiveWayIn, type Turn } from './fanout-turn.ts';
import type { Pushed, PushPost } from './push-post.ts';
import type { PushToList } from './push-to-list.ts';

/**
 * `delivered`, `author_only`, `pulled`, `nothing`: done. `gave_way`: due again at once, behind those that wait; `moved`: the same, in a larger lane. `stopped`: due again at once, since the process
 * was told to stop. `failed`: due again after a pause. `dead`: put aside. `lost`: another has the lease. `not_held`: done before, gone, or in other hands.
 */
export const DELIVER_OUTCOMES = [
  'delivered',
  'author_only',
  'pulled',
  'nothing',
  'gave_way',
  'moved',
  'stopped',
  'failed',
  'dead',
  'lost',
  'not_held',
] as const;
export type DeliverOutcome = (typeof DELIVER_OUTCOMES)[number];

/** Rejects only where the lease could not be asked for; every later fault gives the lease back and is an outcome. */
export type Deliver = (signal: AbortSignal, job: FanoutJobKey) => Promise<DeliverOutcome>;

export interface DeliverParts {
  readonly jobs: {
    readonly takeLease: (
      signal: AbortSignal,
      job: FanoutJobKey & { readonly leaseMs: number },
    ) => Promise<FanoutLease | undefined>;
    readonly checkpoint: (
      signal: AbortSignal,
      job: HeldJob & FanoutProgress & { readonly leaseMs: number },
    ) => Promise<boolean>;
    readonly finish: (
      signal: AbortSignal,
      job: HeldJob & Omit<FanoutProgress, 'cursor'> & { readonly toFollowers: boolean },
    ) => Promise<boolean>;
    readonly fail: (
      signal: AbortSignal,
      job: HeldJob & { readonly error: string; readonly retryInMs: number; readonly blamed: boolean },
    ) => Promise<FailOutcome>;
    readonly giveWay: (
      signal: AbortSignal,
      job: HeldJob & FanoutProgress & { readonly lane: Lane },
    ) => Promise<boolean>;
    /** Puts a job aside that took its workers with it once too often; answers its lane and error where it did. */
    readonly bury: (
      signal: AbortSignal,
      job: FanoutJobKey,
    ) => Promise<{ readonly lane: Lane; readonly error: string } | undefined>;
  };
  readonly turn: Turn;
  readonly blame: Blame;
  /** From Postgres, not from a cache: what a deletion has committed is seen. */
  readonly loadSubject: (
    signal: AbortSignal,
    post: { readonly tenant: TenantId; readonly author: UserId; readonly postId: PostId },
  ) => Promise<FanoutSubject | undefined>;
  readonly loadFollowers: (
    signal: AbortSignal,
    query: { readonly tenant: TenantId; readonly author: UserId; readonly after: string; readonly limit: number },
  ) => Promise<readonly UserId[]>;
  readonly pushPost: PushPost;
  readonly pushToList: PushToList;
  readonly clock: Clock;
  readonly random: Random;
  readonly events: DeliverEvents;
  /** Followers on a page. */
  readonly followerPage: number;
  /** How long a worker may go without a checkpoint before its job is given to another. */
  readonly leaseMs: number;
}

export interface DeliverEvents {
  /** Timelines that took the post just now, and how long after its publishing that was. */
  delivered(page: { readonly lane: Lane; readonly count: number; readonly seconds: number }): void;
  skipped(page: { readonly lane: Lane; readonly notResident: number; readonly belowFloor: number }): void;
  /** `seconds`: from the publishing to the end, for jobs that are done. */
  jobEnded(job: { readonly lane: Lane; readonly outcome: DeliverOutcome; readonly seconds: number }): void;
  jobFailed(job: FanoutJobKey, error: unknown): void;
  jobDied(job: FanoutJobKey & { readonly lane: Lane; readonly error: string }): void;
  /** The job has more followers than its lane is for, and is due in this one. */
  jobMoved(job: DueJob): void;
}

/** Pause before a job that failed is due again, in milliseconds: doubled with every attempt that came no further, up to the bound, half of it jitter. */
const RETRY_BASE_MS = 500;
const RETRY_MAX_MS = 30_000;
/** Attempts after which a timeline that alone refuses the post is dropped instead of holding all others up. */
const LAST_RESORT_ATTEMPTS = 3;
/** What the taking of the lease may still take when the process is told to stop, in milliseconds: it is then given back. */
const LEASE_GRACE_MS = 1_000;
/** Giving the lease back must work after an abort too. */
const GIVE_BACK_MS = 2_000;
/** Pages of one run at most: 40 million followers at the default size, and no endless loop whatever Postgres answers. */
const PAGES_MAX = 20_000;

interface Run extends HeldJob {
  readonly lease: FanoutLease;
  readonly secondsNow: () => number;
  progress: FanoutProgress;
  /** The list that this run has brought the post to. */
  listedEpoch: number | undefined;
  /** Timelines that are complete above the post only: they are resident, and not counted as delivered to. */
  metFloors: boolean;
}

export function createDeliver(parts: DeliverParts): Deliver {
  const { jobs, events, followerPage, leaseMs } = parts;

  return async function deliver(signal, job) {
    const lease = await withGrace(signal, LEASE_GRACE_MS, (of) => jobs.takeLease(of, { ...job, leaseMs }));
    if (!lease) {
      const buried = await jobs.bury(signal, job);
      if (!buried) return 'not_held';
      events.jobDied({ ...job, ...buried });
      return 'dead';
    }
    // Both ends of post-to-timeline by Postgres' clock: this process' own may stand anywhere.
    const offsetMs = lease.databaseNowMs - parts.clock.nowMs();
    const run: Run = {
      ...job,
      token: lease.token,
      lease,
      secondsNow: () => Math.max(0, parts.clock.nowMs() + offsetMs - lease.createdAtMs) / 1_000,
      progress: {
        cursor: lease.cursor,
        delivered: lease.delivered,
        skipped: lease.skipped,
        pushingMs: lease.pushingMs,
      },
      listedEpoch: undefined,
      metFloors: false,
    };
    const outcome = await attempt(signal, run);
    events.jobEnded({ lane: lease.lane, outcome, seconds: run.secondsNow() });
    return outcome;
  };

  async function attempt(signal: AbortSignal, run: Run): Promise<DeliverOutcome> {
    const isToBlame = parts.blame.begin(run);
    try {
      return await deliverPages(signal, run);
    } catch (error) {
      // To be told to stop is no fault: the job goes on elsewhere at once, from its last checkpoint.
      if (!signal.aborted) events.jobFailed(keyOf(run), error);
      const blamed = !signal.aborted && isToBlame(error) && !cameFurther(run);
      const retryIn = signal.aborted ? 0 : retryInMs(run);
      const held = { ...heldOf(run), error: describe(error), retryInMs: retryIn, blamed };
      try {
        const outcome = await jobs.fail(AbortSignal.timeout(GIVE_BACK_MS), held);
        if (outcome === 'dead') events.jobDied({ ...keyOf(run), lane: run.lease.lane, error: held.error });
        if (outcome !== 'due') return outcome;
        return signal.aborted ? 'stopped' : 'failed';
      } catch (giveBackError) {
        // The lease runs out by itself, and the relay hints the job again.
        events.jobFailed(keyOf(run), giveBackError);
        return 'failed';
      }
    }
  }

  async function deliverPages(signal: AbortSignal, run: Run): Promise<DeliverOutcome> {
    const { tenant, postId } = run;
    const { author } = run.lease;
    const fetch = (after: string): Promise<readonly UserId[]> => {
      const followers = parts.loadFollowers(signal, { tenant, author, after, limit: followerPage });
      // Whoever awaits it is told; it may fail before anybody does.
      followers.catch(() => undefined);
      return followers;
    };
    let incomplete: Pushed | undefined;
    let unlisted: Pushed | undefined;
    let fetching: Promise<readonly UserId[]> | undefined = fetch(run.progress.cursor);
    // Until the first checkpoint the author's own timeline belongs to the page.
    let own: readonly UserId[] = run.progress.cursor === '' ? [author] : [];
    let cursor = run.progress.cursor;

    for (let page = 1; page <= PAGES_MAX; page += 1) {
      const plan = planFanout(await parts.loadSubject(signal, { tenant, author, postId }));
      if (plan.kind === 'nothing') return finish(signal, run, 'nothing');
      unlisted = await list(signal, run, plan, incomplete !== undefined || unlisted !== undefined);
      if (plan.kind !== 'followers') {
        const pushed = await push(signal, run, [author], false);
        if (pushed.failed.length > 0) throw new PageIncomplete(pushed);
        if (unlisted) throw new PageIncomplete(unlisted);
        return finish(signal, run, plan.kind);
      }

      const followers: readonly UserId[] = await (fetching ?? fetch(cursor));
      const last = followers.length < followerPage;
      cursor = followers.at(-1) ?? cursor;
      const viewers = [...own, ...followers];
      // Among those who were reached is the author, who is no follower.
      const passed = run.progress.delivered + run.progress.skipped + viewers.length - 1;
      const lane = last ? undefined : await laneToGiveWayIn(signal, parts.turn, { lane: run.lease.lane, page, passed });
      fetching = last || lane !== undefined ? undefined : fetch(cursor);

      own = [];
      // After a page that did not go through, the run is to be repeated in any case: those on the pages after it must not wait for what is lost.
      const pushed = await push(signal, run, viewers, incomplete !== undefined);
      if (pushed.failed.length > 0) {
        incomplete ??= pushed;
        // Nothing at all went through: Redis is away, and further pages would fare no better.
        if (pushed.failed.length === viewers.length) throw new PageIncomplete(pushed);
      }
      run.metFloors ||= pushed.belowFloor > 0;
      if (!incomplete) {
        run.progress = {
          cursor,
          delivered: run.progress.delivered + pushed.added + pushed.present,
          skipped: run.progress.skipped + pushed.absent + pushed.belowFloor,
          pushingMs: run.progress.pushingMs + pushed.tookMs,
        };
      }
      if (last) {
        // A list that did not take the post holds up no follower: the next run begins with it.
        const missing = incomplete ?? unlisted;
        if (missing) throw new PageIncomplete(missing);
        return finish(signal, run, 'delivered');
      }
      // What a page has held back must not be forgotten: such a run goes on to its end.
      if (lane !== undefined && !incomplete) return giveWay(signal, run, lane);
      if (!(await jobs.checkpoint(signal, { ...heldOf(run), ...run.progress, leaseMs }))) return 'lost';
      if (cameFurther(run)) parts.blame.cameFurther();
    }
    throw new Error(`a fan-out had more than ${PAGES_MAX} pages`);
  }

  async function giveWay(signal: AbortSignal, run: Run, lane: Lane): Promise<DeliverOutcome> {
    if (!(await jobs.giveWay(signal, { ...heldOf(run), ...run.progress, lane }))) return 'lost';
    parts.blame.cameFurther();
    if (lane === run.lease.lane) return 'gave_way';
    events.jobMoved({ ...keyOf(run), lane });
    return 'moved';
  }

  /**
   * Brings the post to the author's list where the plan has one and this run has not: the class is read with every page, so a run that began before the author's class changed brings it too. Answers
   * what was not confirmed.
   */
  async function list(signal: AbortSignal, run: Run, plan: FanoutPlan, once: boolean): Promise<Pushed | undefined> {
    const epoch = 'listEpoch' in plan ? plan.listEpoch : undefined;
    if (epoch === undefined || epoch === run.listedEpoch) return undefined;
    const { tenant, postId, lease } = run;
    const to = { tenant, postId, author: lease.author, epoch, once, lastResort: !once && isLastResort(lease) };
    const pushed = await parts.pushToList(signal, to);
    if (pushed.failed.length > 0) return pushed;
    run.listedEpoch = epoch;
    return undefined;
  }

  async function push(
    signal: AbortSignal,
    run: Run,
    viewers: readonly UserId[],
    once: boolean,
  ): Promise<Pushed & { readonly tookMs: number }> {
    const { tenant, postId, lease } = run;
    const startedMs = parts.clock.monotonicMs();
    const pushed = await parts.pushPost(signal, {
      tenant,
      postId,
      viewers,
      once,
      lastResort: !once && isLastResort(lease),
    });
    const tookMs = parts.clock.monotonicMs() - startedMs;
    events.delivered({ lane: lease.lane, count: pushed.added, seconds: run.secondsNow() });
    events.skipped({ lane: lease.lane, notResident: pushed.absent, belowFloor: pushed.belowFloor });
    return { ...pushed, tookMs };
  }

  async function finish(
    signal: AbortSignal,
    run: Run,
    outcome: 'delivered' | 'author_only' | 'pulled' | 'nothing',
  ): Promise<DeliverOutcome> {
    const { cursor: _cursor, ...figures } = run.progress;
    const done = { ...heldOf(run), ...figures, toFollowers: outcome === 'delivered' && !run.metFloors };
    if (!(await jobs.finish(signal, done))) return 'lost';
    parts.blame.cameFurther();
    return outcome;
  }

  function retryInMs(run: Run): number {
    const doublings = cameFurther(run) ? 0 : Math.min(run.lease.attempts - 1, 10);
    const most = Math.min(RETRY_MAX_MS, RETRY_BASE_MS * 2 ** doublings);
    return most * (0.5 + parts.random.fraction() / 2);
  }
}

/** Some timelines did not confirm the post. */
class PageIncomplete extends Error {
  constructor(pushed: Pushed) {
    super(`${pushed.failed.length} pushes of a page were not confirmed`, { cause: pushed.error });
    this.name = 'PageIncomplete';
  }
}

function isLastResort(lease: FanoutLease): boolean {
  return lease.attempts >= LAST_RESORT_ATTEMPTS;
}

/** Than the attempt before. */
function cameFurther(run: Run): boolean {
  return run.progress.cursor !== run.lease.cursor;
}

function keyOf({ tenant, postId, generation }: FanoutJobKey): FanoutJobKey {
  return { tenant, postId, generation };
}

function heldOf(run: Run): HeldJob {
  return { ...keyOf(run), token: run.token };
}

/** For the row: what was wrong, without the ways of the stack. */
function describe(error: unknown): string {
  if (!(error instanceof Error)) return String(error);
  return error.cause instanceof Error ? `${error.message}: ${error.cause.message}` : error.message;
}
