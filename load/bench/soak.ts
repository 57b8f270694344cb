/**
 * Owns the question whether the service keeps anything of clients that are gone: many of them, of every kind, each with connections of its own, a call or two, and an end that is not always a
 * polite one. Its memory after they have left must not rise with their number.
 *
 * Invariant: memory is read after a collection, with nobody connected, so that what is compared is what is kept.
 */
import { type ChildProcess, fork } from 'node:child_process';
import { once } from 'node:events';
import { Agent } from 'node:http';
import { connect as connectTcp } from 'node:net';
import path from 'node:path';
import { createClient, type Interceptor } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node';
import * as grpc from '@grpc/grpc-js';
import type { Servers } from '../../src/embedded/servers.ts';
import { PostService } from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { systemClock } from '../../src/runtime.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { type Bench, type BenchOptions, benchEnvironment, PATIENT, withServers } from './bench.ts';
import type { BenchResult } from './result.ts';
import type { Held, SoakServing } from './soak-process.ts';

const CLIENTS = 20_000;
/** Parts of the run after each of which memory is read; the first is the warm-up that the others are compared with. */
const PARTS = 8;
const AT_ONCE = 16;
const VIEWERS = 200;
const CALL_MS = 20_000;
const RISE_MAX_MB = 8;
const BYTES_PER_MB = 1_048_576;
const RUN_MAX_MS = 1_800_000;

export const bench: Bench = {
  size: { of: 'clients', preset: CLIENTS, min: 80, max: 1_000_000 },
  run: (options) => withServers((servers) => soak(options, servers)),
};

/** One client of a kind: comes, calls, goes. */
type Client = (at: SoakServing, viewer: string) => Promise<void>;

async function soak(options: BenchOptions, servers: Servers): Promise<BenchResult> {
  const { size = CLIENTS, report } = options;
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(RUN_MAX_MS)]);
  await migrate(servers.postgres.url);
  const service = await startProcess(servers);
  const kinds = Object.values(CLIENTS_BY_KIND);
  const looks: Held[] = [];
  const startedMs = systemClock.monotonicMs();
  let next = 0;
  try {
    for (let part = 1; part <= PARTS; part += 1) {
      const until = Math.floor((size * part) / PARTS);
      await Promise.all(
        Array.from({ length: AT_ONCE }, async () => {
          while (next < until) {
            signal.throwIfAborted();
            const number = next++;
            await (kinds[number % kinds.length] as Client)(service.serving, `v${number % VIEWERS}`);
          }
        }),
      );
      const held = await service.look();
      looks.push(held);
      report(
        `${until} clients: ${inMb(held.heapBytes)} MB of heap, ${inMb(held.rssBytes)} MB resident, ${held.sockets} sockets`,
      );
    }
  } finally {
    await service.stop();
  }
  const [first, ...later] = looks;
  const last = later.at(-1);
  if (!first || !last) throw new Error('nothing was looked at');
  const rises = later.map(({ heapBytes }) => (heapBytes - first.heapBytes) / BYTES_PER_MB);
  const sockets = Math.max(...looks.map((look) => look.sockets));
  return {
    name: 'soak',
    unit: 'MB of heap more than after the first eighth',
    ours: { name: 'whole service', median: rises.at(-1) ?? 0, lowest: Math.min(...rises), highest: Math.max(...rises) },
    against: {},
    oursMax: RISE_MAX_MB,
    figures: {
      'heap after the first eighth': { value: first.heapBytes / BYTES_PER_MB, unit: 'MB' },
      'heap at the end': { value: last.heapBytes / BYTES_PER_MB, unit: 'MB' },
      'resident after the first eighth': { value: first.rssBytes / BYTES_PER_MB, unit: 'MB' },
      'resident at the end': { value: last.rssBytes / BYTES_PER_MB, unit: 'MB' },
      'sockets of clients left open': { value: sockets, unit: 'after a part, at most', max: 0 },
      'warnings of the process': { value: last.warnings.length, unit: 'such as too many listeners', max: 0 },
      'clients a second': { value: size / ((systemClock.monotonicMs() - startedMs) / 1_000), unit: 'clients/s' },
    },
    conditions: [
      `${size.toLocaleString('en-US')} clients, ${AT_ONCE} at once, in turn: ${Object.keys(CLIENTS_BY_KIND).join(', ')}; each with connections of its own, and gone after a page or a post;`,
      'heap and buffers after a collection, when all of a part have left; the service in one process, its clients and servers on the same machine;',
      ...last.warnings.map((warning) => `warning: ${warning}`),
    ],
  };
}

const CLIENTS_BY_KIND: Readonly<Record<string, Client>> = {
  'grpc-js': grpcJs,
  'gRPC by connect-node': (at, viewer) => connectGrpc(at.grpcPort, at.key, viewer),
  'gRPC on the HTTP port': (at, viewer) => connectGrpc(at.httpPort, at.key, viewer),
  'Connect JSON over HTTP/1.1': connectJson,
  'sockets that are cut': cutOff,
};

async function grpcJs({ grpcPort, key }: SoakServing, viewer: string): Promise<void> {
  const client = new grpc.Client(`127.0.0.1:${grpcPort}`, grpc.credentials.createInsecure(), {
    'grpc.use_local_subchannel_pool': 1,
  });
  const metadata = new grpc.Metadata();
  metadata.set('authorization', `Bearer ${key}`);
  // No message at all is an empty one: a viewer that is missing is refused, which is an answer as well.
  await new Promise<void>((resolve) => {
    const asIs = (bytes: Buffer): Buffer => bytes;
    const method = `/${TimelineService.typeName}/${TimelineService.method.getHomeTimeline.name}`;
    const request = Buffer.concat([Buffer.from([0x0a, viewer.length]), Buffer.from(viewer)]);
    client.makeUnaryRequest(method, asIs, asIs, request, metadata, () => resolve());
  });
  client.close();
}

async function connectGrpc(port: number, key: string, viewer: string): Promise<void> {
  const baseUrl = `http://127.0.0.1:${port}`;
  const sessionManager = new Http2SessionManager(baseUrl);
  const transport = createGrpcTransport({ baseUrl, sessionManager, interceptors: [authorize(key)] });
  await createClient(TimelineService, transport).getHomeTimeline({ viewerId: viewer }, { timeoutMs: CALL_MS });
  sessionManager.abort();
}

async function connectJson({ httpPort, key }: SoakServing, viewer: string): Promise<void> {
  const agent = new Agent({ keepAlive: true });
  const transport = createConnectTransport({
    baseUrl: `http://127.0.0.1:${httpPort}`,
    httpVersion: '1.1',
    useBinaryFormat: false,
    nodeOptions: { agent },
    interceptors: [authorize(key)],
  });
  const requestId = crypto.randomUUID();
  const post = { authorId: viewer, text: 'A post of somebody who is gone.', requestId };
  await createClient(PostService, transport).publishPost(post, { timeoutMs: CALL_MS });
  agent.destroy();
}

/** In the middle of a request, on either port. */
async function cutOff({ grpcPort, httpPort }: SoakServing, viewer: string): Promise<void> {
  for (const port of [grpcPort, httpPort]) {
    const socket = connectTcp(port, '127.0.0.1');
    socket.on('error', () => undefined);
    await once(socket, 'connect');
    const half =
      port === grpcPort
        ? 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'
        : `POST /tributary.v1.PostService/PublishPost HTTP/1.1\r\nhost: ${viewer}\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{`;
    await new Promise<void>((resolve) => socket.write(half, () => resolve()));
    socket.resetAndDestroy();
  }
}

function authorize(key: string): Interceptor {
  return (next) => (request) => {
    request.header.set('authorization', `Bearer ${key}`);
    return next(request);
  };
}

interface SoakedProcess {
  readonly serving: SoakServing;
  look(): Promise<Held>;
  stop(): Promise<void>;
}

async function startProcess(servers: Servers): Promise<SoakedProcess> {
  const child: ChildProcess = fork(path.join(import.meta.dirname, 'soak-process.ts'), {
    execArgv: ['--expose-gc'],
    env: { ...process.env, ...benchEnvironment(servers, { LOG_LEVEL: 'fatal', ...PATIENT, ...DEADLINES }) },
    stdio: ['ignore', 2, 2, 'ipc'],
  });
  const exited = once(child, 'exit');
  exited.catch(() => undefined);
  const said = async <Message>(): Promise<Message> => {
    const ended = exited.then(() => Promise.reject(new Error('the service ended by itself')));
    const [message] = await Promise.race([once(child, 'message'), ended]);
    return message as Message;
  };
  return {
    serving: await said<SoakServing>(),
    look() {
      const looked = said<Held>();
      child.send('look');
      return looked;
    },
    async stop() {
      if (child.connected) child.disconnect();
      await exited;
    },
  };
}

/** Whether the machine is quick is not the question. */
const DEADLINES = {
  READ_DEADLINE_DEFAULT_MS: String(CALL_MS),
  READ_DEADLINE_MAX_MS: String(CALL_MS),
  WRITE_DEADLINE_DEFAULT_MS: String(CALL_MS),
  WRITE_DEADLINE_MAX_MS: String(CALL_MS),
};

function inMb(bytes: number): string {
  return (bytes / BYTES_PER_MB).toFixed(1);
}
