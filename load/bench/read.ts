/**
 * Owns the question what a warm page costs: newest pages of 20 entries over gRPC and Connect, 64 in flight, asked by Zipf's law for resident viewers with relations, follows and sealed
 * tokens; beside a bare listener that answers a page of the same bytes, the same page by SQL alone, and our own path with messages in between. And whether readers feel a bulk fan-out.
 *
 * Invariant: every contender runs in a process of its own, callers in another; the pages of all are compared before anything is measured.
 */
import { fromBinary, fromJsonString, toJsonString } from '@bufbuild/protobuf';
import { Redis } from 'ioredis';
import pg from 'pg';
import {
  type GetHomeTimelineResponse,
  GetHomeTimelineResponseSchema,
} from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { pause } from '../../src/runtime.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { createKeys, type Keys } from '../../src/store/redis/keys.ts';
import { type Bench, benchConfig, benchEnvironment, PATIENT, PUSHED, withServers } from './bench.ts';
import { type Child, startChild } from './read-child.ts';
import { measureFanouts, PACED_PART, PACED_PHASES } from './read-fanouts.ts';
import { type Caller, connectGrpc, connectJson, createZipf, IN_FLIGHT, PAGE_SIZE } from './read-load.ts';
import type { ServerKind } from './read-server.ts';
import { API_KEY, copyKinds, FOLLOWEES, type Network, networkOf, seedNetwork } from './read-stage.ts';
import { type Contender, type Measured, median, ratePerSecond, runRounds } from './rounds.ts';

const VIEWERS = 50_000;
const VIEWERS_MIN = 500;
const RATIOS_MIN = { echo: 0.6, 'pull by sql': 5 };
const FANOUT_RATIO_MAX = 3;
/** A timeline of 800 entries takes some 17 kB. */
const MEMORY_MAX = '4gb';
const WARM_UPS = 2;
/** Pages of each server before the first warm-up: until some thousands have been answered its code is still being compiled, and what a page costs falls from round to round. Fewer where it is only tried out. */
const pagesBefore = (viewers: number): number => Math.min(4_000, Math.ceil(viewers / 10));
/** Viewers whose pages are compared. */
const COMPARED = 25;
/** Callers of the set-up, each of which may wait for a rebuild. */
const WARMERS = 16;
const WARM_TRIES_MAX = 10;
const WARM_PAUSE_MS = 50;
/** Nobody gives up in a run that measures how fast. */
const UNHURRIED = { READ_DEADLINE_DEFAULT_MS: '30000', READ_DEADLINE_MAX_MS: '30000' };

export const bench: Bench = {
  size: { of: 'resident viewers', preset: VIEWERS, min: VIEWERS_MIN, max: 1_000_000 },
  run: (options) =>
    withServers(
      async (servers) => {
        const { size = VIEWERS, report, signal, rounds, roundMs } = options;
        const settings = { ...PATIENT, ...PUSHED, ...UNHURRIED, TRIBUTARY_ROLE: 'api' };
        const environment = benchEnvironment(servers, settings);
        const keys = createKeys(benchConfig(servers, settings).timeline.shards);
        const client = new pg.Client({ connectionString: servers.postgres.url });
        const redis = new Redis(servers.cache.url);
        const children: Child[] = [];
        const callers: Caller[] = [];
        const start = async (kind: ServerKind, more: Readonly<Record<string, string>> = {}): Promise<Child> => {
          const child = await startChild(kind, { ...environment, ...more });
          children.push(child);
          return child;
        };
        const opened = (caller: Caller): Caller => {
          callers.push(caller);
          return caller;
        };
        try {
          await migrate(servers.postgres.url);
          await client.connect();
          report(`making ${size.toLocaleString('en-US')} viewers who follow ${FOLLOWEES} authors each`);
          const network = networkOf(size);
          await seedNetwork(client, signal, network);
          const service = await start('service');
          const ours = opened(connectGrpc(service.grpcPort, API_KEY));
          report('bringing their timelines, relations and posts into the cache');
          const page = await warm({ ours, redis, keys, network, signal });

          const decodedServer = await start('decoded');
          const pullServer = await start('pull');
          const echoServer = await start('echo', { READ_BENCH_PAGE: page.toString('base64') });
          const json = opened(connectJson(service.httpPort, API_KEY));
          const decoded = opened(connectGrpc(decodedServer.grpcPort, API_KEY));
          const pull = opened(connectGrpc(pullServer.grpcPort, API_KEY));
          const echo = opened(connectGrpc(echoServer.grpcPort, API_KEY));
          await comparePages(size, { ours, json, decoded, pull });

          const cpu = new Map<string, CpuPerRequest[]>();
          interface Answering extends Contender {
            answer(pages: number): Promise<void>;
          }
          const contender = (name: string, child: Child, caller: Caller): Answering => {
            const nextViewer = createZipf(size, 1);
            const costs: CpuPerRequest[] = [];
            cpu.set(name, costs);
            return {
              name,
              async answer(pages) {
                let left = pages;
                const work = async (): Promise<void> => {
                  while (left > 0) {
                    left -= 1;
                    signal.throwIfAborted();
                    await caller.read(nextViewer());
                  }
                };
                await Promise.all(Array.from({ length: IN_FLIGHT }, work));
              },
              async round() {
                signal.throwIfAborted();
                let requests = 0;
                const before = await child.cpuMicros();
                const operation = async (): Promise<void> => {
                  await caller.read(nextViewer());
                  requests += 1;
                };
                const rate = await ratePerSecond({ workers: IN_FLIGHT, durationMs: roundMs, operation });
                costs.push({ micros: (await child.cpuMicros()) - before, requests });
                return rate;
              },
            };
          };
          const contenders = [
            contender('gRPC', service, ours),
            contender('Connect JSON', service, json),
            contender('bare grpc-js echo', echoServer, echo),
            contender('pull by SQL', pullServer, pull),
            contender('decoded pages', decodedServer, decoded),
          ];
          for (const { answer } of contenders) await answer(pagesBefore(size));
          const measured = await runRounds({ contenders, rounds, warmUps: WARM_UPS, report });
          const [grpc, connect, bare, sql, messages] = measured;
          if (!grpc || !connect || !bare || !sql || !messages) throw new Error('a contender was not measured');
          const microsOf = ({ name }: Measured): number =>
            median((cpu.get(name) ?? []).slice(WARM_UPS).map(({ micros, requests }) => micros / requests));

          const worker = await start('service', { TRIBUTARY_ROLE: 'all' });
          const felt = await measureFanouts({ options, client, ours, size, perSecond: grpc.median * PACED_PART });
          await worker.end();
          return {
            name: 'read',
            unit: 'pages/s',
            ours: grpc,
            against: { connect, echo: bare, 'pull by sql': sql, 'decoded pages': messages },
            ratioMin: RATIOS_MIN,
            figures: {
              'server CPU': { value: microsOf(grpc), unit: 'µs/page' },
              'server CPU, connect': { value: microsOf(connect), unit: 'µs/page' },
              'server CPU, echo': { value: microsOf(bare), unit: 'µs/page' },
              'server CPU, pull by sql': { value: microsOf(sql), unit: 'µs/page, Postgres apart' },
              'server CPU, decoded pages': { value: microsOf(messages), unit: 'µs/page' },
              'during fan-out': {
                value: felt.busyMs / felt.idleMs,
                unit: 'times the p99 without',
                max: FANOUT_RATIO_MAX,
              },
              'p99 without fan-out': { value: felt.idleMs, unit: 'ms' },
              'p99 during fan-out': { value: felt.busyMs, unit: 'ms' },
              'fan-outs': { value: felt.fanouts, unit: `to ${size.toLocaleString('en-US')} followers each` },
            },
            conditions: [
              `newest pages of ${PAGE_SIZE} entries, ${page.length} bytes for one in the middle; ${size.toLocaleString('en-US')} resident viewers by Zipf's law, ${FOLLOWEES} authors followed by each, one of them pulled, one viewer in ten with a mute;`,
              `${IN_FLIGHT} calls in flight over one connection (Connect: ${IN_FLIGHT}); each server in a process of its own, callers in another, fan-outs in one more; log level warn;`,
              `${rounds} rounds of ${roundMs / 1_000} s each in turns after ${pagesBefore(size).toLocaleString('en-US')} pages of each and ${WARM_UPS} warm-ups; p99 at ${PACED_PART} of the rate measured before, ${PACED_PHASES} phases each in turns, from the moment a call was due.`,
            ],
          };
        } finally {
          for (const caller of callers) caller.close();
          await Promise.all(children.map((child) => child.end()));
          redis.disconnect();
          await client.end();
        }
      },
      { cacheMemory: MEMORY_MAX },
    ),
};

interface CpuPerRequest {
  readonly micros: number;
  readonly requests: number;
}

/** Reads one viewer of each kind until the page is warm, and copies what that left in the cache. Answers the page of middle size. */
async function warm(parts: {
  readonly ours: Caller;
  readonly redis: Redis;
  readonly keys: Keys;
  readonly network: Network;
  readonly signal: AbortSignal;
}): Promise<Buffer> {
  const { ours, network, signal } = parts;
  const pages: Buffer[] = [];
  let next = 0;
  const work = async (): Promise<void> => {
    for (let viewer = next++; viewer < network.kinds; viewer = next++) {
      signal.throwIfAborted();
      pages.push(await warmPage(ours, viewer, signal));
    }
  };
  await Promise.all(Array.from({ length: WARMERS }, work));
  await copyKinds(signal, parts.redis, parts.keys, network);
  pages.sort((a, b) => a.length - b.length);
  return pages[Math.floor(pages.length / 2)] as Buffer;
}

async function warmPage(ours: Caller, viewer: number, signal: AbortSignal): Promise<Buffer> {
  for (let attempt = 1; attempt <= WARM_TRIES_MAX; attempt += 1) {
    const bytes = await ours.read(viewer);
    const page = decode(bytes);
    // Twice, so that what the first read brought into the cache has been read from there.
    if (attempt > 1 && page.completeness === 1 && page.entries.length === PAGE_SIZE) return bytes;
    await pause(signal, WARM_PAUSE_MS);
  }
  throw new Error('a page did not become warm');
}

function decode(bytes: Buffer): GetHomeTimelineResponse {
  return fromBinary(GetHomeTimelineResponseSchema, bytes);
}

/** What a page shows, in one form: its tokens may differ. */
function shownBy({ nextPageToken: _next, headToken: _head, ...page }: GetHomeTimelineResponse): string {
  const { $typeName, entries, authors, completeness } = page;
  const sorted = Object.fromEntries(Object.entries(authors).sort(([a], [b]) => (a < b ? -1 : 1)));
  const shown = { $typeName, entries, authors: sorted, completeness, nextPageToken: '', headToken: '' };
  return toJsonString(GetHomeTimelineResponseSchema, shown as GetHomeTimelineResponse);
}

/** Throws unless all show the same. */
async function comparePages(
  size: number,
  { ours, json, decoded, pull }: Readonly<Record<'ours' | 'json' | 'decoded' | 'pull', Caller>>,
): Promise<void> {
  for (let index = 0; index < COMPARED; index += 1) {
    const viewer = Math.floor((size * index) / COMPARED);
    const expected = shownBy(decode(await ours.read(viewer)));
    const fromJson = fromJsonString(GetHomeTimelineResponseSchema, (await json.read(viewer)).toString());
    const others = {
      json: fromJson,
      decoded: decode(await decoded.read(viewer)),
      pull: decode(await pull.read(viewer)),
    };
    for (const [name, page] of Object.entries(others)) {
      const shown = shownBy(page);
      if (shown !== expected) throw new Error(`${name} shows viewer ${viewer} another page: ${shown}, not ${expected}`);
    }
  }
}
