/**
 * Owns that alerts, their runbook in README, their tests and the dashboard speak of what there is: each alert has its section and each section its alert; every series that an expression
 * names is exported, with these labels and values. Whether the expressions say what they mean is for prometheus.test.ts.
 */
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { parse } from 'yaml';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { type CataloguedMetric, ownMetrics, processMetrics } from './catalogue.ts';
import { faultsOf, readExpression } from './expressions.ts';

interface Rule {
  readonly alert: string;
  readonly expr: string;
  readonly for?: string;
  readonly labels: { readonly severity: string };
  readonly annotations: { readonly summary: string; readonly description: string; readonly runbook: string };
}

interface RuleTest {
  readonly name: string;
  readonly input_series: readonly { readonly series: string }[];
  readonly promql_expr_test: readonly {
    readonly expr: string;
    readonly exp_samples: readonly { readonly labels: string }[];
  }[];
}

const ROOT = path.resolve(import.meta.dirname, '../..');
const read = (file: string): string => readFileSync(path.join(ROOT, file), 'utf8');

const rules = (parse(read('src/metrics/alerts.yaml')) as { groups: { rules: Rule[] }[] }).groups.flatMap(
  (group) => group.rules,
);
const { tests } = parse(read('test/metrics/alerts.promtool.yaml')) as { tests: readonly RuleTest[] };
const readme = read('README.md');
const runbook = /\n### Alerts\n([\s\S]*?)\n##? /.exec(readme)?.[1] ?? '';

let catalogue: readonly CataloguedMetric[];
let database: TestDatabase;
beforeAll(async () => {
  catalogue = [...(await ownMetrics()), ...(await processMetrics())];
  database = await createTestDatabase();
});
afterAll(() => database.drop());

const name = ({ alert, labels }: Rule): string => `${alert} (${labels.severity})`;

describe('an expression is refused that names', () => {
  it.each([
    ['a metric that is not there', 'max(tributary_nothing) > 0', 'nothing exports tributary_nothing'],
    ['a histogram as if it were a number', 'tributary_rpc_seconds > 1', 'nothing exports tributary_rpc_seconds'],
    ['a label that the series has not', 'tributary_relay_lag_seconds{lane="bulk"}', 'has no label lane'],
    ['a value that it never takes', 'tributary_queue_jobs{lane="huge"}', 'lane is never huge'],
    ['a bound that is no bucket', 'tributary_rpc_seconds_bucket{le="0.3"}', 'le is never 0.3'],
    ['a group that nothing has', 'sum by (shard) (tributary_queue_jobs)', 'has the label shard'],
    ['nothing of ours', 'up == 0', 'names no metric of ours'],
  ])('%s', (_what, expression, fault) => {
    expect(faultsOf(expression, catalogue).join()).toContain(fault);
  });
});

describe('the catalogue', () => {
  it('has help for every metric: a sentence', () => {
    expect(catalogue.length).toBeGreaterThan(60);
    for (const { name: metric, help } of catalogue) expect(help, metric).toMatch(/^[A-Z].{10,}\.$/);
  });

  it('names units last, and nothing but what counts a total', () => {
    for (const { name: metric, kind } of catalogue) expect(metric.endsWith('_total'), metric).toBe(kind === 'counter');
  });
});

describe('an alert', () => {
  it('is there for all that README promises to watch', () => {
    expect(rules.length).toBeGreaterThan(20);
    expect(new Set(rules.map(name)).size).toBe(rules.length);
  });

  it.each(rules.map((rule) => ({ ...rule, name: name(rule) })))('$name speaks of what is exported', ({ expr }) => {
    expect(faultsOf(expr, catalogue)).toEqual([]);
  });

  it.each(rules.map((rule) => ({ ...rule, name: name(rule) })))(
    '$name says how bad, what and how much, in units, and where to read on',
    ({ alert, labels, annotations }) => {
      expect(['critical', 'warning']).toContain(labels.severity);
      expect(annotations.summary).toMatch(/^[^\n]{10,100}$/);
      expect(annotations.description).toMatch(/second|minutes|hours|%|humanize|jobs|callers/);
      expect(annotations.runbook).toBe(`README.md#${alert.toLowerCase()}`);
    },
  );

  it('has its section in README, and each section its alert, in one order', () => {
    const sections = [...runbook.matchAll(/^#### (.+)$/gm)].map(([, title]) => title);
    expect(sections).toEqual([...new Set(rules.map(({ alert }) => alert))]);
  });

  it.each([...new Set(rules.map(({ alert }) => alert))])(
    '%s is tested to fire, at each severity, and to stay quiet',
    (alert) => {
      const own = tests.filter((each) => each.name.startsWith(`${alert} `));
      for (const each of own) expect(each.name).toMatch(new RegExp(`^${alert} (?:fires|stays quiet)`));
      const firing = own.filter((each) => each.name.includes(' fires')).flatMap((each) => each.promql_expr_test);
      const quiet = own.filter((each) => each.name.includes(' stays quiet'));
      for (const { labels } of rules.filter((rule) => rule.alert === alert)) {
        const samples = firing.flatMap((each) => each.exp_samples).map((sample) => sample.labels);
        expect(samples.filter((sample) => sample.includes(`severity="${labels.severity}"`))).not.toEqual([]);
      }
      expect(quiet).not.toEqual([]);
      for (const each of quiet) {
        expect(each.promql_expr_test.flatMap((at) => at.exp_samples)).toEqual([]);
        expect(each.promql_expr_test.map((at) => at.expr)).toContain(
          `ALERTS{alertname="${alert}", alertstate="firing"}`,
        );
      }
      // Quiet because of the figures, not because there are none.
      const given = new Set(own.flatMap((each) => each.input_series).flatMap(({ series }) => namesOf(series)));
      for (const rule of rules.filter((each) => each.alert === alert))
        for (const wanted of namesOf(rule.expr)) expect([...given]).toContain(wanted);
    },
  );

  it('is tested on series that the service could export', () => {
    for (const { input_series: given } of tests)
      for (const { series } of given) expect(faultsOf(series, catalogue), series).toEqual([]);
  });
});

describe('the runbook', () => {
  it('shows commands that are there', () => {
    const verbs = [...runbook.matchAll(/npm run admin -- ([a-z-]+)/g)].map(([, verb = '']) => verb);
    expect(verbs.length).toBeGreaterThan(3);
    const usage = read('src/admin.ts');
    for (const verb of verbs) expect(usage).toMatch(new RegExp(`^  ${verb} `, 'm'));
  });

  const statements = [...runbook.matchAll(/psql "\$DATABASE_URL" -c "([^"]+)"/g)].map(
    ([, statement = '']) => statement,
  );

  it('asks the database several things', () => expect(statements.length).toBeGreaterThan(2));

  it.each(statements)('asks the database what it can answer: %s', async (statement) => {
    await expect(database.sql(statement)).resolves.toBeInstanceOf(Array);
  });
});

function namesOf(expression: string): readonly string[] {
  return readExpression(expression).selectors.map((selector) => selector.name);
}
