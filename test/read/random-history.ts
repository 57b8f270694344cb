/** Owns what may happen in a random history: what callers do, what operators do, what befalls the servers and the jobs, and when somebody looks. */
import fc from 'fast-check';
import type { UserId } from '../../src/timeline/ids.ts';
import { type ModerationState, VISIBILITIES } from '../../src/timeline/post.ts';
import { userId } from '../harness/service.ts';

export const USERS: readonly UserId[] = ['ada', 'ben', 'cyd', 'dan', 'eve'].map(userId);
export const PAGE_SIZES = [1, 2, 50] as const;
const STEPS = { minLength: 60, maxLength: 140 };
/** Longer than any history. */
const MUTED_FOR_LONG_MS = 3_600_000;

/** Plain objects, which print in one line. */
const record = <Fields extends object>(
  fields: { [Key in keyof Fields]: fc.Arbitrary<Fields[Key]> },
): fc.Arbitrary<Fields> => fc.record<Fields>(fields, { noNullPrototype: true }) as fc.Arbitrary<Fields>;
const user = fc.constantFrom(...USERS);
const pair = record({ from: user, to: user }).filter(({ from, to }) => from !== to);
/** One has so many followers at times that readers pull what they write. */
const followed = fc.oneof(
  pair,
  record({ from: user, to: fc.constant(userId('ada')) }).filter(({ from, to }) => from !== to),
);
/** One writes more than a timeline holds: whoever follows them late has less than everything brought in. */
const author = fc.constantFrom(...['ada', 'ada', 'ada', 'ada'].map(userId), ...USERS);
/** A post by its place in the tenant's history, counted from the newest. */
const nthPost = fc.nat({ max: 11 });
const visibility = fc.constantFrom('public', 'public', ...VISIBILITIES);
const pageSize = fc.constantFrom(...PAGE_SIZES);

const step = fc.oneof(
  {
    weight: 24,
    arbitrary: record({
      kind: fc.constant('publish'),
      who: author,
      link: fc.constantFrom('none', 'none', 'reply', 'repost', 'repost', 'quote'),
      nth: nthPost,
      visibility,
    }),
  },
  { weight: 10, arbitrary: record({ kind: fc.constant('follow'), pair: followed }) },
  {
    weight: 6,
    arbitrary: record({
      kind: fc.constantFrom('unfollow', 'removeFollower', 'block', 'unblock', 'unblock', 'mute', 'unmute', 'unmute'),
      pair,
    }),
  },
  {
    weight: 2,
    arbitrary: record({
      kind: fc.constant('muteForMs'),
      pair,
      ms: fc.oneof(fc.integer({ min: 1, max: 40 }), fc.constant(MUTED_FOR_LONG_MS)),
    }),
  },
  { weight: 1, arbitrary: record({ kind: fc.constant('delete'), nth: nthPost }) },
  {
    weight: 2,
    arbitrary: record({
      kind: fc.constant('edit'),
      nth: nthPost,
      text: fc.option(fc.constantFrom('new', 'newer'), { nil: undefined }),
      visibility,
    }),
  },
  {
    weight: 2,
    arbitrary: record({
      kind: fc.constant('moderate'),
      nth: nthPost,
      state: fc.constantFrom<ModerationState[]>('hidden', 'sensitive', 'clear', 'clear'),
    }),
  },
  { weight: 2, arbitrary: record({ kind: fc.constantFrom('suspend', 'restore', 'restore'), who: user }) },
  { weight: 1, arbitrary: record({ kind: fc.constant('putAuthor'), who: user, protected: fc.boolean() }) },
  { weight: 2, arbitrary: record({ kind: fc.constant('takeHead'), who: user, size: pageSize }) },
  { weight: 2, arbitrary: record({ kind: fc.constant('readNewer'), nth: fc.nat({ max: 3 }), size: pageSize }) },
  { weight: 2, arbitrary: record({ kind: fc.constant('check'), who: user, size: pageSize }) },
  {
    weight: 6,
    arbitrary: record({ kind: fc.constant('evict'), prefix: fc.constantFrom('tl:', 'tl:', ''), nth: fc.nat() }),
  },
  {
    weight: 2,
    arbitrary: record({ kind: fc.constantFrom('runJobsAgain', 'runEventsAgain'), fromCheckpoint: fc.boolean() }),
  },
  { weight: 2, arbitrary: record({ kind: fc.constantFrom('forceRebuild', 'abandonRebuild'), who: user }) },
  {
    weight: 9,
    arbitrary: record({
      kind: fc.constant('slowly'),
      what: fc.constantFrom('rebuild', 'cleanUp', 'backfill', 'fill', 'fill'),
      pair,
      ms: fc.integer({ min: 1, max: 200 }),
    }),
  },
);
/** What befalls everybody on the servers, and a wait for changes of class to end: too rare to be one of many in each tenant. */
const disaster = record({
  kind: fc.constantFrom(
    ...(['flush', 'flush', 'restartCache', 'killCache', 'restartQueue', 'restartRelay', 'restartWorker'] as const),
    ...(['awaitClasses', 'awaitClasses', 'awaitClasses'] as const),
  ),
});

/** Most happens in the first tenant, so that its timelines grow; the other is there to show through where it must not. */
const tenant = fc.constantFrom(0, 0, 0, 1);
const turn = record({ tenant, step, beside: fc.constantFrom(true, false) });

export type Step = typeof step extends fc.Arbitrary<infer Given> ? Given : never;
export type Disaster = typeof disaster extends fc.Arbitrary<infer Given> ? Given : never;
/** A step of one tenant; `beside`: at once with the one before it. */
export interface Turn {
  readonly tenant: number;
  readonly step: Step | Disaster;
  readonly beside: boolean;
}

/** At most three disasters, somewhere in the history. */
export const history: fc.Arbitrary<readonly Turn[]> = fc
  .tuple(
    fc.array(turn, { ...STEPS, size: 'max' }),
    fc.array(record({ at: fc.nat({ max: STEPS.maxLength }), disaster }), { maxLength: 3 }),
  )
  .map(([turns, disasters]) => {
    const all: Turn[] = [...turns];
    for (const { at, disaster: struck } of disasters)
      all.splice(Math.min(at, all.length), 0, { tenant: 0, step: struck, beside: at % 2 === 0 });
    return all;
  });
