/** Owns the promise to authors: their post is in their own timeline when they are answered, or the answer says that it is still on its way. */
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { type Call, systemRandom } from '../../src/runtime.ts';
import { postIdFrom } from '../../src/timeline/ids.ts';
import { createShowOwn, type ShowOwn, type ShowOwnParts } from '../../src/write/own-timeline.ts';
import { within } from '../harness/eventually.ts';
import { type FanoutStage, openStage, soon, user } from './fanout-stage.ts';

let stage: FanoutStage;
let pending = 0;
beforeAll(async () => {
  stage = await openStage();
  await stage.arrange({ author: 'ada', followers: [], resident: ['ada'] });
});
afterAll(() => stage.close());
beforeEach(() => {
  pending = 0;
});

const refused = new TributaryError('CACHE_UNAVAILABLE', { message: 'away' });
const call = (signal = soon()): Call => ({ tenant: stage.tenant, signal });

function showOwn(push?: ShowOwnParts['push']): ShowOwn {
  return createShowOwn({
    push: push ?? ((signal, post) => stage.timelines.push(signal, post)),
    random: systemRandom,
    pending: () => {
      pending += 1;
    },
  });
}

it('shows the author their own post at once', async () => {
  expect(await showOwn()(call(), user('ada'), postIdFrom(1_001))).toBe(true);
  expect(await stage.entries('ada')).toContain(1_001);
  expect(pending).toBe(0);
});

it('has nothing to do for an author whose timeline is not resident, and makes none', async () => {
  expect(await showOwn()(call(), user('ben'), postIdFrom(1_002))).toBe(true);
  expect(await stage.entries('ben')).toBeUndefined();
});

it('tries again', async () => {
  let tries = 0;
  const flaky = showOwn(async (signal, post) => {
    tries += 1;
    return tries < 3 ? [refused] : stage.timelines.push(signal, post);
  });
  expect(await flaky(call(), user('ada'), postIdFrom(1_003))).toBe(true);
  expect(await stage.entries('ada')).toContain(1_003);
});

it('says so where it cannot, after a bounded number of tries', async () => {
  let tries = 0;
  const broken = showOwn(async () => {
    tries += 1;
    return [refused];
  });
  expect(await broken(call(), user('ada'), postIdFrom(1_004))).toBe(false);
  expect({ tries, pending }).toEqual({ tries: 3, pending: 1 });
});

it('says so where nothing answers, well before the deadline, and after the deadline too', async () => {
  const hanging = showOwn(() => new Promise(() => undefined));
  expect(await within(hanging(call(), user('ada'), postIdFrom(1_005)), 10_000)).toBe(false);
  expect(await within(hanging(call(AbortSignal.abort()), user('ada'), postIdFrom(1_006)), 10_000)).toBe(false);
  expect(pending).toBe(2);
});
