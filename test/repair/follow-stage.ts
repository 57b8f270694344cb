/**
 * Owns the stage for changes of follows: a service whose own relay rests, a second process that handles events as a test wants it (late, twice, in any order, many at once), and looks at
 * what timelines really hold.
 */
import { setTimeout as pause } from 'node:timers/promises';
import { Redis } from 'ioredis';
import { assembleCache, type CacheAssembly, openCache } from '../../src/cache-assembly.ts';
import { createMetrics, type Metrics } from '../../src/metrics/metrics.ts';
import { systemRandom } from '../../src/runtime.ts';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import * as outbox from '../../src/store/postgres/outbox.ts';
import { createOutboxRelay } from '../../src/write/outbox-relay.ts';
import { openRedisMonitor } from '../harness/redis-monitor.ts';
import { createTestLog, startTestService, type TestService } from '../harness/service.ts';

export interface FollowStage {
  readonly service: TestService;
  /** The second process. */
  readonly cache: CacheAssembly;
  readonly database: Database;
  readonly metrics: Metrics;
  /** Rounds of one relay until no event is open; `disturbed` handles each event after a pause of its own, and some of them more than once. */
  relay(signal: AbortSignal, options?: { readonly disturbed?: boolean }): Promise<void>;
  openEvents(): Promise<number>;
  stop(): Promise<void>;
}

const HANDLE_LATE_MAX_MS = 40;
const AGAIN_PART = 0.3;

export async function openFollowStage(env: Readonly<Record<string, string>> = {}): Promise<FollowStage> {
  const service = await startTestService({ env: { RELAY_EVERY_MS: '60000', ...env } });
  const runtime = { clock: service.clock, random: systemRandom, log: createTestLog([]) };
  const metrics = createMetrics();
  const cacheClient = openCache(service.config, runtime, metrics);
  const database = createDatabase({
    ...service.config.database,
    url: service.config.databaseUrl,
    pool: 'elsewhere',
    connectionsMax: 8,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
  const cache = assembleCache({ config: service.config, runtime, metrics, database, cache: cacheClient });

  async function openEvents(): Promise<number> {
    const [row] = await service.database.sql<{ open: number }>(
      'SELECT count(*)::int AS open FROM outbox WHERE done_at IS NULL',
    );
    return row?.open ?? -1;
  }

  return {
    service,
    cache,
    database,
    metrics,
    openEvents,
    async relay(signal, { disturbed = false } = {}) {
      const runOnce = createOutboxRelay({
        claimEvents: async (of, input) => {
          // Few at a time, so that many relays share them.
          const events = await outbox.claimEvents(database, of, { ...input, most: disturbed ? 4 : input.most });
          return disturbed ? [...events].reverse() : events;
        },
        finishEvents: async (of, eventIds) => {
          const again = disturbed ? eventIds.filter(() => systemRandom.fraction() < AGAIN_PART) : [];
          await outbox.finishEvents(
            database,
            of,
            eventIds.filter((eventId) => !again.includes(eventId)),
          );
          await outbox.releaseEvents(
            database,
            of,
            again.map((eventId) => ({ eventId, retryInMs: 0 })),
          );
        },
        releaseEvents: (of, events) => outbox.releaseEvents(database, of, events),
        async handle(of, event) {
          if (disturbed) await pause(systemRandom.fraction() * HANDLE_LATE_MAX_MS);
          await cache.afterChange({ tenant: event.tenant, signal: of }, event);
        },
        loadOldestEventSeconds: (of) => outbox.loadOldestEventSeconds(database, of),
        monotonicMs: () => performance.now(),
        random: systemRandom,
        events: {
          eventHandled: (event) => metrics.outboxHandled(event),
          eventFailed: () => undefined,
          relayLag: () => undefined,
        },
      });
      do {
        await runOnce(signal);
      } while ((await openEvents()) > 0 && !signal.aborted);
    },
    async stop() {
      await cache.stop();
      await Promise.all([service.stop(), cacheClient.close(), database.close()]);
    },
  };
}

/** Commands that a Redis server is sent while `work` runs and that name the tenant, scripts' own ones apart, as the server itself saw them. */
export async function commandsOf(
  url: string,
  tenant: string,
  work: () => Promise<unknown>,
): Promise<readonly string[][]> {
  const redis = new Redis(url);
  const end = `end-of-${tenant}`;
  const ended = Promise.withResolvers<void>();
  const monitor = await openRedisMonitor(url, (args) => {
    if (args.includes(end)) ended.resolve();
  });
  try {
    await work();
    await redis.echo(end);
    await ended.promise;
    return monitor.commands
      .filter((args) => !args.includes(end) && args.some((arg) => arg.includes(tenant)))
      .map((args) => [...args]);
  } finally {
    monitor.close();
    redis.disconnect();
  }
}
