/**
 * Owns pushing one post into the timelines of one page of viewers. Every result is looked at; only what failed is tried again, a bounded number of times. A
 * timeline that cannot take the post is never left as if it were whole: it is reported, for the page to be tried again, or dropped, to be rebuilt.
 */
import { TributaryError } from '../errors.ts';
import { pause, type Random, throwIfAborted } from '../runtime.ts';
import type { PushOutcome, TimelineOf } from '../store/redis/timelines.ts';
import type { PostId, TenantId, UserId } from '../timeline/ids.ts';

export interface PostForViewers {
  readonly tenant: TenantId;
  readonly postId: PostId;
  readonly viewers: readonly UserId[];
}

export interface PushPostParts {
  /** Batches and sends; one outcome or error for each viewer, in order. */
  readonly push: (signal: AbortSignal, post: PostForViewers) => Promise<readonly (PushOutcome | TributaryError)[]>;
  /** Makes a timeline absent, whatever stands under its key: the next read rebuilds it. */
  readonly drop: (signal: AbortSignal, of: TimelineOf) => Promise<void>;
  readonly random: Random;
  readonly events: PushPostEvents;
}

export interface PushPostEvents {
  /** Pushes that were not confirmed, in one try. */
  pushesFailed(count: number): void;
  /** What failed is tried again, by itself. */
  pushesRetried(count: number): void;
  timelineDropped(): void;
}

export interface Pushed {
  readonly added: number;
  readonly present: number;
  readonly absent: number;
  readonly belowFloor: number;
  /** Viewers whose timelines did not confirm, and the last error. */
  readonly failed: readonly UserId[];
  readonly error?: TributaryError;
}

/**
 * `once`: what fails is not tried again. `lastResort`: what fails to the end is pushed alone, and a timeline that still refuses is dropped where Redis lets it be.
 */
export type PushPost = (
  signal: AbortSignal,
  post: PostForViewers & { readonly once: boolean; readonly lastResort: boolean },
) => Promise<Pushed>;

const TRIES_MAX = 4;
/** Pause before the second try, in milliseconds; doubled before each further one, with full jitter: 700 ms in all at most. */
const RETRY_BASE_MS = 100;
/** Viewers pushed alone in the last resort: a script that meets one broken key fails for all keys of its call. */
const ALONE_MAX = 256;

export function createPushPost(parts: PushPostParts): PushPost {
  return async function pushPost(signal, { once, lastResort, ...post }) {
    const tally = { added: 0, present: 0, absent: 0, belowFloor: 0 };
    let failed = post.viewers;
    let error: TributaryError | undefined;

    for (let attempt = 1; failed.length > 0 && attempt <= (once ? 1 : TRIES_MAX); attempt += 1) {
      if (attempt > 1) {
        await pause(signal, RETRY_BASE_MS * 2 ** (attempt - 2) * parts.random.fraction());
        parts.events.pushesRetried(failed.length);
      }
      const results = await parts.push(signal, { ...post, viewers: failed });
      error = count(results, tally);
      failed = failed.filter((_, index) => results[index] instanceof TributaryError);
      if (failed.length > 0) parts.events.pushesFailed(failed.length);
    }

    if (lastResort) {
      const alone = failed.slice(0, ALONE_MAX);
      const left = failed.slice(ALONE_MAX);
      for (const [index, viewer] of alone.entries()) {
        const results = await parts.push(signal, { ...post, viewers: [viewer] });
        const refused = count(results, tally);
        if (refused === undefined) continue;
        error = refused;
        if (await dropped(signal, { tenant: post.tenant, viewer })) {
          tally.absent += 1;
          continue;
        }
        left.push(...alone.slice(index));
        break;
      }
      failed = left;
    }
    return { ...tally, failed, ...(error !== undefined && failed.length > 0 && { error }) };
  };

  async function dropped(signal: AbortSignal, of: TimelineOf): Promise<boolean> {
    try {
      await parts.drop(signal, of);
      parts.events.timelineDropped();
      return true;
    } catch {
      // Redis does not answer: the viewer stays among the failed, and the job tries again.
      throwIfAborted(signal);
      return false;
    }
  }
}

/** Adds outcomes up; answers the last error. */
function count(
  results: readonly (PushOutcome | TributaryError)[],
  tally: { added: number; present: number; absent: number; belowFloor: number },
): TributaryError | undefined {
  let error: TributaryError | undefined;
  for (const result of results) {
    if (result instanceof TributaryError) {
      error = result;
      continue;
    }
    switch (result) {
      case 'added':
        tally.added += 1;
        break;
      case 'present':
        tally.present += 1;
        break;
      case 'absent':
        tally.absent += 1;
        break;
      case 'below_floor':
        tally.belowFloor += 1;
        break;
      default:
        throw new Error(`unknown outcome: ${result satisfies never}`);
    }
  }
  return error;
}
