/**
 * Owns what can be set: environment variables in, one frozen and checked Config out. Prints itself without secrets.
 * Every variable is documented in README, Configuration.
 */
import { z } from 'zod';

export const ROLES = ['api', 'relay', 'worker', 'all'] as const;
export type Role = (typeof ROLES)[number];

/** Digits alone: a variable that is set to nothing must not pass for 0, which means any port, no drain, no cache. */
const whole = (min: number, max: number) =>
  z.string().regex(/^\d+$/, 'expected a whole number').transform(Number).pipe(z.number().min(min).max(max));
const port = whole(0, 65_535);
const milliseconds = (min: number, max: number, preset: number) => whole(min, max).default(preset);
const count = milliseconds;
const keyPrefix = z.string().regex(/^[A-Za-z0-9_.-]{1,64}$/);

function allRedisUrls(text: string): boolean {
  return text.split(',').every((url) => z.url({ protocol: /^rediss?$/ }).safeParse(url.trim()).success);
}

const environment = z.object({
  TRIBUTARY_ROLE: z.enum(ROLES).default('all'),
  DATABASE_URL: z.url({ protocol: /^postgres(ql)?$/ }),
  DATABASE_REPLICA_URL: z.url({ protocol: /^postgres(ql)?$/ }).optional(),
  REDIS_CACHE_URL: z.string().refine(allRedisUrls, 'must be redis:// or rediss:// addresses, separated by commas'),
  REDIS_QUEUE_URL: z.url({ protocol: /^rediss?$/ }),
  TRIBUTARY_HOST: z.string().min(1).default('0.0.0.0'),
  TRIBUTARY_GRPC_PORT: port.default(50_051),
  TRIBUTARY_HTTP_PORT: port.default(8_080),
  /** Comma-separated base64 keys of at least 32 bytes: the first seals page tokens, all of them open. */
  PAGE_TOKEN_KEYS: z.string().min(1),
  DATABASE_POOL_REQUESTS: count(1, 200, 10),
  DATABASE_POOL_WORKERS: count(1, 200, 4),
  DATABASE_POOL_RELAY: count(1, 50, 2),
  DATABASE_POOL_REPLICA: count(1, 200, 8),
  DATABASE_REPLICA_WAIT_MS: milliseconds(0, 5_000, 50),
  DATABASE_ACQUIRE_TIMEOUT_MS: milliseconds(10, 60_000, 500),
  DATABASE_STATEMENT_TIMEOUT_MS: milliseconds(100, 600_000, 5_000),
  DATABASE_LOCK_TIMEOUT_MS: milliseconds(10, 600_000, 2_000),
  DATABASE_WAITERS_MAX: count(1, 10_000, 1_000),
  READ_DEADLINE_DEFAULT_MS: milliseconds(10, 60_000, 1_000),
  READ_DEADLINE_MAX_MS: milliseconds(10, 60_000, 5_000),
  WRITE_DEADLINE_DEFAULT_MS: milliseconds(10, 60_000, 3_000),
  WRITE_DEADLINE_MAX_MS: milliseconds(10, 60_000, 10_000),
  MESSAGE_BYTES_MAX: count(1_024, 64 * 1_024 * 1_024, 1_024 * 1_024),
  CALLS_IN_FLIGHT_MAX: count(1, 100_000, 2_000),
  EVENT_LOOP_DELAY_MAX_MS: milliseconds(10, 60_000, 500),
  DEGRADED_READS_MAX: count(1, 1_000, 4),
  DRAIN_TIMEOUT_MS: milliseconds(0, 600_000, 10_000),
  CONNECTION_AGE_MAX_MS: milliseconds(1_000, 86_400_000, 300_000),
  API_KEY_CACHE_MS: milliseconds(0, 600_000, 10_000),
  API_KEY_OUTAGE_MS: milliseconds(0, 86_400_000, 600_000),
  FOLLOWS_MAX: count(1, 100_000, 5_000),
  REDIS_CACHE_CLUSTER: z.stringbool().default(false),
  CACHE_COMMAND_TIMEOUT_MS: milliseconds(10, 60_000, 250),
  CACHE_CONNECT_TIMEOUT_MS: milliseconds(10, 60_000, 1_000),
  TIMELINE_SHARDS: count(1, 16_384, 256),
  TIMELINE_CAP: count(2, 2_000, 800),
  TIMELINE_TRIM_STRIDE: count(1, 1_000, 64),
  TIMELINE_LIFE_MS: milliseconds(1_000, 31_536_000_000, 2_592_000_000),
  FACT_LIFE_MS: milliseconds(100, 86_400_000, 3_600_000),
  FACT_LOAD_LEASE_MS: milliseconds(100, 60_000, 3_000),
  REBUILD_LEASE_MS: milliseconds(100, 60_000, 5_000),
  REBUILD_WAIT_MS: milliseconds(0, 10_000, 250),
  REBUILDS_MAX: count(1, 1_000, 8),
  WARM_UP_PER_SECOND: count(0, 1_000, 20),
  WARM_UP_ACTIVE_MS: milliseconds(1_000, 86_400_000, 600_000),
  WARM_UP_VIEWERS_MAX: count(1, 1_000_000, 20_000),
  PULLED_LIFE_MS: milliseconds(100, 3_600_000, 300_000),
  PULLED_LISTS_MAX: count(0, 5_000, 500),
  COUNTS_LIFE_MS: milliseconds(100, 3_600_000, 30_000),
  PROCESS_BODY_BYTES: count(0, 68_719_476_736, 134_217_728),
  PROCESS_PROFILE_BYTES: count(0, 68_719_476_736, 33_554_432),
  PROCESS_LIST_BYTES: count(0, 68_719_476_736, 33_554_432),
  PROCESS_LIST_MS: milliseconds(0, 60_000, 1_000),
  QUEUE_PREFIX: keyPrefix.default('tributary'),
  FANOUT_FOLLOWER_PAGE: count(1, 10_000, 2_000),
  FANOUT_SMALL_CONCURRENCY: count(1, 1_000, 4),
  FANOUT_MEDIUM_CONCURRENCY: count(1, 1_000, 2),
  FANOUT_BULK_CONCURRENCY: count(1, 1_000, 2),
  FANOUT_BULK_PAGES: count(1, 20_000, 10),
  FANOUT_ATTEMPTS_MAX: count(2, 1_000, 20),
  FANOUT_LEASE_MS: milliseconds(500, 600_000, 30_000),
  RELAY_EVERY_MS: milliseconds(10, 60_000, 500),
  RECONCILE_PER_MINUTE: count(0, 600, 60),
  AUTHOR_PULL_UP: count(2, 1_000_000_000, 100_000),
  AUTHOR_PULL_DOWN: count(1, 1_000_000_000, 80_000),
  AUTHOR_CLASS_EVERY_MS: milliseconds(10, 600_000, 10_000),
  LOG_LEVEL: z.enum(['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent']).default('info'),
});

export interface Config {
  readonly role: Role;
  readonly databaseUrl: string;
  /** A streaming replica of it that rebuilds may read where it has caught up. */
  readonly databaseReplicaUrl: string | undefined;
  readonly redisCacheUrl: string;
  readonly redisQueueUrl: string;
  readonly host: string;
  /** 0 picks a free port. */
  readonly grpcPort: number;
  readonly httpPort: number;
  readonly pageTokenKeys: readonly Buffer[];
  readonly database: {
    readonly poolRequests: number;
    readonly poolWorkers: number;
    readonly poolRelay: number;
    readonly poolReplica: number;
    /** How long a rebuild waits for the replica to catch up before it reads the primary. */
    readonly replicaWaitMs: number;
    /** Longest wait for a connection; shorter than any default deadline. */
    readonly acquireTimeoutMs: number;
    readonly statementTimeoutMs: number;
    readonly lockTimeoutMs: number;
    /** Requests that may wait for a connection at once; what is beyond fails as OVERLOADED. */
    readonly waitersMax: number;
  };
  readonly deadlines: {
    readonly readDefaultMs: number;
    readonly readMaxMs: number;
    readonly writeDefaultMs: number;
    readonly writeMaxMs: number;
  };
  /** Largest request, both as it arrives and inflated. */
  readonly messageBytesMax: number;
  readonly callsInFlightMax: number;
  /** Standing delay of the event loop at which calls are refused. */
  readonly eventLoopDelayMaxMs: number;
  /** Reads at once while the cache is away: each takes up to three connections of Postgres' pool. */
  readonly degradedReadsMax: number;
  readonly drainTimeoutMs: number;
  readonly connectionAgeMaxMs: number;
  /** How long a revoked API key may go on working in a process that knew it. */
  readonly apiKeyCacheMs: number;
  /** How long a known key goes on working while Postgres is away and cannot say whether it was revoked. */
  readonly apiKeyOutageMs: number;
  readonly followsMax: number;
  readonly cache: {
    /** Whether REDIS_CACHE_URL (several addresses, separated by commas, are taken) is a Redis Cluster. */
    readonly urls: readonly string[];
    readonly cluster: boolean;
    readonly commandTimeoutMs: number;
    readonly connectTimeoutMs: number;
    /** Life of a cached fact: a bound on the harm of what nobody thought of. */
    readonly factLifeMs: number;
    /** How long a reader that found a fact missing has the right to store what it loads: longer than a load takes. */
    readonly factLoadLeaseMs: number;
    /** Life of cached counters: how late they may be. */
    readonly countsLifeMs: number;
  };
  readonly timeline: {
    /** Fixed at birth: another number is a cold cache. */
    readonly shards: number;
    /** Entries that a trimmed timeline keeps. */
    readonly cap: number;
    /** Entries beyond the cap before it is trimmed. */
    readonly stride: number;
    /** How long an unread timeline lives. */
    readonly lifeMs: number;
  };
  readonly rebuild: {
    /** How long a rebuild keeps others from starting one: longer than one takes. */
    readonly leaseMs: number;
    /** How long a reader waits for another's rebuild before it is served a page marked PARTIAL. */
    readonly waitMs: number;
    /** Rebuilds of one process at once, of timelines and of lists each: they are what Postgres must be protected from. */
    readonly concurrencyMax: number;
  };
  /** Of viewers whom the cache has lost. */
  readonly warmUp: {
    /** Timelines that a process rebuilds in the background; 0: none. */
    readonly perSecond: number;
    /** Who read within this time is looked after. */
    readonly activeMs: number;
    /** Readers that a process remembers. */
    readonly viewersMax: number;
  };
  readonly reconcile: {
    /** Resident timelines that a worker compares with Postgres; 0: none. */
    readonly perMinute: number;
  };
  readonly pulled: {
    /** Longest time for which a reader may not know that an author began to be pulled. */
    readonly lifeMs: number;
    /** Lists of pulled authors that one page reads from the cache; what is beyond comes from Postgres in one query. */
    readonly listsMax: number;
  };
  /** What one process holds itself: copies that spare the hottest keys. A bound of 0 bytes holds nothing. */
  readonly process: {
    readonly bodyBytesMax: number;
    readonly profileBytesMax: number;
    readonly listBytesMax: number;
    /** Longest time for which a pulled author's new post may not be seen by readers of another process; 0 keeps no list. */
    readonly listAgeMaxMs: number;
  };
  readonly fanout: {
    /** Before the names of all keys in the queue Redis; services that share one take different ones. */
    readonly queuePrefix: string;
    /** Followers read from Postgres at once. */
    readonly followerPage: number;
    /** Jobs of one process at once, by lane. */
    readonly concurrency: { readonly small: number; readonly medium: number; readonly bulk: number };
    /** Pages of followers after which a job of the bulk lane gives way to another that waits. */
    readonly bulkPages: number;
    /** Attempts that came no further, by a job's own fault, after which it is a dead letter. */
    readonly attemptsMax: number;
    /** How long a worker may go without a checkpoint before its job is given to another. */
    readonly leaseMs: number;
    /** Pause between two looks at the outbox, where nobody nudges. */
    readonly relayEveryMs: number;
  };
  readonly classes: {
    /** Followers from which an author's posts are pulled, and down to which they stay pulled. */
    readonly pullUp: number;
    readonly pullDown: number;
    /** Pause between two looks at who must change. */
    readonly everyMs: number;
  };
  readonly logLevel: string;
}

/** Throws an Error that names every wrong variable, and never a value. */
export function configFrom(env: Readonly<Record<string, string | undefined>>): Config {
  const parsed = environment.safeParse(env);
  if (!parsed.success) {
    const faults = parsed.error.issues.map((issue) => `${issue.path.join('.')}: ${issue.message}`);
    throw new Error(`Configuration is wrong:\n  ${faults.join('\n  ')}`);
  }
  const value = parsed.data;
  if (
    value.READ_DEADLINE_DEFAULT_MS > value.READ_DEADLINE_MAX_MS ||
    value.WRITE_DEADLINE_DEFAULT_MS > value.WRITE_DEADLINE_MAX_MS
  ) {
    throw new Error('Configuration is wrong:\n  a default deadline is above its maximum');
  }
  if (value.AUTHOR_PULL_DOWN >= value.AUTHOR_PULL_UP)
    throw new Error('Configuration is wrong:\n  AUTHOR_PULL_DOWN is not below AUTHOR_PULL_UP');
  return Object.freeze({
    role: value.TRIBUTARY_ROLE,
    databaseUrl: value.DATABASE_URL,
    databaseReplicaUrl: value.DATABASE_REPLICA_URL,
    redisCacheUrl: value.REDIS_CACHE_URL,
    redisQueueUrl: value.REDIS_QUEUE_URL,
    host: value.TRIBUTARY_HOST,
    grpcPort: value.TRIBUTARY_GRPC_PORT,
    httpPort: value.TRIBUTARY_HTTP_PORT,
    pageTokenKeys: pageTokenKeysFrom(value.PAGE_TOKEN_KEYS),
    database: Object.freeze({
      poolRequests: value.DATABASE_POOL_REQUESTS,
      poolWorkers: value.DATABASE_POOL_WORKERS,
      poolRelay: value.DATABASE_POOL_RELAY,
      poolReplica: value.DATABASE_POOL_REPLICA,
      replicaWaitMs: value.DATABASE_REPLICA_WAIT_MS,
      acquireTimeoutMs: value.DATABASE_ACQUIRE_TIMEOUT_MS,
      statementTimeoutMs: value.DATABASE_STATEMENT_TIMEOUT_MS,
      lockTimeoutMs: value.DATABASE_LOCK_TIMEOUT_MS,
      waitersMax: value.DATABASE_WAITERS_MAX,
    }),
    deadlines: Object.freeze({
      readDefaultMs: value.READ_DEADLINE_DEFAULT_MS,
      readMaxMs: value.READ_DEADLINE_MAX_MS,
      writeDefaultMs: value.WRITE_DEADLINE_DEFAULT_MS,
      writeMaxMs: value.WRITE_DEADLINE_MAX_MS,
    }),
    messageBytesMax: value.MESSAGE_BYTES_MAX,
    callsInFlightMax: value.CALLS_IN_FLIGHT_MAX,
    eventLoopDelayMaxMs: value.EVENT_LOOP_DELAY_MAX_MS,
    degradedReadsMax: value.DEGRADED_READS_MAX,
    drainTimeoutMs: value.DRAIN_TIMEOUT_MS,
    connectionAgeMaxMs: value.CONNECTION_AGE_MAX_MS,
    apiKeyCacheMs: value.API_KEY_CACHE_MS,
    apiKeyOutageMs: value.API_KEY_OUTAGE_MS,
    followsMax: value.FOLLOWS_MAX,
    cache: Object.freeze({
      urls: Object.freeze(value.REDIS_CACHE_URL.split(',').map((url) => url.trim())),
      cluster: value.REDIS_CACHE_CLUSTER,
      commandTimeoutMs: value.CACHE_COMMAND_TIMEOUT_MS,
      connectTimeoutMs: value.CACHE_CONNECT_TIMEOUT_MS,
      factLifeMs: value.FACT_LIFE_MS,
      factLoadLeaseMs: value.FACT_LOAD_LEASE_MS,
      countsLifeMs: value.COUNTS_LIFE_MS,
    }),
    timeline: Object.freeze({
      shards: value.TIMELINE_SHARDS,
      cap: value.TIMELINE_CAP,
      stride: value.TIMELINE_TRIM_STRIDE,
      lifeMs: value.TIMELINE_LIFE_MS,
    }),
    rebuild: Object.freeze({
      leaseMs: value.REBUILD_LEASE_MS,
      waitMs: value.REBUILD_WAIT_MS,
      concurrencyMax: value.REBUILDS_MAX,
    }),
    warmUp: Object.freeze({
      perSecond: value.WARM_UP_PER_SECOND,
      activeMs: value.WARM_UP_ACTIVE_MS,
      viewersMax: value.WARM_UP_VIEWERS_MAX,
    }),
    reconcile: Object.freeze({ perMinute: value.RECONCILE_PER_MINUTE }),
    pulled: Object.freeze({
      lifeMs: value.PULLED_LIFE_MS,
      listsMax: value.PULLED_LISTS_MAX,
    }),
    process: Object.freeze({
      bodyBytesMax: value.PROCESS_BODY_BYTES,
      profileBytesMax: value.PROCESS_PROFILE_BYTES,
      listBytesMax: value.PROCESS_LIST_BYTES,
      listAgeMaxMs: value.PROCESS_LIST_MS,
    }),
    fanout: Object.freeze({
      queuePrefix: value.QUEUE_PREFIX,
      followerPage: value.FANOUT_FOLLOWER_PAGE,
      concurrency: Object.freeze({
        small: value.FANOUT_SMALL_CONCURRENCY,
        medium: value.FANOUT_MEDIUM_CONCURRENCY,
        bulk: value.FANOUT_BULK_CONCURRENCY,
      }),
      bulkPages: value.FANOUT_BULK_PAGES,
      attemptsMax: value.FANOUT_ATTEMPTS_MAX,
      leaseMs: value.FANOUT_LEASE_MS,
      relayEveryMs: value.RELAY_EVERY_MS,
    }),
    classes: Object.freeze({
      pullUp: value.AUTHOR_PULL_UP,
      pullDown: value.AUTHOR_PULL_DOWN,
      everyMs: value.AUTHOR_CLASS_EVERY_MS,
    }),
    logLevel: value.LOG_LEVEL,
  });
}

/** The Config as it may be logged: no password, no key. */
export function redacted(config: Config): Record<string, unknown> {
  return {
    ...config,
    databaseUrl: withoutSecrets(config.databaseUrl),
    ...(config.databaseReplicaUrl !== undefined && { databaseReplicaUrl: withoutSecrets(config.databaseReplicaUrl) }),
    redisCacheUrl: config.cache.urls.map(withoutSecrets).join(','),
    cache: { ...config.cache, urls: config.cache.urls.map(withoutSecrets) },
    redisQueueUrl: withoutSecrets(config.redisQueueUrl),
    pageTokenKeys: `${config.pageTokenKeys.length} key(s)`,
  };
}

const BASE64_FORM = /^[A-Za-z0-9+/_-]+={0,2}$/;

function pageTokenKeysFrom(text: string): readonly Buffer[] {
  const parts = text.split(',').map((part) => part.trim());
  const keys = parts.map((part) => Buffer.from(part, 'base64'));
  // The decoder passes over what is not base64.
  if (keys.some((key) => key.length < 32) || !parts.every((part) => BASE64_FORM.test(part))) {
    throw new Error('Configuration is wrong:\n  PAGE_TOKEN_KEYS: every key needs at least 32 bytes, in base64');
  }
  return Object.freeze(keys);
}

/** Clients take a password from the query too. */
function withoutSecrets(url: string): string {
  const parsed = new URL(url);
  if (parsed.password !== '') parsed.password = 'redacted';
  for (const name of [...parsed.searchParams.keys()]) {
    if (/pass/i.test(name)) parsed.searchParams.set(name, 'redacted');
  }
  return parsed.toString();
}
