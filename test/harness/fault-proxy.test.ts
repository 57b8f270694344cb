/** Owns the proof that the fault proxy brings about the faults that it names: tests that rely on it would pass without them. */
import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { eventually } from './eventually.ts';
import { type FaultProxy, startFaultProxy } from './fault-proxy.ts';

let echo: Server;
let echoSockets: Set<Socket>;
let proxy: FaultProxy;

beforeEach(async () => {
  echoSockets = new Set();
  echo = createServer((socket) => {
    echoSockets.add(socket);
    socket.on('error', () => undefined);
    socket.on('close', () => echoSockets.delete(socket));
    socket.pipe(socket);
  });
  echo.listen(0, '127.0.0.1');
  await once(echo, 'listening');
  proxy = await startFaultProxy({ port: (echo.address() as { port: number }).port });
});

afterEach(async () => {
  await proxy.stop();
  for (const socket of echoSockets) socket.destroy();
  echo.close();
});

interface Line {
  readonly socket: Socket;
  heard(): string;
  fault(): string | undefined;
}

async function dial(): Promise<Line> {
  const socket = connect({ port: proxy.port, host: '127.0.0.1' });
  let text = '';
  let code: string | undefined;
  socket.on('data', (chunk) => {
    text += chunk.toString();
  });
  socket.on('error', (error: NodeJS.ErrnoException) => {
    code = error.code;
  });
  await new Promise<void>((resolve) => {
    socket.once('connect', resolve);
    socket.once('close', () => resolve());
  });
  return { socket, heard: () => text, fault: () => code };
}

async function echoes(line: Line, text: string): Promise<void> {
  const before = line.heard();
  line.socket.write(text);
  await eventually(() => expect(line.heard()).toBe(before + text));
}

describe('the fault proxy', () => {
  it('passes bytes both ways and counts them', async () => {
    const line = await dial();
    await echoes(line, 'hello');
    expect([proxy.connectionsTaken, proxy.connectionsOpen, proxy.bytesUp, proxy.bytesDown]).toEqual([1, 1, 5, 5]);
    line.socket.destroy();
    await eventually(() => expect(proxy.connectionsOpen).toBe(0));
    await eventually(() => expect(echoSockets.size).toBe(0));
  });

  it('refuses, and takes connections on the same port again', async () => {
    const line = await dial();
    await echoes(line, 'a');
    await proxy.refuse();
    await eventually(() => expect(line.fault()).toBe('ECONNRESET'));
    expect((await dial()).fault()).toBe('ECONNREFUSED');
    await proxy.restore();
    await echoes(await dial(), 'b');
  });

  it('resets what is open, and takes what comes', async () => {
    const line = await dial();
    await echoes(line, 'a');
    proxy.reset();
    await eventually(() => expect(line.fault()).toBe('ECONNRESET'));
    await echoes(await dial(), 'b');
  });

  it('swallows bytes without a sign, on open and new connections', async () => {
    const line = await dial();
    await echoes(line, 'a');
    proxy.blackhole();
    const late = await dial();
    line.socket.write('lost');
    late.socket.write('lost');
    await eventually(() => expect(proxy.bytesUp).toBe(9));
    expect([line.heard(), late.heard(), line.fault(), late.fault()]).toEqual(['a', '', undefined, undefined]);
    await proxy.restore();
    await echoes(await dial(), 'b');
  });

  it('passes bytes on later, in order', async () => {
    const line = await dial();
    proxy.delay(60);
    const before = performance.now();
    line.socket.write('one ');
    await eventually(() => expect(proxy.bytesUp).toBe(4));
    line.socket.write('two');
    await eventually(() => expect(line.heard()).toBe('one two'));
    expect(performance.now() - before).toBeGreaterThanOrEqual(115);
  });

  it('cuts a stream in its middle', async () => {
    const line = await dial();
    proxy.cutAfter(3);
    line.socket.write('abcdef');
    await eventually(() => expect(line.fault()).toBe('ECONNRESET'));
    expect(line.heard()).toBe('abc');
    await echoes(await dial(), 'b');
  });

  it('keeps bytes back from a chosen one on, and passes them on later, in order', async () => {
    const line = await dial();
    await echoes(line, 'a');
    const held = proxy.holdAfter(3);
    line.socket.write('bcdef');
    await held;
    line.socket.write('gh');
    await eventually(() => expect(proxy.bytesUp).toBe(8));
    // The echo of what came through is kept back too.
    expect(line.heard()).toBe('a');
    await proxy.restore();
    await eventually(() => expect(line.heard()).toBe('abcdefgh'));
  });

  it('keeps answers back, and nothing that is asked', async () => {
    const line = await dial();
    await echoes(line, 'a');
    proxy.holdAnswers();
    line.socket.write('bc');
    await eventually(() => expect(proxy.bytesDown).toBe(3));
    expect(line.heard()).toBe('a');
    await proxy.restore();
    await eventually(() => expect(line.heard()).toBe('abc'));
  });

  it('leads new connections elsewhere, and leaves the open ones where they are', async () => {
    const other = createServer((socket) => socket.end('other'));
    other.listen(0, '127.0.0.1');
    await once(other, 'listening');
    const line = await dial();
    await echoes(line, 'a');
    proxy.retarget((other.address() as { port: number }).port);
    const late = await dial();
    await eventually(() => expect(late.heard()).toBe('other'));
    await echoes(line, 'b');
    other.close();
  });

  it('leaves nothing open', async () => {
    const line = await dial();
    await echoes(line, 'a');
    await proxy.stop();
    await eventually(() => expect(line.socket.destroyed).toBe(true));
    await eventually(() => expect(echoSockets.size).toBe(0));
    expect(proxy.connectionsOpen).toBe(0);
  });
});
