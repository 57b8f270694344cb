/**
 * Owns the law of reading on a cluster of three masters: random histories as in home-oracle.property.test.ts, over slots that move from master to master all the time. Whatever is published, followed,
 * blocked, hidden, pulled, backfilled, cleaned up, rebuilt or evicted meanwhile, also when a master is lost and comes back empty, every page equals the oracle, and nothing is shown that was hidden before
 * the read began. `TRIBUTARY_CLUSTER_SECONDS` makes it go on for longer.
 */
import fc from 'fast-check';
import { afterAll, beforeAll, expect, it } from 'vitest';
import { createKeys, slotOf } from '../../src/store/redis/keys.ts';
import { eventually } from '../harness/eventually.ts';
import { type RedisCluster, startRedisCluster } from '../harness/redis-cluster.ts';
import { beginSlotMove } from '../harness/redis-slot-move.ts';
import { postIdOf } from '../harness/service.ts';
import { historyCacheOn } from './history-cache.ts';
import { type HistoryStage, openHistoryStage } from './history-stage.ts';
import { history, type Turn } from './random-history.ts';

/** A busy machine plays fewer histories, and one at least. */
const SUITE_MS = Number(process.env['TRIBUTARY_CLUSTER_SECONDS'] ?? 5) * 1_000;
/** Those that come after the time is over are not played, and cost nothing. */
const HISTORIES_MAX = 200;
/** Few, so that each slot that moves takes a good part of everything along. */
const SHARDS = 12;
/** A master may be away in the middle of a move. */
const PATIENT = { timeoutMs: 60_000, everyMs: 20 };

/** What befalls queue and processes takes long, and is the same on any cache. */
const concernsCache = ({ step }: Turn): boolean =>
  !['restartQueue', 'restartRelay', 'restartWorker'].includes(step.kind);

let cluster: RedisCluster;
let stage: HistoryStage;
beforeAll(async () => {
  cluster = await startRedisCluster();
  stage = await openHistoryStage(historyCacheOn(cluster, { TIMELINE_SHARDS: String(SHARDS) }));
});
afterAll(async () => {
  await stage?.close();
  await cluster?.stop();
});

it('shows on every walk exactly what the oracle sees, while slots move and masters come back empty', {
  timeout: 600_000,
}, async () => {
  const over = new AbortController();
  const moving = moveSlots(over.signal);
  moving.catch(() => undefined);
  const untilMs = performance.now() + SUITE_MS;
  try {
    const property = fc.asyncProperty(history, async (turns) => {
      if (performance.now() < untilMs) await stage.play(turns.filter(concernsCache), { thorough: false });
    });
    await fc.assert(property, { numRuns: HISTORIES_MAX, endOnFailure: true });
  } finally {
    over.abort();
  }
  expect(await moving).toBeGreaterThan(0);
});

/** One slot after the other, each with half of its keys on either side for a while. Answers how many have moved. */
async function moveSlots(stopped: AbortSignal): Promise<number> {
  const keys = createKeys(SHARDS);
  const tenant = (await stage.service.tenant()).id;
  const slots = new Set(
    Array.from({ length: 20 * SHARDS }, (_, at) => slotOf(keys.postMeta(tenant, postIdOf(String(at + 1))))),
  );
  for (let moved = 0; ; moved += 1) {
    const slot = [...slots][moved % slots.size] as number;
    const move = await eventually(() => beginSlotMove(cluster, slot), PATIENT);
    await eventually(async () => {
      const held = (await move.source.client.cluster('GETKEYSINSLOT', slot, 10_000)) as string[];
      const half = held.filter((_, at) => at % 2 === 0);
      if (half.length > 0) await move.keys(...half);
    }, PATIENT);
    await stage.beside();
    await eventually(() => move.end(), PATIENT);
    if (stopped.aborted) return moved + 1;
  }
}
