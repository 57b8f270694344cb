/**
 * Owns the HTTP port: one clear-text port that serves HTTP/1.1 and HTTP/2, told apart by a connection's first bytes. Calls go to the
 * Connect adapter, operators' pages to metrics/, everything else is 404.
 *
 * The HTTP/1 server owns the port itself, since its header and request time-outs run only while it listens; sockets of HTTP/2 are handed
 * to a server that never listens.
 */
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import type { Config } from '../config.ts';
import { operatorPage } from '../metrics/endpoint.ts';
import type { Metrics } from '../metrics/metrics.ts';
import type { Runtime } from '../runtime.ts';
import type { ConnectAdapter, NodeRequest, NodeResponse } from './connect-adapter.ts';
import { CONNECTIONS_MAX, createConnections } from './connections.ts';
import { createHttp2Sessions } from './http2-sessions.ts';
import { ageOfConnectionMs, type Listener, listenOn, RECEIVE_MAX_MS, TCP_KEEPALIVE_MS } from './listener.ts';

/** Longest wait for the headers of a request, in milliseconds. */
const HEADERS_MAX_MS = 10_000;
/** How often HTTP/1 connections are looked at for time-outs, in milliseconds. */
const CHECK_EVERY_MS = 2_000;
/** An idle HTTP/1 connection is closed after this: longer than common load balancers keep theirs, so that they close first. */
const KEEP_ALIVE_MS = 75_000;

export function createHttpListener(parts: {
  readonly config: Pick<Config, 'host' | 'httpPort' | 'connectionAgeMaxMs' | 'drainTimeoutMs'>;
  readonly runtime: Runtime;
  readonly metrics: Pick<Metrics, 'exposition'>;
  readonly isReady: () => boolean;
  readonly adapter: ConnectAdapter;
}): Listener {
  const { config, runtime, adapter } = parts;
  const connections = createConnections();
  const openResponses = new Set<ServerResponse>();
  /** By the monotonic clock: when a connection is to end. One that asks for nothing ends as an idle one. */
  const dueMs = new WeakMap<Socket, number>();
  let draining = false;

  function serve(request: NodeRequest, response: NodeResponse): void {
    request.on('error', () => undefined);
    response.on('error', () => undefined);
    if (adapter(request, response)) return;
    servePage(request, response).catch((error: unknown) => {
      runtime.log.error({ err: error }, 'a page for operators failed');
      if (!response.headersSent) response.writeHead(500);
      response.end();
    });
  }

  async function servePage(request: NodeRequest, response: NodeResponse): Promise<void> {
    const path = (request.url ?? '').split('?', 1)[0] ?? '';
    const isRead = request.method === 'GET' || request.method === 'HEAD';
    const page = isRead ? await operatorPage(path, parts) : undefined;
    request.resume();
    response.writeHead(page?.status ?? 404, { 'content-type': page?.contentType ?? 'text/plain; charset=utf-8' });
    response.end(request.method === 'HEAD' ? undefined : (page?.body ?? 'not found\n'));
  }

  function serveHttp1(request: IncomingMessage, response: ServerResponse): void {
    openResponses.add(response);
    response.once('close', () => openResponses.delete(response));
    const isOld = runtime.clock.monotonicMs() >= (dueMs.get(request.socket) ?? 0);
    if (draining || isOld) response.setHeader('connection', 'close');
    serve(request, response);
  }

  const server = createServer(
    {
      headersTimeout: HEADERS_MAX_MS,
      requestTimeout: RECEIVE_MAX_MS,
      keepAliveTimeout: KEEP_ALIVE_MS,
      connectionsCheckingInterval: CHECK_EVERY_MS,
      keepAlive: true,
      keepAliveInitialDelay: TCP_KEEPALIVE_MS,
      noDelay: true,
    },
    serveHttp1,
  );
  server.maxConnections = CONNECTIONS_MAX;
  const sessions = createHttp2Sessions({
    serve,
    ageMaxMs: config.connectionAgeMaxMs,
    graceMs: config.drainTimeoutMs,
    random: runtime.random,
  });
  const toHttp1 = server.listeners('connection');
  server.removeAllListeners('connection');
  server.on('connection', (socket: Socket) => {
    dueMs.set(socket, runtime.clock.monotonicMs() + ageOfConnectionMs(config.connectionAgeMaxMs, runtime.random));
    connections.take(socket, (protocol) => {
      if (protocol === 'http2') sessions.server.emit('connection', socket);
      else for (const listener of toHttp1) listener.call(server, socket);
    });
  });

  return {
    start: () => listenOn(server, { port: config.httpPort, host: config.host }),
    drain() {
      draining = true;
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      connections.dropSilent();
      sessions.goAway();
      for (const response of openResponses) {
        if (!response.headersSent) response.setHeader('connection', 'close');
      }
      return closed;
    },
    destroy: () => connections.destroy(),
  };
}
