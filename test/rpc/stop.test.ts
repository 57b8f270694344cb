/** A stop drains, refuses what is new, and ends, whatever clients and handlers do. */
import { connect as connectHttp2 } from 'node:http2';
import { connect as connectTcp, type Socket } from 'node:net';
import { createClient } from '@connectrpc/connect';
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { afterEach, describe, expect, it } from 'vitest';
import { Health } from '../../src/gen/grpc/health/v1/health_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { failureOf, openClient, type TestClient } from './clients.ts';
import { SERVICE_KEY, startDoor, type TestDoor } from './door.ts';
import { DEAF_VIEWER, HANGING_VIEWER } from './fake-flows.ts';

const headers = { authorization: `Bearer ${SERVICE_KEY}` };
const { getHomeTimeline } = TimelineService.method;
const CLIENTS = [
  'grpc-js on the gRPC port',
  'connect-node gRPC on the HTTP port',
  'Connect JSON over HTTP/1.1',
] as const;

const opened: { close(): void }[] = [];
afterEach(() => {
  for (const each of opened.splice(0)) each.close();
});

function open(name: (typeof CLIENTS)[number], door: TestDoor): TestClient {
  const client = openClient(name, door);
  opened.push(client);
  return client;
}

describe('a stop', () => {
  it('lets open calls end, and those that come meanwhile go elsewhere', async () => {
    const door = await startDoor({ env: { DRAIN_TIMEOUT_MS: '20000', READ_DEADLINE_DEFAULT_MS: '2000' } });
    const clients = CLIENTS.map((name) => open(name, door));
    const calls = clients.map((client) =>
      failureOf(client.unary(getHomeTimeline, { viewerId: HANGING_VIEWER }, { headers })),
    );
    await door.flows.untilRunning(3);
    const stopped = door.frontDoor.stop();
    // A second connection is refused at once; the open calls are not touched: they end at their own deadline.
    await new Promise((resolve) => setImmediate(() => setImmediate(resolve)));
    for (const name of CLIENTS) {
      expect((await failureOf(open(name, door).unary(getHomeTimeline, { viewerId: 'a' }, { headers }))).code).toBe(
        'UNAVAILABLE',
      );
    }
    for (const failure of await Promise.all(calls)) expect(failure.reasons).toEqual(['DEADLINE_EXCEEDED']);
    await stopped;
    expect(door.flows.reached).toHaveLength(3);
  });

  it('fails what does not end within the drain time as SHUTTING_DOWN, with a time to retry, even handlers that hear nothing', async () => {
    const door = await startDoor({
      env: { DRAIN_TIMEOUT_MS: '100', READ_DEADLINE_DEFAULT_MS: '20000', READ_DEADLINE_MAX_MS: '20000' },
    });
    const calls = CLIENTS.flatMap((name) =>
      [HANGING_VIEWER, DEAF_VIEWER].map((viewerId) =>
        failureOf(open(name, door).unary(getHomeTimeline, { viewerId }, { headers })),
      ),
    );
    await door.flows.untilRunning(6);
    await door.frontDoor.stop();
    for (const failure of await Promise.all(calls)) {
      expect(failure).toMatchObject({ code: 'UNAVAILABLE', reasons: ['SHUTTING_DOWN'], retryAfterMs: 200 });
    }
  });

  it('ends although sessions are idle, sockets silent and requests half sent', async () => {
    const door = await startDoor({ env: { DRAIN_TIMEOUT_MS: '60000' } });
    for (const name of CLIENTS) await open(name, door).unary(getHomeTimeline, { viewerId: 'a' }, { headers });
    const sockets = await Promise.all(
      [door.grpcPort, door.httpPort].flatMap((port) => [
        tcp(port, ''),
        tcp(port, 'PR'),
        tcp(port, 'POST /x HTTP/1.1\r\nhost: a\r\n'),
      ]),
    );
    const sessions = [door.grpcPort, door.httpPort].map((port) => connectHttp2(`http://127.0.0.1:${port}`));
    await Promise.all(sessions.map((session) => new Promise((resolve) => session.once('remoteSettings', resolve))));
    const farewells = sessions.map((session) => new Promise((resolve) => session.once('goaway', resolve)));
    await door.frontDoor.stop();
    expect(await Promise.all(farewells)).toEqual([0, 0]);
    for (const socket of sockets) socket.destroy();
    for (const session of sessions) session.destroy();
  });

  it('tells health watchers before it ends them', async () => {
    const door = await startDoor();
    const manager = new Http2SessionManager(`http://127.0.0.1:${door.httpPort}`);
    const health = createClient(
      Health,
      createGrpcTransport({ baseUrl: `http://127.0.0.1:${door.httpPort}`, sessionManager: manager }),
    );
    const seen: number[] = [];
    let stopped: Promise<void> | undefined;
    const watched = (async () => {
      for await (const { status } of health.watch({ service: '' })) {
        seen.push(status);
        stopped ??= door.frontDoor.stop();
      }
    })();
    await expect(watched).rejects.toMatchObject({ code: 14 });
    expect(seen).toEqual([1, 2]);
    await stopped;
    manager.abort();
  });

  it('may be asked for twice, and before a start', async () => {
    const door = await startDoor();
    await Promise.all([door.frontDoor.stop(), door.frontDoor.stop()]);
    await door.frontDoor.stop();
  });

  it('follows a start that failed, so that neither port stays open', async () => {
    const first = await startDoor();
    const second = await startDoor();
    await second.frontDoor.stop();
    const env = { TRIBUTARY_GRPC_PORT: String(second.grpcPort), TRIBUTARY_HTTP_PORT: String(first.httpPort) };
    await expect(startDoor({ env })).rejects.toMatchObject({ code: 'EADDRINUSE' });
    await expect(tcp(second.grpcPort, '')).rejects.toMatchObject({ code: 'ECONNREFUSED' });
    await first.frontDoor.stop();
  });
});

function tcp(port: number, text: string): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const socket = connectTcp(port, '127.0.0.1', () => socket.write(text, () => resolve(socket)));
    socket.once('error', reject);
    socket.on('error', () => undefined);
  });
}
