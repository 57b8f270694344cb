/** Owns the dashboard as the tests read it: as much of Grafana's schema as they ask about. */
import { readFileSync } from 'node:fs';
import path from 'node:path';

export interface Panel {
  readonly id: number;
  readonly type: string;
  readonly title: string;
  readonly description?: string;
  readonly datasource?: unknown;
  readonly gridPos: { readonly x: number; readonly y: number; readonly w: number; readonly h: number };
  readonly fieldConfig?: { readonly defaults: { readonly unit?: string } };
  readonly targets?: readonly { readonly expr: string; readonly legendFormat: string; readonly datasource: unknown }[];
}

export interface Dashboard {
  readonly schemaVersion: number;
  readonly templating: { readonly list: readonly unknown[] };
  readonly panels: readonly Panel[];
}

export function readDashboard(): Dashboard {
  const file = path.resolve(import.meta.dirname, '../../src/metrics/dashboard.json');
  return JSON.parse(readFileSync(file, 'utf8')) as Dashboard;
}

/** Every expression, as Prometheus gets it once Grafana has put its own variables in. */
export function dashboardExpressions(): readonly string[] {
  return readDashboard()
    .panels.flatMap(({ targets = [] }) => targets)
    .map(({ expr }) => expr.replaceAll('$__rate_interval', '1m'));
}
