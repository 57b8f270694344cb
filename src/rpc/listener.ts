/** Owns what the front door asks of a listener, and the bounds that both listeners keep. */
import type { Random } from '../runtime.ts';

export interface Listener {
  /** Listens; the answer is the port. Throws where it cannot be had. */
  start(): Promise<number>;
  /** Takes nothing new, tells every client to go elsewhere, and ends when the last connection is closed. */
  drain(): Promise<void>;
  /** Cuts every connection that is left. */
  destroy(): void;
}

/** Calls that one client may have open on one HTTP/2 session. */
export const CONCURRENT_STREAMS_MAX = 1_000;
/** Memory of one HTTP/2 session beyond which Node refuses its streams, in megabytes. */
export const SESSION_MEMORY_MAX_MB = 64;
/** A connection without any open call is closed after this, in milliseconds. */
export const IDLE_MAX_MS = 300_000;
/** Longest time that a request may take to arrive, in milliseconds: more than the longest deadline by default. */
export const RECEIVE_MAX_MS = 60_000;
/** Silence after which TCP itself asks whether the other side is still there, in milliseconds. */
export const TCP_KEEPALIVE_MS = 30_000;
/** Ages differ by this much either way, so that connections opened together do not end together. grpc-js has the same. */
const AGE_JITTER = 0.1;

/** Age at which one connection is to end, in milliseconds. */
export function ageOfConnectionMs(ageMaxMs: number, random: Pick<Random, 'fraction'>): number {
  return ageMaxMs * (1 + AGE_JITTER * (2 * random.fraction() - 1));
}

export function listenOn(
  server: {
    listen(options: { port: number; host: string }): unknown;
    once(event: string, listener: (error: Error) => void): unknown;
    removeListener(event: string, listener: (error: Error) => void): unknown;
    address(): unknown;
  },
  at: { readonly port: number; readonly host: string },
): Promise<number> {
  return new Promise((resolve, reject) => {
    server.once('error', reject);
    server.once('listening', () => {
      server.removeListener('error', reject);
      const address = server.address();
      if (address === null || typeof address !== 'object' || !('port' in address)) return reject(new Error('no port'));
      resolve(Number(address.port));
    });
    server.listen({ port: at.port, host: at.host });
  });
}
