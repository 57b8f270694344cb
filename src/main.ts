/**
 * Composition root: configuration → stores → flows → roles, started and stopped in order. Run as a program it serves one role until it is told
 * to stop, or with `admin <verb>` does one thing and ends.
 *
 * Roles: `api` answers calls; `relay` moves the outboxes (fan-out jobs to the queue, events to the cache) and changes authors' classes; `worker` delivers fan-out and folds counters;
 * `all` is all of them in one process. Each role answers /livez, /readyz and /metrics.
 */
import { pathToFileURL } from 'node:url';
import { runAdmin } from './admin.ts';
import { assemble } from './assembly.ts';
import { assembleCache, openCache, openLaneCache, openSortedSets } from './cache-assembly.ts';
import { assembleClasses } from './class-assembly.ts';
import { type Config, configFrom, redacted } from './config.ts';
import { createLastKnown } from './degradation/last-known.ts';
import { createReadiness } from './degradation/readiness.ts';
import { assembleDegradation } from './degradation-assembly.ts';
import { assembleFanout } from './fanout-assembly.ts';
import type { LaneStores } from './lane-assembly.ts';
import { runUntilTold } from './lifetime.ts';
import { createMetrics, type Metrics } from './metrics/metrics.ts';
import { type StopStage, stopInOrder } from './ordered-stop.ts';
import { assembleReconcile, RECONCILE_EVERY_MS } from './reconcile-assembly.ts';
import { createCacheCheck } from './repair/cache-check.ts';
import { createCleanUp } from './repair/clean-up.ts';
import { createFoldCounters } from './repair/fold-counters.ts';
import { type Rounds, startRounds } from './repair/rounds.ts';
import { assembleReplica } from './replica-assembly.ts';
import type { ApiKey } from './rpc/api-keys.ts';
import type { Flows } from './rpc/flows.ts';
import { createFrontDoor } from './rpc/front-door.ts';
import { type Runtime, systemRuntime, untilAborted } from './runtime.ts';
import { createDatabase, type Database, type DatabaseGuard } from './store/postgres/client.ts';
import { foldCounterDeltas } from './store/postgres/counters.ts';
import { migrate } from './store/postgres/migrate.ts';
import { findApiKey } from './store/postgres/tenants.ts';
import { expirePublishRequests, probe } from './store/postgres/upkeep.ts';
import { checkCache } from './store/redis/checks.ts';
import type { Lane } from './timeline/lanes.ts';
import { assembleWarmUp } from './warm-up-assembly.ts';
import { type Administer, hashApiKey } from './write/administer.ts';
import type { ImportPosts } from './write/import.ts';

export interface Service {
  readonly grpcPort: number;
  readonly httpPort: number;
  readonly flows: Flows;
  readonly administer: Administer;
  readonly importPosts: ImportPosts;
  readonly metrics: Metrics;
  /** Resolves with why it must not go on, where something was found out later that should have kept it from starting. */
  readonly unfit: Promise<Error>;
  /** Turns calls away, lets those under way end, then closes everything it opened. May be called more than once. */
  stop(): Promise<void>;
}

/** Statements of the background may take longer than any call. */
const WORKER_STATEMENT_TIMEOUT_MS = 30_000;
const PROBE_CONNECTIONS = 1;
const CACHE_CHECK_EVERY_MS = 2_000;
/** A look-up takes less than a millisecond, and its answer is remembered. */
const KEY_CONNECTIONS = 2;
const FOLD_EVERY_MS = 1_000;
const CLEAN_UP_EVERY_MS = 60_000;
const CLEAN_ENDED_EVERY_MS = 2_000;
/** Beyond the drain time, for each stage of a stop: what workers take at most where nothing answers them, and a moment. */
const STAGE_MAX_MS = 15_000;

/** Starts the roles that the configuration names, over a migrated database. Throws where a port cannot be had. */
export async function startService(config: Config, runtime: Runtime): Promise<Service> {
  const { clock, log, random } = runtime;
  const metrics = createMetrics();
  const openDatabase = (
    pool: string,
    connectionsMax: number,
    statementTimeoutMs = config.database.statementTimeoutMs,
    guard?: DatabaseGuard,
    url = config.databaseUrl,
  ): Database => {
    const database = createDatabase({
      ...config.database,
      url,
      pool,
      connectionsMax,
      statementTimeoutMs,
      ...(guard && { guard }),
      events: {
        clientFailed(name, error) {
          metrics.databaseClientError(name);
          log.warn({ err: error, pool: name }, 'a database connection failed');
        },
        statementCancelled: (name) => metrics.databaseCancelled(name),
      },
    });
    metrics.databasePool(pool, () => database.load());
    return database;
  };
  const degradation = assembleDegradation({
    config,
    runtime,
    metrics,
    pingCache: (signal) => cache.ping(signal),
    pingCacheNode: (signal, node) => cache.pingNode(signal, node),
    nodeOfHome: (tenant, viewer) => cached.nodeOfHome(tenant, viewer),
    pingDatabase: (signal) => requests.ping(signal),
    databaseLoad: () => requests.load(),
    callsInFlight: () => frontDoor.running(),
  });
  const { guards } = degradation;
  const requests = openDatabase('requests', config.database.poolRequests, undefined, guards.database);
  // Calls must not wait behind callers who try keys that nobody has.
  const keys = openDatabase('keys', KEY_CONNECTIONS, undefined, guards.database);
  // A probe must wait behind neither requests nor fan-out: that there is much to do is no reason to be taken out of service.
  const probes = openDatabase('probes', PROBE_CONNECTIONS);
  const upkeep = openDatabase('workers', config.database.poolWorkers, WORKER_STATEMENT_TIMEOUT_MS);
  const relayDatabase = openDatabase('relay', config.database.poolRelay);
  const replica = assembleReplica({ config, runtime, metrics, primary: upkeep, openDatabase });
  const cache = openCache(config, runtime, metrics, { guard: guards.cache });
  const cached = assembleCache({
    config,
    runtime,
    metrics,
    database: requests,
    cache,
    readSnapshot: replica.sourceFor(requests),
    hasDatabase: degradation.hasDatabase,
  });
  // Background work reads through connections of its own: a flood of requests must not hold fan-out up, nor the other way round. It waits where requests are refused.
  const workerCache = openCache(config, runtime, metrics);
  const snapshotForWorkers = replica.sourceFor(upkeep);
  const cachedForWorkers = assembleCache({
    config,
    runtime,
    metrics,
    database: upkeep,
    cache: workerCache,
    readSnapshot: snapshotForWorkers,
  });
  const fanout = assembleFanout({
    config,
    runtime,
    metrics,
    relayDatabase,
    cache: cachedForWorkers,
    openLane: (lane) => openLane(lane, { config, runtime, metrics, openDatabase }),
  });
  const classes = assembleClasses({
    config,
    runtime,
    metrics,
    database: upkeep,
    relayDatabase,
    cache: cachedForWorkers,
  });
  const assembly = assemble({
    config,
    runtime,
    metrics,
    database: requests,
    cache: cached,
    nudge: fanout.nudge,
    degradation,
  });
  const { administer, importPosts } = assembly;
  const warmUp = assembleWarmUp({ config, runtime, metrics, cached, isFull: degradation.isFull });
  const bounded = degradation.bounded(assembly.flows);
  const flows = warmUp?.noting(bounded) ?? bounded;
  const readiness = createReadiness({
    probeDatabase: (signal) => probe(probes, signal),
    probeCache: (signal) => cache.ping(signal),
    keyOutageMs: config.apiKeyOutageMs,
    clock: runtime.clock,
    log,
  });

  const lastKnownKey = createLastKnown<ApiKey>({
    hasDatabase: degradation.hasDatabase,
    lifeMs: config.apiKeyOutageMs,
    clock: runtime.clock,
  });
  const frontDoor = createFrontDoor({
    config,
    runtime,
    metrics,
    flows,
    readiness,
    admit: degradation.admit,
    findApiKey(keyText, signal) {
      const hash = hashApiKey(keyText);
      return lastKnownKey(hash.toString('base64'), () => findApiKey(keys, signal, hash));
    },
  });
  const cacheCheck = createCacheCheck({ check: (signal) => checkCache(cache, config.timeline, signal), log });
  const unfit = Promise.withResolvers<Error>();
  const background: Rounds[] = [];
  let stopping: Promise<void> | undefined;
  const stop = (): Promise<void> => {
    stopping ??= stopInOrder(stopStages(), log).then(() => log.info('stopped'));
    return stopping;
  };
  /** Calls first, then what works behind them, and what both stand on last. */
  function* stopStages(): Generator<StopStage> {
    const { drainTimeoutMs } = config;
    const drainedAtMs = clock.monotonicMs() + drainTimeoutMs;
    yield { name: 'calls', maxMs: drainTimeoutMs + STAGE_MAX_MS, parts: [frontDoor.stop] };
    // Jobs have what calls left of the time: each goes on elsewhere from its last checkpoint.
    const drainMs = Math.max(0, drainedAtMs - clock.monotonicMs());
    yield {
      name: 'background',
      maxMs: drainMs + STAGE_MAX_MS,
      parts: [
        readiness.stop,
        degradation.stop,
        assembly.stop,
        () => fanout.stop(drainMs),
        classes.stop,
        ...background.map((rounds) => rounds.stop),
      ],
    };
    yield { name: 'caches', maxMs: STAGE_MAX_MS, parts: [cached.stop, cachedForWorkers.stop] };
    yield {
      name: 'connections',
      maxMs: STAGE_MAX_MS,
      parts: [
        replica.stop,
        ...[requests, keys, probes, upkeep, relayDatabase, cache, workerCache].map((one) => one.close),
      ],
    };
  }

  try {
    degradation.start();
    await readiness.start();
    replica.start();
    await cacheCheck.atStart();
    const ports = await frontDoor.start();
    const rounds = { random, log, roundMaxMs: WORKER_STATEMENT_TIMEOUT_MS };
    const checkAgain = async (signal: AbortSignal): Promise<boolean> => {
      await cacheCheck.again(signal, unfit.resolve);
      return false;
    };
    background.push(
      startRounds({ ...rounds, name: 'cache-check', everyMs: CACHE_CHECK_EVERY_MS, runOnce: checkAgain }),
    );
    if (warmUp && (config.role === 'api' || config.role === 'all')) background.push(warmUp.start());
    if (config.role === 'relay' || config.role === 'all') {
      fanout.startRelay();
      classes.startRelay();
    }
    if (config.role === 'worker' || config.role === 'all') {
      fanout.startWorkers();
      const foldCounters = createFoldCounters({
        foldCounterDeltas: (signal, most) => foldCounterDeltas(upkeep, signal, most),
      });
      const cleanUp = createCleanUp({
        expirePublishRequests: (signal, input) => expirePublishRequests(upkeep, signal, input),
      });
      background.push(startRounds({ ...rounds, name: 'fold-counters', everyMs: FOLD_EVERY_MS, runOnce: foldCounters }));
      const { cleanEnded } = cachedForWorkers;
      background.push(
        startRounds({ ...rounds, name: 'clean-ended', everyMs: CLEAN_ENDED_EVERY_MS, runOnce: cleanEnded }),
      );
      if (config.reconcile.perMinute > 0) {
        const reconcile = assembleReconcile({
          config,
          runtime,
          metrics,
          database: upkeep,
          readSnapshot: snapshotForWorkers,
          cache: workerCache,
          cached: cachedForWorkers,
        });
        background.push(startRounds({ ...rounds, name: 'reconcile', everyMs: RECONCILE_EVERY_MS, runOnce: reconcile }));
      }
      background.push(startRounds({ ...rounds, name: 'clean-up', everyMs: CLEAN_UP_EVERY_MS, runOnce: cleanUp }));
    }
    log.info({ config: redacted(config), ...ports }, 'serving');
    return { ...ports, flows, administer, importPosts, metrics, unfit: unfit.promise, stop };
  } catch (error) {
    // Whatever cannot be closed has been logged; what kept it from starting is what its user must hear.
    await stop().catch(() => undefined);
    throw error;
  }
}

/** Connections for the workers of one lane: two to Postgres for each job that runs at once, which is what one may use, and one to Redis. */
function openLane(
  lane: Lane,
  parts: {
    readonly config: Config;
    readonly runtime: Runtime;
    readonly metrics: Metrics;
    readonly openDatabase: (pool: string, connectionsMax: number, statementTimeoutMs: number) => Database;
  },
): LaneStores {
  const { config, runtime, metrics } = parts;
  const database = parts.openDatabase(
    `fanout-${lane}`,
    2 * config.fanout.concurrency[lane],
    WORKER_STATEMENT_TIMEOUT_MS,
  );
  const cache = openLaneCache(config, runtime, metrics);
  return {
    database,
    ...openSortedSets(config, metrics, cache),
    close: async () => void (await Promise.all([database.close(), cache.close()])),
  };
}

async function serve(): Promise<void> {
  const config = configFrom(process.env);
  const runtime = systemRuntime(config.logLevel);
  const { clock, log } = runtime;
  await runUntilTold({
    process,
    clock,
    log,
    async start(signal) {
      // Another's migration may hold it up for long.
      await untilAborted(
        migrate(config.databaseUrl, (line) => log.debug(line)),
        signal,
      );
      return startService(config, runtime);
    },
  });
}

async function main(args: readonly string[]): Promise<void> {
  const [command, ...rest] = args;
  if (command === undefined) return serve();
  if (command === 'admin') return runAdmin(rest, process.env, (line) => void process.stdout.write(`${line}\n`));
  throw new Error(`unknown command "${command}"; there are none but "admin"`);
}

if (process.argv[1] !== undefined && import.meta.url === pathToFileURL(process.argv[1]).href) {
  main(process.argv.slice(2)).catch((error: unknown) => {
    process.stderr.write(`${error instanceof Error ? error.message : String(error)}\n`);
    process.exitCode = 1;
  });
}
