/**
 * Owns the question how many posts a second the queue bears: a ramp of publishes that ends where the oldest open job grows older; and the wait for the end of all jobs.
 * Invariant: what counts as sustained was published at that rate, and lagged no more at the end of its step than a moment's worth.
 */
import pg from 'pg';
import type { Servers } from '../../src/embedded/servers.ts';
import { pause, systemClock } from '../../src/runtime.ts';
import type { TenantId } from '../../src/timeline/ids.ts';
import { formatFigure } from './rounds.ts';
import { OPEN_MAX, startSteadyLoad } from './steady-load.ts';

/** The ramp of posts: steps, each so much more than the one before. Lag grows where no moment of a step's last half saw the oldest job younger than this. */
const RAMP_FROM_PER_SECOND = 20;
export const RAMP_FACTOR = 1.3;
const RAMP_STEPS_MAX = 20;
const RAMP_STEPS_MIN = 2;
const RAMP_STEP_MS = 5_000;
const RAMP_STEP_MIN_MS = 1_000;
export const LAG_MAX_SECONDS = 1;
/** Of the posts that a step asks for, what must have been answered for it to count. */
const PUBLISHED_PART_MIN = 0.95;
const LOOK_EVERY_MS = 100;
const SETTLE_MAX_MS = 120_000;

/** Publishes at ever higher rates until jobs wait longer and longer, or publishes fail. */
export async function findCapacity(
  servers: Servers,
  of: {
    readonly publish: () => Promise<void>;
    /** Of the usual run: a smaller one has shorter steps, and need not go up to what the machine bears. */
    readonly part: number;
    readonly report: (line: string) => void;
    readonly signal: AbortSignal;
  },
): Promise<{ readonly sustained: number; readonly tried: number; readonly why: string }> {
  const { publish, part, report, signal } = of;
  const stepMs = Math.max(RAMP_STEP_MIN_MS, RAMP_STEP_MS * part);
  const steps = part < 1 ? RAMP_STEPS_MIN : RAMP_STEPS_MAX;
  let sustained = 0;
  let perSecond = RAMP_FROM_PER_SECOND;
  for (let step = 0; step < steps; step += 1) {
    const load = startSteadyLoad({ perSecond, openMax: OPEN_MAX, call: publish });
    const startedMs = systemClock.monotonicMs();
    let youngest = Number.POSITIVE_INFINITY;
    try {
      await pause(signal, stepMs / 2);
      while (systemClock.monotonicMs() - startedMs < stepMs) {
        youngest = Math.min(youngest, await withClient(servers, oldestJobSeconds));
        await pause(signal, LOOK_EVERY_MS);
      }
    } finally {
      await load.stop();
    }
    const answered = load.samples.filter(({ ok }) => ok).length / (perSecond * (stepMs / 1_000));
    report(
      `${formatFigure(perSecond)} posts/s: oldest job ${formatFigure(youngest)} s at the best moment, ${formatFigure(answered * 100)} % answered`,
    );
    if (youngest > LAG_MAX_SECONDS) return { sustained, tried: perSecond, why: 'the oldest job grew older' };
    if (answered < PUBLISHED_PART_MIN) return { sustained, tried: perSecond, why: 'publishes failed' };
    sustained = perSecond;
    perSecond *= RAMP_FACTOR;
  }
  return { sustained, tried: sustained, why: 'no more was tried' };
}

async function oldestJobSeconds(client: pg.Client): Promise<number> {
  const { rows } = await client.query<{ readonly seconds: number }>(
    `SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8 AS seconds
    FROM fanout_jobs WHERE done_at IS NULL AND dead_at IS NULL`,
  );
  return rows[0]?.seconds ?? 0;
}

/** Waits until nothing is open; throws where a post that was answered is not there, or a job was put aside. */
export async function settle(
  servers: Servers,
  of: { readonly tenant: TenantId; readonly published: readonly string[]; readonly signal: AbortSignal },
): Promise<void> {
  await withClient(servers, async (client) => {
    const deadline = AbortSignal.any([of.signal, AbortSignal.timeout(SETTLE_MAX_MS)]);
    for (;;) {
      const { rows } = await client.query<{ readonly open: number; readonly dead: number }>(
        `SELECT count(*) FILTER (WHERE done_at IS NULL AND dead_at IS NULL)::int AS open, count(*) FILTER (WHERE dead_at IS NOT NULL)::int AS dead FROM fanout_jobs`,
      );
      if (rows[0]?.dead !== 0) throw new Error(`${rows[0]?.dead} fan-outs were put aside`);
      if (rows[0]?.open === 0) break;
      await pause(deadline, LOOK_EVERY_MS);
    }
    const { rows } = await client.query<{ readonly lost: number }>(
      `SELECT count(*)::int AS lost FROM unnest($2::bigint[]) AS answered (post_id)
      WHERE NOT EXISTS (SELECT 1 FROM post_stats s WHERE s.tenant_id = $1 AND s.post_id = answered.post_id)`,
      [of.tenant, of.published],
    );
    if (rows[0]?.lost !== 0) throw new Error(`${rows[0]?.lost} posts whose publish was answered are not there`);
  });
}

/** A connection for a moment: it would be lost with the server that is restarted. */
export async function withClient<Result>(
  servers: Servers,
  work: (client: pg.Client) => Promise<Result>,
): Promise<Result> {
  const client = new pg.Client({ connectionString: servers.postgres.url });
  await client.connect();
  try {
    return await work(client);
  } finally {
    await client.end();
  }
}
