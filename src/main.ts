/**
 * Composition root: configuration → stores → flows → roles, started and stopped in order. Run as a program it serves one role until it is told
 * to stop, or with `admin <verb>` does one thing and ends.
 *
 * Roles: `api` answers calls; `worker` does the background work; `relay` moves the outbox, for which there is nothing to move yet; `all` is all of
 * them in one process. Each role answers /livez, /readyz and /metrics.
 */
import { pathToFileURL } from 'node:url';
import { runAdmin } from './admin.ts';
import { assemble } from './assembly.ts';
import { type Config, configFrom, redacted } from './config.ts';
import { createReadiness } from './degradation/readiness.ts';
import { createMetrics, type Metrics } from './metrics/metrics.ts';
import { createCleanUp } from './repair/clean-up.ts';
import { createFoldCounters } from './repair/fold-counters.ts';
import { type Rounds, startRounds } from './repair/rounds.ts';
import type { Flows } from './rpc/flows.ts';
import { createFrontDoor } from './rpc/front-door.ts';
import { type Runtime, systemRuntime } from './runtime.ts';
import { createDatabase, type Database } from './store/postgres/client.ts';
import { foldCounterDeltas } from './store/postgres/counters.ts';
import { migrate } from './store/postgres/migrate.ts';
import { findApiKey } from './store/postgres/tenants.ts';
import { expirePublishRequests, probe } from './store/postgres/upkeep.ts';
import { type Administer, hashApiKey } from './write/administer.ts';
import type { ImportPosts } from './write/import.ts';

export interface Service {
  readonly grpcPort: number;
  readonly httpPort: number;
  readonly flows: Flows;
  readonly administer: Administer;
  readonly importPosts: ImportPosts;
  readonly metrics: Metrics;
  /** Turns calls away, lets those under way end, then closes everything it opened. May be called more than once. */
  stop(): Promise<void>;
}

/** Statements of the background may take longer than any call. */
const WORKER_STATEMENT_TIMEOUT_MS = 30_000;
/** A look-up takes less than a millisecond, and its answer is remembered. */
const KEY_CONNECTIONS = 2;
const FOLD_EVERY_MS = 1_000;
const CLEAN_UP_EVERY_MS = 60_000;

/** Starts the roles that the configuration names, over a migrated database. Throws where a port cannot be had. */
export async function startService(config: Config, runtime: Runtime): Promise<Service> {
  const { log, random } = runtime;
  const metrics = createMetrics();
  const openDatabase = (
    pool: string,
    connectionsMax: number,
    statementTimeoutMs = config.database.statementTimeoutMs,
  ): Database => {
    const database = createDatabase({
      ...config.database,
      url: config.databaseUrl,
      pool,
      connectionsMax,
      statementTimeoutMs,
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
  const requests = openDatabase('requests', config.database.poolRequests);
  // Calls must not wait behind callers who try keys that nobody has.
  const keys = openDatabase('keys', KEY_CONNECTIONS);
  // A probe must not wait behind requests: that they are many is no reason to be restarted.
  const upkeep = openDatabase('workers', config.database.poolWorkers, WORKER_STATEMENT_TIMEOUT_MS);
  const { flows, administer, importPosts } = assemble({ config, runtime, metrics, database: requests });
  const readiness = createReadiness({ probe: (signal) => probe(upkeep, signal), log });

  const frontDoor = createFrontDoor({
    config,
    runtime,
    metrics,
    flows,
    readiness,
    findApiKey: (keyText, signal) => findApiKey(keys, signal, hashApiKey(keyText)),
  });
  const background: Rounds[] = [];
  let stopping: Promise<void> | undefined;
  const stop = (): Promise<void> => {
    stopping ??= (async () => {
      await frontDoor.stop();
      readiness.stop();
      await Promise.all(background.map((rounds) => rounds.stop()));
      await Promise.all([requests.close(), keys.close(), upkeep.close()]);
      log.info('stopped');
    })();
    return stopping;
  };

  try {
    await readiness.start();
    const ports = await frontDoor.start();
    if (config.role === 'worker' || config.role === 'all') {
      const rounds = { random, log, roundMaxMs: WORKER_STATEMENT_TIMEOUT_MS };
      const foldCounters = createFoldCounters({
        foldCounterDeltas: (signal, most) => foldCounterDeltas(upkeep, signal, most),
      });
      const cleanUp = createCleanUp({
        expirePublishRequests: (signal, input) => expirePublishRequests(upkeep, signal, input),
      });
      background.push(startRounds({ ...rounds, name: 'fold-counters', everyMs: FOLD_EVERY_MS, runOnce: foldCounters }));
      background.push(startRounds({ ...rounds, name: 'clean-up', everyMs: CLEAN_UP_EVERY_MS, runOnce: cleanUp }));
    }
    log.info({ config: redacted(config), ...ports }, 'serving');
    return { ...ports, flows, administer, importPosts, metrics, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

async function serve(): Promise<void> {
  const config = configFrom(process.env);
  const runtime = systemRuntime(config.logLevel);
  await migrate(config.databaseUrl, (line) => runtime.log.debug(line));
  const service = await startService(config, runtime);
  await new Promise<void>((resolve) => {
    process.once('SIGTERM', resolve);
    process.once('SIGINT', resolve);
  });
  await service.stop();
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
