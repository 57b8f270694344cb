/**
 * Owns connections to the cache Redis. Clients of the request path fail fast: no queue while disconnected, a time-out on every command. Every client
 * comes back by itself, also from a server that was demoted and answers READONLY. Works on one server and on a cluster.
 */
import { Cluster, Redis, type RedisOptions } from 'ioredis';
import { TributaryError } from '../../errors.ts';
import { untilAborted } from '../../runtime.ts';
import { groupKeys } from './keys.ts';
import * as scripts from './scripts.ts';

export interface CacheOptions {
  /** `redis://…` of one server, or of several nodes of a cluster. */
  readonly urls: readonly string[];
  readonly cluster: boolean;
  /** Bound of one command. */
  readonly commandTimeoutMs: number;
  readonly connectTimeoutMs: number;
  readonly clientFailed: (error: Error) => void;
}

/** What became of one key of a batch: an error is never taken for an answer. */
export type KeyResult = { readonly value: unknown } | { readonly error: TributaryError };

export interface Cache {
  /** Runs a script once, over keys of one slot. Throws CACHE_UNAVAILABLE where it was not answered in time, and the abort's reason where the signal was first. */
  run(
    signal: AbortSignal,
    script: ScriptName,
    keys: readonly string[],
    args: readonly ScriptArgument[],
  ): Promise<unknown>;
  /**
   * Runs a script that answers a list with one item for each key, over any number of keys, in calls of bounded size. `args` go with every call, `perKey` gives one more
   * for each key. Answers one result for each key, in order; never throws but for the abort.
   */
  runEach(
    signal: AbortSignal,
    script: ScriptName,
    keys: readonly string[],
    args: readonly ScriptArgument[],
    perKey?: readonly ScriptArgument[],
  ): Promise<readonly KeyResult[]>;
  /** The values of plain keys: undefined where there is none. */
  read(signal: AbortSignal, keys: readonly string[]): Promise<readonly KeyResult[]>;
  /** Stores immutable values, with a life in ms. */
  write(
    signal: AbortSignal,
    entries: readonly { readonly key: string; readonly value: Buffer | string }[],
    lifeMs: number,
  ): Promise<void>;
  /** Throws unless every deletion was confirmed. */
  remove(signal: AbortSignal, keys: readonly string[]): Promise<void>;
  removeFields(signal: AbortSignal, fields: readonly { readonly key: string; readonly field: string }[]): Promise<void>;
  removeMembers(signal: AbortSignal, key: string, members: readonly (string | number)[]): Promise<void>;
  /** A setting of the server (of one node, on a cluster). */
  setting(signal: AbortSignal, name: string): Promise<string | undefined>;
  close(): Promise<void>;
}

export type ScriptArgument = string | number | Buffer;

const SCRIPTS = {
  push: scripts.PUSH,
  begin: scripts.BEGIN,
  addOlder: scripts.ADD_OLDER,
  commit: scripts.COMMIT,
  raiseFloor: scripts.RAISE_FLOOR,
  page: scripts.PAGE,
  cleanAuthor: scripts.CLEAN_AUTHOR,
  leaseGet: scripts.LEASE_GET,
  leaseFill: scripts.LEASE_FILL,
  leaseGetFields: scripts.LEASE_GET_FIELDS,
  leaseFillFields: scripts.LEASE_FILL_FIELDS,
} as const;
export type ScriptName = keyof typeof SCRIPTS;

const RETRY_AFTER_MS = 200;
/** Longest pause between two attempts to connect. */
const RECONNECT_MAX_MS = 1_000;

type Commands = Redis | Cluster;
type Run = (keyCount: number, ...args: ScriptArgument[]) => Promise<unknown>;

export function createCache(options: CacheOptions): Cache {
  const client = connect(options);
  client.on('error', (error: Error) => options.clientFailed(error));
  const runs = Object.fromEntries(
    Object.entries(SCRIPTS).map(([name, lua]) => {
      client.defineCommand(name, { lua });
      return [name, (client as unknown as Record<string, Run>)[name]?.bind(client)];
    }),
  ) as Record<ScriptName, Run>;

  function bounded<Result>(signal: AbortSignal, work: Promise<Result>): Promise<Result> {
    return untilAborted(work.catch(rethrowUnavailable), signal);
  }

  function rethrowUnavailable(error: unknown): never {
    throw new TributaryError('CACHE_UNAVAILABLE', {
      message: 'the cache did not answer',
      retryAfterMs: RETRY_AFTER_MS,
      cause: error,
    });
  }

  const call = (
    signal: AbortSignal,
    script: ScriptName,
    keys: readonly string[],
    args: readonly ScriptArgument[],
  ): Promise<unknown> => bounded(signal, runs[script](keys.length, ...keys, ...args));

  async function perKey<Item>(
    signal: AbortSignal,
    keys: readonly string[],
    ask: (indexes: readonly number[]) => Promise<readonly Item[]>,
  ): Promise<readonly ({ readonly value: Item } | { readonly error: TributaryError })[]> {
    const results = new Array<{ readonly value: Item } | { readonly error: TributaryError }>(keys.length);
    await Promise.all(
      groupKeys(keys, options).map(async (indexes) => {
        try {
          const values = await ask(indexes);
          indexes.forEach((index, at) => {
            results[index] = { value: values[at] as Item };
          });
        } catch (error) {
          if (signal.aborted) throw error;
          for (const index of indexes) results[index] = { error: error as TributaryError };
        }
      }),
    );
    return results;
  }

  return {
    run: call,
    runEach: (signal, script, keys, args, extra) =>
      perKey(signal, keys, async (indexes) => {
        const own = indexes.map((index) => keys[index] as string);
        const more = extra ? indexes.map((index) => extra[index] as ScriptArgument) : [];
        return (await call(signal, script, own, [...args, ...more])) as readonly unknown[];
      }),
    read: (signal, keys) =>
      perKey(signal, keys, async (indexes) => {
        const values = await bounded(signal, client.mgetBuffer(indexes.map((index) => keys[index] as string)));
        return values.map((value) => value ?? undefined);
      }),
    async write(signal, entries, lifeMs) {
      await Promise.all(entries.map(({ key, value }) => bounded(signal, client.set(key, value, 'PX', lifeMs))));
    },
    async remove(signal, keys) {
      await Promise.all(
        groupKeys(keys, options).map((indexes) =>
          bounded(signal, client.del(indexes.map((index) => keys[index] as string))),
        ),
      );
    },
    async removeFields(signal, fields) {
      await Promise.all(fields.map(({ key, field }) => bounded(signal, client.hdel(key, field))));
    },
    async removeMembers(signal, key, members) {
      await bounded(signal, client.zrem(key, ...members));
    },
    async setting(signal, name) {
      const reply = await bounded(signal, client.config('GET', name) as Promise<unknown>);
      return Array.isArray(reply) ? (reply[1] as string | undefined) : undefined;
    },
    async close() {
      client.disconnect();
    },
  };
}

function connect(options: CacheOptions): Commands {
  const redis = {
    enableOfflineQueue: false,
    commandTimeout: options.commandTimeoutMs,
    connectTimeout: options.connectTimeoutMs,
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
    retryStrategy: (times: number) => Math.min(50 * 2 ** Math.min(times, 5), RECONNECT_MAX_MS),
    // The server was demoted: another connection finds the new primary. The command itself is ours to repeat.
    reconnectOnError: (error: Error) => error.message.startsWith('READONLY'),
  } satisfies RedisOptions;
  const [first] = options.urls;
  if (first === undefined) throw new Error('the cache needs an address');
  if (!options.cluster) return new Redis({ ...redis, ...addressOf(first) });
  return new Cluster(options.urls.map(addressOf), {
    redisOptions: redis,
    enableOfflineQueue: false,
    clusterRetryStrategy: (times) => Math.min(50 * 2 ** Math.min(times, 5), RECONNECT_MAX_MS),
  });
}

function addressOf(url: string): { host: string; port: number; username?: string; password?: string; tls?: object } {
  const { hostname, port, username, password, protocol } = new URL(url);
  return {
    host: hostname,
    port: port === '' ? 6_379 : Number(port),
    ...(username !== '' && { username: decodeURIComponent(username) }),
    ...(password !== '' && { password: decodeURIComponent(password) }),
    ...(protocol === 'rediss:' && { tls: {} }),
  };
}
