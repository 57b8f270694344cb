/**
 * Owns the way of outbox events to those who act on them. Every event is handled at least once, in no promised order; what fails is tried again for ever, ever more seldom, and
 * holds nothing else up. Handlers must be idempotent.
 */
import { type Random, withGrace } from '../runtime.ts';
import type { EventKind, OutboxEvent } from '../store/postgres/outbox.ts';
import { throttled } from './throttled.ts';

export interface OutboxRelayParts {
  readonly claimEvents: (
    signal: AbortSignal,
    input: { readonly most: number; readonly leaseMs: number },
  ) => Promise<readonly OutboxEvent[]>;
  readonly finishEvents: (signal: AbortSignal, eventIds: readonly number[]) => Promise<void>;
  readonly releaseEvents: (
    signal: AbortSignal,
    events: readonly { readonly eventId: number; readonly retryInMs: number }[],
  ) => Promise<void>;
  /** Does what the event asks for, whatever was done before; rejects where it must be done again. */
  readonly handle: (signal: AbortSignal, event: OutboxEvent) => Promise<void>;
  readonly loadOldestEventSeconds: (signal: AbortSignal) => Promise<number>;
  readonly monotonicMs: () => number;
  readonly random: Random;
  readonly events: OutboxRelayEvents;
}

export interface OutboxRelayEvents {
  /** `seconds`: from the change to now, by Postgres' clock up to the claim. */
  eventHandled(event: {
    readonly kind: EventKind;
    readonly outcome: 'done' | 'failed';
    readonly seconds: number;
  }): void;
  eventFailed(event: OutboxEvent, error: unknown): void;
  /** Age of the oldest event that is not handled yet; 0 where there is none. */
  relayLag(seconds: number): void;
}

/** Events of one round. */
const BATCH_MAX = 100;
/** Handlers at work at once. */
const CONCURRENCY_MAX = 8;
/** Longest wait for one handler. */
const HANDLE_MAX_MS = 2_000;
/** Longer than a round can take: 100 events, 8 at once, 2 s each. */
const LEASE_MS = 30_000;
/** Pause before an event is due again, in milliseconds: doubled with every attempt up to the bound, half of it jitter. */
const RETRY_BASE_MS = 200;
const RETRY_MAX_MS = 60_000;
/** What a claim may still take when the process is told to stop, in milliseconds: its events are then given back. */
const CLAIM_GRACE_MS = 1_000;
/** Giving events back must work after an abort too. */
const GIVE_BACK_MS = 2_000;
const LAG_EVERY_MS = 1_000;

/** One batch; answers whether there is probably more. */
export function createOutboxRelay(parts: OutboxRelayParts): (signal: AbortSignal) => Promise<boolean> {
  const refreshLag = throttled({ everyMs: LAG_EVERY_MS, monotonicMs: parts.monotonicMs }, async (signal) => {
    parts.events.relayLag(await parts.loadOldestEventSeconds(signal));
  });

  return async function runOnce(signal) {
    const claimed = await withGrace(signal, CLAIM_GRACE_MS, (of) =>
      parts.claimEvents(of, { most: BATCH_MAX, leaseMs: LEASE_MS }),
    );
    const claimedMs = parts.monotonicMs();
    const done: number[] = [];
    const failed: { readonly eventId: number; readonly retryInMs: number }[] = [];
    const waiting = claimed.values();

    async function handleInTurn(): Promise<void> {
      for (const event of waiting) {
        if (await handled(signal, event, claimedMs)) done.push(event.eventId);
        else failed.push({ eventId: event.eventId, retryInMs: signal.aborted ? 0 : retryInMs(event.attempts) });
      }
    }
    await Promise.all(Array.from({ length: CONCURRENCY_MAX }, handleInTurn));

    // Not under the round's signal: what was done is done, also when the process is told to stop meanwhile.
    const giveBack = AbortSignal.timeout(GIVE_BACK_MS);
    await Promise.all([parts.finishEvents(giveBack, done), parts.releaseEvents(giveBack, failed)]);
    await refreshLag(signal);
    return claimed.length === BATCH_MAX && !signal.aborted;
  };

  async function handled(signal: AbortSignal, event: OutboxEvent, claimedMs: number): Promise<boolean> {
    const seconds = (): number => event.ageSeconds + (parts.monotonicMs() - claimedMs) / 1_000;
    if (signal.aborted) return false;
    try {
      await parts.handle(AbortSignal.any([signal, AbortSignal.timeout(HANDLE_MAX_MS)]), event);
      parts.events.eventHandled({ kind: event.kind, outcome: 'done', seconds: seconds() });
      return true;
    } catch (error) {
      // No fault of the event's: the round is over, or the process was told to stop. It is given back, and due at once.
      if (signal.aborted) return false;
      parts.events.eventHandled({ kind: event.kind, outcome: 'failed', seconds: seconds() });
      parts.events.eventFailed(event, error);
      return false;
    }
  }

  function retryInMs(attempts: number): number {
    const most = Math.min(RETRY_MAX_MS, RETRY_BASE_MS * 2 ** Math.min(attempts - 1, 20));
    return most * (0.5 + parts.random.fraction() / 2);
  }
}
