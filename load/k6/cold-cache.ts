/**
 * The cache after a flush: every iteration reads a viewer whom nobody has read before, so that each page is rebuilt from Postgres, and
 * reads again, which must show the same. (k6 has no client for Redis among its own modules any more; viewers without a timeline are what
 * a flush leaves. To see a real one, flush the cache while `home-reads.ts` runs.)
 *
 *   k6 run -e LOAD_API_KEY=… -e LOAD_RATE=50 -e LOAD_DURATION=1m load/k6/cold-cache.ts
 */
import { check } from 'k6';
import exec from 'k6/execution';
import { callerOf } from './calls.ts';
import { readHome, TRUTH } from './pages.ts';
import { durationOf, planOf } from './plan.ts';
import { allOf, authorOf, deletePosts, type Seeded, seedGraph, viewerOf } from './seed.ts';
import { durationMs, type Protocol, settingsFrom } from './settings.ts';

/** Each costs one call of the set-up. */
const VIEWERS_MAX = 100_000;

const settings = settingsFrom({ rate: 50, duration: '1m' });
const setupCaller = callerOf(settings.protocols[0] ?? 'grpc', settings);

/** One for each iteration, and one more a protocol for what rounding adds. */
const viewers = Math.ceil((settings.rate * durationMs(settings.duration)) / 1_000) + settings.protocols.length;
if (viewers > VIEWERS_MAX)
  throw new Error(`${viewers} viewers would be read once each; at most ${VIEWERS_MAX} are seeded.`);

const plan = planOf(settings, { cold: { kind: 'steady', rate: settings.rate } });
export const options = { ...plan, thresholds: { ...plan.thresholds, ...thresholdsByPurpose() } };

export function setup(): Seeded {
  return seedGraph(setupCaller, settings, viewers);
}

export const coldViaGrpc = coldVia('grpc');
export const coldViaJson = coldVia('json');

export function teardown(seeded: Seeded): void {
  if (settings.cleanUp)
    deletePosts(
      setupCaller,
      allOf((index) => authorOf(seeded, index), seeded.authors),
    );
}

/** A first read may take twice as long as others. */
function thresholdsByPurpose(): { [metric: string]: string[] } {
  const thresholds: { [metric: string]: string[] } = {};
  for (const protocol of settings.protocols) {
    const metric = durationOf(protocol);
    // In place of the one for both: half of all reads are cold here.
    thresholds[`${metric}{scenario:cold_${protocol}}`] = [`p(99)<${settings.p99Ms * 2}`];
    thresholds[`${metric}{scenario:cold_${protocol},purpose:first}`] = [`p(99)<${settings.p99Ms * 2}`];
    thresholds[`${metric}{scenario:cold_${protocol},purpose:again}`] = [`p(99)<${settings.p99Ms}`];
  }
  return thresholds;
}

function coldVia(protocol: Protocol): (seeded: Seeded) => void {
  const caller = callerOf(protocol, settings);
  const { protocols, pageSize } = settings;
  return (seeded) => {
    const viewer = viewerOf(seeded, exec.scenario.iterationInTest * protocols.length + protocols.indexOf(protocol));
    const first = readHome(caller, viewer, { pageSize, purpose: 'first' });
    const again = readHome(caller, viewer, { pageSize, purpose: 'again' });
    if (first === undefined || again === undefined) return;
    check(
      first,
      {
        'a rebuilt page is full': () => first.ids.length === Math.min(pageSize, seeded.entries),
        'a rebuilt page stays as it is': () => first.ids.join(' ') === again.ids.join(' '),
      },
      TRUTH,
    );
  };
}
