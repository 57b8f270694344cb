/**
 * Owns the sockets of one port until somebody serves them, and the right to cut them all. A socket that says nothing, or not enough to tell its
 * protocol, is closed after a bound; an error on one socket ends that socket and nothing else.
 *
 * The protocol is told from the first bytes, which are put back: a client of clear-text HTTP/2 that knows what it wants begins with
 * the preface "PRI * HTTP/2.0", and no HTTP/1 method begins like that.
 */
import type { Socket } from 'node:net';
import { after } from '../runtime.ts';

export type WireProtocol = 'http1' | 'http2';

export interface Connections {
  /** Hands the socket over once its first bytes are there. */
  take(socket: Socket, serve: (protocol: WireProtocol) => void): void;
  /** Closes the sockets that have not said anything yet. */
  dropSilent(): void;
  /** Cuts every socket. */
  destroy(): void;
}

/** Longest wait for the first bytes, in milliseconds. */
export const FIRST_BYTES_MAX_MS = 10_000;
/** Connections of one port; each costs some tens of kilobytes. */
export const CONNECTIONS_MAX = 10_000;
const PREFACE = Buffer.from('PRI ');

export function createConnections(): Connections {
  const sockets = new Set<Socket>();
  const silent = new Set<Socket>();
  return {
    take(socket, serve) {
      sockets.add(socket);
      silent.add(socket);
      socket.on('error', () => socket.destroy());
      socket.once('close', () => {
        sockets.delete(socket);
        silent.delete(socket);
      });
      readProtocol(socket, (protocol) => {
        silent.delete(socket);
        // HTTP/2 has its own way to end a direction; a socket whose client has closed its side is over.
        if (protocol === 'http2') socket.allowHalfOpen = false;
        serve(protocol);
      });
    },
    dropSilent() {
      for (const socket of silent) socket.destroy();
    },
    destroy() {
      for (const socket of sockets) socket.destroy();
    },
  };
}

function readProtocol(socket: Socket, told: (protocol: WireProtocol) => void): void {
  let bytes: Buffer = Buffer.alloc(0);
  const cancelTimer = after(FIRST_BYTES_MAX_MS, () => socket.destroy());
  const onEnd = (): void => {
    socket.destroy();
  };
  const onReadable = (): void => {
    for (let chunk: Buffer | null = socket.read(); chunk !== null; chunk = socket.read()) {
      bytes = bytes.length === 0 ? chunk : Buffer.concat([bytes, chunk]);
    }
    const protocol = protocolOf(bytes);
    if (protocol === undefined) return;
    forget();
    socket.unshift(bytes);
    told(protocol);
  };
  function forget(): void {
    cancelTimer();
    socket.removeListener('readable', onReadable);
    socket.removeListener('end', onEnd);
    socket.removeListener('close', forget);
  }
  socket.on('readable', onReadable);
  socket.once('end', onEnd);
  socket.once('close', forget);
}

/** Undefined while the bytes could still become either. */
function protocolOf(bytes: Buffer): WireProtocol | undefined {
  const length = Math.min(bytes.length, PREFACE.length);
  if (!bytes.subarray(0, length).equals(PREFACE.subarray(0, length))) return 'http1';
  return length === PREFACE.length ? 'http2' : undefined;
}
