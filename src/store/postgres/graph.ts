/**
 * Owns the edges between users: follows, blocks, mutes. One verb per function; each answers whether a row really changed, because counters
 * and events follow real changes only: what starts or ends a follow appends both in the same statement. A follow row is never removed: its version
 * rises with every change, so that late work can tell the past from the present.
 */
import type { TenantId, UserId } from '../../timeline/ids.ts';
import type { Database, Statement, Transaction } from './client.ts';

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

const STANDING: Statement = {
  name: 'graph-standing',
  text: `SELECT other AS followee_id, coalesce(f.version, 0) AS version, f.version IS NOT NULL AND f.ended_at IS NULL AS active,
    EXISTS (SELECT 1 FROM blocks WHERE tenant_id = $1 AND blocker_id = $2 AND blocked_id = other)
      OR EXISTS (SELECT 1 FROM blocks WHERE tenant_id = $1 AND blocker_id = other AND blocked_id = $2) AS blocked,
    counted.follows
  FROM unnest($3::text[]) AS other
  LEFT JOIN follows f ON f.tenant_id = $1 AND f.follower_id = $2 AND f.followee_id = other
  CROSS JOIN (
    SELECT count(*)::int AS follows FROM (
      SELECT 1 FROM follows WHERE tenant_id = $1 AND follower_id = $2 AND ended_at IS NULL LIMIT $4
    ) AS upto
  ) AS counted`,
};

/** How a user stands to others whom they ask to follow. */
export interface Standing {
  /** How many authors the user follows now, counted up to the bound asked for. */
  readonly follows: number;
  /** Those of them who were ever followed, and those whom a block in either direction parts from the user. */
  readonly known: ReadonlyMap<UserId, FollowState>;
  readonly blocked: ReadonlySet<UserId>;
}

export interface FollowState {
  readonly version: number;
  readonly active: boolean;
}

/** All that a follow is decided by, in one look; `others` is not empty. Under `lockFollows` it holds until the end of the transaction. */
export async function loadStanding(
  transaction: Transaction,
  input: {
    readonly tenant: TenantId;
    readonly user: UserId;
    readonly others: readonly UserId[];
    readonly countMax: number;
  },
): Promise<Standing> {
  const rows = await transaction.query<StateRow & { readonly blocked: boolean; readonly follows: number }>(STANDING, [
    input.tenant,
    input.user,
    input.others,
    input.countMax,
  ]);
  return {
    follows: rows[0]?.follows ?? 0,
    known: statesFrom(rows.filter((row) => row.version > 0)),
    blocked: new Set(rows.filter((row) => row.blocked).map((row) => row.followee_id as UserId)),
  };
}

const STATES: Statement = {
  name: 'graph-follow-states',
  text: `SELECT followee_id, version, ended_at IS NULL AS active FROM follows
  WHERE tenant_id = $1 AND follower_id = $2 AND followee_id = ANY ($3::text[])`,
};

interface StateRow {
  readonly followee_id: string;
  readonly version: number;
  readonly active: boolean;
}

/** The truth now about follows of one user; whom they never followed is not in the answer. */
export async function loadFollowStates(
  database: Database,
  signal: AbortSignal,
  input: { readonly tenant: TenantId; readonly follower: UserId; readonly followees: readonly UserId[] },
): Promise<ReadonlyMap<UserId, FollowState>> {
  if (input.followees.length === 0) return new Map();
  return statesFrom(await database.query<StateRow>(signal, STATES, [input.tenant, input.follower, input.followees]));
}

function statesFrom(rows: readonly StateRow[]): ReadonlyMap<UserId, FollowState> {
  return new Map(rows.map(({ followee_id, version, active }) => [followee_id as UserId, { version, active }]));
}

/** Tells of the rows of a CTE `changed (followee_id, version)`, with the versions by which handlers tell an event that was overtaken. */
const TELL = `INSERT INTO outbox (tenant_id, kind, payload)
  SELECT $1, 'follows_changed', jsonb_build_object('followerId', $2::text,
    'followeeIds', jsonb_agg(followee_id ORDER BY followee_id), 'versions', jsonb_agg(version::text ORDER BY followee_id))
  FROM changed HAVING count(*) > 0`;

const START: Statement = {
  name: 'graph-follow',
  text: `WITH changed AS (
    INSERT INTO follows AS f (tenant_id, follower_id, followee_id) SELECT $1, $2, followee FROM unnest($3::text[]) AS followee ORDER BY followee
    ON CONFLICT (tenant_id, follower_id, followee_id)
      DO UPDATE SET version = f.version + 1, started_at = now(), ended_at = NULL, cleaned_at = NULL WHERE f.ended_at IS NOT NULL
    RETURNING followee_id, version
  ),
  counted AS (
    INSERT INTO counter_deltas (tenant_id, counter, author_id, delta) SELECT $1, 'followers', followee_id, 1 FROM changed
  ),
  told AS (${TELL})
  SELECT followee_id, version FROM changed`,
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
  text: `WITH changed AS (
    UPDATE follows SET version = version + 1, ended_at = now()
    WHERE tenant_id = $1 AND follower_id = $2 AND followee_id = $3 AND ended_at IS NULL
    RETURNING followee_id, version
  ),
  counted AS (
    INSERT INTO counter_deltas (tenant_id, counter, author_id, delta) SELECT $1, 'followers', followee_id, -1 FROM changed
  ),
  told AS (${TELL})
  SELECT version FROM changed`,
};

/** Ends a follow; answers its new version, or undefined where none was running. */
export async function endFollow(transaction: Transaction, pair: Pair): Promise<number | undefined> {
  const [row] = await transaction.query<{ readonly version: number }>(END, [pair.tenant, pair.from, pair.to]);
  return row?.version;
}

/** The same in one round trip. Needs no `lockFollows`: the row's own lock is enough, and one follow less passes no limit. */
export async function endOneFollow(database: Database, signal: AbortSignal, pair: Pair): Promise<number | undefined> {
  const [row] = await database.query<{ readonly version: number }>(signal, END, [pair.tenant, pair.from, pair.to]);
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
