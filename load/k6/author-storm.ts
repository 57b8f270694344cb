/**
 * A large author posts more and more often while the author's followers read, and while a small author posts, whose one follower should
 * not notice: how long that follower waits is measured as `small_author_visible_ms`. Afterwards a follower must have every post once.
 *
 *   k6 run -e LOAD_API_KEY=… -e LOAD_FOLLOWERS=20000 -e LOAD_STORM_RATE=10 load/k6/author-storm.ts
 */
import { check, sleep } from 'k6';
import exec from 'k6/execution';
import { Trend } from 'k6/metrics';
import { type Caller, callerOf } from './calls.ts';
import { readHome, TRUTH, walkAuthor, walkHome } from './pages.ts';
import { planOf } from './plan.ts';
import { allOf, authorOf, deletePosts, must, pick, postOf, publish, type Seeded, viewerOf } from './seed.ts';
import { type Protocol, settingsFrom } from './settings.ts';

const LARGE = 0;
const SMALL = 1;
/** Posts a second of the small author, by each protocol. */
const SMALL_RATE = 1;
const LOOK_EVERY_S = 0.02;
/** A post that has not come by then is lost, or its lane is stuck. */
const ARRIVAL_MAX_S = 60;

const settings = settingsFrom({ rate: 100, duration: '1m' });
const setupCaller = callerOf(settings.protocols[0] ?? 'grpc', settings);
const visible = new Trend('small_author_visible_ms');

const plan = planOf(settings, {
  storm: { kind: 'ramp', rate: settings.stormRate },
  reads: { kind: 'steady', rate: settings.rate },
  small: { kind: 'steady', rate: SMALL_RATE * settings.protocols.length },
});
export const options = {
  ...plan,
  thresholds: { ...plan.thresholds, small_author_visible_ms: [`p(99)<${settings.visibleP99Ms}`] },
};

/** The followers of the large author are the viewers; behind them comes the follower of the small one. All read, so that fan-out finds their timelines. */
export function setup(): Seeded {
  const seeded = { run: settings.run, viewers: settings.followers, authors: 2, entries: 1 };
  for (const author of [LARGE, SMALL]) publish(setupCaller, authorOf(seeded, author), 'seed');
  for (let index = 0; index <= seeded.viewers; index++) {
    const followeeId = authorOf(seeded, index === seeded.viewers ? SMALL : LARGE);
    must(setupCaller, 'Follow', { followerId: viewerOf(seeded, index), followeeId });
    readHome(setupCaller, viewerOf(seeded, index), { pageSize: settings.pageSize });
  }
  return seeded;
}

export const stormViaGrpc = stormVia('grpc');
export const stormViaJson = stormVia('json');
export const readsViaGrpc = readsVia('grpc');
export const readsViaJson = readsVia('json');
export const smallViaGrpc = smallVia('grpc');
export const smallViaJson = smallVia('json');

export function teardown(seeded: Seeded): void {
  const published = walkAuthor(setupCaller, authorOf(seeded, LARGE)) ?? [];
  let arrived: readonly string[] | undefined;
  const everything = (): boolean => arrived !== undefined && published.every((id, at) => arrived?.[at] === id);
  for (let waited = 0; waited < ARRIVAL_MAX_S && !everything(); waited += 1) {
    if (waited > 0) sleep(1);
    arrived = walkHome(setupCaller, viewerOf(seeded, 0));
  }
  check(arrived, { 'a follower has every post of the storm': everything }, TRUTH);
  if (settings.cleanUp)
    deletePosts(
      setupCaller,
      allOf((index) => authorOf(seeded, index), seeded.authors),
    );
}

function stormVia(protocol: Protocol): (seeded: Seeded) => void {
  const caller = callerOf(protocol, settings);
  return (seeded) => void caller.call('PublishPost', postOf(authorOf(seeded, LARGE), iterationId(protocol)));
}

function readsVia(protocol: Protocol): (seeded: Seeded) => void {
  const caller = callerOf(protocol, settings);
  return (seeded) => {
    const index = pick(settings.seed, exec.scenario.iterationInTest, seeded.viewers);
    readHome(caller, viewerOf(seeded, index), { pageSize: settings.pageSize });
  };
}

function smallVia(protocol: Protocol): (seeded: Seeded) => void {
  const caller = callerOf(protocol, settings);
  return (seeded) => {
    const answer = caller.call('PublishPost', postOf(authorOf(seeded, SMALL), iterationId(protocol)));
    const postId = answer?.post?.postId;
    if (postId !== undefined) waitUntilVisible(caller, viewerOf(seeded, seeded.viewers), postId);
  };
}

function waitUntilVisible(caller: Caller, viewer: string, postId: string): void {
  const startedMs = Date.now();
  const waitedMs = (): number => Date.now() - startedMs;
  let isThere = false;
  while (!isThere && waitedMs() < ARRIVAL_MAX_S * 1_000) {
    isThere = readHome(caller, viewer, { pageSize: settings.pageSize })?.ids.includes(postId) === true;
    if (!isThere) sleep(LOOK_EVERY_S);
  }
  visible.add(waitedMs());
  check(viewer, { 'a post of a small author arrives': () => isThere }, TRUTH);
}

function iterationId(protocol: Protocol): string {
  return `${protocol}-${exec.scenario.iterationInTest}`;
}
