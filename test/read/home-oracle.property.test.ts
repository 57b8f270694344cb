/**
 * Owns the law of reading: whatever happened, what a viewer is shown equals what the oracle works out from Postgres alone, walking to
 * older and to newer entries, at every page size, on home, author lists and single reads, and one tenant never shows in another. It holds after every settle, whatever became of
 * keys, servers and jobs; and at every moment, nothing is shown that was hidden before the read began.
 *
 * Random histories by five users in two tenants that use the same user IDs. A failure prints its seed and its history at once; `TRIBUTARY_PROPERTY_SEED` runs it again and looks
 * for a shorter one. `TRIBUTARY_PROPERTY_RUNS` sets the number of histories, within a minute. By hand: `TRIBUTARY_PROPERTY_OPERATIONS=1000000` goes on until so many
 * steps were carried out, several histories at once, or until `TRIBUTARY_PROPERTY_MINUTES` have passed, and says how far it is.
 */
import fc from 'fast-check';
import { afterAll, beforeAll, it } from 'vitest';
import { type HistoryStage, openHistoryStage } from './history-stage.ts';
import { history } from './random-history.ts';

const { env } = process;
const SEED = env['TRIBUTARY_PROPERTY_SEED'];
const RUNS = Number(env['TRIBUTARY_PROPERTY_RUNS'] ?? 30);
const OPERATIONS = Number(env['TRIBUTARY_PROPERTY_OPERATIONS'] ?? 0);
const MINUTES = Number(env['TRIBUTARY_PROPERTY_MINUTES'] ?? 600);
/** The suite must not wait for this file alone; a busy machine plays fewer histories. */
const SUITE_MS = 15_000;
const AT_ONCE = Number(env['TRIBUTARY_PROPERTY_AT_ONCE'] ?? 6);
const HISTORIES_PER_SEED = 100;
const PROGRESS_EVERY_MS = 15_000;

let stage: HistoryStage;
beforeAll(async () => {
  stage = await openHistoryStage();
});
afterAll(() => stage.close());

it.runIf(OPERATIONS === 0)('shows on every walk exactly what the oracle sees', { timeout: 600_000 }, async () => {
  const untilMs = SEED === undefined ? performance.now() + SUITE_MS : Number.POSITIVE_INFINITY;
  const property = fc.asyncProperty(history, async (turns) => {
    if (performance.now() < untilMs) await stage.play(turns, { thorough: true });
  });
  await fc.assert(
    property,
    SEED === undefined ? { numRuns: RUNS, endOnFailure: true } : { numRuns: RUNS, seed: Number(SEED) },
  );
});

it.runIf(OPERATIONS > 0)('shows it for as long as somebody cares to wait', { timeout: 0 }, async () => {
  const startedMs = performance.now();
  let seed = SEED === undefined ? Date.now() % 1_000_000_000 : Number(SEED);
  let played = 0;
  let lastTold = 0;
  let failed = false;
  const isOver = (): boolean =>
    failed || stage.counts.operations >= OPERATIONS || performance.now() - startedMs > MINUTES * 60_000;
  const tell = (what: string): void => {
    const seconds = Math.round((performance.now() - startedMs) / 1_000);
    const { operations, reads } = stage.counts;
    process.stdout.write(
      `${what}: ${operations} operations, ${reads} reads beside, ${played} histories, ${seconds} s, seed ${seed}\n`,
    );
  };

  while (!isOver()) {
    const waiting = fc.sample(history, { seed, numRuns: HISTORIES_PER_SEED }).entries();
    async function playOn(): Promise<void> {
      for (const [index, turns] of waiting) {
        if (isOver()) return;
        try {
          await stage.play(turns, { thorough: false });
        } catch (error) {
          failed = true;
          tell(`failed in history ${index}`);
          process.stdout.write(`${JSON.stringify(turns)}\n`);
          throw error;
        }
        played += 1;
        if (performance.now() - lastTold > PROGRESS_EVERY_MS) {
          lastTold = performance.now();
          tell('so far');
        }
      }
    }
    await Promise.all(Array.from({ length: AT_ONCE }, playOn));
    seed += 1;
  }
  tell('done');
});
