/** Owns what becomes of sessions that end at a bad moment: the call on them fails, the process does not. */
import { createServer, type Server } from 'node:net';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { createDatabase } from '../../src/store/postgres/client.ts';

/** One message of the protocol between Postgres and its clients: type, length, content. */
function message(type: string, content: Buffer): Buffer {
  const length = Buffer.alloc(4);
  length.writeInt32BE(content.length + 4);
  return Buffer.concat([Buffer.from(type), length, content]);
}

const WELCOME = Buffer.concat([message('R', Buffer.alloc(4)), message('Z', Buffer.from('I'))]);
const FAREWELL = message(
  'E',
  Buffer.from('SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0'),
);

let server: Server;
let sessions = 0;
beforeAll(async () => {
  // Says in one packet that it is ready and that it ends.
  server = createServer((socket) => {
    socket.on('error', () => undefined);
    socket.once('data', () => {
      sessions += 1;
      socket.end(Buffer.concat([WELCOME, FAREWELL]));
    });
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
});
afterAll(() => server.close());

it('that ends with the packet that made it ready fails its call as UNAVAILABLE, and nothing else', async () => {
  const { port } = server.address() as { port: number };
  const database = createDatabase({
    url: `postgresql://nobody:nothing@127.0.0.1:${port}/none`,
    pool: 'ending',
    connectionsMax: 2,
    acquireTimeoutMs: 2_000,
    statementTimeoutMs: 2_000,
    lockTimeoutMs: 2_000,
    waitersMax: 10,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
  for (let call = 1; call <= 3; call += 1) {
    const asked = database.query(AbortSignal.timeout(5_000), { name: 'one', text: 'SELECT 1' }, []);
    await expect(asked).rejects.toBeInstanceOf(TributaryError);
    await expect(asked).rejects.toMatchObject({ reason: 'DATABASE_UNAVAILABLE' });
  }
  expect(sessions).toBe(3);
  await database.close();
});
