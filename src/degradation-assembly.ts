/**
 * Owns how degradation is put together: a breaker for each dependency of the request path, the level they and the load amount to, admission, and the bound on reads that must do without the
 * cache. Belongs to the composition root. Background work stands behind no breaker: it has time, and waits. Time-outs are the clients' own, which end what they give up.
 */
import { BulkheadRejectedError, bulkhead } from 'cockatiel';
import type { Config } from './config.ts';
import { createAdmission } from './degradation/admission.ts';
import { type Breaker, createBreaker } from './degradation/breaker.ts';
import { isSpared, levelOf, RETRY_AFTER_MS } from './degradation/ladder.ts';
import { createNodeBreakers } from './degradation/node-breakers.ts';
import { createPressureWatch, hardest } from './degradation/pressure.ts';
import { type Reason, TributaryError } from './errors.ts';
import type { BreakerState, Dependency, Level } from './metrics/degradation-metrics.ts';
import type { Metrics } from './metrics/metrics.ts';
import type { Flows } from './rpc/flows.ts';
import type { CallPriority } from './rpc/priority.ts';
import { type Call, type Runtime, untilAborted } from './runtime.ts';
import { type DatabaseGuard, isDatabaseUnreached, type PoolLoad } from './store/postgres/client.ts';
import { type CacheOptions, isCacheUnreached } from './store/redis/client.ts';
import type { TenantId, UserId } from './timeline/ids.ts';

export interface DegradationAssembly {
  /** Before the clients of the request path. */
  readonly guards: { readonly cache: NonNullable<CacheOptions['guard']>; readonly database: DatabaseGuard };
  /** Whether Postgres is worth asking. */
  readonly hasDatabase: () => boolean;
  /** Whether nothing is away or short. */
  readonly isFull: () => boolean;
  /** Whether counters are left out, to spare Postgres. */
  readonly omitsCounts: () => boolean;
  /** Milliseconds after which to try again, where the error means that nothing can be loaded for as long as an outage lasts. */
  readonly outage: (error: unknown) => number | undefined;
  readonly admit: (priority: CallPriority) => void;
  /** The same flows, of which reads are let through a few at a time while the cache is away. */
  readonly bounded: (flows: Flows) => Flows;
  start(): void;
  stop(): void;
}

/** Commands to the cache in flight at once for each call that may be: twice what a page has at most, so that only a deaf cache meets the bound, and holds no more memory than this. */
const COMMANDS_PER_CALL = 8;
/** Reads that wait for one of the places of those served without the cache, for each place: some tenths of a second of them. */
const WAITING_PER_PLACE = 16;
/** When to read again what could not be read at all: an outage lasts some time, and everybody comes back after it. */
const OUTAGE_RETRY_AFTER_MS = 2_000;

export function assembleDegradation(parts: {
  readonly config: Config;
  readonly runtime: Runtime;
  readonly metrics: Metrics;
  readonly pingCache: (signal: AbortSignal) => Promise<void>;
  readonly pingCacheNode: (signal: AbortSignal, node: string) => Promise<void>;
  /** The master of a cache cluster that a viewer's home lies on. */
  readonly nodeOfHome: (tenant: TenantId, viewer: UserId) => string | undefined;
  readonly pingDatabase: (signal: AbortSignal) => Promise<void>;
  readonly databaseLoad: () => PoolLoad;
  readonly callsInFlight: () => number;
}): DegradationAssembly {
  const { config, metrics } = parts;
  const { clock, log, random } = parts.runtime;
  let level: Level = 'full';
  let spared = false;

  const told: Record<Dependency, BreakerState> = { cache: 'closed', cache_node: 'closed', database: 'closed' };
  function changed(dependency: Dependency, state: BreakerState, cause: unknown): void {
    metrics.breakerChanged(dependency, state);
    // A probe that fails changes it twice, several times a second: one line when it opens and one when it closes say it all.
    const isNews = state !== 'half_open' && state !== told[dependency];
    log[isNews ? 'warn' : 'debug']({ dependency, state, ...(isNews && { err: cause }) }, 'breaker changed');
    if (isNews) told[dependency] = state;
    settleLevel();
  }
  const refusalOf = (reason: Reason, message: string) => () =>
    new TributaryError(reason, { message, retryAfterMs: RETRY_AFTER_MS });
  const breakerOf = (
    dependency: Dependency,
    facts: Pick<Parameters<typeof createBreaker>[0], 'isFailure' | 'probe'> & {
      readonly reason: Reason;
      readonly message: string;
    },
  ): Breaker =>
    createBreaker({
      ...facts,
      clock,
      refusal: refusalOf(facts.reason, facts.message),
      changed: (state, cause) => changed(dependency, state, cause),
    });
  const cache = breakerOf('cache', {
    isFailure: isCacheUnreached,
    probe: parts.pingCache,
    reason: 'CACHE_UNAVAILABLE',
    message: 'the cache is away',
  });
  const cacheNodes = createNodeBreakers({
    whole: cache,
    isFailure: isCacheUnreached,
    probe: parts.pingCacheNode,
    refusal: refusalOf('CACHE_UNAVAILABLE', 'a node of the cache is away'),
    clock,
    changed(node, { isAway, away, cause }) {
      log.warn({ node, isAway, ...(isAway && { err: cause }) }, 'a node of the cache went away or came back');
      const all = away === 0 ? 'closed' : 'open';
      if (all !== told.cache_node) changed('cache_node', all, cause);
    },
  });
  const database = breakerOf('database', {
    isFailure: isDatabaseUnreached,
    probe: parts.pingDatabase,
    reason: 'DATABASE_UNAVAILABLE',
    message: 'the database is away',
  });

  const pressure = createPressureWatch({
    clock,
    database: parts.databaseLoad,
    inFlightShare: () => parts.callsInFlight() / config.callsInFlightMax,
    // Half of what ends a wait by force: a read waits for a connection more than once.
    bounds: { eventLoopMs: config.eventLoopDelayMaxMs, waitMs: config.database.acquireTimeoutMs / 2 },
    looked: settleLevel,
  });

  function settleLevel(): void {
    spared = isSpared(hardest(pressure.read())[1], spared);
    const next = levelOf({ cache: cache.isClosed(), database: database.isClosed(), spared });
    if (next === level) return;
    log.warn({ from: level, to: next }, 'the level of degradation changed');
    level = next;
  }
  metrics.watchDegradation({ level: () => level, pressure: () => pressure.read() });

  const admission = createAdmission({
    pressure: () => pressure.read(),
    random,
    shed: (priority, why) => metrics.callShed(priority, why),
  });
  const commands = bulkhead(COMMANDS_PER_CALL * config.callsInFlightMax);
  const places = config.degradedReadsMax;
  const degradedReads = bulkhead(places, places * WAITING_PER_PLACE);

  /** Whether the master is away that the viewer's timeline lies on. */
  function lacksHome({ tenant }: Call, { viewer }: { readonly viewer: UserId }): boolean {
    const node = parts.nodeOfHome(tenant, viewer);
    return node !== undefined && !cacheNodes.isClosed(node);
  }

  /** Postgres serves every such reader, with connections that are for a fraction of them; writes and everything else need some as well. */
  function bounded<Input, Result>(
    read: (call: Call, input: Input) => Promise<Result>,
    lacks: (call: Call, input: Input) => boolean = () => false,
  ) {
    return async (call: Call, input: Input): Promise<Result> => {
      if ((cache.isClosed() && !lacks(call, input)) || !database.isClosed()) return read(call, input);
      try {
        // What waits is answered when its caller leaves; its place in the queue is passed over.
        return await untilAborted(
          degradedReads.execute(() => read(call, input), call.signal),
          call.signal,
        );
      } catch (error) {
        if (!(error instanceof BulkheadRejectedError)) throw error;
        metrics.degradedReadRefused();
        throw new TributaryError('OVERLOADED', {
          message: 'too many reads have to do without the cache',
          retryAfterMs: Math.round(RETRY_AFTER_MS * (1 + random.fraction())),
        });
      }
    };
  }

  return {
    guards: {
      // What the breaker of a node refuses says nothing of the cache as a whole.
      cache(send, node) {
        return commands.execute(() => (node === undefined ? cache.call(send) : cacheNodes.call(node, send)));
      },
      database,
    },
    hasDatabase: database.isClosed,
    isFull: () => level === 'full',
    omitsCounts: () => spared || !database.isClosed(),
    outage: (error) =>
      error instanceof TributaryError && error.reason === 'DATABASE_UNAVAILABLE' && !database.isClosed()
        ? Math.round(OUTAGE_RETRY_AFTER_MS * (0.5 + random.fraction() / 2))
        : undefined,
    admit: (priority) => admission.admit(priority),
    bounded: (flows) => ({
      ...flows,
      home: { page: bounded(flows.home.page, lacksHome), head: bounded(flows.home.head, lacksHome) },
      posts: { one: bounded(flows.posts.one), batch: bounded(flows.posts.batch) },
      authorPosts: bounded(flows.authorPosts),
    }),
    start: () => pressure.start(),
    stop() {
      cache.stop();
      cacheNodes.stop();
      database.stop();
      pressure.stop();
    },
  };
}
