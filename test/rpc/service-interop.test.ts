/** The interop suite once more, against the service as it runs: real flows over a real database. */
import { afterAll, beforeAll } from 'vitest';
import { startTestService, type TestService } from '../harness/service.ts';
import { describeInterop } from './interop.ts';

let service: TestService;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(async () => {
  await service.stop();
});

describeInterop({
  name: 'the service',
  async start() {
    const { key } = await service.tenant();
    return { grpcPort: service.service.grpcPort, httpPort: service.service.httpPort, key };
  },
  stop: async () => undefined,
});
