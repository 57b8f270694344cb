/**
 * Owns the minting of post IDs under a leased generator. IDs of one mint only rise, are never minted ahead of its own clock, and never at or
 * beyond the lease's end; so a clock that steps, a process that was paused and a number that is used again never mint an ID twice.
 *
 * What cannot be minted safely is refused with ID_LEASE_UNAVAILABLE: a clock more than a moment behind the last ID, a clock ahead of
 * Postgres' by more than the lease, or no lease to be had.
 */
import { TributaryError } from '../errors.ts';
import { type Clock, pause, untilAborted } from '../runtime.ts';
import { composePostId, type PostId, SEQUENCE_COUNT } from '../timeline/ids.ts';

export interface Lease {
  readonly generator: number;
  /** First millisecond since the Unix epoch that may be minted in. */
  readonly lowMs: number;
  /** First millisecond that may not. */
  readonly highMs: number;
}

export interface MintParts {
  readonly clock: Clock;
  /** A lease of a free generator, or undefined where there is none. */
  readonly claim: (signal: AbortSignal) => Promise<Lease | undefined>;
  /** The lease's new end, or undefined where somebody else holds the generator now. */
  readonly renew: (signal: AbortSignal, generator: number) => Promise<number | undefined>;
  /** A lease could neither be taken nor renewed. While the one that is held lasts, nobody is refused for it. */
  readonly leaseFailed: (why: 'no_answer' | 'none_free') => void;
  readonly refused: (why: MintRefusal) => void;
}

export const MINT_REFUSALS = ['clock_behind', 'clock_ahead', 'no_lease'] as const;
export type MintRefusal = (typeof MINT_REFUSALS)[number];

export type MintPostId = (signal: AbortSignal) => Promise<PostId>;

/** How far the clock may be behind the last ID to be waited for; a step back beyond it is refused. */
const BEHIND_MAX_MS = 20;
/** Milliseconds that a caller stands in line for a free one: 2,000 callers at once fill some 63. */
const ROUNDS_MAX = 1_000;
/** A lease is renewed in the background once less than this is left. */
const RENEW_AHEAD_MS = 5_000;
/** Bound of the time one renewal may take: a lease belongs to no single call. */
const LEASE_CALL_MAX_MS = 2_000;

export function createMint(parts: MintParts): MintPostId {
  const { clock } = parts;
  let lease: Lease | undefined;
  let leasing: Promise<void> | undefined;
  let lastMs = 0;
  let sequence = 0;

  /** One claim or renewal at a time, shared by all who wait; forgotten once settled, whatever came of it. */
  function obtain(): Promise<void> {
    leasing ??= obtainOnce()
      .catch((error: unknown) => {
        parts.leaseFailed('no_answer');
        throw error;
      })
      .finally(() => {
        leasing = undefined;
      });
    return leasing;
  }

  async function obtainOnce(): Promise<void> {
    const signal = AbortSignal.timeout(LEASE_CALL_MAX_MS);
    if (lease) {
      const { generator, lowMs } = lease;
      const highMs = await parts.renew(signal, generator);
      if (highMs !== undefined) {
        lease = { generator, lowMs, highMs };
        return;
      }
      lease = undefined;
    }
    const claimed = await parts.claim(signal);
    if (!claimed) {
      parts.leaseFailed('none_free');
      return;
    }
    // Another number may be lower than the last one: rise in the millisecond, so that this mint's IDs keep rising.
    lease = { ...claimed, lowMs: Math.max(claimed.lowMs, lastMs + 1) };
  }

  function refuse(why: MintRefusal, cause?: unknown): TributaryError {
    parts.refused(why);
    return new TributaryError('ID_LEASE_UNAVAILABLE', {
      message: `no post ID can be minted now: ${why}`,
      retryAfterMs: 500,
      cause,
    });
  }

  async function leaseFor(signal: AbortSignal): Promise<Lease> {
    if (!lease || clock.nowMs() >= lease.highMs) {
      try {
        await untilAborted(obtain(), signal);
      } catch (error) {
        if (signal.aborted) throw error;
        throw refuse('no_lease', error);
      }
      if (!lease) throw refuse('no_lease');
      if (clock.nowMs() >= lease.highMs) throw refuse('clock_ahead');
    } else if (lease.highMs - clock.nowMs() < RENEW_AHEAD_MS) {
      // Failure is counted and leaves the lease as it is: the next mint tries again, and refuses only once the lease has run out.
      obtain().catch(() => undefined);
    }
    return lease;
  }

  return async function mintPostId(signal: AbortSignal): Promise<PostId> {
    for (let round = 0; round < ROUNDS_MAX; round += 1) {
      const held = await leaseFor(signal);
      const nowMs = clock.nowMs();
      const earliestMs = Math.max(lastMs, held.lowMs);
      if (nowMs >= held.highMs) continue;
      if (nowMs > lastMs && nowMs >= held.lowMs) {
        lastMs = nowMs;
        sequence = 0;
        return composePostId({ ms: lastMs, generator: held.generator, sequence });
      }
      if (nowMs === lastMs && nowMs >= held.lowMs && sequence + 1 < SEQUENCE_COUNT) {
        sequence += 1;
        return composePostId({ ms: lastMs, generator: held.generator, sequence });
      }
      const behindMs = Math.max(0, earliestMs - nowMs);
      if (behindMs > BEHIND_MAX_MS) break;
      await pause(signal, Math.max(1, behindMs));
    }
    throw refuse('clock_behind');
  };
}
