/**
 * Owns what a PromQL expression speaks of: which series, by which labels with which values. Knows names and labels only; whether it is PromQL at all is for promtool to say.
 */
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import type { CataloguedMetric } from './catalogue.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');

export interface Selector {
  /** As written: with `_bucket`, `_sum` or `_count` for a histogram. */
  readonly name: string;
  readonly matchers: readonly { readonly label: string; readonly values: readonly string[] }[];
}

export interface Expression {
  readonly selectors: readonly Selector[];
  /** Labels that are grouped or matched by. */
  readonly grouped: readonly string[];
}

/** What Prometheus adds to every series. */
const SCRAPE_LABELS = ['instance', 'job'];
const KEYWORDS = 'by|without|on|ignoring|group_left|group_right';

export function readExpression(text: string): Expression {
  const selectors = [...text.matchAll(/\b(tributary_\w+)\s*(?:\{([^}]*)\})?/g)].map(([, name = '', inside = '']) => ({
    name,
    matchers: [...inside.matchAll(/(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"/g)].map(([, label = '', how = '', value = '']) => ({
      label,
      values: how.endsWith('~') ? value.split('|') : [value],
    })),
  }));
  const grouped = [...text.matchAll(new RegExp(`\\b(?:${KEYWORDS})\\s*\\(([^)]*)\\)`, 'g'))].flatMap(([, list = '']) =>
    list
      .split(',')
      .map((label) => label.trim())
      .filter((label) => label !== ''),
  );
  return { selectors, grouped };
}

/** The metric that a series' name belongs to, with the labels that the series has; undefined where nothing exports it. */
export function metricOf(
  name: string,
  catalogue: readonly CataloguedMetric[],
): { readonly metric: CataloguedMetric; readonly labels: readonly string[] } | undefined {
  const plain = catalogue.find((metric) => metric.name === name && metric.kind !== 'histogram');
  if (plain) return { metric: plain, labels: [...plain.labels, ...SCRAPE_LABELS] };
  const [, base, suffix] = /^(\w+)_(bucket|sum|count)$/.exec(name) ?? [];
  const histogram = catalogue.find((metric) => metric.name === base && metric.kind === 'histogram');
  if (!histogram) return undefined;
  return { metric: histogram, labels: [...histogram.labels, ...(suffix === 'bucket' ? ['le'] : []), ...SCRAPE_LABELS] };
}

/** Sources of the service, in which every value of a closed set stands somewhere as a literal. */
const SOURCES = globSync('src/**/*.ts', { cwd: ROOT, exclude: ['src/gen/**'] })
  .map((file) => readFileSync(path.join(ROOT, file), 'utf8'))
  .join('\n');

function isValue(value: string, label: string, metric: CataloguedMetric): boolean {
  // Methods come from the API's own description.
  if (SCRAPE_LABELS.includes(label) || label === 'method') return true;
  return label === 'le' ? metric.bounds.includes(value) : SOURCES.includes(`'${value}'`);
}

/** What is wrong with an expression: series that nothing exports, labels that they do not have, values that those never take. */
export function faultsOf(text: string, catalogue: readonly CataloguedMetric[]): readonly string[] {
  const { selectors, grouped } = readExpression(text);
  const faults: string[] = selectors.length === 0 ? ['names no metric of ours'] : [];
  const known = new Set<string>();
  for (const { name, matchers } of selectors) {
    const found = metricOf(name, catalogue);
    if (!found) faults.push(`nothing exports ${name}`);
    for (const label of found?.labels ?? []) known.add(label);
    if (!found) continue;
    for (const { label, values } of matchers) {
      if (!found.labels.includes(label)) faults.push(`${name} has no label ${label}`);
      else
        faults.push(
          ...values
            .filter((value) => !isValue(value, label, found.metric))
            .map((value) => `${label} is never ${value}`),
        );
    }
  }
  for (const label of grouped) if (!known.has(label)) faults.push(`no series of it has the label ${label}`);
  return faults;
}
