/** Owns how the warm-up after a loss of the cache is put together: who reads is noted on the way in, and looked after in rounds. Belongs to the composition root, beside cache-assembly.ts. */
import type { CacheAssembly } from './cache-assembly.ts';
import type { Config } from './config.ts';
import type { Metrics } from './metrics/metrics.ts';
import { createRecentViewers } from './repair/recent-viewers.ts';
import { type Rounds, startRounds } from './repair/rounds.ts';
import { createWarmUp } from './repair/warm-up.ts';
import type { Flows } from './rpc/flows.ts';
import type { Runtime } from './runtime.ts';

export interface WarmUpAssembly {
  /** The same flows, of which reads of home are noted. */
  noting(flows: Flows): Flows;
  /** Looks after viewers until stopped. */
  start(): Rounds;
}

/** Between two looks at the cache; what it loses is noticed within about that time. */
const ROUND_EVERY_MS = 1_000;
/** A round of rebuilds takes seconds where each takes hundreds of milliseconds. */
const ROUND_MAX_MS = 30_000;

/** Undefined where the configuration wants none. */
export function assembleWarmUp(parts: {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  /** That of readers, whose places for rebuilds are shared. */
  readonly cached: Pick<CacheAssembly, 'timelines' | 'readMarks' | 'warmUp' | 'rebuilding'>;
  readonly isFull: () => boolean;
}): WarmUpAssembly | undefined {
  const { config, metrics, cached } = parts;
  const { clock, log, random } = parts.runtime;
  const { viewersMax, activeMs, perSecond } = config.warmUp;
  if (perSecond === 0) return undefined;
  const recent = createRecentViewers({ max: viewersMax, activeMs, clock });
  metrics.watchRecentViewers(() => recent.count());
  const warmUp = createWarmUp({
    readMarks: cached.readMarks,
    activeViewers: () => recent.active(),
    floors: cached.timelines.floors,
    rebuild: cached.warmUp,
    rebuilding: cached.rebuilding,
    rebuildsMax: config.rebuild.concurrencyMax,
    isFull: parts.isFull,
    perRound: Math.ceil((perSecond * ROUND_EVERY_MS) / 1_000),
    events: {
      cacheLost(loss) {
        metrics.cacheLost();
        log.warn(loss, 'the cache has lost what it held; viewers who read lately are rebuilt in the background');
      },
      warmedUp: (outcome) => metrics.warmedUp(outcome),
      waiting: (viewers) => metrics.warmUpWaiting(viewers),
      finished: () => log.info('viewers who read lately have been looked after since the cache lost what it held'),
    },
  });
  return {
    noting: (flows) => ({
      ...flows,
      home: {
        page(call, input) {
          recent.readBy(call.tenant, input.viewer);
          return flows.home.page(call, input);
        },
        head(call, input) {
          recent.readBy(call.tenant, input.viewer);
          return flows.home.head(call, input);
        },
      },
    }),
    start: () =>
      startRounds({ name: 'warm-up', everyMs: ROUND_EVERY_MS, roundMaxMs: ROUND_MAX_MS, runOnce: warmUp, random, log }),
  };
}
