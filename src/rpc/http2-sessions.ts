/**
 * Owns the HTTP/2 sessions of the HTTP port. Every session ends: when idle, at its greatest age (so that clients look names up again and
 * spread over new instances), or when the server stops; each time by GOAWAY, so that calls under way are finished.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { constants, createServer, type Http2Server, type ServerHttp2Session } from 'node:http2';
import { after, type Random } from '../runtime.ts';
import {
  ageOfConnectionMs,
  CONCURRENT_STREAMS_MAX,
  IDLE_MAX_MS,
  RECEIVE_MAX_MS,
  SESSION_MEMORY_MAX_MB,
} from './listener.ts';

export interface Http2Sessions {
  readonly server: Http2Server;
  /** Sends GOAWAY on every session; each closes with its last stream. */
  goAway(): void;
}

export function createHttp2Sessions(parts: {
  readonly serve: (request: IncomingMessage, response: ServerResponse) => void;
  readonly ageMaxMs: number;
  /** How long calls may go on after the greatest age. */
  readonly graceMs: number;
  readonly random: Random;
}): Http2Sessions {
  const { ageMaxMs, graceMs, random } = parts;
  const sessions = new Set<ServerHttp2Session>();
  const server = createServer({
    settings: { maxConcurrentStreams: CONCURRENT_STREAMS_MAX },
    maxSessionMemory: SESSION_MEMORY_MAX_MB,
  });

  server.on('session', (session) => {
    let streams = 0;
    sessions.add(session);
    let cancelAge = after(ageOfConnectionMs(ageMaxMs, random), () => {
      session.close();
      cancelAge = after(graceMs, () => session.destroy());
    });
    let cancelIdle = after(IDLE_MAX_MS, () => session.close());
    session.on('stream', (stream) => {
      streams += 1;
      cancelIdle();
      // A request that never ends must not hold its stream for ever.
      const cancelReceive = after(RECEIVE_MAX_MS, () => {
        if (!stream.readableEnded) stream.close(constants.NGHTTP2_CANCEL);
      });
      stream.on('error', () => undefined);
      stream.once('close', () => {
        cancelReceive();
        streams -= 1;
        if (streams === 0 && !session.closed) cancelIdle = after(IDLE_MAX_MS, () => session.close());
      });
    });
    session.on('error', () => undefined);
    session.once('close', () => {
      sessions.delete(session);
      cancelAge();
      cancelIdle();
    });
  });
  server.on('sessionError', () => undefined);
  // Node's compatible interface: what serves HTTP/1 serves HTTP/2.
  server.on('request', (request, response) =>
    parts.serve(request as unknown as IncomingMessage, response as unknown as ServerResponse),
  );

  return {
    server,
    goAway() {
      for (const session of sessions) session.close();
    },
  };
}
