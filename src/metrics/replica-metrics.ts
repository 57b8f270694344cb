/** Owns the measures of the replica of Postgres: what was read there, why not, and how far it is behind. */
import { Counter, Gauge, type Registry } from 'prom-client';

/** Where a snapshot was read; the primary with the reason for which it was not the replica. */
export const SNAPSHOT_SOURCES = [
  'replica',
  'primary_away',
  'primary_lagging',
  'primary_foreign',
  'primary_failed',
] as const;
export type SnapshotSource = (typeof SNAPSHOT_SOURCES)[number];

export interface ReplicaMetrics {
  /** A snapshot was read, where a replica is configured. */
  snapshotRead(from: SnapshotSource): void;
  /** How far the replica is behind, in seconds; undefined where that is not known. */
  replicaLag(seconds: number | undefined): void;
}

export function replicaMetrics(registry: Registry): ReplicaMetrics {
  const registers = [registry];
  const reads = new Counter({
    name: 'tributary_snapshot_reads_total',
    help: 'Snapshots for rebuilds and the reconciler read where a replica of Postgres is configured, by where, and for the primary by why.',
    labelNames: ['from'],
    registers,
  });
  let lagSeconds: number | undefined;
  new Gauge({
    name: 'tributary_replica_lag_seconds',
    help: 'How far the replica of Postgres is behind its primary; no value where that is not known.',
    registers,
    collect() {
      this.reset();
      if (lagSeconds === undefined) this.remove();
      else this.set(lagSeconds);
    },
  });
  return {
    snapshotRead: (from) => reads.inc({ from }),
    replicaLag(seconds) {
      lagSeconds = seconds;
    },
  };
}
