/** Owns the statements that look after the database as a whole: the probe behind readiness, and the removal of what is past its retention. */
import type { Database, Statement } from './client.ts';

const PROBE: Statement = { name: 'probe', text: 'SELECT NOT pg_is_in_recovery() AS writable' };

/** Whether the database answers and takes writes; throws where it does not answer. */
export async function probe(database: Database, signal: AbortSignal): Promise<boolean> {
  const [row] = await database.query<{ readonly writable: boolean }>(signal, PROBE, []);
  return row?.writable ?? false;
}

const EXPIRE_REQUESTS: Statement = {
  name: 'publish-requests-expire',
  text: `DELETE FROM publish_requests WHERE (tenant_id, request_id) IN (
    SELECT tenant_id, request_id FROM publish_requests WHERE created_at < now() - make_interval(hours => $1) ORDER BY created_at LIMIT $2
    FOR UPDATE SKIP LOCKED
  ) RETURNING 1 AS removed`,
};

/** Removes at most `most` request rows older than `hours`; answers how many. */
export async function expirePublishRequests(
  database: Database,
  signal: AbortSignal,
  input: { readonly hours: number; readonly most: number },
): Promise<number> {
  return (await database.query(signal, EXPIRE_REQUESTS, [input.hours, input.most])).length;
}
