/**
 * A roll-out as callers see it: a fleet of real processes, one after another told to stop by SIGTERM and started anew, while callers that know the standard retry go on. No call may fail, no post may
 * be lost or stay undelivered, and nobody may have to be killed.
 */
import { connect as connectHttp2 } from 'node:http2';
import { connect as connectTcp } from 'node:net';
import { setTimeout as pause } from 'node:timers/promises';
import { afterAll, beforeAll, expect, it } from 'vitest';
import type { Role } from '../src/config.ts';
import { PostService } from '../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../src/gen/tributary/v1/timeline_service_pb.ts';
import { createTestDatabase, type TestDatabase } from './harness/database.ts';
import { eventually, within } from './harness/eventually.ts';
import { type FaultProxy, startFaultProxy } from './harness/fault-proxy.ts';
import { type Caller, openCaller } from './harness/retrying-caller.ts';
import { type RoleProcess, startRole } from './harness/role-process.ts';
import { startTestService, type TestService, type TestTenant } from './harness/service.ts';
import { wholeHome } from './harness/walk.ts';

const { getHomeTimeline } = TimelineService.method;
const { publishPost } = PostService.method;

const AUTHORS = ['ada', 'bob', 'cleo'];
const VIEWERS = ['rita', 'sam', 'tess', 'uma'];
/** Of each caller, between two calls: some hundred calls a second in all. */
const CALL_EVERY_MS = 20;
const CALLERS = 4;
const CALL_MAX_MS = 8_000;
const DARK_CALL_MAX_MS = 3_000;
/** DEADLINE_EXCEEDED and UNAVAILABLE. */
const RETRIED_IN_VAIN = ['4', '14'];
/** On each port of each process. */
const IDLE_SESSIONS = 25;

let database: TestDatabase;
let reader: TestService;
let tenant: TestTenant;
const closers: (() => unknown)[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  // Only to read by: it moves and delivers nothing.
  reader = await startTestService({ database, env: { TRIBUTARY_ROLE: 'api' } });
  tenant = await reader.tenant();
  const follows = VIEWERS.flatMap((viewer) => AUTHORS.map((author) => `${viewer} follows ${author}`));
  await tenant.cast().play(follows.join('; '));
  // Resident from now on: what is published must be brought to them.
  for (const viewer of VIEWERS) await tenant.timeline.getHomeTimeline({ viewerId: viewer });
});
afterAll(async () => {
  for (const close of closers) await close();
  await reader.stop();
  await database.drop();
});

function start(role: Role, at: Partial<Pick<RoleProcess, 'grpcPort' | 'httpPort'>> = {}): Promise<RoleProcess> {
  return startRole(role, database, {
    TRIBUTARY_GRPC_PORT: String(at.grpcPort ?? 0),
    TRIBUTARY_HTTP_PORT: String(at.httpPort ?? 0),
    DRAIN_TIMEOUT_MS: '5000',
    RELAY_EVERY_MS: '100',
  });
}

interface Load {
  /** Calls that were answered so far. */
  readonly answered: () => number;
  readonly failures: readonly unknown[];
  /** IDs of the posts that were published so far, by the answers. */
  readonly published: ReadonlySet<string>;
  end(): Promise<void>;
}

/** Callers that read and publish in turn, without an end of their own; a publish is safe to try again by its request ID. */
function offer(callers: readonly Caller[]): Load {
  const failures: unknown[] = [];
  const published = new Set<string>();
  let answered = 0;
  let over = false;
  let publishes = 0;
  async function go(caller: Caller, at: number): Promise<void> {
    for (let round = at; !over; round += 1) {
      try {
        if (round % 3 === 0) {
          publishes += 1;
          const authorId = AUTHORS[round % AUTHORS.length] as string;
          const request = { authorId, text: `post ${publishes}`, requestId: crypto.randomUUID() };
          published.add((await caller.call(publishPost, request, CALL_MAX_MS)).post?.postId ?? '');
        } else {
          await caller.call(getHomeTimeline, { viewerId: VIEWERS[round % VIEWERS.length] as string }, CALL_MAX_MS);
        }
        answered += 1;
      } catch (error) {
        failures.push(error);
      }
      await pause(CALL_EVERY_MS);
    }
  }
  const running = Array.from({ length: CALLERS }, (_, at) => go(callers[at % callers.length] as Caller, at));
  return {
    answered: () => answered,
    failures,
    published,
    async end() {
      over = true;
      await Promise.all(running);
    },
  };
}

/** Sessions that have asked for nothing, and a connection of HTTP/1.1 that has and is kept alive. */
async function idleAt({ grpcPort, httpPort }: RoleProcess): Promise<void> {
  const opened = [grpcPort, httpPort].flatMap((port) =>
    Array.from({ length: IDLE_SESSIONS }, async () => {
      const session = connectHttp2(`http://127.0.0.1:${port}`);
      session.on('error', () => undefined);
      closers.push(() => session.destroy());
      await new Promise((resolve) => session.once('remoteSettings', resolve));
    }),
  );
  const kept = connectTcp(httpPort, '127.0.0.1', () => kept.write('GET /livez HTTP/1.1\r\nhost: a\r\n\r\n'));
  kept.on('error', () => undefined);
  closers.push(() => kept.destroy());
  await Promise.all([...opened, new Promise((resolve) => kept.once('data', resolve))]);
}

/** Calls of a kind that a process has answered on one of its ports, by its own figures. */
async function answeredBy({ httpPort }: RoleProcess, listener: 'grpc' | 'http'): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${httpPort}/metrics`)).text();
  const lines = text.matchAll(/^tributary_rpc_calls_total\{(.*)\} (\d+)$/gm);
  return [...lines].reduce((sum, [, labels = '', count]) => {
    const counts = labels.includes(`listener="${listener}"`) && labels.includes('GetHomeTimeline');
    return counts ? sum + Number(count) : sum;
  }, 0);
}

it('every role restarted under load by SIGTERM: no call fails, no post is lost or stays behind, each process ends by itself, with 0; and callers leave one that falls silent', {
  timeout: 300_000,
}, async () => {
  // As many at a time as there are cores, perhaps.
  const [first, second] = await Promise.all([start('api'), start('api')]);
  const [third, relay] = await Promise.all([start('api'), start('relay')]);
  const [worker, all] = await Promise.all([start('worker'), start('all')]);
  const answering = [first, second, third, all];
  const proxy: FaultProxy = await startFaultProxy({ port: first.grpcPort });
  closers.push(() => proxy.stop());
  const grpcPorts = [proxy.port, ...answering.slice(1).map(({ grpcPort }) => grpcPort)];
  const callers = [grpcPorts, answering.map(({ httpPort }) => httpPort)].map((ports) =>
    openCaller({ ports, key: tenant.key }),
  );
  closers.push(...callers.map((caller) => () => caller.close()));
  await Promise.all(answering.map(idleAt));
  const load = offer(callers);
  const takesCalls = (one: RoleProcess): Promise<void> =>
    eventually(
      async () => {
        for (const listener of ['grpc', 'http'] as const) expect(await answeredBy(one, listener)).toBeGreaterThan(0);
      },
      { timeoutMs: 60_000 },
    );
  for (const one of answering) await takesCalls(one);

  const restart = async (one: RoleProcess, role: Role): Promise<RoleProcess> => {
    expect(await one.stop()).toBe(0);
    const next = await start(role, one);
    await takesCalls(next);
    return next;
  };
  const apis = [];
  for (const one of [first, second, third]) apis.push(await restart(one, 'api'));
  // The one that is left does the work of these two.
  expect(await relay.stop()).toBe(0);
  expect(await worker.stop()).toBe(0);
  // And nobody does it while this one is away.
  const heir = await restart(all, 'all');
  await load.end();
  expect(load.failures).toEqual([]);

  await reader.settle();
  const rows = await database.sql<{ post_id: number; jobs: number; dead: number }>(
    `SELECT p.post_id, count(j.post_id)::int AS jobs, count(j.dead_at)::int AS dead FROM posts p
     LEFT JOIN fanout_jobs j USING (tenant_id, post_id) GROUP BY 1`,
  );
  expect(new Set(rows.map(({ post_id }) => String(post_id)))).toEqual(load.published);
  for (const { jobs, dead } of rows) expect({ jobs, dead }).toEqual({ jobs: 1, dead: 0 });
  for (const viewer of VIEWERS) {
    // A walk holds no entry twice, or fails.
    expect(new Set(await wholeHome(tenant, viewer))).toEqual(load.published);
  }

  // Not told to stop, and not gone either: packets to the first are dropped without a word.
  proxy.blackhole();
  const [byGrpc] = callers as [Caller, Caller];
  const read = (): Promise<string> =>
    byGrpc.call(getHomeTimeline, { viewerId: 'rita' }, DARK_CALL_MAX_MS).then(
      () => 'answered',
      ({ code }: { readonly code?: number }) => String(code),
    );
  const twelve = (): Promise<readonly string[]> => Promise.all(Array.from({ length: 12 }, read));
  for (const end of await within(twelve(), 10 * DARK_CALL_MAX_MS))
    expect(['answered', ...RETRIED_IN_VAIN]).toContain(end);
  // The client gives the silent connection up, and goes on with the others.
  await eventually(async () => expect(new Set(await twelve())).toEqual(new Set(['answered'])));
  for (const one of [...apis, heir]) expect(await one.stop()).toBe(0);
});
