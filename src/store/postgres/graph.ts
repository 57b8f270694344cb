/**
 * Owns the edges between users: follows, blocks, mutes. One verb per function; each answers whether a row really changed, because counters
 * and events follow real changes only. A follow row is never removed: its version rises with every change, so that late work can tell the past
 * from the present.
 */
import type { TenantId, UserId } from '../../timeline/ids.ts';
import type { Statement, Transaction } from './client.ts';

export interface Pair {
  readonly tenant: TenantId;
  readonly from: UserId;
  readonly to: UserId;
}

const FOLLOWS_KEY = (user: string) => `hashtextextended(${user} || ' ' || $1, 0)`;

const LOCK_FOLLOWS: Statement = {
  name: 'graph-lock-follows',
  text: `SELECT pg_advisory_xact_lock(${FOLLOWS_KEY('$2')})`,
};

/**
 * Makes changes of what one user follows wait for each other, so that their number can be counted on. One lock, however many authors a batch
 * names: a lock for each of them would fill the server's lock table, which all transactions share.
 */
export async function lockFollows(
  transaction: Transaction,
  input: { readonly tenant: TenantId; readonly follower: UserId },
): Promise<void> {
  await transaction.query(LOCK_FOLLOWS, [input.tenant, input.follower]);
}

const HOLD_FOLLOWS: Statement = {
  name: 'graph-hold-follows',
  text: `SELECT pg_advisory_xact_lock_shared(key) FROM (
    SELECT ${FOLLOWS_KEY('held')} AS key FROM unnest(ARRAY[$2, $3]) AS held ORDER BY 1
  ) AS keys`,
};

/**
 * Keeps both users' follows from changing, since a follow must see a block that another transaction is about to commit. Shared, so that many can
 * block one user at once; taken in one order, so that two blocks cannot lock each other up.
 */
export async function holdFollows(transaction: Transaction, pair: Pair): Promise<void> {
  await transaction.query(HOLD_FOLLOWS, [pair.tenant, pair.from, pair.to]);
}

const BLOCKED: Statement = {
  name: 'graph-blocked',
  text: `SELECT other AS user_id FROM unnest($3::text[]) AS other
  WHERE EXISTS (SELECT 1 FROM blocks WHERE tenant_id = $1 AND blocker_id = $2 AND blocked_id = other)
     OR EXISTS (SELECT 1 FROM blocks WHERE tenant_id = $1 AND blocker_id = other AND blocked_id = $2)`,
};

/** Those of `others` whom a block in either direction parts from the user. */
export async function findBlocked(
  transaction: Transaction,
  input: { readonly tenant: TenantId; readonly user: UserId; readonly others: readonly UserId[] },
): Promise<ReadonlySet<UserId>> {
  const rows = await transaction.query<{ readonly user_id: string }>(BLOCKED, [input.tenant, input.user, input.others]);
  return new Set(rows.map((row) => row.user_id as UserId));
}

const FOLLOWED: Statement = {
  name: 'graph-followed',
  text: `SELECT followee_id, version, ended_at IS NULL AS active FROM follows
  WHERE tenant_id = $1 AND follower_id = $2 AND followee_id = ANY ($3::text[])`,
};

export interface FollowRow {
  readonly followee: UserId;
  readonly version: number;
  readonly active: boolean;
}

export async function findFollows(
  transaction: Transaction,
  input: { readonly tenant: TenantId; readonly follower: UserId; readonly followees: readonly UserId[] },
): Promise<ReadonlyMap<UserId, FollowRow>> {
  const rows = await transaction.query<{
    readonly followee_id: string;
    readonly version: number;
    readonly active: boolean;
  }>(FOLLOWED, [input.tenant, input.follower, input.followees]);
  return new Map(
    rows.map((row) => [
      row.followee_id as UserId,
      { followee: row.followee_id as UserId, version: row.version, active: row.active },
    ]),
  );
}

const COUNT: Statement = {
  name: 'graph-follow-count',
  text: `SELECT count(*)::int AS follows FROM (
    SELECT 1 FROM follows WHERE tenant_id = $1 AND follower_id = $2 AND ended_at IS NULL LIMIT $3
  ) AS counted`,
};

/** How many authors the user follows now, counted up to `most`. */
export async function countFollows(
  transaction: Transaction,
  input: { readonly tenant: TenantId; readonly follower: UserId; readonly most: number },
): Promise<number> {
  const [row] = await transaction.query<{ readonly follows: number }>(COUNT, [
    input.tenant,
    input.follower,
    input.most,
  ]);
  return row?.follows ?? 0;
}

const START: Statement = {
  name: 'graph-follow',
  text: `WITH started AS (
    INSERT INTO follows AS f (tenant_id, follower_id, followee_id) SELECT $1, $2, followee FROM unnest($3::text[]) AS followee ORDER BY followee
    ON CONFLICT (tenant_id, follower_id, followee_id)
      DO UPDATE SET version = f.version + 1, started_at = now(), ended_at = NULL, cleaned_at = NULL WHERE f.ended_at IS NOT NULL
    RETURNING followee_id, version
  ),
  counted AS (
    INSERT INTO counter_deltas (tenant_id, counter, author_id, delta) SELECT $1, 'followers', followee_id, 1 FROM started
  )
  SELECT followee_id, version FROM started`,
};

/** Starts follows that are not running; answers the new versions of those that really started. */
export async function startFollows(
  transaction: Transaction,
  input: { readonly tenant: TenantId; readonly follower: UserId; readonly followees: readonly UserId[] },
): Promise<ReadonlyMap<UserId, number>> {
  const rows = await transaction.query<{ readonly followee_id: string; readonly version: number }>(START, [
    input.tenant,
    input.follower,
    input.followees,
  ]);
  return new Map(rows.map((row) => [row.followee_id as UserId, row.version]));
}

const END: Statement = {
  name: 'graph-unfollow',
  text: `WITH ended AS (
    UPDATE follows SET version = version + 1, ended_at = now()
    WHERE tenant_id = $1 AND follower_id = $2 AND followee_id = $3 AND ended_at IS NULL
    RETURNING version
  ),
  counted AS (
    INSERT INTO counter_deltas (tenant_id, counter, author_id, delta) SELECT $1, 'followers', $3, -1 FROM ended
  )
  SELECT version FROM ended`,
};

/** Ends a follow; answers its new version, or undefined where none was running. */
export async function endFollow(transaction: Transaction, pair: Pair): Promise<number | undefined> {
  const [row] = await transaction.query<{ readonly version: number }>(END, [pair.tenant, pair.from, pair.to]);
  return row?.version;
}

const BLOCK: Statement = {
  name: 'graph-block',
  text: 'INSERT INTO blocks (tenant_id, blocker_id, blocked_id) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING RETURNING 1 AS changed',
};

export async function insertBlock(transaction: Transaction, pair: Pair): Promise<boolean> {
  return (await transaction.query(BLOCK, [pair.tenant, pair.from, pair.to])).length > 0;
}

const UNBLOCK: Statement = {
  name: 'graph-unblock',
  text: 'DELETE FROM blocks WHERE tenant_id = $1 AND blocker_id = $2 AND blocked_id = $3 RETURNING 1 AS changed',
};

export async function deleteBlock(transaction: Transaction, pair: Pair): Promise<boolean> {
  return (await transaction.query(UNBLOCK, [pair.tenant, pair.from, pair.to])).length > 0;
}

const MUTE: Statement = {
  name: 'graph-mute',
  text: `INSERT INTO mutes AS m (tenant_id, muter_id, muted_id, until) VALUES ($1, $2, $3, to_timestamp($4::float8 / 1000))
  ON CONFLICT (tenant_id, muter_id, muted_id) DO UPDATE SET until = excluded.until WHERE m.until IS DISTINCT FROM excluded.until
  RETURNING 1 AS changed`,
};

/** `untilMs`: end in milliseconds since the Unix epoch; absent for none. */
export async function upsertMute(
  transaction: Transaction,
  pair: Pair & { readonly untilMs?: number },
): Promise<boolean> {
  return (await transaction.query(MUTE, [pair.tenant, pair.from, pair.to, pair.untilMs ?? null])).length > 0;
}

const UNMUTE: Statement = {
  name: 'graph-unmute',
  text: 'DELETE FROM mutes WHERE tenant_id = $1 AND muter_id = $2 AND muted_id = $3 RETURNING 1 AS changed',
};

export async function deleteMute(transaction: Transaction, pair: Pair): Promise<boolean> {
  return (await transaction.query(UNMUTE, [pair.tenant, pair.from, pair.to])).length > 0;
}
