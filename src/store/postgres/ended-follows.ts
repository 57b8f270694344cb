/**
 * Owns the queue of ended follows whose entries may still be on a timeline. A row is in it until it is marked clean under the version it was loaded with: a follow that begins anew, and
 * perhaps ends again, is another version, and is never marked by what looked at the one before.
 */
import type { TenantId, UserId } from '../../timeline/ids.ts';
import type { Database, Statement } from './client.ts';

export interface EndedFollow {
  readonly tenant: TenantId;
  readonly follower: UserId;
  readonly followee: UserId;
  readonly version: number;
  /** Names a place in the queue, by Postgres' clock, to the microsecond. */
  readonly endedAt: string;
}

/** Before the first place in the queue. */
export const QUEUE_START = '-infinity';

const LOAD: Statement = {
  name: 'ended-follows-load',
  text: `SELECT tenant_id, follower_id, followee_id, version, ended_at::text FROM follows
  WHERE ended_at IS NOT NULL AND cleaned_at IS NULL AND ended_at > $1::timestamptz AND ended_at < now() - $2::float8 * interval '1 millisecond'
  ORDER BY ended_at LIMIT $3`,
};

/** At most `most` ended follows beyond a place in the queue that ended more than `settledMs` ago, oldest end first. */
export async function loadUncleanedFollows(
  database: Database,
  signal: AbortSignal,
  query: { readonly after: string; readonly settledMs: number; readonly most: number },
): Promise<readonly EndedFollow[]> {
  const rows = await database.query<{
    readonly tenant_id: string;
    readonly follower_id: string;
    readonly followee_id: string;
    readonly version: number;
    readonly ended_at: string;
  }>(signal, LOAD, [query.after, query.settledMs, query.most]);
  return rows.map((row) => ({
    tenant: row.tenant_id as TenantId,
    follower: row.follower_id as UserId,
    followee: row.followee_id as UserId,
    version: row.version,
    endedAt: row.ended_at,
  }));
}

const MARK: Statement = {
  name: 'ended-follows-mark',
  text: `UPDATE follows f SET cleaned_at = now()
  FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[]) AS m (tenant_id, follower_id, followee_id, version)
  WHERE f.tenant_id = m.tenant_id AND f.follower_id = m.follower_id AND f.followee_id = m.followee_id AND f.version = m.version`,
};

/** Takes follows out of the queue, for as long as they stay what they were. */
export async function markFollowsCleaned(
  database: Database,
  signal: AbortSignal,
  follows: readonly Omit<EndedFollow, 'endedAt'>[],
): Promise<void> {
  if (follows.length === 0) return;
  await database.query(signal, MARK, [
    follows.map(({ tenant }) => tenant),
    follows.map(({ follower }) => follower),
    follows.map(({ followee }) => followee),
    follows.map(({ version }) => version),
  ]);
}
