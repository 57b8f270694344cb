/** Nothing works on for callers who have left. */
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { eventually } from '../harness/eventually.ts';
import { type Failure, failureOf, openClient } from './clients.ts';
import { SERVICE_KEY, startDoor, type TestDoor } from './door.ts';
import { DEAF_VIEWER, HANGING_VIEWER } from './fake-flows.ts';

const headers = { authorization: `Bearer ${SERVICE_KEY}` };
const { getHomeTimeline } = TimelineService.method;

let door: TestDoor;
/** Handlers that ignored their signal and so run until the process ends. */
let deaf = 0;
beforeAll(async () => {
  door = await startDoor({ env: { READ_DEADLINE_DEFAULT_MS: '150', READ_DEADLINE_MAX_MS: '400' } });
});
afterAll(async () => {
  await door.frontDoor.stop();
});

describe.each([
  'grpc-js on the gRPC port',
  'Connect JSON over HTTP/1.1',
  'connect-node gRPC on the HTTP port',
] as const)('by %s', (name) => {
  it('100 calls that hang end at their deadline, no handler runs on, and the next call is answered', async () => {
    const client = openClient(name, door);
    const startedMs = performance.now();
    const calls: Promise<Failure>[] = [];
    for (let index = 0; index < 100; index += 1) {
      calls.push(failureOf(client.unary(getHomeTimeline, { viewerId: HANGING_VIEWER }, { headers, timeoutMs: 200 })));
    }
    const failures = await Promise.all(calls);
    const tookMs = performance.now() - startedMs;
    expect(new Set(failures.map((failure) => failure.code))).toEqual(new Set(['DEADLINE_EXCEEDED']));
    await door.flows.untilRunning(deaf);
    // Generous: two cores run many tests at a time. Without deadlines the calls would hang for ever.
    expect(tookMs).toBeLessThan(15_000);
    await eventually(() => client.unary(getHomeTimeline, { viewerId: 'a' }, { headers }));
    client.close();
  });

  it('a call without a deadline gets the default, with its reason', async () => {
    const client = openClient(name, door);
    const failure = await failureOf(client.unary(getHomeTimeline, { viewerId: HANGING_VIEWER }, { headers }));
    expect(failure).toMatchObject({ code: 'DEADLINE_EXCEEDED', reasons: ['DEADLINE_EXCEEDED'] });
    client.close();
  });

  it('a call that asks for an hour gets the maximum, and is answered then although its handler never ends', async () => {
    const client = openClient(name, door);
    deaf += 1;
    const failure = await failureOf(
      client.unary(getHomeTimeline, { viewerId: DEAF_VIEWER }, { headers, timeoutMs: 3_600_000 }),
    );
    expect(failure).toMatchObject({ code: 'DEADLINE_EXCEEDED', reasons: ['DEADLINE_EXCEEDED'] });
    client.close();
  });
});

describe('a caller who leaves', () => {
  let patient: TestDoor;
  beforeAll(async () => {
    patient = await startDoor({ env: { READ_DEADLINE_DEFAULT_MS: '60000', READ_DEADLINE_MAX_MS: '60000' } });
  });
  afterAll(async () => {
    await patient.frontDoor.stop();
  });

  it.each(['grpc-js on the gRPC port', 'Connect JSON over HTTP/1.1', 'connect-node gRPC on the HTTP port'] as const)(
    'ends the work long before the deadline: %s',
    async (name) => {
      const client = openClient(name, patient);
      const leaving = new AbortController();
      const request = { viewerId: HANGING_VIEWER };
      const call = failureOf(client.unary(getHomeTimeline, request, { headers, signal: leaving.signal }));
      await patient.flows.untilRunning(1);
      leaving.abort();
      expect((await call).code).toBe('CANCELLED');
      await patient.flows.untilRunning(0);
      expect(patient.flows.reached.at(-1)?.call.signal.reason).toMatchObject({ reason: 'CALL_CANCELLED' });
      client.close();
    },
  );
});
