/**
 * Many short-lived clients for a long time: every iteration opens a connection, asks whether there is something new, reads, now and
 * then posts, and leaves. Beside the thresholds, look at memory and connections of the service: both must end where they began.
 *
 *   k6 run -e LOAD_API_KEY=… -e LOAD_DURATION=4h load/k6/soak.ts
 */
import { check } from 'k6';
import exec from 'k6/execution';
import { type Caller, callerOf } from './calls.ts';
import { COMPLETE, isComplete, readHome, TRUTH } from './pages.ts';
import { planOf } from './plan.ts';
import { allOf, authorOf, deletePosts, pick, postOf, type Seeded, seedGraph, viewerOf } from './seed.ts';
import { type Protocol, settingsFrom } from './settings.ts';

const POST_EVERY = 10;

const settings = settingsFrom({ rate: 20, duration: '30m' });
const setupCaller = callerOf(settings.protocols[0] ?? 'grpc', settings);

// By gRPC the script ends its connection itself, by HTTP k6 does.
export const options = {
  ...planOf(settings, { visits: { kind: 'steady', rate: settings.rate } }),
  noVUConnectionReuse: true,
};

export function setup(): Seeded {
  return seedGraph(setupCaller, settings);
}

export const visitsViaGrpc = visitsVia('grpc');
export const visitsViaJson = visitsVia('json');

export function teardown(seeded: Seeded): void {
  if (!settings.cleanUp) return;
  deletePosts(
    setupCaller,
    allOf((index) => authorOf(seeded, index), seeded.authors),
  );
}

function visitsVia(protocol: Protocol): (seeded: Seeded) => void {
  const caller = callerOf(protocol, settings);
  return (seeded) => {
    const iteration = exec.scenario.iterationInTest;
    try {
      visit(caller, viewerOf(seeded, pick(settings.seed, iteration, seeded.viewers)));
      if (iteration % POST_EVERY !== 0) return;
      const author = authorOf(seeded, pick(settings.seed + 1, iteration, seeded.authors));
      caller.call('PublishPost', postOf(author, `${protocol}-${iteration}`));
    } finally {
      caller.close();
    }
  };
}

function visit(caller: Caller, viewer: string): void {
  const page = readHome(caller, viewer, { pageSize: settings.pageSize });
  if (page === undefined) return;
  check(page, { 'a page says how to read on': () => page.headToken !== '' }, TRUTH);
  const head = caller.call('GetHomeHead', { viewerId: viewer, sinceToken: page.headToken });
  if (head === undefined) return;
  check(head, { 'a head is complete': () => isComplete(head.completeness) }, COMPLETE);
}
