import { afterAll, beforeAll } from 'vitest';
import { SERVICE_KEY, startDoor, type TestDoor } from './door.ts';
import { HANGING_VIEWER } from './fake-flows.ts';
import { describeInterop } from './interop.ts';

let door: TestDoor;
beforeAll(async () => {
  door = await startDoor();
});
afterAll(async () => {
  await door.frontDoor.stop();
});

describeInterop({
  name: 'the front door',
  start: async () => ({ grpcPort: door.grpcPort, httpPort: door.httpPort, key: SERVICE_KEY }),
  stop: async () => undefined,
  hangingViewer: HANGING_VIEWER,
  untilRunning: (count) => door.flows.untilRunning(count),
});
