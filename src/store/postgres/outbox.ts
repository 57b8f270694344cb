/**
 * Owns the events for everybody else: cache deletions, the downstream stream. An event is appended in the transaction that it tells of, and
 * claimed row by row, never by "greater than last seen": sequence order is not commit order, so an event that commits late is met all the same.
 * A claim is a lease: what nobody finished within it is claimed again, so every event is handled at least once, in no promised order.
 */
import type { TenantId } from '../../timeline/ids.ts';
import type { Database, Statement, Transaction } from './client.ts';

export const EVENT_KINDS = [
  'post_published',
  'post_changed',
  'post_deleted',
  'author_changed',
  'follows_changed',
  'block_changed',
  'mute_changed',
] as const;
export type EventKind = (typeof EVENT_KINDS)[number];

export type EventPayload = Readonly<Record<string, string | readonly string[]>>;

const APPEND: Statement = {
  name: 'outbox-append',
  text: 'INSERT INTO outbox (tenant_id, kind, payload) VALUES ($1, $2, $3::jsonb)',
};

/** `payload` holds IDs only, as strings: a number of 53 bits must survive readers that are not ours. */
export async function appendEvent(
  transaction: Transaction,
  event: {
    readonly tenant: TenantId;
    readonly kind: EventKind;
    readonly payload: EventPayload;
  },
): Promise<void> {
  await transaction.query(APPEND, [event.tenant, event.kind, JSON.stringify(event.payload)]);
}

/** An event as it was claimed. */
export interface OutboxEvent {
  readonly eventId: number;
  readonly tenant: TenantId;
  readonly kind: EventKind;
  readonly payload: EventPayload;
  /** How often it was claimed, this time included. */
  readonly attempts: number;
  /** From the append to this claim, by Postgres' clock. */
  readonly ageSeconds: number;
}

/**
 * Walks the index of open events from its start, passing over those that somebody holds: in an outage of what handles them, all of them wait out
 * their back-off there, which costs a scan but no wait.
 */
const CLAIM: Statement = {
  name: 'outbox-claim',
  text: `WITH due AS MATERIALIZED (
    SELECT event_id FROM outbox WHERE done_at IS NULL AND (lease_until IS NULL OR lease_until < now())
    ORDER BY event_id LIMIT $1 FOR UPDATE SKIP LOCKED
  )
  UPDATE outbox o SET lease_until = clock_timestamp() + $2::float8 * interval '1 millisecond', attempts = attempts + 1
  FROM due WHERE o.event_id = due.event_id
  RETURNING o.event_id, o.tenant_id, o.kind, o.payload, o.attempts,
    greatest(0, extract(epoch FROM clock_timestamp() - o.created_at))::float8 AS age_seconds`,
};

interface EventRow {
  readonly event_id: number;
  readonly tenant_id: string;
  readonly kind: EventKind;
  readonly payload: EventPayload;
  readonly attempts: number;
  readonly age_seconds: number;
}

/** At most `most` open events that nobody holds, oldest first; nobody else is given them for `leaseMs`. */
export async function claimEvents(
  database: Database,
  signal: AbortSignal,
  input: { readonly most: number; readonly leaseMs: number },
): Promise<readonly OutboxEvent[]> {
  const rows = await database.query<EventRow>(signal, CLAIM, [input.most, input.leaseMs]);
  const events = rows.map((row) => ({
    eventId: row.event_id,
    tenant: row.tenant_id as TenantId,
    kind: row.kind,
    payload: row.payload,
    attempts: row.attempts,
    ageSeconds: row.age_seconds,
  }));
  return events.sort((a, b) => a.eventId - b.eventId);
}

const FINISH: Statement = {
  name: 'outbox-finish',
  text: `UPDATE outbox SET done_at = clock_timestamp(), lease_until = NULL WHERE event_id = ANY ($1::bigint[]) AND done_at IS NULL`,
};

/** Marks events handled, for ever. */
export async function finishEvents(
  database: Database,
  signal: AbortSignal,
  eventIds: readonly number[],
): Promise<void> {
  if (eventIds.length > 0) await database.query(signal, FINISH, [eventIds]);
}

const RELEASE: Statement = {
  name: 'outbox-release',
  text: `UPDATE outbox o SET lease_until = clock_timestamp() + r.retry_in_ms * interval '1 millisecond'
  FROM unnest($1::bigint[], $2::float8[]) AS r (event_id, retry_in_ms) WHERE o.event_id = r.event_id AND o.done_at IS NULL`,
};

/** Gives back events that could not be handled: each is due again after its own pause. */
export async function releaseEvents(
  database: Database,
  signal: AbortSignal,
  events: readonly { readonly eventId: number; readonly retryInMs: number }[],
): Promise<void> {
  if (events.length === 0) return;
  await database.query(signal, RELEASE, [events.map((event) => event.eventId), events.map((event) => event.retryInMs)]);
}

const OLDEST: Statement = {
  name: 'outbox-oldest',
  text: `SELECT greatest(0, extract(epoch FROM clock_timestamp() - created_at))::float8 AS age_seconds
  FROM outbox WHERE done_at IS NULL ORDER BY event_id LIMIT 1`,
};

/** Age of the oldest event that is not handled yet; 0 where there is none. */
export async function loadOldestEventSeconds(database: Database, signal: AbortSignal): Promise<number> {
  const [row] = await database.query<{ readonly age_seconds: number }>(signal, OLDEST, []);
  return row?.age_seconds ?? 0;
}

const REMOVE_DONE: Statement = {
  name: 'outbox-remove-done',
  text: `DELETE FROM outbox WHERE event_id IN (
    SELECT event_id FROM outbox WHERE done_at < now() - make_interval(mins => $1) ORDER BY done_at LIMIT $2 FOR UPDATE SKIP LOCKED
  ) RETURNING 1 AS removed`,
};

/** Removes at most `most` events that were handled more than `minutes` ago; answers how many. */
export async function removeDoneEvents(
  database: Database,
  signal: AbortSignal,
  input: { readonly minutes: number; readonly most: number },
): Promise<number> {
  return (await database.query(signal, REMOVE_DONE, [input.minutes, input.most])).length;
}
