/** Owns the measures of Postgres' pools and of the leased generators of post IDs. */
import { Counter, Gauge, type Registry } from 'prom-client';

export interface PoolLoad {
  readonly total: number;
  readonly idle: number;
  readonly waiting: number;
}

/** Why no ID was minted: the clock stands behind the last ID, ahead of the lease, or there is no lease. */
export const MINT_REFUSALS = ['clock_behind', 'clock_ahead', 'no_lease'] as const;
export type MintRefusal = (typeof MINT_REFUSALS)[number];

/** Why a lease was neither taken nor renewed: Postgres did not do it in time, or all generators are held. */
export const LEASE_FAILURES = ['no_answer', 'none_free'] as const;
export type LeaseFailure = (typeof LEASE_FAILURES)[number];

export interface DatabaseMetrics {
  /** A connection was lost, or could not be used again. */
  databaseClientError(pool: string): void;
  /** A statement was asked to stop since its caller had left or its deadline had passed. */
  databaseCancelled(pool: string): void;
  /** Hands over what the gauges of one pool read at each scrape; a second call for the same pool takes the place of the first. */
  databasePool(pool: string, read: () => PoolLoad): void;
  /** A generator's lease ended before it was renewed. */
  idLeaseLost(): void;
  /** A lease could not be had; while the one that is held lasts, posts are published all the same. */
  idLeaseFailed(why: LeaseFailure): void;
  idMintRefused(reason: MintRefusal): void;
}

export function databaseMetrics(registry: Registry): DatabaseMetrics {
  const registers = [registry];
  const errors = new Counter({
    name: 'tributary_database_client_errors_total',
    help: 'Connections to Postgres that were lost or could not be used again, by pool.',
    labelNames: ['pool'],
    registers,
  });
  const cancelled = new Counter({
    name: 'tributary_database_cancelled_statements_total',
    help: 'Statements asked to stop because nobody waited for them any more, by pool.',
    labelNames: ['pool'],
    registers,
  });
  const loads = new Map<string, () => PoolLoad>();
  new Gauge({
    name: 'tributary_database_connections',
    help: 'Connections of a pool to Postgres, by state (busy, idle).',
    labelNames: ['pool', 'state'],
    registers,
    collect() {
      for (const [pool, read] of loads) {
        const { total, idle } = read();
        this.set({ pool, state: 'busy' }, total - idle);
        this.set({ pool, state: 'idle' }, idle);
      }
    },
  });
  new Gauge({
    name: 'tributary_database_waiting_callers',
    help: 'Callers that wait for a connection of a pool.',
    labelNames: ['pool'],
    registers,
    collect() {
      for (const [pool, read] of loads) this.set({ pool }, read().waiting);
    },
  });
  const leasesLost = new Counter({
    name: 'tributary_id_leases_lost_total',
    help: 'Leases of a generator of post IDs that ended before they were renewed.',
    registers,
  });
  const leasesFailed = new Counter({
    name: 'tributary_id_lease_failures_total',
    help: 'Attempts to take or to renew the lease of a generator of post IDs that failed, by why (no_answer: Postgres did not do it in time; none_free: all are held).',
    labelNames: ['why'],
    registers,
  });
  const mintsRefused = new Counter({
    name: 'tributary_id_mints_refused_total',
    help: 'Post IDs not minted because that would not have been safe, by reason.',
    labelNames: ['reason'],
    registers,
  });
  // Zero from the start: a series that begins with its first event shows no rise.
  for (const why of LEASE_FAILURES) leasesFailed.inc({ why }, 0);
  for (const reason of MINT_REFUSALS) mintsRefused.inc({ reason }, 0);
  return {
    databaseClientError: (pool) => errors.inc({ pool }),
    databaseCancelled: (pool) => cancelled.inc({ pool }),
    databasePool(pool, read) {
      loads.set(pool, read);
    },
    idLeaseLost: () => leasesLost.inc(),
    idLeaseFailed: (why) => leasesFailed.inc({ why }),
    idMintRefused: (reason) => mintsRefused.inc({ reason }),
  };
}
