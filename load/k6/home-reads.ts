/**
 * Home reads at a constant arrival rate: seeded viewers read their newest page; one iteration in twenty walks the whole timeline, whose
 * length is known.
 *
 *   k6 run -e LOAD_API_KEY=… -e LOAD_RATE=500 load/k6/home-reads.ts
 */
import { check } from 'k6';
import exec from 'k6/execution';
import { type Caller, callerOf } from './calls.ts';
import { readHome, TRUTH, walkHome } from './pages.ts';
import { planOf } from './plan.ts';
import { allOf, authorOf, deletePosts, pick, type Seeded, seedGraph, viewerOf } from './seed.ts';
import { type Protocol, settingsFrom } from './settings.ts';

const WALK_EVERY = 20;

const settings = settingsFrom({ rate: 100, duration: '1m' });
const setupCaller = callerOf(settings.protocols[0] ?? 'grpc', settings);

export const options = planOf(settings, { reads: { kind: 'steady', rate: settings.rate } });

/** Everybody is read once: what is measured is reading, not rebuilding, which `cold-cache.ts` is for. */
export function setup(): Seeded {
  const seeded = seedGraph(setupCaller, settings);
  for (const viewer of allOf((index) => viewerOf(seeded, index), seeded.viewers)) {
    readHome(setupCaller, viewer, { pageSize: settings.pageSize });
  }
  return seeded;
}

export const readsViaGrpc = readsVia('grpc');
export const readsViaJson = readsVia('json');

export function teardown(seeded: Seeded): void {
  if (settings.cleanUp)
    deletePosts(
      setupCaller,
      allOf((index) => authorOf(seeded, index), seeded.authors),
    );
}

function readsVia(protocol: Protocol): (seeded: Seeded) => void {
  const caller = callerOf(protocol, settings);
  return (seeded) => {
    const iteration = exec.scenario.iterationInTest;
    const viewer = viewerOf(seeded, pick(settings.seed, iteration, seeded.viewers));
    if (iteration % WALK_EVERY === 0) walkWhole(caller, viewer, seeded);
    else readHome(caller, viewer, { pageSize: settings.pageSize });
  };
}

function walkWhole(caller: Caller, viewer: string, { entries }: Seeded): void {
  const ids = walkHome(caller, viewer);
  if (ids === undefined) return;
  check(ids, { 'a walk holds every post of the authors followed': () => ids.length === entries }, TRUTH);
}
