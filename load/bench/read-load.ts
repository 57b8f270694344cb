/**
 * Owns the callers of the reading benchmark: who asks next, by which client, and how long the answer took.
 * Invariant: a request is the same bytes whichever contender gets it, and an answer is received whole and not looked into, so that the callers' own cost is the same for all.
 */
import { Agent, request as httpRequest } from 'node:http';
import { create, toBinary } from '@bufbuild/protobuf';
import * as grpc from '@grpc/grpc-js';
import { GetHomeTimelineRequestSchema, TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { pause, systemClock } from '../../src/runtime.ts';
import { createSeeded } from '../../src/sample/seeded.ts';
import type { UserId } from '../../src/timeline/ids.ts';
import { viewerAt } from './crowd.ts';

export const PAGE_SIZE = 20;
export const IN_FLIGHT = 64;
const PATH = `/${TimelineService.typeName}/${TimelineService.method.getHomeTimeline.name}`;
const CALL_MS = 30_000;
const HOST = '127.0.0.1';

/** Reads a viewer's newest page; answers the bytes of the message. */
export interface Caller {
  read(viewer: number): Promise<Buffer>;
  close(): void;
}

export function connectGrpc(port: number, apiKey: string): Caller {
  const client = new grpc.Client(`${HOST}:${port}`, grpc.credentials.createInsecure(), {
    'grpc.use_local_subchannel_pool': 1,
    'grpc.enable_retries': 0,
  });
  const metadata = new grpc.Metadata();
  metadata.set('authorization', `Bearer ${apiKey}`);
  const asIs = (bytes: Buffer): Buffer => bytes;
  const requestOf = remembered((viewer) => {
    const message = create(GetHomeTimelineRequestSchema, { viewerId: viewer, pageSize: PAGE_SIZE });
    return Buffer.from(toBinary(GetHomeTimelineRequestSchema, message));
  });
  return {
    read: (viewer) =>
      new Promise((resolve, reject) => {
        client.makeUnaryRequest(PATH, asIs, asIs, requestOf(viewer), metadata, (error, answer) => {
          if (error) reject(error);
          else if (answer === undefined || answer.length === 0) reject(new Error('an answer without a page'));
          else resolve(answer);
        });
      }),
    close: () => client.close(),
  };
}

/** Connect's JSON over HTTP/1.1, with as many connections as calls. */
export function connectJson(port: number, apiKey: string): Caller {
  const agent = new Agent({ keepAlive: true, maxSockets: IN_FLIGHT });
  const headers = { authorization: `Bearer ${apiKey}`, 'content-type': 'application/json' };
  const requestOf = remembered((viewer) => Buffer.from(JSON.stringify({ viewerId: viewer, pageSize: PAGE_SIZE })));
  return {
    read: (viewer) =>
      new Promise((resolve, reject) => {
        const body = requestOf(viewer);
        const options = { host: HOST, port, path: PATH, method: 'POST', agent, timeout: CALL_MS };
        const sent = httpRequest({ ...options, headers: { ...headers, 'content-length': body.length } }, (answer) => {
          const chunks: Buffer[] = [];
          answer.on('data', (chunk: Buffer) => chunks.push(chunk));
          answer.once('error', reject);
          answer.once('end', () => {
            const whole = Buffer.concat(chunks);
            if (answer.statusCode === 200) resolve(whole);
            else reject(new Error(`${answer.statusCode}: ${whole.toString()}`));
          });
        });
        sent.once('timeout', () => sent.destroy(new Error('no answer in time')));
        sent.once('error', reject);
        sent.end(body);
      }),
    close: () => agent.destroy(),
  };
}

function remembered(make: (viewer: UserId) => Buffer): (viewer: number) => Buffer {
  const made = new Map<number, Buffer>();
  return (viewer) => {
    let request = made.get(viewer);
    if (request === undefined) {
      request = make(viewerAt(viewer));
      made.set(viewer, request);
    }
    return request;
  };
}

/** Viewers by Zipf's law with exponent 1: the r-th most frequent asks 1/r times as often as the first. Who is which is mixed, so that neighbours have nothing in common. */
export function createZipf(viewers: number, seed: number): () => number {
  const random = createSeeded(seed);
  const sums = new Float64Array(viewers);
  let sum = 0;
  for (let rank = 0; rank < viewers; rank += 1) {
    sum += 1 / (rank + 1);
    sums[rank] = sum;
  }
  const order = Array.from({ length: viewers }, (_, index) => index);
  for (let index = viewers - 1; index > 0; index -= 1) {
    const other = random.below(index + 1);
    [order[index], order[other]] = [order[other] as number, order[index] as number];
  }
  return () => {
    const wanted = random.fraction() * sum;
    let low = 0;
    let high = viewers - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if ((sums[middle] as number) > wanted) high = middle;
      else low = middle + 1;
    }
    return order[low] as number;
  };
}

/**
 * Starts operations at an even pace, whatever became of those before, with at most IN_FLIGHT at once. Answers milliseconds of each, from the moment it was due, so that one that had to wait
 * for the others counts its wait.
 */
export async function pacedLatencies(options: {
  readonly signal: AbortSignal;
  readonly perSecond: number;
  readonly count: number;
  readonly operation: () => Promise<unknown>;
}): Promise<readonly number[]> {
  const { signal, perSecond, count, operation } = options;
  const latencies: number[] = [];
  const open = new Set<Promise<void>>();
  const startedMs = systemClock.monotonicMs();
  for (let index = 0; index < count; index += 1) {
    const dueMs = startedMs + (index * 1_000) / perSecond;
    const waitMs = dueMs - systemClock.monotonicMs();
    if (waitMs > 0) await pause(signal, waitMs);
    if (open.size >= IN_FLIGHT) await Promise.race(open);
    const done: Promise<void> = operation().then(() => {
      latencies.push(systemClock.monotonicMs() - dueMs);
      open.delete(done);
    });
    // Whoever waits for those under way hears of one that failed; until then it must not count as an error that nobody looks at.
    done.catch(() => undefined);
    open.add(done);
  }
  await Promise.all(open);
  return latencies;
}

export function percentile(values: readonly number[], part: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const value = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))];
  if (value === undefined) throw new RangeError('no values, no percentile');
  return value;
}
