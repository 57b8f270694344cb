/**
 * Owns a whole service inside a test: the real one, on free ports, over a database of its own, with callers for as many tenants as the
 * test wants. Tests of one file share a service and take a tenant each, which is isolation enough and costs nothing.
 */
import { Writable } from 'node:stream';
import { pino } from 'pino';
import { inject } from 'vitest';
import { type Config, configFrom } from '../../src/config.ts';
import { type Service, startService } from '../../src/main.ts';
import { type Call, type Log, systemRandom } from '../../src/runtime.ts';
import {
  type PostId,
  parsePostId,
  parseTenantId,
  parseUserId,
  type TenantId,
  type UserId,
} from '../../src/timeline/ids.ts';
import { type Clients, connectClients, PROTOCOLS, type Protocol } from './clients.ts';
import { createTestDatabase, type TestDatabase } from './database.ts';
import { eventually } from './eventually.ts';
import { askOracle, type OracleView } from './oracle.ts';
import { type Cast, createCast } from './play.ts';
import { createTestClock, type TestClock } from './test-clock.ts';

export interface TestServiceOptions {
  /** Environment variables beside the ones every test service has. */
  readonly env?: Readonly<Record<string, string>>;
  readonly clock?: TestClock;
  /** A database to share with another service; one of its own else. */
  readonly database?: TestDatabase;
  /** Where the service reaches the database, where that is not the address itself: a proxy. */
  readonly databaseUrl?: string;
}

export interface TestTenant extends Clients {
  readonly id: TenantId;
  readonly key: string;
  /** The same callers by each protocol; the tenant itself speaks gRPC. */
  readonly by: Readonly<Record<Protocol, Clients>>;
  /** For flows called in process. */
  call(timeoutMs?: number): Call;
  /** A new cast of posts, with its own labels. */
  cast(protocol?: Protocol): Cast;
  oracle(viewer: string): Promise<OracleView>;
}

export interface TestService {
  readonly service: Service;
  readonly config: Config;
  readonly database: TestDatabase;
  readonly clock: TestClock;
  /** Lines of the log so far, as logged. */
  readonly logLines: readonly string[];
  /** A new tenant with a name that no other has, its key and its callers. */
  tenant(): Promise<TestTenant>;
  /** Waits until every fan-out job is done and every event handled: what was published is then on every timeline it belongs to. */
  settle(): Promise<void>;
  /** Stops the service and what it was given; the database too where it is the service's own. */
  stop(): Promise<void>;
}

/** Roomy deadlines: two cores run the servers, the service and other tests. Tests of deadlines set their own. */
const ENVIRONMENT = {
  TRIBUTARY_HOST: '127.0.0.1',
  TRIBUTARY_GRPC_PORT: '0',
  TRIBUTARY_HTTP_PORT: '0',
  PAGE_TOKEN_KEYS: Buffer.alloc(32, 'test').toString('base64'),
  READ_DEADLINE_DEFAULT_MS: '10000',
  READ_DEADLINE_MAX_MS: '20000',
  WRITE_DEADLINE_DEFAULT_MS: '10000',
  WRITE_DEADLINE_MAX_MS: '20000',
  DATABASE_ACQUIRE_TIMEOUT_MS: '5000',
  DRAIN_TIMEOUT_MS: '1000',
  RELAY_EVERY_MS: '20',
  // Tests take things out of timelines to see what follows; nobody is to mend them behind their back.
  RECONCILE_PER_MINUTE: '0',
  WARM_UP_PER_SECOND: '0',
};

/** What a process of the service is told in a test: the test's own database, and the servers of the run. */
export function environmentOf(
  database: Pick<TestDatabase, 'url' | 'name'>,
  more: Readonly<Record<string, string>> = {},
): Readonly<Record<string, string>> {
  const servers = inject('servers');
  return {
    ...ENVIRONMENT,
    DATABASE_URL: database.url,
    REDIS_CACHE_URL: servers.cacheUrl,
    REDIS_QUEUE_URL: servers.queueUrl,
    QUEUE_PREFIX: database.name,
    ...more,
  };
}

let tenantsMade = 0;

export async function startTestService(options: TestServiceOptions = {}): Promise<TestService> {
  const database = options.database ?? (await createTestDatabase());
  const clock = options.clock ?? createTestClock();
  const config = configFrom(
    environmentOf({ url: options.databaseUrl ?? database.url, name: database.name }, options.env),
  );
  const logLines: string[] = [];
  const service = await startService(config, {
    clock,
    random: systemRandom,
    log: createTestLog(logLines),
  });
  const clients: Clients[] = [];

  async function tenant(): Promise<TestTenant> {
    tenantsMade += 1;
    const id = parseTenantId(`tenant-${process.pid}-${tenantsMade}`) as TenantId;
    const signal = (): AbortSignal => AbortSignal.timeout(10_000);
    await service.administer.createTenant(signal(), id);
    const key = await service.administer.createKey(signal(), { tenant: id, role: 'service' });
    const [grpc, json] = PROTOCOLS.map((protocol) => {
      const made = connectClients({ protocol, grpcPort: service.grpcPort, httpPort: service.httpPort, key });
      clients.push(made);
      return made;
    }) as [Clients, Clients];
    const call = (timeoutMs = 10_000): Call => ({ tenant: id, signal: AbortSignal.timeout(timeoutMs) });
    const { administer } = service;
    return {
      ...grpc,
      id,
      key,
      by: { grpc, json },
      call,
      cast: (protocol = 'grpc') =>
        createCast({
          clients: protocol === 'grpc' ? grpc : json,
          operator: {
            suspend: (author) => administer.suspendAuthor(call(), userId(author)),
            restore: (author) => administer.restoreAuthor(call(), userId(author)),
            moderate: async (postId, state) => {
              await administer.moderatePost(call(), { postId: postIdOf(postId), state });
            },
          },
          nowMs: () => clock.nowMs(),
        }),
      oracle: (viewer) => askOracle(database.sql, { tenant: id, viewer, nowMs: clock.nowMs() }),
    };
  }

  return {
    service,
    config,
    database,
    clock,
    logLines,
    tenant,
    settle: () =>
      eventually(async () => {
        const [row] = await database.sql<{ open: number }>(
          `SELECT (SELECT count(*) FROM fanout_jobs WHERE done_at IS NULL)::int + (SELECT count(*) FROM outbox WHERE done_at IS NULL)::int AS open`,
        );
        if (row?.open !== 0) throw new Error(`${row?.open} jobs and events are open`);
      }),
    async stop() {
      for (const client of clients) client.close();
      await service.stop();
      if (options.database === undefined) await database.drop();
    },
  };
}

export function userId(text: string): UserId {
  const id = parseUserId(text);
  if (id === undefined) throw new Error(`not a user ID: ${text}`);
  return id;
}

export function postIdOf(text: string): PostId {
  const id = parsePostId(text);
  if (id === undefined) throw new Error(`not a post ID: ${text}`);
  return id;
}

/** The log as the service writes it, kept in `lines`. */
export function createTestLog(lines: string[]): Log {
  return pino({ base: null, level: 'debug' }, linesInto(lines));
}

function linesInto(lines: string[]): Writable {
  return new Writable({
    decodeStrings: false,
    write(chunk: string, _encoding, done) {
      lines.push(...chunk.split('\n').filter((line) => line !== ''));
      done();
    },
  });
}
