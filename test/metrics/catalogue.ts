/** Owns what the service exports, asked of the registry itself: every metric with its kind and its labels. */
import { globSync } from 'node:fs';
import path from 'node:path';
import { collectDefaultMetrics, Registry } from 'prom-client';
import { createMetrics } from '../../src/metrics/metrics.ts';

export interface CataloguedMetric {
  readonly name: string;
  readonly kind: 'counter' | 'gauge' | 'histogram';
  readonly help: string;
  readonly labels: readonly string[];
  /** Of a histogram's buckets, as the label `le` has them. */
  readonly bounds: readonly string[];
}

type Theme = (registry: Registry) => unknown;

const ROOT = path.resolve(import.meta.dirname, '../..');

/** The metrics of every theme, in the order of the files. */
export async function ownMetrics(): Promise<readonly CataloguedMetric[]> {
  const registry = new Registry();
  for (const file of globSync('src/metrics/*-metrics.ts', { cwd: ROOT })) {
    const theme = (await import(path.join(ROOT, file))) as Readonly<Record<string, unknown>>;
    for (const [name, make] of Object.entries(theme)) if (/^[a-z]+Metrics$/.test(name)) (make as Theme)(registry);
  }
  return metricsOf(registry);
}

/** What a process says of itself: those of the library that the service exports. */
export async function processMetrics(): Promise<readonly CataloguedMetric[]> {
  const registry = new Registry();
  collectDefaultMetrics({ register: registry, prefix: 'tributary_' });
  const { body } = await createMetrics().exposition();
  return metricsOf(registry).filter(({ name }) => body.includes(`\n# TYPE ${name} `));
}

function metricsOf(registry: Registry): readonly CataloguedMetric[] {
  // The library's types leave out what its metrics hold.
  return registry.getMetricsAsArray().map((metric) => {
    const {
      name,
      help,
      labelNames,
      upperBounds = [],
    } = metric as unknown as {
      readonly name: string;
      readonly help: string;
      readonly labelNames: readonly string[];
      readonly upperBounds?: readonly number[];
    };
    const kind = metric.constructor.name.toLowerCase() as CataloguedMetric['kind'];
    return { name, kind, help, labels: labelNames, bounds: [...upperBounds.map(String), '+Inf'] };
  });
}
