/**
 * Owns the connections to the queue Redis. Those that add hints fail fast: nothing is kept for later while the server is away, and every command has a bound. Those of workers
 * wait as long as it takes. All come back by themselves, also from a server that was demoted, and a socket that has gone silent is given up.
 */
import { Redis, type RedisOptions } from 'ioredis';

/** Longest pause between two attempts to connect. */
const RECONNECT_MAX_MS = 1_000;
const COMMAND_MAX_MS = 1_000;
const CONNECT_MAX_MS = 2_000;
/** Seconds that a worker's read waits for the next job. */
export const BLOCK_SECONDS = 5;
/** Longer than any read may wait: what is silent for longer is dead, as behind a firewall that drops packets. */
const SILENCE_MAX_MS = BLOCK_SECONDS * 1_000 + 1_500;

const COMMON = {
  connectTimeout: CONNECT_MAX_MS,
  retryStrategy: (times: number) => Math.min(50 * 2 ** Math.min(times, 5), RECONNECT_MAX_MS),
  // The server was demoted: another connection finds the new primary. The command itself is for whoever sent it to repeat.
  reconnectOnError: (error: Error) => error.message.startsWith('READONLY'),
} satisfies RedisOptions;

export function openProducerConnection(url: string, failed: (error: Error) => void): Redis {
  return watched(
    new Redis(url, {
      ...COMMON,
      commandTimeout: COMMAND_MAX_MS,
      // Commands that timed out stay with the client until their socket is gone: this is what bounds them.
      socketTimeout: 2 * COMMAND_MAX_MS,
      enableOfflineQueue: false,
      autoResendUnfulfilledCommands: false,
      maxRetriesPerRequest: 0,
    }),
    failed,
  );
}

export interface WorkerConnections {
  readonly main: Redis;
  /** Cuts every connection at once, those that BullMQ made for itself included. */
  disconnect(): void;
}

export function openWorkerConnections(url: string, failed: (error: Error) => void): WorkerConnections {
  const main = watched(
    new Redis(url, { ...COMMON, socketTimeout: SILENCE_MAX_MS, maxRetriesPerRequest: null }),
    failed,
  );
  const all = [main];
  // BullMQ reads in a copy of the connection, keeps it to itself, and takes its listeners away before it is gone.
  const duplicate = main.duplicate.bind(main);
  main.duplicate = (override) => {
    const copy = watched(duplicate(override), failed);
    all.push(copy);
    return copy;
  };
  return {
    main,
    disconnect() {
      for (const client of all) client.disconnect();
    },
  };
}

function watched(client: Redis, failed: (error: Error) => void): Redis {
  client.on('error', failed);
  return client;
}
