/**
 * Owns connections to Postgres: bounded pools, deadlines, cancellation, and the reading of Postgres' errors.
 *
 * Every statement runs under its caller's signal. When that aborts, the caller is answered at once, the server is asked to stop the
 * statement, and the connection goes back to its pool only after both are done, so that a cancellation never meets the next caller's
 * statement. A pool and every checked-out client has an error listener: a dropped connection costs the calls on it, never the process.
 */
import { DatabaseError, type Pool, type PoolClient, default as pg } from 'pg';
import { TributaryError } from '../../errors.ts';
import { after, throwIfAborted, untilAborted } from '../../runtime.ts';

export interface Statement {
  /** Name under which each connection prepares the text once; one name for one text. */
  readonly name: string;
  readonly text: string;
}

export interface Transaction {
  query<Row>(statement: Statement, values: readonly unknown[]): Promise<readonly Row[]>;
}

/** Statements one by one, each on whatever connection. */
export interface Queries {
  query<Row>(signal: AbortSignal, statement: Statement, values: readonly unknown[]): Promise<readonly Row[]>;
}

export interface Database extends Queries {
  /** Runs `work` on one connection; inside it only the given transaction may be used. Rolls back when it throws. */
  transaction<Result>(signal: AbortSignal, work: (transaction: Transaction) => Promise<Result>): Promise<Result>;
  load(): PoolLoad;
  /** Asks for a sign of life, past the guard and the pool. Throws where there is none. */
  ping(signal: AbortSignal): Promise<void>;
  /** Ends idle connections at once and busy ones when their statement is done. */
  close(): Promise<void>;
}

export interface PoolLoad {
  readonly total: number;
  readonly idle: number;
  readonly waiting: number;
  /** Connections handed out so far. */
  readonly granted: number;
}

export interface DatabaseOptions {
  readonly url: string;
  /** Shows in pg_stat_activity and in metrics. */
  readonly pool: string;
  readonly connectionsMax: number;
  /** Longest wait for a connection, a new one included. */
  readonly acquireTimeoutMs: number;
  readonly statementTimeoutMs: number;
  readonly lockTimeoutMs: number;
  /** Callers that may wait for a connection at once. With the connections themselves this is the bulkhead of Postgres: nobody else gets in. */
  readonly waitersMax: number;
  /** Stands before every statement, and before the wait for a connection. Without one, all are let through. */
  readonly guard?: DatabaseGuard;
  readonly events: DatabaseEvents;
}

/** Lets work through or refuses it at once, and hears how it ended, whether or not its caller waited for that. */
export interface DatabaseGuard {
  /** A statement: its end, either way, tells how Postgres does. */
  call<Result>(work: () => Promise<Result>): Promise<Result>;
  /** The wait for a connection: only its failure tells anything, since a pooled one may have died long ago. */
  attempt<Result>(work: () => Promise<Result>): Promise<Result>;
}

const UNGUARDED: DatabaseGuard = { call: (work) => work(), attempt: (work) => work() };

export interface DatabaseEvents {
  clientFailed(pool: string, error: Error): void;
  statementCancelled(pool: string): void;
}

const BIGINT_OID = 20;
/** Statements under way at once that can be asked to stop; a cancellation takes well under a millisecond. */
const CANCEL_CONNECTIONS = 2;
/** Longest wait for the answer to a cancellation, and then for the end of what was cancelled; both take milliseconds where anybody answers. */
const STOP_WAIT_MAX_MS = 1_000;
const RETRY_AFTER_MS = 200;
/** Longest wait for sockets to close once a pool has ended. */
const CLOSE_WAIT_MAX_MS = 1_000;

export function createDatabase(options: DatabaseOptions): Database {
  const pool = createPool(options, options.pool, options.connectionsMax);
  const control = createPool(options, `${options.pool}-cancel`, CANCEL_CONNECTIONS, STOP_WAIT_MAX_MS);
  const { guard = UNGUARDED } = options;
  let waiting = 0;
  let granted = 0;

  async function acquire(signal: AbortSignal): Promise<PoolClient> {
    throwIfAborted(signal);
    if (pool.waitingCount >= options.waitersMax) {
      throw new TributaryError('OVERLOADED', {
        message: 'too many requests wait for the database',
        retryAfterMs: RETRY_AFTER_MS,
      });
    }
    const connecting = guard.attempt(() => pool.connect());
    waiting += 1;
    try {
      const client = await untilAborted(connecting, signal, () => {
        connecting.then(
          (late) => late.release(),
          () => undefined,
        );
      });
      granted += 1;
      return client;
    } finally {
      waiting -= 1;
    }
  }

  /** Ends when the server has been asked; false when it could not be. */
  async function cancel(client: PoolClient): Promise<boolean> {
    options.events.statementCancelled(options.pool);
    try {
      await control.query({ name: 'cancel', text: 'SELECT pg_cancel_backend($1)', values: [processIdOf(client)] });
      return true;
    } catch (error) {
      options.events.clientFailed(options.pool, asError(error));
      return false;
    }
  }

  interface Lease {
    readonly client: PoolClient;
    run<Row>(statement: Statement, values: readonly unknown[]): Promise<readonly Row[]>;
    /** Gives the connection back once nothing of ours runs on it; `broken` closes it instead. */
    giveBack(broken: boolean): void;
  }

  async function lease(signal: AbortSignal): Promise<Lease> {
    const client = await acquire(signal);
    let pending: Promise<unknown> = Promise.resolve();
    let unusable: Error | undefined;
    const onError = (error: Error): void => {
      unusable = error;
      options.events.clientFailed(options.pool, error);
    };
    client.on('error', onError);
    return {
      client,
      run<Row>(statement: Statement, values: readonly unknown[]): Promise<readonly Row[]> {
        throwIfAborted(signal);
        const running = guard.call(() =>
          client.query({ name: statement.name, text: statement.text, values: [...values] }),
        );
        pending = running.catch((error: unknown) => {
          // The session is over, although the socket may say so only when the next caller has it.
          if (error instanceof DatabaseError && error.severity === 'FATAL') unusable ??= error;
        });
        return untilAborted(
          running.then((result) => result.rows as Row[]),
          signal,
          () => {
            pending = stop(running);
          },
        );
      },
      giveBack(broken: boolean): void {
        void pending.then(() => {
          client.removeListener('error', onError);
          client.release(unusable ?? (broken ? new Error('connection in an unknown state') : undefined));
        });
      },
    };
    // A statement that does not end would hold the connection: one that was cancelled on a server that is not the one it went to, say.
    async function stop(running: Promise<unknown>): Promise<void> {
      const ended = running.then(always, always);
      if ((await cancel(client)) && (await withinMs(ended, STOP_WAIT_MAX_MS))) return;
      unusable ??= new Error('the statement could not be stopped');
      (client as unknown as { connection: { stream: { destroy(): void } } }).connection.stream.destroy();
      await ended;
    }
  }

  return {
    async query<Row>(signal: AbortSignal, statement: Statement, values: readonly unknown[]): Promise<readonly Row[]> {
      try {
        const held = await lease(signal);
        try {
          return await held.run<Row>(statement, values);
        } finally {
          held.giveBack(false);
        }
      } catch (error) {
        throw readError(error);
      }
    },

    async transaction<Result>(
      signal: AbortSignal,
      work: (transaction: Transaction) => Promise<Result>,
    ): Promise<Result> {
      let held: Lease | undefined;
      let clean = false;
      try {
        held = await lease(signal);
        const { run } = held;
        await run(BEGIN, []);
        try {
          const result = await work({
            query: <Row>(statement: Statement, values: readonly unknown[]) =>
              run<Row>(statement, values).catch(rethrowRead),
          });
          await run(COMMIT, []);
          clean = true;
          return result;
        } catch (error) {
          if (!signal.aborted) clean = await run(ROLLBACK, []).then(always, never);
          throw error;
        }
      } catch (error) {
        throw readError(error);
      } finally {
        // After an abort the connection is inside a transaction of unknown state: closing it rolls back.
        held?.giveBack(!clean);
      }
    },

    load: () => ({ total: pool.totalCount, idle: pool.idleCount, waiting, granted }),

    // Over the connections that cancel: those of the pool may all be waiting for what will never be answered.
    ping: (signal) => untilAborted(control.query({ name: 'ping', text: 'SELECT 1' }).then(nothing), signal),

    async close(): Promise<void> {
      // In this order: a busy connection comes back once its statement has been cancelled, for which a live pool is needed.
      await endPool(pool);
      await endPool(control);
    },
  };
}

const nothing = (): undefined => undefined;
const always = (): true => true;
const never = (): boolean => false;

const BEGIN: Statement = { name: 'begin', text: 'BEGIN' };
const COMMIT: Statement = { name: 'commit', text: 'COMMIT' };
const ROLLBACK: Statement = { name: 'rollback', text: 'ROLLBACK' };

function createPool(options: DatabaseOptions, name: string, max: number, answerMaxMs?: number): Pool {
  const pool = new pg.Pool({
    connectionString: options.url,
    application_name: `tributary-${name}`,
    max,
    connectionTimeoutMillis: options.acquireTimeoutMs,
    idleTimeoutMillis: 30_000,
    statement_timeout: options.statementTimeoutMs,
    lock_timeout: options.lockTimeoutMs,
    idle_in_transaction_session_timeout: options.statementTimeoutMs * 2,
    keepAlive: true,
    ...(answerMaxMs !== undefined && { query_timeout: answerMaxMs }),
    types: { getTypeParser: typeParser as typeof pg.types.getTypeParser },
  });
  // The pool hangs the whole client on the error, with statements and the key that cancels: nothing for a log.
  pool.on('error', (error) => options.events.clientFailed(name, Object.assign(error, { client: undefined })));
  // A session may end with the very packet after the one that made it free, before whoever waited for it can listen: an error that nobody hears would end the process. The statement that
  // comes next tells of it.
  pool.on('connect', (client) => client.on('error', () => undefined));
  return pool;
}

/** Ends a pool and waits until its sockets are closed, for a moment: `end` alone resolves once they have been asked to close. */
async function endPool(pool: Pool): Promise<void> {
  const { promise: closed, resolve } = Promise.withResolvers<void>();
  let open = pool.totalCount;
  pool.on('remove', () => {
    open -= 1;
    if (open <= 0) resolve();
  });
  if (open === 0) resolve();
  await pool.end();
  // A server that answers nothing must not hold up a stop.
  const giveUp = after(CLOSE_WAIT_MAX_MS, resolve);
  await closed;
  giveUp();
}

/** Our bigints are IDs, versions and counts, all of them exact in a double; anything larger must not be rounded in silence. */
function typeParser(oid: number, format?: 'text' | 'binary'): (value: string) => unknown {
  if (oid === BIGINT_OID && format !== 'binary') return exactInteger;
  return pg.types.getTypeParser(oid, format as 'text') as (value: string) => unknown;
}

function exactInteger(text: string): number {
  const value = Number(text);
  if (!Number.isSafeInteger(value)) throw new RangeError('bigint beyond 2^53-1');
  return value;
}

function processIdOf(client: PoolClient): number {
  return (client as unknown as { processID: number }).processID;
}

/** Whether the work, which never fails, ended within `ms`. */
function withinMs(work: Promise<true>, ms: number): Promise<boolean> {
  return new Promise((resolve) => {
    const giveUp = after(ms, () => resolve(false));
    work.then((ended) => {
      giveUp();
      resolve(ended);
    });
  });
}

function asError(error: unknown): Error {
  return error instanceof Error ? error : new Error(String(error));
}

function rethrowRead(error: unknown): never {
  throw readError(error);
}

const CONNECTION_CODES = new Set([
  'ECONNREFUSED',
  'ECONNRESET',
  'EPIPE',
  'ETIMEDOUT',
  'ENOTFOUND',
  'EAI_AGAIN',
  'EHOSTUNREACH',
  'ENETUNREACH',
]);

/** SQLSTATE of a server that ends our session or takes none: it shuts down, has crashed, or starts; or the protocol broke. */
const GONE_CODES = /^(?:08|57P0[123])/;

/**
 * Whether an error means that Postgres was not reached. That all connections of the pool are busy does not, nor does what a living server answers: a statement that took too long or was
 * cancelled, for one.
 */
export function isDatabaseUnreached(error: unknown): boolean {
  if (error instanceof DatabaseError) return GONE_CODES.test(error.code ?? '');
  return isLost(error);
}

/**
 * Postgres' error as ours. Classes of SQLSTATE: 08 connection, 53 resources, 57 intervention (a statement time-out is 57014), 40 rolled
 * back, 55P03 lock time-out, 25006 read-only server (a failover): all pass, so all are UNAVAILABLE. The rest is our own fault and goes on as it is.
 */
function readError(error: unknown): unknown {
  if (error instanceof TributaryError) return error;
  const facts = { cause: error, retryAfterMs: RETRY_AFTER_MS };
  if (error instanceof DatabaseError) {
    const code = error.code ?? '';
    return /^(08|53|57|40|55P03|25006)/.test(code)
      ? new TributaryError('DATABASE_UNAVAILABLE', { ...facts, message: 'the database could not do this now' })
      : error;
  }
  if (!(error instanceof Error)) return error;
  if (error.message === 'timeout exceeded when trying to connect') {
    return new TributaryError('OVERLOADED', { ...facts, message: 'no database connection became free in time' });
  }
  return isLost(error)
    ? new TributaryError('DATABASE_UNAVAILABLE', { ...facts, message: 'the database cannot be reached' })
    : error;
}

function isLost(error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  const { code } = error as NodeJS.ErrnoException;
  return (
    (code !== undefined && CONNECTION_CODES.has(code)) ||
    /connection terminated|client has encountered a connection error|not queryable|pool after calling end/i.test(
      error.message,
    )
  );
}

/** The constraint that an INSERT broke, where that is what happened. */
export function brokenUniqueConstraint(error: unknown): string | undefined {
  return error instanceof DatabaseError && error.code === '23505' ? error.constraint : undefined;
}
