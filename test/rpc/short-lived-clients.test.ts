/** Nothing is kept of clients that are gone, however many come and however they go; and nothing piles up on a connection that stays. */
import { once } from 'node:events';
import { Agent, request } from 'node:http';
import { connect as connectTcp, Socket } from 'node:net';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { eventually } from '../harness/eventually.ts';
import { openClient } from './clients.ts';
import { SERVICE_KEY, startDoor, type TestDoor } from './door.ts';

const headers = { authorization: `Bearer ${SERVICE_KEY}` };
const { getHomeTimeline } = TimelineService.method;
const KINDS = ['grpc-js on the gRPC port', 'connect-node gRPC on the HTTP port', 'Connect JSON over HTTP/1.1'] as const;

let door: TestDoor;
const warnings: string[] = [];
const warned = ({ name, message }: Error): void => void warnings.push(`${name}: ${message}`);
beforeAll(async () => {
  process.on('warning', warned);
  door = await startDoor();
});
afterAll(async () => {
  process.off('warning', warned);
  await door.frontDoor.stop();
});

/** Sockets of the door that are open, with whoever is at their other end. */
function openSockets(): number {
  const handles = (process as unknown as { _getActiveHandles(): readonly unknown[] })._getActiveHandles();
  const ports = [door.grpcPort, door.httpPort];
  return handles.filter((handle) => handle instanceof Socket && ports.includes(handle.localPort ?? 0)).length;
}

it('many clients that call once and leave, or leave in the middle of a request, leave no socket', async () => {
  for (let round = 0; round < 20; round += 1) {
    await Promise.all(
      KINDS.map(async (kind) => {
        const client = openClient(kind, door);
        await client.unary(getHomeTimeline, { viewerId: 'rita' }, { headers });
        client.close();
      }),
    );
    for (const port of [door.grpcPort, door.httpPort]) {
      const socket = connectTcp(port, '127.0.0.1');
      await once(socket, 'connect');
      await new Promise<void>((resolve) => socket.write('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n', () => resolve()));
      socket.resetAndDestroy();
    }
  }
  await eventually(() => expect(openSockets()).toBe(0));
  expect(warnings).toEqual([]);
});

it('many calls over one connection, one after another and at once, make nothing warn of listeners', async () => {
  for (const kind of KINDS) {
    const client = openClient(kind, door);
    const call = () => client.unary(getHomeTimeline, { viewerId: 'rita' }, { headers });
    for (let round = 0; round < 30; round += 1) await call();
    await Promise.all(Array.from({ length: 30 }, call));
    client.close();
  }
  // One connection of HTTP/1.1, whose socket is the same for every request.
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  for (let round = 0; round < 30; round += 1) {
    const asked = request({ agent, port: door.httpPort, path: '/livez' }).end();
    const [answer] = await once(asked, 'response');
    answer.resume();
    await once(answer, 'end');
  }
  agent.destroy();
  await eventually(() => expect(openSockets()).toBe(0));
  expect(warnings).toEqual([]);
});
