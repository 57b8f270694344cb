/** Owns the measures of bringing viewers back after the cache lost them. */
import { Counter, Gauge, type Registry } from 'prom-client';

export interface WarmUpMetrics {
  /** The cache, or a part of it, was found to hold nothing of what it held. */
  cacheLost(): void;
  /** What came of one recently active viewer after that. */
  warmedUp(outcome: string): void;
  /** Viewers that are still to be looked after. */
  warmUpWaiting(viewers: number): void;
  /** Hands over what the gauge reads at each scrape: viewers that this process remembers. */
  watchRecentViewers(count: () => number): void;
}

export function warmingMetrics(registry: Registry): WarmUpMetrics {
  const registers = [registry];
  const losses = new Counter({
    name: 'tributary_cache_losses_total',
    help: 'Times that this process found the cache, or a part of it, to hold nothing of what it held.',
    registers,
  });
  const warmUps = new Counter({
    name: 'tributary_warm_ups_total',
    help: 'Recently active viewers looked after once the cache had lost timelines, by outcome of the rebuild (ready: theirs was there).',
    labelNames: ['outcome'],
    registers,
  });
  const waiting = new Gauge({
    name: 'tributary_warm_up_waiting_viewers',
    help: 'Recently active viewers whose timelines are still to be looked after since the cache lost some.',
    registers,
  });
  let countRecent = (): number => 0;
  new Gauge({
    name: 'tributary_recent_viewers',
    help: 'Viewers that this process remembers to have read their home, for the case that the cache loses them.',
    registers,
    collect() {
      this.set(countRecent());
    },
  });
  return {
    cacheLost: () => losses.inc(),
    warmedUp: (outcome) => warmUps.inc({ outcome }),
    warmUpWaiting: (viewers) => waiting.set(viewers),
    watchRecentViewers(count) {
      countRecent = count;
    },
  };
}
