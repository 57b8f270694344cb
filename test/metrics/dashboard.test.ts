/** Owns that the dashboard shows what there is: every expression names series that are exported, every panel has a unit, every measure of ours is somewhere to be seen. */
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { type CataloguedMetric, ownMetrics, processMetrics } from './catalogue.ts';
import { readDashboard } from './dashboard.ts';
import { faultsOf, metricOf, readExpression } from './expressions.ts';

const dashboard = readDashboard();
const rows = dashboard.panels.filter(({ type }) => type === 'row');
const charts = dashboard.panels.filter(({ type }) => type !== 'row');
const SOURCE = '$' + '{datasource}';

let catalogue: readonly CataloguedMetric[];
beforeAll(async () => {
  catalogue = [...(await ownMetrics()), ...(await processMetrics())];
});

describe('the dashboard', () => {
  it('is of a schema that Grafana 10 and later read, with rows from the objectives down to the process', () => {
    expect(dashboard.schemaVersion).toBeGreaterThanOrEqual(38);
    expect(rows.map(({ title }) => title)).toEqual([
      'Objectives',
      'Calls',
      'Publish',
      'Fan-out by lane',
      'Read path',
      'Cache',
      'Rebuild',
      'Degradation',
      'Queues',
      'Process',
    ]);
  });

  it('asks whatever Prometheus its viewer chooses', () => {
    expect(dashboard.templating.list).toMatchObject([{ name: 'datasource', type: 'datasource', query: 'prometheus' }]);
    for (const { datasource, targets = [] } of charts)
      for (const source of [datasource, ...targets.map((target) => target.datasource)])
        expect(source).toEqual({ type: 'prometheus', uid: SOURCE });
  });

  it('has panels of their own number and place, none upon another', () => {
    expect(new Set(dashboard.panels.map(({ id }) => id)).size).toBe(dashboard.panels.length);
    const cells = dashboard.panels.flatMap(({ gridPos: { x, y, w, h } }) => {
      expect(x + w).toBeLessThanOrEqual(24);
      return Array.from({ length: w * h }, (_, at) => `${x + (at % w)},${y + Math.floor(at / w)}`);
    });
    expect(new Set(cells).size).toBe(cells.length);
  });

  it.each(charts)('$title: names series that are exported, and has a unit and a description', (chart) => {
    const { targets = [], fieldConfig, description } = chart;
    expect(targets.length).toBeGreaterThan(0);
    for (const { expr, legendFormat } of targets) {
      expect(faultsOf(expr, catalogue), expr).toEqual([]);
      // What the legend names, the series have.
      for (const [, label = ''] of legendFormat.matchAll(/\{\{(\w+)\}\}/g)) {
        const labels = readExpression(expr).selectors.flatMap(({ name }) => metricOf(name, catalogue)?.labels ?? []);
        expect(labels, expr).toContain(label);
      }
    }
    expect(fieldConfig?.defaults.unit).toMatch(/^(?:s|bytes|short|percentunit|reqps|ops)$/);
    expect(description).toMatch(/^[A-Z0-9].+\.$/);
  });

  it('shows seconds as seconds, bytes as bytes, and rates as rates', () => {
    for (const { title, targets = [], fieldConfig } of charts) {
      const { unit } = fieldConfig?.defaults ?? {};
      for (const { expr } of targets) {
        if (expr.startsWith('histogram_quantile(') && /_seconds_bucket/.test(expr)) expect(unit, title).toBe('s');
        if (/^\w+(?: by \([^)]*\))? \(tributary_\w+_bytes\)$/.test(expr)) expect(unit, title).toBe('bytes');
        if (/^sum(?: by \([^)]*\))? \(rate\(tributary_\w+(?<!_seconds)_total[^()]*\)\)$/.test(expr))
          expect(unit, title).toMatch(/^(?:reqps|ops|short)$/);
      }
    }
  });

  it('shows, or an alert watches, every measure of ours', async () => {
    const { groups } = parse(
      readFileSync(path.resolve(import.meta.dirname, '../../src/metrics/alerts.yaml'), 'utf8'),
    ) as {
      readonly groups: readonly { readonly rules: readonly { readonly expr: string }[] }[];
    };
    const texts = [
      ...groups.flatMap(({ rules }) => rules.map(({ expr }) => expr)),
      ...charts.flatMap(({ targets = [] }) => targets.map(({ expr }) => expr)),
    ];
    const seen = new Set(
      texts.flatMap((text) => readExpression(text).selectors.map(({ name }) => metricOf(name, catalogue)?.metric.name)),
    );
    expect((await ownMetrics()).map(({ name }) => name).filter((name) => !seen.has(name))).toEqual([]);
  });
});
