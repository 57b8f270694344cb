/** One clear-text port for HTTP/1.1 and HTTP/2, and sockets that misbehave without harm to others. */
import { type EventEmitter, once } from 'node:events';
import { connect as connectHttp2 } from 'node:http2';
import { connect, type Socket } from 'node:net';
import { PassThrough } from 'node:stream';
import { create, toBinary, toJsonString } from '@bufbuild/protobuf';
import { afterAll, afterEach, beforeAll, describe, expect, it, vi } from 'vitest';
import { PublishPostRequestSchema } from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { createConnections, FIRST_BYTES_MAX_MS, type WireProtocol } from '../../src/rpc/connections.ts';
import { eventually } from '../harness/eventually.ts';
import { openCaller } from '../harness/retrying-caller.ts';
import { SERVICE_KEY, startDoor, type TestDoor } from './door.ts';

const { getHomeTimeline } = TimelineService.method;

let door: TestDoor;
beforeAll(async () => {
  door = await startDoor();
});
afterAll(async () => {
  await door.frontDoor.stop();
});
afterEach(() => {
  vi.useRealTimers();
});

describe('the HTTP port', () => {
  it('tells the protocols apart, however the first bytes are cut', async () => {
    const request = 'GET /livez HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n';
    for (const cut of [1, 3, 4, 20]) {
      expect(await exchange(door.httpPort, [request.slice(0, cut), request.slice(cut)])).toMatch(/^HTTP\/1\.1 200 OK/);
    }
    const settings = Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    const preface = Buffer.concat([Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'), settings]);
    for (const cut of [1, 3, 4, 23, 24]) {
      const answer = await exchange(door.httpPort, [preface.subarray(0, cut), preface.subarray(cut)], 9);
      // The first frame of an HTTP/2 server is SETTINGS.
      expect(Buffer.from(answer, 'latin1')[3]).toBe(4);
    }
  });

  it('serves two requests of one HTTP/1.1 connection', async () => {
    const socket = await open(door.httpPort);
    for (let round = 0; round < 2; round += 1) {
      socket.write('GET /livez HTTP/1.1\r\nhost: a\r\n\r\n');
      expect(String((await once(socket, 'data'))[0])).toContain('200 OK');
    }
    socket.destroy();
  });

  it('answers 400 to a Host that is none, and lives', async () => {
    const call =
      'POST /tributary.v1.TimelineService/GetHomeHead HTTP/1.1\r\nhost: a b^c\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}';
    expect(await exchange(door.httpPort, [call])).toMatch(/^HTTP\/1\.1 400/);
    expect((await page('/livez')).status).toBe(200);
  });

  it('survives noise, half messages and sockets that are cut', async () => {
    const head =
      'POST /tributary.v1.TimelineService/GetHomeHead HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 999\r\n\r\n{';
    for (const port of [door.httpPort, door.grpcPort]) {
      for (const bytes of [
        '\x16\x03\x01\x02\x00',
        'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\ngarbage that is no frame at all',
        'PRI * nonsense',
        head,
      ]) {
        const socket = await open(port);
        await new Promise<void>((resolve) => socket.write(bytes, 'latin1', () => resolve()));
        socket.resetAndDestroy();
      }
    }
    expect((await page('/livez')).status).toBe(200);
  });

  it('tells an HTTP/1.1 client of the gRPC port what is wrong', async () => {
    expect(await exchange(door.grpcPort, ['GET / HTTP/1.1\r\nhost: a\r\n\r\n'])).toMatch(/^HTTP\/1\.1 505/);
  });

  it('has pages for operators over both versions, and 404 for all others', async () => {
    expect(await page('/livez')).toMatchObject({ status: 200, body: 'ok\n' });
    expect(await page('/readyz?verbose')).toMatchObject({ status: 200 });
    door.setReady(false);
    expect(await page('/readyz')).toMatchObject({ status: 503, body: 'not ready\n' });
    expect(await page('/livez')).toMatchObject({ status: 200 });
    door.setReady(true);
    expect((await page('/metrics')).body).toContain('tributary_rpc_in_flight_calls');
    for (const path of ['/', '/favicon.ico', '/.env', '//', '/tributary.v1.TimelineService']) {
      expect(await page(path)).toMatchObject({ status: 404, body: 'not found\n' });
    }
    const session = connectHttp2(`http://127.0.0.1:${door.httpPort}`);
    const stream = session.request({ ':path': '/readyz' });
    const [headers] = (await once(stream, 'response')) as [Record<string, unknown>];
    expect(headers[':status']).toBe(200);
    session.destroy();
  });
});

describe('a connection that has reached its greatest age', () => {
  it('is told to go, on both ports and in both versions, and its call is still answered', async () => {
    const aged = await startDoor({ env: { CONNECTION_AGE_MAX_MS: '1000', DRAIN_TIMEOUT_MS: '60000' } });
    const sessions = [aged.grpcPort, aged.httpPort].map((port) => connectHttp2(`http://127.0.0.1:${port}`));
    const http1 = await open(aged.httpPort);
    const farewells = sessions.map((session) => once(session, 'goaway'));
    for (const [code] of await Promise.all(farewells)) expect(code).toBe(0);
    let answer = '';
    while (!answer.includes('connection: close')) {
      http1.write('GET /livez HTTP/1.1\r\nhost: a\r\n\r\n');
      answer = String((await once(http1, 'data'))[0]).toLowerCase();
      expect(answer).toContain('200 ok');
    }
    for (const session of sessions) session.destroy();
    await aged.frontDoor.stop();
  });
});

describe('clients with long-lived connections that go round all addresses', () => {
  it.each(['grpcPort', 'httpPort'] as const)('give instances that are added their share, on the %s', async (port) => {
    const doors = await Promise.all(
      Array.from({ length: 3 }, () => startDoor({ env: { CONNECTION_AGE_MAX_MS: '1000' } })),
    );
    const all = doors.map((each) => each[port]);
    const callers = Array.from({ length: 3 }, () => openCaller({ ports: all.slice(0, 1), key: SERVICE_KEY }));
    const counts = (): readonly number[] => doors.map(({ flows }) => flows.reached.length);
    /** What part of some calls each instance answers. */
    async function shares(calls: number): Promise<readonly number[]> {
      const before = counts();
      for (let made = 0; made < calls; made += callers.length)
        await Promise.all(callers.map((one) => one.call(getHomeTimeline, { viewerId: 'rita' }, 20_000)));
      return counts().map((count, at) => (count - (before[at] as number)) / calls);
    }
    expect(await shares(30)).toEqual([1, 0, 0]);
    for (const one of callers) one.move(all);
    await eventually(
      async () => {
        for (const share of await shares(60)) expect(share).toBeGreaterThanOrEqual(0.2);
      },
      { timeoutMs: 25_000, everyMs: 100 },
    );
    for (const one of callers) one.close();
    await Promise.all(doors.map(({ frontDoor }) => frontDoor.stop()));
  });
});

describe('an answer', () => {
  it.each([
    { contentType: 'application/json', accept: 'accept-encoding' },
    { contentType: 'application/proto', accept: 'accept-encoding' },
    { contentType: 'application/grpc-web+proto', accept: 'grpc-accept-encoding' },
  ])('of $contentType is never compressed, though the caller would take it', async ({ contentType, accept }) => {
    const request = create(PublishPostRequestSchema, { authorId: 'a', text: 'x'.repeat(5_000) });
    const message = toBinary(PublishPostRequestSchema, request);
    const head = Buffer.from([0, 0, 0, message.length >> 8, message.length & 255]);
    const bodies: Record<string, string | Buffer> = {
      'application/json': toJsonString(PublishPostRequestSchema, request),
      'application/proto': Buffer.from(message),
      'application/grpc-web+proto': Buffer.concat([head, message]),
    };
    const response = await fetch(`http://127.0.0.1:${door.httpPort}/tributary.v1.PostService/PublishPost`, {
      method: 'POST',
      headers: { authorization: `Bearer ${SERVICE_KEY}`, 'content-type': contentType, [accept]: 'gzip' },
      body: bodies[contentType] ?? '',
    });
    expect(response.headers.get('content-encoding')).toBeNull();
    expect(await response.text()).toContain('x'.repeat(5_000));
  });
});

describe('a socket', () => {
  it('that says nothing is closed after a bound, and so is one that says too little', () => {
    vi.useFakeTimers();
    for (const first of [undefined, 'PR']) {
      const { socket, served } = fakeSocket();
      if (first !== undefined) socket.write(first);
      vi.advanceTimersByTime(FIRST_BYTES_MAX_MS - 1);
      expect(socket.destroyed).toBe(false);
      vi.advanceTimersByTime(1);
      expect(socket.destroyed).toBe(true);
      expect(served).toEqual([]);
    }
  });

  it('that has begun to speak has no such timer any more, and keeps its first bytes', async () => {
    vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout'] });
    const { socket, told } = fakeSocket();
    socket.write('PRI * HTTP');
    expect(await told).toBe('http2');
    vi.advanceTimersByTime(FIRST_BYTES_MAX_MS);
    expect(socket.destroyed).toBe(false);
    expect(String(socket.read())).toBe('PRI * HTTP');
  });

  it('whose error nobody else hears ends alone', () => {
    const { socket } = fakeSocket();
    expect(socket.listenerCount('error')).toBeGreaterThan(0);
    (socket as EventEmitter).emit('error', new Error('ECONNRESET'));
    expect(socket.destroyed).toBe(true);
  });
});

function fakeSocket(): { socket: PassThrough; served: WireProtocol[]; told: Promise<WireProtocol> } {
  const socket = new PassThrough();
  const served: WireProtocol[] = [];
  const { promise: told, resolve } = Promise.withResolvers<WireProtocol>();
  createConnections().take(socket as unknown as Socket, (protocol) => {
    served.push(protocol);
    resolve(protocol);
  });
  return { socket, served, told };
}

async function open(port: number): Promise<Socket> {
  const socket = connect(port, '127.0.0.1');
  socket.setNoDelay(true);
  socket.on('error', () => undefined);
  await once(socket, 'connect');
  return socket;
}

/** Writes the parts one by one, and reads until the end or until `enough` bytes are there. */
async function exchange(
  port: number,
  parts: readonly (string | Buffer)[],
  enough = Number.POSITIVE_INFINITY,
): Promise<string> {
  const socket = await open(port);
  const ended = once(socket, 'close');
  let received = '';
  socket.on('data', (chunk: Buffer) => {
    received += chunk.toString('latin1');
    if (received.length >= enough) socket.destroy();
  });
  for (const part of parts) await new Promise<void>((resolve) => socket.write(part, () => setImmediate(resolve)));
  await ended;
  return received;
}

async function page(path: string): Promise<{ status: number; body: string }> {
  const response = await fetch(`http://127.0.0.1:${door.httpPort}${path}`);
  return { status: response.status, body: await response.text() };
}
