/**
 * Owns the processes that pages are read from, one for each contender, configured by the environment: the service as it is, one of the other ways behind the same listener, or a bare listener that
 * answers bytes it was given.
 * Invariant: it does not outlive the benchmark, and its CPU is the server's own.
 */
import * as grpc from '@grpc/grpc-js';
import { type Config, configFrom } from '../../src/config.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { startService } from '../../src/main.ts';
import { createMetrics } from '../../src/metrics/metrics.ts';
import { createPageTokens } from '../../src/read/page-token.ts';
import { createApiKeys } from '../../src/rpc/api-keys.ts';
import { createCallChain } from '../../src/rpc/call-chain.ts';
import type { Flows } from '../../src/rpc/flows.ts';
import { createGrpcListener } from '../../src/rpc/grpc-listener.ts';
import { methodTable, unary } from '../../src/rpc/methods.ts';
import { timelineServiceMethods } from '../../src/rpc/timeline-service.ts';
import { systemRuntime } from '../../src/runtime.ts';
import { createDatabase, type Database } from '../../src/store/postgres/client.ts';
import { findApiKey } from '../../src/store/postgres/tenants.ts';
import { parseUserId } from '../../src/timeline/ids.ts';
import { hashApiKey } from '../../src/write/administer.ts';
import { createPullPage, decodedAndEncoded, type ReadPage } from './read-rivals.ts';

export type ServerKind = 'service' | 'decoded' | 'pull' | 'echo';

export interface Ready {
  readonly grpcPort: number;
  readonly httpPort: number;
}
/** Microseconds of CPU so far. */
export interface CpuReport {
  readonly cpuMicros: number;
}

interface Server {
  readonly ports: Ready;
  stop(): Promise<void>;
}

const HOST = '127.0.0.1';
const { getHomeTimeline } = TimelineService.method;

async function startWhole(config: Config): Promise<Server> {
  const service = await startService(config, systemRuntime(config.logLevel));
  return { ports: { grpcPort: service.grpcPort, httpPort: service.httpPort }, stop: () => service.stop() };
}

async function startDecoded(config: Config): Promise<Server> {
  const service = await startService(config, systemRuntime(config.logLevel));
  const read: ReadPage = async (call, viewer, pageSize) =>
    decodedAndEncoded(await service.flows.home.page(call, { viewer, pageSize, pageToken: '' }));
  const front = await startListener(config, service.flows, read);
  return {
    ports: front.ports,
    async stop() {
      await front.stop();
      await service.stop();
    },
  };
}

async function startPull(config: Config): Promise<Server> {
  const database = openDatabase(config, 'pull', config.database.poolRequests);
  const tokens = createPageTokens({ keys: config.pageTokenKeys, rejected: () => undefined });
  const head = (): Promise<never> => Promise.reject(new Error('is not measured'));
  const front = await startListener(config, { home: { page: head, head } }, createPullPage(database, tokens));
  return {
    ports: front.ports,
    async stop() {
      await front.stop();
      await database.close();
    },
  };
}

/** Our listener, chain and keys, with another way to answer a home page. */
async function startListener(config: Config, flows: Pick<Flows, 'home'>, read: ReadPage): Promise<Server> {
  const runtime = systemRuntime(config.logLevel);
  const keys = openDatabase(config, 'keys', 2);
  const apiKeys = createApiKeys({
    findApiKey: (keyText, signal) => findApiKey(keys, signal, hashApiKey(keyText)),
    ttlMs: config.apiKeyCacheMs,
    lookupTimeoutMs: config.deadlines.readDefaultMs,
    clock: runtime.clock,
  });
  const chain = createCallChain({ limits: config, ...runtime, metrics: createMetrics(), apiKeys });
  const other = unary(getHomeTimeline, { effect: 'read', access: 'service' }, (request, call) => {
    const viewer = parseUserId(request.viewerId);
    if (viewer === undefined) throw new Error('not a viewer');
    return read(call, viewer, request.pageSize);
  });
  const table = methodTable([other, ...timelineServiceMethods(flows).filter(({ name }) => name !== other.name)]);
  const listener = createGrpcListener({ config, runtime, table, chain });
  const grpcPort = await listener.start();
  return {
    ports: { grpcPort, httpPort: 0 },
    async stop() {
      chain.close();
      const drained = listener.drain();
      listener.destroy();
      await drained;
      await keys.close();
    },
  };
}

/** Nothing of ours: what grpc-js itself makes of it. */
async function startEcho(page: Buffer): Promise<Server> {
  const asIs = (bytes: Buffer): Buffer => bytes;
  const server = new grpc.Server({ 'grpc.enable_channelz': 0 });
  const definition = {
    path: `/${TimelineService.typeName}/${getHomeTimeline.name}`,
    requestStream: false,
    responseStream: false,
    requestSerialize: asIs,
    requestDeserialize: asIs,
    responseSerialize: asIs,
    responseDeserialize: asIs,
  } as const;
  const answer: grpc.handleUnaryCall<Buffer, Buffer> = (_call, respond) => respond(null, page);
  server.addService({ getHomeTimeline: definition }, { getHomeTimeline: answer });
  const grpcPort = await new Promise<number>((resolve, reject) => {
    server.bindAsync(`${HOST}:0`, grpc.ServerCredentials.createInsecure(), (error, port) =>
      error ? reject(error) : resolve(port),
    );
  });
  return { ports: { grpcPort, httpPort: 0 }, stop: async () => server.forceShutdown() };
}

function openDatabase(config: Config, pool: string, connectionsMax: number): Database {
  return createDatabase({
    ...config.database,
    url: config.databaseUrl,
    pool,
    connectionsMax,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
}

function start(kind: string | undefined): Promise<Server> {
  if (kind === 'echo') return startEcho(Buffer.from(process.env['READ_BENCH_PAGE'] ?? '', 'base64'));
  const config = configFrom(process.env);
  if (kind === 'service') return startWhole(config);
  if (kind === 'decoded') return startDecoded(config);
  if (kind === 'pull') return startPull(config);
  throw new Error(`no such server: ${kind}`);
}

async function main(): Promise<void> {
  const send = process.send?.bind(process);
  if (!send) throw new Error('to be run by the benchmark');
  const server = await start(process.argv[2]);
  process.on('message', () => {
    const { user, system } = process.cpuUsage();
    send({ cpuMicros: user + system } satisfies CpuReport);
  });
  process.once('disconnect', () => void server.stop().finally(() => process.exit()));
  send(server.ports satisfies Ready);
}

await main();
