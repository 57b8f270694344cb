/**
 * Owns connections to the cache Redis, and how work becomes calls: of bounded size, a bounded number in flight, split where a cluster refuses several keys at once. Clients fail fast:
 * no queue while disconnected, a time-out on every command, and those of requests stand behind a guard that may refuse them. Every client comes back by itself, also from a server that was demoted and answers READONLY, and
 * from a connection that has gone deaf. Works on one server and on a cluster.
 *
 * A command that timed out may still be carried out, later than the caller believes. So nothing is sent here that does harm when it comes late: scripts check a token, and the rest adds what is
 * immutable or takes away what can be loaded again.
 */
import { Cluster, Redis, type RedisOptions, ReplyError } from 'ioredis';
import { TributaryError } from '../../errors.ts';
import { after, throwIfAborted, untilAborted } from '../../runtime.ts';
import * as entryScripts from './entry-scripts.ts';
import * as factScripts from './fact-scripts.ts';
import { gatherWrites } from './gathered-writes.ts';
import { groupKeys, KEYS_PER_CALL_MAX, slotOf } from './keys.ts';

export interface CacheOptions {
  /** `redis://…` of one server, or of several nodes of a cluster. */
  readonly urls: readonly string[];
  readonly cluster: boolean;
  /** Bound of one command. */
  readonly commandTimeoutMs: number;
  readonly connectTimeoutMs: number;
  /** Calls that one batch has in flight: enough to hide the way to Redis, too few to make others wait behind it. */
  readonly callsInFlightMax?: number;
  /**
   * Stands before every command but pings: sends it or refuses it at once, and hears how it ended, whether or not its caller waited for that. Without one, all are sent. `node`: the master of a
   * cluster that the command is for.
   */
  readonly guard?: <Result>(send: () => Promise<Result>, node?: string) => Promise<Result>;
  readonly clientFailed: (error: Error) => void;
}

/** What became of one key of a batch: an error is never taken for an answer. */
export type KeyResult = { readonly value: unknown } | { readonly error: TributaryError };

export interface Cache {
  /** Resolves when commands can be sent: at once, or after the (first) connection. Commands before that fail. Throws the abort's reason, and CACHE_UNAVAILABLE once closed. */
  ready(signal: AbortSignal): Promise<void>;
  /** Runs a script once, over keys of one slot. Throws CACHE_UNAVAILABLE where it was not answered in time, and the abort's reason where the signal was first. */
  run(
    signal: AbortSignal,
    script: ScriptName,
    keys: readonly string[],
    args: readonly ScriptArgument[],
  ): Promise<unknown>;
  /**
   * Runs a script that answers a list with one item for each key, or one text with a line for each, over any number of keys, in calls of bounded size, few of them in flight. `args` go with every call, `perKey` gives one more
   * for each key. A call may be repeated key by key, so the script must bear to run twice. Answers one result for each key, in order; never throws but for the abort.
   */
  runEach(
    signal: AbortSignal,
    script: ScriptName,
    keys: readonly string[],
    args: readonly ScriptArgument[],
    perKey?: readonly ScriptArgument[],
  ): Promise<readonly KeyResult[]>;
  /**
   * The same for a script that takes several keys for each item: `keySets` are of one length, which is its first argument, each of one slot; `perSet` gives one more for each set. Answers one
   * result for each set, in order.
   */
  runEachSet(
    signal: AbortSignal,
    script: ScriptName,
    keySets: readonly (readonly string[])[],
    args: readonly ScriptArgument[],
    perSet?: readonly ScriptArgument[],
  ): Promise<readonly KeyResult[]>;
  /** The values of plain keys: undefined where there is none. */
  read(signal: AbortSignal, keys: readonly string[]): Promise<readonly KeyResult[]>;
  /** Stores immutable values, with a life in ms. Throws unless all were stored. */
  write(
    signal: AbortSignal,
    entries: readonly { readonly key: string; readonly value: Buffer | string }[],
    lifeMs: number,
  ): Promise<void>;
  /** Throws unless every deletion was confirmed. */
  remove(signal: AbortSignal, keys: readonly string[]): Promise<void>;
  removeFields(signal: AbortSignal, fields: readonly { readonly key: string; readonly field: string }[]): Promise<void>;
  /** A setting of the server, or of each master of a cluster; nothing for one that the server does not know. */
  settings(signal: AbortSignal, name: string): Promise<readonly string[]>;
  /** A section of INFO of the server, or of each master of a cluster that answers. Throws where none does. */
  info(signal: AbortSignal, section: string): Promise<readonly string[]>;
  /** Asks for a sign of life, past the guard: of the server, or of any master of a cluster that takes commands. Throws where there is none. */
  ping(signal: AbortSignal): Promise<void>;
  /** The slot of a key on a cluster, outside of which no call goes; undefined on one server. */
  slotOf(key: string): number | undefined;
  /** The master of a cluster that a key belongs to, as far as is known; undefined on one server. */
  nodeOf(key: string): string | undefined;
  /** As `ping`, of one master. Throws also where it answers, but nothing else, since it holds the cluster for down. Nothing is asked of one that owns nothing any more. Where it does not answer, it is looked up who owns what: a replica may have taken over. */
  pingNode(signal: AbortSignal, node: string): Promise<void>;
  /** Calls in flight fail as CACHE_UNAVAILABLE, as do those to come. */
  close(): Promise<void>;
}

export type ScriptArgument = string | number | Buffer;

const SCRIPTS = {
  push: entryScripts.PUSH,
  cut: entryScripts.CUT,
  pushOlder: entryScripts.PUSH_OLDER,
  floors: entryScripts.FLOORS,
  takeOutDead: entryScripts.TAKE_OUT_DEAD,
  begin: entryScripts.BEGIN,
  addOlder: entryScripts.ADD_OLDER,
  commit: entryScripts.COMMIT,
  raiseFloor: entryScripts.RAISE_FLOOR,
  page: entryScripts.PAGE,
  part: entryScripts.PART_ALONE,
  pages: entryScripts.PAGES,
  home: entryScripts.HOME,
  homes: entryScripts.HOMES,
  cleanAuthor: entryScripts.CLEAN_AUTHOR,
  leaseGet: factScripts.LEASE_GET,
  leaseFill: factScripts.LEASE_FILL,
  leaseGetFields: factScripts.LEASE_GET_FIELDS,
  leaseFillFields: factScripts.LEASE_FILL_FIELDS,
  store: factScripts.STORE,
  mark: factScripts.MARK,
} as const;
export type ScriptName = keyof typeof SCRIPTS;

const RETRY_AFTER_MS = 200;
const CALLS_IN_FLIGHT = 16;
/** Longest pause between two attempts to connect: what was promised for within a second of the cache's return needs a part of that second itself. */
const RECONNECT_MAX_MS = 400;
/** A connection is given up when it has owed an answer for so many command time-outs: the peer went away without a word. */
const DEAF_AFTER_TIMEOUTS = 4;
const DEAF_AFTER_MIN_MS = 1_000;
/** How long the other side may take to end a connection that is being closed. */
const DISCONNECT_TIMEOUT_MS = 200;
/** Tries of one command among the nodes of a cluster whose map is changing, and the pause between them; both within the command's time-out. */
const REDIRECTIONS_MAX = 6;
const REDIRECTION_PAUSE_MS = 10;
/**
 * What a batch is answered on account of one of its keys: a slot that is moving, keys of several slots, a key of a foreign type. Where none of its keys is left at the old node of a slot and not all
 * are at the new one, a call is sent from one to the other by turns, until it has had enough. One that a node refuses for other reasons is not asked again key by key: that would be a hundred calls for one.
 */
const MANY_KEYS_REFUSED =
  /^(?:TRYAGAIN|CROSSSLOT|WRONGTYPE)\b|do not hash to the same slot|^Too many Cluster redirections\. Last error: ReplyError: (?:TRYAGAIN|ASK|MOVED)\b/;

/** What a command is answered that was sent from node to node in vain, to one that is gone or back from one that names it; not one that was told to come again by a slot that moves. */
const NODE_UNREACHED = /^Too many Cluster redirections\. Last error: (?!ReplyError: TRYAGAIN)/;

type Commands = Redis | Cluster;
type Run = (keyCount: number, ...args: ScriptArgument[]) => Promise<unknown>;
type Outcome<Value> = { readonly value: Value } | { readonly error: TributaryError };

export function createCache(options: CacheOptions): Cache {
  const { callsInFlightMax = CALLS_IN_FLIGHT, guard = (send) => send() } = options;
  const client = connect(options);
  client.on('error', (error: Error) => options.clientFailed(error));
  // Of single nodes of a cluster.
  client.on('node error', (error: Error) => options.clientFailed(error));
  const runs = Object.fromEntries(
    Object.entries(SCRIPTS).map(([name, lua]) => {
      client.defineCommand(name, { lua });
      return [name, (client as unknown as Record<string, Run>)[name]?.bind(client)];
    }),
  ) as Record<ScriptName, Run>;

  /** Sends nothing for a caller who has left. `key`: one of those that the command names. */
  async function bounded<Result>(signal: AbortSignal, send: () => Promise<Result>, key?: string): Promise<Result> {
    throwIfAborted(signal);
    const node = key === undefined ? undefined : nodeOf(key);
    return untilAborted(guard(send, node).catch(throwUnavailable), signal);
  }

  const nodeOf = (key: string): string | undefined =>
    client instanceof Cluster ? client.slots[slotOf(key)]?.[0] : undefined;

  const call = (
    signal: AbortSignal,
    script: ScriptName,
    keys: readonly string[],
    args: readonly ScriptArgument[],
  ): Promise<unknown> => bounded(signal, () => runs[script](keys.length, ...keys, ...args), keys[0]);

  /** Asks in calls of bounded size; what was refused for being asked together is asked again one by one. */
  async function inCalls<Value>(
    signal: AbortSignal,
    keys: readonly string[],
    ask: (keys: readonly string[], indexes: readonly number[]) => Promise<readonly Value[]>,
    keysMax = KEYS_PER_CALL_MAX,
  ): Promise<readonly Outcome<Value>[]> {
    const outcomes = new Array<Outcome<Value>>(keys.length);
    const refused: number[] = [];
    async function askGroup(indexes: readonly number[]): Promise<void> {
      try {
        const values = await ask(
          indexes.map((index) => keys[index] as string),
          indexes,
        );
        if (values.length !== indexes.length)
          throw new Error('an answer of the cache has another length than the question');
        indexes.forEach((index, at) => {
          outcomes[index] = { value: values[at] as Value };
        });
      } catch (error) {
        throwIfAborted(signal);
        if (!(error instanceof TributaryError)) throw error;
        if (indexes.length > 1 && isManyKeysRefusal(error)) refused.push(...indexes);
        else for (const index of indexes) outcomes[index] = { error };
      }
    }
    await inWindow(groupKeys(keys, { cluster: options.cluster, keysMax }), askGroup);
    if (refused.length > 0)
      await inWindow(
        refused.map((index) => [index]),
        askGroup,
      );
    return outcomes;
  }

  const inWindow = <Item>(items: readonly Item[], work: (item: Item) => Promise<void>): Promise<void> =>
    workInWindow(callsInFlightMax, items, work);

  return {
    async ready(signal) {
      throwIfAborted(signal);
      if (client.status === 'ready') return;
      if (client.status === 'end') throwUnavailable(new Error('the connection is closed'));
      let stopListening = (): void => undefined;
      const connected = new Promise<void>((resolve, reject) => {
        const ended = (): void => reject(new Error('the connection is closed'));
        client.once('ready', resolve).once('end', ended);
        stopListening = () => void client.off('ready', resolve).off('end', ended);
      });
      await untilAborted(connected.catch(throwUnavailable), signal).finally(stopListening);
    },

    run: call,

    runEach: (signal, script, keys, args, perKey) =>
      inCalls(signal, keys, async (some, indexes) => {
        const more = perKey ? indexes.map((index) => perKey[index] as ScriptArgument) : [];
        return itemsIn(await call(signal, script, some, [...args, ...more]));
      }),

    runEachSet(signal, script, keySets, args, perSet) {
      const length = keySets[0]?.length ?? 1;
      return inCalls(
        signal,
        keySets.map(([first]) => first as string),
        async (_, indexes) => {
          const keys = indexes.flatMap((index) => keySets[index] as readonly string[]);
          const more = perSet ? indexes.map((index) => perSet[index] as ScriptArgument) : [];
          return itemsIn(await call(signal, script, keys, [length, ...args, ...more]));
        },
        Math.max(1, Math.floor(KEYS_PER_CALL_MAX / length)),
      );
    },

    read: (signal, keys) =>
      inCalls(signal, keys, async (some) => {
        const values = await bounded(signal, () => client.mgetBuffer([...some]), some[0]);
        return values.map((value) => value ?? undefined);
      }),

    async write(signal, entries, lifeMs) {
      const outcomes = await inCalls(
        signal,
        entries.map(({ key }) => key),
        async (some, indexes) => {
          const values = indexes.map((index) => (entries[index] as (typeof entries)[number]).value);
          return (await call(signal, 'store', some, [lifeMs, ...values])) as readonly unknown[];
        },
      );
      for (const outcome of outcomes) if ('error' in outcome) throw outcome.error;
    },

    async remove(signal, keys) {
      const outcomes = await inCalls(signal, keys, async (some) => {
        const removed = await bounded(signal, () => client.del([...some]), some[0]);
        return some.map(() => removed);
      });
      for (const outcome of outcomes) if ('error' in outcome) throw outcome.error;
    },

    async removeFields(signal, fields) {
      const byKey = Map.groupBy(fields, ({ key }) => key);
      await inWindow([...byKey], async ([key, some]) => {
        for (let from = 0; from < some.length; from += KEYS_PER_CALL_MAX) {
          const names = some.slice(from, from + KEYS_PER_CALL_MAX).map(({ field }) => field);
          await bounded(signal, () => client.hdel(key, ...names), key).catch((error: unknown) => {
            if (!(error instanceof TributaryError && isForeignType(error))) throw error;
            // It holds no field, and goes: else what must be confirmed never could be.
            return bounded(signal, () => client.del(key), key);
          });
        }
      });
    },

    async settings(signal, name) {
      const replies = await Promise.all(
        mastersOf(client).map((node) => bounded(signal, () => node.config('GET', name))),
      );
      return (replies as readonly (readonly string[])[]).flatMap(([, value]) => value ?? []);
    },

    async info(signal, section) {
      // For the next look: whoever sends little learns from nobody that a replica has taken over.
      if (client instanceof Cluster) client.refreshSlotsCache();
      const replies = await Promise.allSettled(
        mastersOf(client).map((node) => bounded(signal, () => node.info(section))),
      );
      throwIfAborted(signal);
      const texts = replies.flatMap((reply) => (reply.status === 'fulfilled' ? [reply.value] : []));
      return texts.length > 0 ? texts : throwUnavailable(new Error('no server answered'));
    },

    async ping(signal) {
      throwIfAborted(signal);
      await untilAborted(
        Promise.any(mastersOf(client).map(client instanceof Cluster ? pingMaster : pingServer)),
        signal,
      );
    },

    slotOf: (key) => (options.cluster ? slotOf(key) : undefined),
    nodeOf,

    async pingNode(signal, node) {
      throwIfAborted(signal);
      if (!(client instanceof Cluster) || !client.slots.some((owners) => owners?.[0] === node)) return;
      try {
        const found = client.nodes('master').find(({ options: { host, port } }) => `${host}:${port}` === node);
        await untilAborted(found ? pingMaster(found) : Promise.reject(new Error('there is no connection')), signal);
      } catch (error) {
        client.refreshSlotsCache();
        throw error;
      }
    },

    async close() {
      const { status } = client;
      // Between two attempts there is nothing to end, and nobody to say so.
      const isOver = status === 'end' || status === 'reconnecting';
      const ended = new Promise<void>((resolve) => {
        const giveUp = after(2 * DISCONNECT_TIMEOUT_MS, resolve);
        client.once('end', () => {
          giveUp();
          resolve();
        });
      });
      client.disconnect();
      if (!isOver) await ended;
    },
  };
}

function itemsIn(answer: unknown): readonly unknown[] {
  return typeof answer === 'string' ? answer.split('\n') : (answer as readonly unknown[]);
}

function mastersOf(client: Commands): readonly Redis[] {
  return client instanceof Cluster ? client.nodes('master') : [client];
}

const pingServer = (server: Redis): Promise<unknown> => server.ping();

/** A master that sees too few others, or slots that nobody has, answers pings and refuses all else. One that does not say what it sees answers. */
async function pingMaster(master: Redis): Promise<void> {
  const seen = await master.cluster('INFO').catch((error: unknown) => {
    if (error instanceof ReplyError) return '';
    throw error;
  });
  if (String(seen).includes('cluster_state:fail')) throw new Error('it calls the cluster down');
}

function throwUnavailable(error: unknown): never {
  throw new TributaryError('CACHE_UNAVAILABLE', {
    message: 'the cache did not answer',
    retryAfterMs: RETRY_AFTER_MS,
    cause: error,
  });
}

/**
 * Whether an error means that the cache was not reached: a time-out or a lost connection. What a server answers comes at once, whatever it says, and proves that it is there.
 */
export function isCacheUnreached(error: unknown): boolean {
  if (!(error instanceof Error) || error instanceof ReplyError) return false;
  return NODE_UNREACHED.test(error.message) || !MANY_KEYS_REFUSED.test(error.message);
}

/** Something of another type stands under a key of ours: nobody here wrote it. */
export function isForeignType(error: TributaryError): boolean {
  return error.cause instanceof Error && error.cause.message.startsWith('WRONGTYPE');
}

/** A call was refused for naming several keys; each of them alone may be answered. */
export function isManyKeysRefusal({ cause }: TributaryError): boolean {
  return cause instanceof Error && MANY_KEYS_REFUSED.test(cause.message);
}

/** Works on all items, on a bounded number at once. The first fault ends it; what is under way then is not waited for. */
async function workInWindow<Item>(
  most: number,
  items: readonly Item[],
  work: (item: Item) => Promise<void>,
): Promise<void> {
  const [first] = items;
  if (first !== undefined && items.length === 1) return work(first);
  const rest = items.values();
  let failed = false;
  async function take(): Promise<void> {
    for (const item of rest) {
      if (failed) return;
      await work(item);
    }
  }
  try {
    await Promise.all(Array.from({ length: Math.min(items.length, most) }, take));
  } finally {
    failed = true;
  }
}

function connect(options: CacheOptions): Commands {
  const retryStrategy = (times: number): number => Math.min(50 * 2 ** Math.min(times, 3), RECONNECT_MAX_MS);
  const redis = {
    enableOfflineQueue: false,
    commandTimeout: options.commandTimeoutMs,
    connectTimeout: options.connectTimeoutMs,
    disconnectTimeout: DISCONNECT_TIMEOUT_MS,
    socketTimeout: Math.max(DEAF_AFTER_MIN_MS, DEAF_AFTER_TIMEOUTS * options.commandTimeoutMs),
    maxRetriesPerRequest: 0,
    autoResendUnfulfilledCommands: false,
    retryStrategy,
    // The server was demoted: another connection finds the new primary. The command itself is its caller's to repeat.
    reconnectOnError: (error: Error) => error.message.includes('READONLY'),
  } satisfies RedisOptions;
  const addresses = options.urls.map(addressOf);
  const [first] = addresses;
  if (first === undefined) throw new Error('the cache needs an address');
  if (!options.cluster) return gatherWrites(new Redis({ ...redis, ...first.node, ...first.access }));
  const cluster = new Cluster(
    addresses.map(({ node }) => node),
    {
      // Nodes that the cluster names are entered like those that we were given.
      redisOptions: { ...redis, ...first.access },
      enableOfflineQueue: false,
      maxRedirections: REDIRECTIONS_MAX,
      retryDelayOnTryAgain: REDIRECTION_PAUSE_MS,
      retryDelayOnFailover: REDIRECTION_PAUSE_MS,
      retryDelayOnClusterDown: REDIRECTION_PAUSE_MS,
      clusterRetryStrategy: retryStrategy,
    },
  );
  cluster.on('+node', hearAsking);
  return gatherWrites(cluster);
}

/** Before a command for a slot that moves ioredis sends ASKING and listens to no answer; a node that goes away in that moment would end the whole process by a rejection that nobody handles. */
function hearAsking(node: Redis): void {
  const asking = node.asking.bind(node) as () => Promise<'OK'>;
  node.asking = (): Promise<'OK'> => {
    const answer = asking();
    answer.catch(() => undefined);
    return answer;
  };
}

interface Address {
  readonly node: { readonly host: string; readonly port: number };
  readonly access: Pick<RedisOptions, 'username' | 'password' | 'tls' | 'db'>;
}

function addressOf(url: string): Address {
  const { hostname, port, pathname, username, password, protocol } = new URL(url);
  const database = /^\/(\d+)$/.exec(pathname)?.[1];
  return {
    node: { host: hostname.replace(/^\[(.*)\]$/, '$1'), port: port === '' ? 6_379 : Number(port) },
    access: {
      ...(username !== '' && { username: decodeURIComponent(username) }),
      ...(password !== '' && { password: decodeURIComponent(password) }),
      ...(protocol === 'rediss:' && { tls: {} }),
      ...(database !== undefined && { db: Number(database) }),
    },
  };
}
