/**
 * Owns the question whether readers feel a bulk fan-out: p99 of paced reads, by turns with nothing else going on and while posts are delivered to all viewers, one after the other.
 * Invariant: in a busy phase a fan-out is open from before the first read until after the last; a quiet one begins when none is.
 */
import type pg from 'pg';
import { pause } from '../../src/runtime.ts';
import { PUBLISH, publishValues } from '../../src/store/postgres/publish.ts';
import { composePostId, ID_EPOCH_MS, postIdFrom } from '../../src/timeline/ids.ts';
import type { BenchOptions } from './bench.ts';
import { type Caller, createZipf, pacedLatencies, percentile } from './read-load.ts';
import { PUSHED_TO_ALL, TENANT } from './read-stage.ts';
import { median } from './rounds.ts';

/** Reads of each phase with and without fan-outs, and the part of what the service can do that they ask of it: latency at the limit says how long the queue is, not who waits for whom. */
export const PACED_PART = 0.25;
export const PACED_PHASES = 5;
const PACED_SECONDS_MAX = 4;
const PACED_READS_MIN = 10;
const LOOK_EVERY_MS = 20;
const FANOUT_MAX_MS = 300_000;
/** Beyond all posts that there are. */
const PUBLISHED_FROM = composePostId({ ms: ID_EPOCH_MS + 6.5 * 365 * 86_400_000, generator: 0, sequence: 0 });
const ID_STEP = 1_000_003;

export interface Felt {
  readonly idleMs: number;
  readonly busyMs: number;
  readonly fanouts: number;
}

/** `perSecond`: what is asked of the service meanwhile. */
export async function measureFanouts(parts: {
  readonly options: BenchOptions;
  readonly client: pg.Client;
  readonly ours: Caller;
  readonly size: number;
  readonly perSecond: number;
}): Promise<Felt> {
  const { options, client, ours, perSecond } = parts;
  const { signal, report } = options;
  const nextViewer = createZipf(parts.size, 2);
  const seconds = Math.min(PACED_SECONDS_MAX, 2 * (options.roundMs / 1_000));
  const count = Math.max(PACED_READS_MIN, Math.floor(perSecond * seconds));
  const p99Ms = async (): Promise<number> => {
    const latencies = await pacedLatencies({ signal, perSecond, count, operation: () => ours.read(nextViewer()) });
    return percentile(latencies, 0.99);
  };
  let published = 0;
  const publish = async (): Promise<void> => {
    published += 1;
    await publishToAll(client, published);
  };
  let fanouts = 0;
  const busy = async (): Promise<number> => {
    let over = false;
    await publish();
    const pushing = (async () => {
      for (;;) {
        await untilDelivered(client, signal);
        fanouts += 1;
        if (over) return;
        await publish();
      }
    })();
    pushing.catch(() => undefined);
    try {
      return await p99Ms();
    } finally {
      over = true;
      await pushing;
    }
  };
  const idle: number[] = [];
  const loaded: number[] = [];
  await p99Ms();
  await busy();
  fanouts = 0;
  for (let phase = 1; phase <= PACED_PHASES; phase += 1) {
    const [first, second] = phase % 2 === 0 ? [await p99Ms(), await busy()] : [await busy(), await p99Ms()].reverse();
    idle.push(first as number);
    loaded.push(second as number);
    report(
      `phase ${phase} of ${PACED_PHASES}: p99 ${first?.toFixed(1)} ms without, ${second?.toFixed(1)} ms during fan-outs`,
    );
  }
  return { idleMs: median(idle), busyMs: median(loaded), fanouts };
}

async function publishToAll(client: pg.Client, number: number): Promise<void> {
  const values = publishValues({
    tenant: TENANT,
    author: PUSHED_TO_ALL,
    postId: postIdFrom(PUBLISHED_FROM + number * ID_STEP),
    text: 'A post for everybody.',
    media: [],
    plainRepost: false,
    visibility: 'public',
  });
  await client.query({ ...PUBLISH, values: [...values] });
}

async function untilDelivered(client: pg.Client, signal: AbortSignal): Promise<void> {
  const deadline = AbortSignal.any([signal, AbortSignal.timeout(FANOUT_MAX_MS)]);
  for (;;) {
    const { rows } = await client.query<{ readonly open: boolean }>(
      'SELECT EXISTS (SELECT 1 FROM fanout_jobs WHERE done_at IS NULL) AS open',
    );
    if (!rows[0]?.open) return;
    await pause(deadline, LOOK_EVERY_MS);
  }
}
