/**
 * Posts, follows and reads by weight, at a constant arrival rate. Every post must be on its author's own home page with the answer, and
 * every follow hold.
 *
 *   k6 run -e LOAD_API_KEY=… -e LOAD_MIX=80,15,5 load/k6/publish-mix.ts
 */
import { check } from 'k6';
import exec from 'k6/execution';
import { type Caller, callerOf } from './calls.ts';
import { readHome, TRUTH, walkHome } from './pages.ts';
import { planOf } from './plan.ts';
import { allOf, authorOf, deletePosts, pick, postOf, type Seeded, seedGraph, viewerOf } from './seed.ts';
import { type Protocol, settingsFrom } from './settings.ts';

/** Walked whole after the run. */
const WALKS = 5;
/** Newest entries among which an own post must be: above it are only those that others published meanwhile. */
const OWN_PAGE_SIZE = 50;

const settings = settingsFrom({ rate: 50, duration: '1m' });
const setupCaller = callerOf(settings.protocols[0] ?? 'grpc', settings);

export const options = planOf(settings, { mix: { kind: 'steady', rate: settings.rate } });

export function setup(): Seeded {
  return seedGraph(setupCaller, settings);
}

export const mixViaGrpc = mixVia('grpc');
export const mixViaJson = mixVia('json');

export function teardown(seeded: Seeded): void {
  for (let index = 0; index < Math.min(WALKS, seeded.viewers); index++) walkHome(setupCaller, viewerOf(seeded, index));
  if (!settings.cleanUp) return;
  deletePosts(
    setupCaller,
    allOf((index) => authorOf(seeded, index), seeded.authors),
  );
  deletePosts(
    setupCaller,
    allOf((index) => viewerOf(seeded, index), seeded.viewers),
  );
}

function mixVia(protocol: Protocol): (seeded: Seeded) => void {
  const caller = callerOf(protocol, settings);
  const [reads, posts, follows] = settings.mix;
  return (seeded) => {
    const iteration = exec.scenario.iterationInTest;
    const user = viewerOf(seeded, pick(settings.seed, iteration, seeded.viewers));
    const turn = pick(settings.seed + 1, iteration, reads + posts + follows);
    if (turn < reads) readHome(caller, user, { pageSize: settings.pageSize });
    else if (turn < reads + posts) publishAndSee(caller, user, `${protocol}-${iteration}`);
    else followSomebody(caller, user, seeded, iteration);
  };
}

function publishAndSee(caller: Caller, author: string, request: string): void {
  const answer = caller.call('PublishPost', postOf(author, request));
  if (answer === undefined) return;
  const page = readHome(caller, author, { pageSize: OWN_PAGE_SIZE });
  if (page === undefined) return;
  const isThere = page.ids.includes(answer.post?.postId ?? '');
  check(
    page,
    { 'an own post is visible at once, or the answer said not': () => isThere || answer.ownTimelinePending === true },
    TRUTH,
  );
}

function followSomebody(caller: Caller, user: string, seeded: Seeded, iteration: number): void {
  const other = authorOf(seeded, pick(settings.seed + 2, iteration, seeded.authors));
  if (caller.call('Follow', { followerId: user, followeeId: other }) === undefined) return;
  const answer = caller.call('GetRelationship', { viewerId: user, otherId: other });
  if (answer === undefined) return;
  check(answer, { 'a follow holds once it is answered': () => answer.following === true }, TRUTH);
}
