/** Owns the measures of the reconciler: what it looked at, what it found, what it did about it. */
import { Counter, type Registry } from 'prom-client';

export interface ReconcileMetrics {
  timelineReconciled(result: 'true' | 'drifted' | 'unsettled' | 'failed'): void;
  driftFound(drift: { readonly missing: number; readonly foreign: number }): void;
  driftRepaired(how: 'added' | 'removed' | 'rebuilt'): void;
}

export function reconcileMetrics(registry: Registry): ReconcileMetrics {
  const registers = [registry];
  const timelines = new Counter({
    name: 'tributary_reconciled_timelines_total',
    help: 'Resident timelines compared with Postgres, by result.',
    labelNames: ['result'],
    registers,
  });
  const entries = new Counter({
    name: 'tributary_drift_entries_total',
    help: 'Entries that were missing from timelines, or foreign to them, with nothing under way that explains it.',
    labelNames: ['kind'],
    registers,
  });
  // Zero from the start: a series that begins with its first find shows no rise.
  for (const kind of ['missing', 'foreign']) entries.inc({ kind }, 0);
  const repairs = new Counter({
    name: 'tributary_drift_repairs_total',
    help: 'Repairs of timelines that had drifted, by how.',
    labelNames: ['how'],
    registers,
  });
  return {
    timelineReconciled: (result) => timelines.inc({ result }),
    driftFound({ missing, foreign }) {
      if (missing > 0) entries.inc({ kind: 'missing' }, missing);
      if (foreign > 0) entries.inc({ kind: 'foreign' }, foreign);
    },
    driftRepaired: (how) => repairs.inc({ how }),
  };
}
