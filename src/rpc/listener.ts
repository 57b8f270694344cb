/** Owns what the front door asks of a listener, and the bounds that both listeners keep. */

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
