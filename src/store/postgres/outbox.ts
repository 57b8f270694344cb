/**
 * Owns the events for everybody else: cache deletions, the downstream stream. An event is appended in the transaction that it tells of, and
 * will be claimed row by row, never by "greater than last seen": sequence order is not commit order.
 */
import type { TenantId } from '../../timeline/ids.ts';
import type { Statement, Transaction } from './client.ts';

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
    readonly payload: Readonly<Record<string, string | readonly string[]>>;
  },
): Promise<void> {
  await transaction.query(APPEND, [event.tenant, event.kind, JSON.stringify(event.payload)]);
}
