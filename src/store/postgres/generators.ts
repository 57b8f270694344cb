/**
 * Owns the leases of ID generators. A lease is a promise, by Postgres' clock, that nobody else mints with this number below `highMs`; the
 * next holder starts at the `highMs` of the one before. high_ms only rises, whatever any clock does.
 */
import type { Database, Statement } from './client.ts';

export interface GeneratorLease {
  readonly generator: number;
  /** First millisecond since the Unix epoch that this lease may mint in. */
  readonly lowMs: number;
  /** First millisecond that it may not mint in. */
  readonly highMs: number;
}

/** How far ahead of Postgres' clock a lease reaches. */
export const LEASE_MS = 10_000;

const NOW_MS = 'floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint';

/** The free number whose promise ended longest ago: a clock that is behind has the best chance to be past that. */
const CLAIM: Statement = {
  name: 'generator-claim',
  text: `WITH free AS MATERIALIZED (
    SELECT generator, high_ms FROM generators WHERE high_ms <= ${NOW_MS} ORDER BY high_ms, generator LIMIT 1 FOR UPDATE SKIP LOCKED
  )
  UPDATE generators g SET holder = $1, high_ms = ${NOW_MS} + $2::bigint FROM free WHERE g.generator = free.generator
  RETURNING g.generator::int AS generator, free.high_ms AS low_ms, g.high_ms`,
};

interface LeaseRow {
  readonly generator: number;
  readonly low_ms: number;
  readonly high_ms: number;
}

/** A lease of a free generator, or undefined where all 120 are held. */
export async function claimGenerator(
  database: Database,
  signal: AbortSignal,
  holder: string,
): Promise<GeneratorLease | undefined> {
  const [row] = await database.query<LeaseRow>(signal, CLAIM, [holder, LEASE_MS]);
  return row && { generator: row.generator, lowMs: row.low_ms, highMs: row.high_ms };
}

const RENEW: Statement = {
  name: 'generator-renew',
  text: `UPDATE generators SET high_ms = greatest(high_ms, ${NOW_MS} + $3::bigint) WHERE generator = $1 AND holder = $2 RETURNING high_ms`,
};

/** The new `highMs`, or undefined where somebody else holds the number now. */
export async function renewGenerator(
  database: Database,
  signal: AbortSignal,
  holder: string,
  generator: number,
): Promise<number | undefined> {
  const [row] = await database.query<{ readonly high_ms: number }>(signal, RENEW, [generator, holder, LEASE_MS]);
  return row?.high_ms;
}
