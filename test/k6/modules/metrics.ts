/** Stand-in for the module `k6/metrics`: only what our scripts use. */
import { addSample, currentTask, declareMetric } from '../host.ts';
import type { MetricKind, Tags } from '../messages.ts';

class Metric {
  readonly name: string;

  constructor(name: string, kind: MetricKind) {
    if (currentTask() !== undefined) throw new Error('metrics must be declared in the init context');
    if (!/^[\p{L}_][\p{L}\p{N}._ !?/&#()<>%-]{0,127}$/u.test(name)) throw new Error(`invalid metric name: ${name}`);
    declareMetric(name, kind);
    this.name = name;
  }

  add(value: number | boolean, tags: Tags = {}): void {
    addSample(this.name, Number(value), tags);
  }
}

export class Rate extends Metric {
  constructor(name: string) {
    super(name, 'rate');
  }
}

export class Trend extends Metric {
  constructor(name: string) {
    super(name, 'trend');
  }
}

export class Counter extends Metric {
  constructor(name: string) {
    super(name, 'counter');
  }
}
