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

const HOLD_FOLLOWS: Statement = {
  name: 'graph-hold-follows',
  text: `SELECT pg_advisory_xact_lock_shared(key) FROM (
    SELECT hashtextextended(held || ' ' || $1, 0) AS key FROM unnest(ARRAY[$2, $3]) AS held ORDER BY 1
  ) AS keys`,
};

/**
 * Keeps both users from starting follows (`start_follows` takes the same lock alone), since a follow must see a block that another transaction is about to commit. Shared, so that many can
 * block one user at once; taken in one order, so that two blocks cannot lock each other up.
 */
export async function holdFollows(transaction: Transaction, pair: Pair): Promise<void> {
  await transaction.query(HOLD_FOLLOWS, [pair.tenant, pair.from, pair.to]);
}

export interface FollowState {
  readonly version: number;
  readonly active: boolean;
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

/** A function of the database: see the migration `follows`. */
const START: Statement = {
  name: 'graph-follow',
  text: 'SELECT followee, relation_version, outcome FROM start_follows($1, $2, $3::text[], $4)',
};

/** `held`: it ran already. `blocked`: either blocks the other. `full`: the follower follows as many as may be. */
export type FollowOutcome = 'started' | 'held' | 'blocked' | 'full';

export interface StartedFollow {
  readonly followee: UserId;
  /** 0 where there never was a relation. */
  readonly version: number;
  readonly outcome: FollowOutcome;
}

/** Starts the follows that may be, as far as there is room, in the order asked for; one answer for each followee. They are different from each other. */
export async function startFollows(
  database: Database,
  signal: AbortSignal,
  input: {
    readonly tenant: TenantId;
    readonly follower: UserId;
    readonly followees: readonly UserId[];
    readonly followsMax: number;
  },
): Promise<readonly StartedFollow[]> {
  const rows = await database.query<{
    readonly followee: string;
    readonly relation_version: number;
    readonly outcome: FollowOutcome;
  }>(signal, START, [input.tenant, input.follower, input.followees, input.followsMax]);
  return rows.map((row) => ({
    followee: row.followee as UserId,
    version: row.relation_version,
    outcome: row.outcome,
  }));
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
  told AS (
    INSERT INTO outbox (tenant_id, kind, payload)
    SELECT $1, 'follows_changed',
      jsonb_build_object('followerId', $2::text, 'followeeIds', jsonb_build_array($3::text), 'versions', jsonb_build_array(version::text))
    FROM changed
  )
  SELECT version FROM changed`,
};

/** Ends a follow; answers its new version, or undefined where none was running. */
export async function endFollow(transaction: Transaction, pair: Pair): Promise<number | undefined> {
  const [row] = await transaction.query<{ readonly version: number }>(END, [pair.tenant, pair.from, pair.to]);
  return row?.version;
}

/** The same in one round trip. Needs no lock but the row's own: one follow less passes no limit, and no block. */
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
