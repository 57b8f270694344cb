/**
 * Owns `npm start`: servers on this machine, the service on top of them, a sample to look at, and a way out.
 *
 * Invariants: whatever is started is stopped, in the reverse order, however this ends; a sample counts as made only once its note is
 * written, and whatever has no note is made anew; everything listens on loopback.
 *
 *   npm start -- [--once] [--viewers n] [--data folder]
 */
import { createServer } from 'node:net';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { createClient, type Transport } from '@connectrpc/connect';
import { createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { type Config, configFrom } from './config.ts';
import { removeServers, type Servers, startServers } from './embedded/servers.ts';
import { GraphService } from './gen/tributary/v1/graph_service_pb.ts';
import { PostService } from './gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from './gen/tributary/v1/timeline_service_pb.ts';
import { hearSignals } from './lifetime.ts';
import { type Service, startService } from './main.ts';
import { systemClock, systemRuntime } from './runtime.ts';
import {
  findForeign,
  holdsAnything,
  loadPageTokenKeys,
  readNote,
  type SampleNote,
  writeNote,
} from './sample/data-folder.ts';
import { measureFreshness } from './sample/freshness.ts';
import { pageTable } from './sample/page-table.ts';
import { type SamplePost, type SeedStep, seedSample } from './sample/seed.ts';
import { migrate } from './store/postgres/migrate.ts';
import { parseTenantId, parseUserId, type TenantId, type UserId } from './timeline/ids.ts';

interface Options {
  readonly once: boolean;
  readonly viewers: number;
  readonly dataDir: string;
}

const HOST = '127.0.0.1';
const PORTS = { grpc: 50_051, http: 8_080 } as const;
const VIEWERS = { least: 50, usual: 2_000, most: 20_000 } as const;
const SEED = 20_200_101;
const TENANT = 'sample';
const PAGE_SIZE = 20;
const STATEMENT_TIMEOUT_MS = 30_000;
const TABLE_WIDTH = { usual: 120, most: 160 } as const;
/** Between two lines of progress where the output is not a terminal. */
const PROGRESS_EVERY_MS = 2_000;

/** A reason to stop that is for the user to read, without a stack. */
class Refusal extends Error {}

/** Stopped on purpose: by Ctrl-C, by a signal, or since nobody reads what it says. */
class Stopped extends Error {}

async function main(): Promise<number> {
  const options = optionsFrom(process.argv.slice(2));
  const stopping = new AbortController();
  hearSignals({
    signals: ['SIGINT', 'SIGTERM', 'SIGHUP'],
    process,
    clock: systemClock,
    told: (signal) => stopping.abort(new Stopped(signal)),
    // Their guards see that this process is gone, and end them.
    toldAgain: () => say('Ended at once; the servers end by themselves.'),
  });
  // A terminal that was closed, a pipe that nobody reads: what cannot be written must not end the process before what it started.
  process.stdout.on('error', (error) => stopping.abort(new Stopped(error.message)));
  const cleanUps: (() => Promise<void>)[] = [];
  try {
    await run(options, stopping.signal, (cleanUp) => cleanUps.push(cleanUp));
    return 0;
  } catch (error) {
    if (!stopping.signal.aborted) throw error;
    // Stopped while it was starting: whatever failed, failed because of that.
    return options.once ? 130 : 0;
  } finally {
    if (stopping.signal.aborted) say('\nStopping …');
    await inOrder(cleanUps.reverse());
    if (stopping.signal.aborted) say('Stopped.');
  }
}

/** Does them all, whatever becomes of each; throws the first failure afterwards. */
async function inOrder(steps: readonly (() => Promise<void>)[]): Promise<void> {
  const failures: unknown[] = [];
  for (const step of steps) await step().catch((error: unknown) => failures.push(error));
  if (failures.length > 0) throw failures[0];
}

async function run(
  options: Options,
  signal: AbortSignal,
  onEnd: (cleanUp: () => Promise<void>) => void,
): Promise<void> {
  const runtime = systemRuntime(logLevel());
  const startedMs = runtime.clock.monotonicMs();
  const { dataDir } = options;
  let note = await usableNote(options);

  say(`Starting Postgres and two Redis servers in ${path.relative(process.cwd(), dataDir) || dataDir} …`);
  const servers = await startServers({ dataDir, fast: false }).catch((cause: unknown) => {
    // What keeps a server from starting is for the user to mend, and its message says how.
    throw new Refusal(cause instanceof Error ? cause.message : String(cause), { cause });
  });
  onEnd(() => servers.stop());
  signal.throwIfAborted();

  await migrate(servers.postgres.url);
  signal.throwIfAborted();
  const service = await startService(await configOf(servers, dataDir), runtime);
  onEnd(() => service.stop());
  signal.throwIfAborted();

  if (note === undefined) {
    note = await makeSample(service, options, signal);
    signal.throwIfAborted();
    writeNote(dataDir, note);
  } else {
    say(`Using the sample of ${note.viewers.toLocaleString('en-US')} viewers that is there.`);
  }
  const client = connect(service, note.apiKey);
  onEnd(async () => client.close());
  const page = await createClient(TimelineService, client.transport).getHomeTimeline(
    { viewerId: note.viewer, pageSize: PAGE_SIZE },
    { signal, timeoutMs: 5_000 },
  );
  const width = Math.min(process.stdout.columns ?? TABLE_WIDTH.usual, TABLE_WIDTH.most);
  say(`\nThe home timeline of ${note.viewer}, newest first:\n`);
  for (const line of pageTable({ ...page, nowMs: runtime.clock.nowMs(), width })) say(line);
  const fresh = await measureFreshness(note.viewer, {
    posts: createClient(PostService, client.transport),
    graph: createClient(GraphService, client.transport),
    timelines: createClient(TimelineService, client.transport),
    clock: runtime.clock,
    signal,
  });
  if (fresh) {
    say(
      `\nA post of ${fresh.author} was on that page ${fresh.visibleAfterMs.toFixed(0)} ms after the call that published it.`,
    );
  }
  describeEndpoints(service, note);
  say(`\nReady in ${((runtime.clock.monotonicMs() - startedMs) / 1_000).toFixed(1)} s.`);
  if (options.once) return;
  say('Press Ctrl-C to stop.');
  await new Promise<void>((resolve) => {
    if (signal.aborted) resolve();
    signal.addEventListener('abort', () => resolve(), { once: true });
  });
}

/** The note of a sample that can be used; where there is none, the folder is empty afterwards. */
async function usableNote({ dataDir, viewers }: Options): Promise<SampleNote | undefined> {
  const note = readNote(dataDir);
  if (note?.viewers === viewers && note.seed === SEED) return note;
  const foreign = findForeign(dataDir);
  if (foreign.length > 0) {
    throw new Refusal(`${dataDir} holds ${foreign.join(', ')}, which is not from here. Give --data another folder.`);
  }
  if (!holdsAnything(dataDir)) return undefined;
  const why =
    note === undefined ? 'An earlier start did not finish its sample' : 'The sample that is there is another one';
  say(`${why}: making it anew.`);
  if ((await removeServers(dataDir)) === 'in use') {
    throw new Refusal(`${dataDir} is in use by another start. Stop that first, or give --data another folder.`);
  }
  return undefined;
}

async function configOf(servers: Servers, dataDir: string): Promise<Config> {
  return configFrom({
    DATABASE_URL: servers.postgres.url,
    REDIS_CACHE_URL: servers.cache.url,
    REDIS_QUEUE_URL: servers.queue.url,
    PAGE_TOKEN_KEYS: loadPageTokenKeys(dataDir),
    TRIBUTARY_HOST: HOST,
    TRIBUTARY_GRPC_PORT: String(await portOrFree(PORTS.grpc)),
    TRIBUTARY_HTTP_PORT: String(await portOrFree(PORTS.http)),
    // A sample is written as fast as the machine can, beside its own database.
    DATABASE_STATEMENT_TIMEOUT_MS: String(STATEMENT_TIMEOUT_MS),
    DATABASE_ACQUIRE_TIMEOUT_MS: '5000',
    LOG_LEVEL: logLevel(),
  });
}

/** The port where nobody has it, else 0, which means any. */
async function portOrFree(port: number): Promise<number> {
  const probe = createServer();
  const { promise, resolve } = Promise.withResolvers<number>();
  probe.once('error', () => resolve(0));
  probe.listen({ port, host: HOST, exclusive: true }, () => probe.close(() => resolve(port)));
  return promise;
}

async function makeSample(service: Service, options: Options, signal: AbortSignal): Promise<SampleNote> {
  const { administer } = service;
  const { clock } = systemRuntime('silent');
  const tenant = named(parseTenantId(TENANT));
  await administer.createTenant(signal, tenant);
  const apiKey = await administer.createKey(signal, { tenant, role: 'service' });
  const client = connect(service, apiKey);
  const progress = createProgress(clock.monotonicMs);
  try {
    const { viewer } = await seedSample(
      { viewers: options.viewers, seed: SEED },
      {
        graph: createClient(GraphService, client.transport),
        posts: createClient(PostService, client.transport),
        clock,
        signal,
        // Nobody has read a page yet: there is no timeline to bring the posts to.
        importPosts: async (posts) =>
          void (await service.importPosts({ tenant, signal }, posts.map(withUserId), { fanOut: false })),
        progress: progress.show,
      },
    );
    return { viewers: options.viewers, seed: SEED, tenant, apiKey, viewer };
  } finally {
    progress.end();
    client.close();
  }
}

function withUserId(post: SamplePost): SamplePost & { readonly author: UserId } {
  return { ...post, author: named(parseUserId(post.author)) };
}

function named<Id extends TenantId | UserId>(id: Id | undefined): Id {
  if (id === undefined) throw new Error('a sample name is not an ID');
  return id;
}

/** A connection of its own to the running service, as any caller would have one. */
function connect(service: Service, apiKey: string): { readonly transport: Transport; close(): void } {
  const baseUrl = `http://${HOST}:${service.grpcPort}`;
  const sessionManager = new Http2SessionManager(baseUrl);
  const transport = createGrpcTransport({
    baseUrl,
    sessionManager,
    interceptors: [
      (next) => (request) => {
        request.header.set('authorization', `Bearer ${apiKey}`);
        return next(request);
      },
    ],
  });
  return { transport, close: () => sessionManager.abort() };
}

/** On a terminal one line for each step, written over as it goes; else a line every few seconds. */
function createProgress(nowMs: () => number): { show(step: SeedStep, done: number, total: number): void; end(): void } {
  let shownMs = Number.NEGATIVE_INFINITY;
  let openLine = false;
  const isTerminal = process.stdout.isTTY === true;
  return {
    show(step, done, total) {
      const isDone = done >= total;
      const wait = isTerminal ? 100 : PROGRESS_EVERY_MS;
      if (!isDone && nowMs() - shownMs < wait) return;
      shownMs = nowMs();
      const line = `  ${step}: ${done.toLocaleString('en-US')} of ${total.toLocaleString('en-US')}`;
      process.stdout.write(isTerminal ? `\r\u001b[K${line}${isDone ? '\n' : ''}` : `${line}\n`);
      openLine = isTerminal && !isDone;
    },
    end() {
      if (openLine) process.stdout.write('\n');
    },
  };
}

function describeEndpoints(service: Service, { apiKey, viewer }: SampleNote): void {
  const grpc = `http://${HOST}:${service.grpcPort}`;
  const http = `http://${HOST}:${service.httpPort}`;
  const client = [
    "import { createClient } from '@connectrpc/connect';",
    "import { createConnectTransport } from '@connectrpc/connect-node';",
    "import { TimelineService } from './src/gen/tributary/v1/timeline_service_pb.ts';",
    `const transport = createConnectTransport({ baseUrl: '${http}', httpVersion: '1.1' });`,
    `const headers = { authorization: 'Bearer ${apiKey}' };`,
    `const page = await createClient(TimelineService, transport).getHomeTimeline({ viewerId: '${viewer}', pageSize: 3 }, { headers });`,
    'for (const { post } of page.entries) console.log(post?.authorId, post?.text);',
  ].join(' ');
  const curl = [
    'npx buf curl --protocol grpc --http2-prior-knowledge',
    `-H 'authorization: Bearer ${apiKey}'`,
    `-d '{"viewerId":"${viewer}","pageSize":2}'`,
    `${grpc}/tributary.v1.TimelineService/GetHomeTimeline`,
  ].join(' ');
  say(`
gRPC      ${HOST}:${service.grpcPort}
HTTP      ${http} (Connect, gRPC-Web, gRPC)
Metrics   ${http}/metrics
API key   ${apiKey}

Try it, from this folder in another terminal:

1. A typed client:
   node_modules/.bin/node --input-type=module-typescript -e "${client}"

2. Any gRPC client, by reflection:
   ${curl}

3. The metrics, in a browser:
   ${http}/metrics`);
}

function optionsFrom(args: readonly string[]): Options {
  const usage = 'Usage: npm start -- [--once] [--viewers n] [--data folder]';
  try {
    const { values } = parseArgs({
      args: [...args],
      options: { once: { type: 'boolean', default: false }, viewers: { type: 'string' }, data: { type: 'string' } },
    });
    const viewers = values.viewers === undefined ? VIEWERS.usual : Number(values.viewers);
    if (!Number.isInteger(viewers) || viewers < VIEWERS.least || viewers > VIEWERS.most) {
      throw new Refusal(`--viewers takes a number from ${VIEWERS.least} to ${VIEWERS.most}.`);
    }
    const dataDir = values.data ?? path.join(import.meta.dirname, '../.data/start');
    return { once: values.once, viewers, dataDir: path.resolve(dataDir) };
  } catch (error) {
    throw new Refusal(`${error instanceof Error ? error.message : error}\n${usage}`);
  }
}

/** Faults of ours alone: a log between the lines of a table helps nobody. */
function logLevel(): string {
  return process.env['LOG_LEVEL'] ?? 'error';
}

function say(text: string): void {
  process.stdout.write(`${text}\n`);
}

try {
  process.exitCode = await main();
} catch (error) {
  // A refusal is for the user to read; everything else is our fault and shows where it happened.
  console.error(error instanceof Refusal ? error.message : error);
  process.exitCode = 1;
}
