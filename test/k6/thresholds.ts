/**
 * Owns samples and thresholds of the k6 stand-in, as k6 evaluates them at the end of a run: what is summed up for each kind of metric,
 * which expressions there are, and that without a sample a counter and a trend are 0 and a rate passes.
 */
import type { MetricKind, MetricSample, Tags } from './messages.ts';

export interface ThresholdResult {
  /** With its tags, where it is about some of a metric's samples. */
  readonly metric: string;
  readonly source: string;
  readonly samples: number;
  /** Undefined for a rate without a sample. */
  readonly value: number | undefined;
  readonly passed: boolean;
}

interface Expression {
  readonly method: string;
  readonly operator: string;
  readonly bound: number;
}

interface Subject {
  readonly name: string;
  readonly tags: Tags;
}

const EXPRESSION =
  /^\s*(count|rate|value|avg|min|max|med|p\((?:\d+(?:\.\d+)?)\))\s*(<=|>=|===|==|!=|<|>)\s*(-?\d+(?:\.\d+)?)\s*$/;

const METHODS: Readonly<Record<MetricKind, RegExp>> = {
  counter: /^(?:count|rate)$/,
  gauge: /^value$/,
  rate: /^rate$/,
  trend: /^(?:avg|min|max|med|p\(.*\))$/,
};

/** Throws where an expression or a metric is not one: k6 does before a run begins. */
export function validateThresholds(
  thresholds: Readonly<Record<string, readonly string[]>>,
  kinds: Readonly<Record<string, MetricKind>>,
): void {
  for (const [metric, sources] of Object.entries(thresholds)) {
    const kind = kinds[subjectOf(metric).name];
    if (kind === undefined) throw new Error(`invalid threshold: there is no metric ${metric}`);
    for (const source of sources) {
      const { method } = parse(source);
      if (!METHODS[kind].test(method)) throw new Error(`invalid threshold: ${method} of ${metric}, which is a ${kind}`);
    }
  }
}

export function evaluateThresholds(
  thresholds: Readonly<Record<string, readonly string[]>>,
  run: {
    readonly kinds: Readonly<Record<string, MetricKind>>;
    readonly samples: readonly MetricSample[];
    readonly durationMs: number;
  },
): readonly ThresholdResult[] {
  return Object.entries(thresholds).flatMap(([metric, sources]) => {
    const subject = subjectOf(metric);
    const values = run.samples.filter((sample) => isAbout(sample, subject)).map(({ value }) => value);
    const kind = run.kinds[subject.name] ?? 'trend';
    return sources.map((source) => {
      const { method, operator, bound } = parse(source);
      const value = aggregate(kind, method, values, run.durationMs);
      const passed = value === undefined || holds(value, operator, bound);
      return { metric, source, samples: values.length, value, passed };
    });
  });
}

/** `name{tag:value,tag:value}` */
function subjectOf(metric: string): Subject {
  const [, name, list] = /^([^{}]+)(?:\{([^{}]+)\})?$/.exec(metric) ?? [];
  if (name === undefined) throw new Error(`invalid threshold: "${metric}" is not a metric's name`);
  const tags = (list ?? '').split(',').filter((pair) => pair !== '');
  return { name, tags: Object.fromEntries(tags.map((pair) => pair.split(':').map((part) => part.trim()))) };
}

function isAbout({ metric, tags }: MetricSample, subject: Subject): boolean {
  return metric === subject.name && Object.entries(subject.tags).every(([tag, value]) => tags[tag] === value);
}

function parse(source: string): Expression {
  const [, method, operator, bound] = EXPRESSION.exec(source) ?? [];
  if (method === undefined || operator === undefined) throw new Error(`invalid threshold: ${source}`);
  return { method, operator, bound: Number(bound) };
}

function aggregate(
  kind: MetricKind,
  method: string,
  values: readonly number[],
  durationMs: number,
): number | undefined {
  const sum = values.reduce((total, value) => total + value, 0);
  switch (kind) {
    case 'counter':
      return method === 'count' ? sum : sum / (durationMs / 1_000);
    case 'rate':
      return values.length === 0 ? undefined : values.filter((value) => value !== 0).length / values.length;
    case 'gauge':
      return values.at(-1) ?? 0;
    case 'trend':
      return trendOf(method, values, sum);
  }
}

function trendOf(method: string, values: readonly number[], sum: number): number {
  if (values.length === 0) return 0;
  const sorted = values.toSorted((one, other) => one - other);
  if (method === 'avg') return sum / values.length;
  const percent = { min: 0, max: 100, med: 50 }[method] ?? Number(/^p\((.*)\)$/.exec(method)?.[1]);
  const place = (percent / 100) * (sorted.length - 1);
  const below = sorted[Math.floor(place)] ?? 0;
  const above = sorted[Math.ceil(place)] ?? below;
  return below + (above - below) * (place - Math.floor(place));
}

function holds(value: number, operator: string, bound: number): boolean {
  switch (operator) {
    case '<':
      return value < bound;
    case '<=':
      return value <= bound;
    case '>':
      return value > bound;
    case '>=':
      return value >= bound;
    case '!=':
      return value !== bound;
    default:
      return value === bound;
  }
}
