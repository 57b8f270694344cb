/** Owns the promise to followers of pulled authors: the post is on the author's list when its publish is answered, or the publish is answered all the same and the job heals. */
import { afterAll, beforeAll, beforeEach, expect, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import { type Call, systemRandom } from '../../src/runtime.ts';
import { postIdFrom } from '../../src/timeline/ids.ts';
import {
  createShowPulled,
  type ListedPost,
  type ShowPulled,
  type ShowPulledParts,
} from '../../src/write/pulled-list.ts';
import { eventually, within } from '../harness/eventually.ts';
import { type FanoutStage, openStage, soon, user } from './fanout-stage.ts';

let stage: FanoutStage;
let pending = 0;
let read: number[] = [];
const notWarmed: unknown[] = [];
beforeAll(async () => {
  stage = await openStage();
  const of = { tenant: stage.tenant, author: user('ada'), epoch: 3, token: 'arranged' };
  await stage.lists.begin(soon(), of);
  await stage.lists.commit(soon(), { ...of, floor: 0 });
});
afterAll(() => stage.close());
beforeEach(() => {
  pending = 0;
  read = [];
  notWarmed.length = 0;
});

const refused = new TributaryError('CACHE_UNAVAILABLE', { message: 'away' });
const call = (signal = soon()): Call => ({ tenant: stage.tenant, signal });
const post = (id: number, epoch = 3): ListedPost => ({ author: user('ada'), epoch, postId: postIdFrom(id) });

function showPulled(parts: Partial<ShowPulledParts> = {}): ShowPulled {
  return createShowPulled({
    push: (signal, of) => stage.lists.push(signal, of),
    read: async (_call, { postId }) => read.push(postId),
    random: systemRandom,
    events: {
      listPending: () => {
        pending += 1;
      },
      notWarmed: (error) => notWarmed.push(error),
    },
    ...parts,
  });
}

async function listed(): Promise<readonly number[]> {
  const range = { direction: 'older', position: 1_000_000, count: 100 } as const;
  const lists = [{ author: user('ada'), epoch: 3 }];
  const [page] = await stage.lists.pages(soon(), { tenant: stage.tenant, lists, ...range });
  if (page === undefined || page instanceof TributaryError || page.state === 'absent') throw new Error('no list');
  return page.ids;
}

it('has the post when it ends, and brings what readers need into the cache behind it', async () => {
  await showPulled()(call(), post(1_001));
  expect(await listed()).toContain(1_001);
  expect(pending).toBe(0);
  await eventually(() => expect(read).toEqual([1_001]));
});

it('tries again, and makes no list that nobody reads', async () => {
  let tries = 0;
  const flaky = showPulled({
    push: async (signal, of) => {
      tries += 1;
      if (tries < 3) throw refused;
      return stage.lists.push(signal, of);
    },
  });
  await flaky(call(), post(1_002));
  expect(await listed()).toContain(1_002);
  await showPulled()(call(), post(1_003, 9));
  expect(pending).toBe(0);
});

it('ends within its budget where nothing answers, and after the deadline too, and says so to operators', async () => {
  const hanging = showPulled({ push: () => new Promise(() => undefined) });
  await within(hanging(call(), post(1_004)), 10_000);
  await within(hanging(call(AbortSignal.abort()), post(1_005)), 10_000);
  expect(pending).toBe(2);
});

it('leaves to readers what cannot be brought into the cache, and what is too much at once', async () => {
  await showPulled({ read: () => Promise.reject(refused) })(call(), post(1_006));
  await eventually(() => expect(notWarmed).toEqual([refused]));
  const held = Promise.withResolvers<void>();
  let reads = 0;
  const slow = showPulled({
    read: () => {
      reads += 1;
      return held.promise;
    },
  });
  for (let id = 2_001; id <= 2_040; id += 1) await slow(call(), post(id));
  expect(reads).toBe(16);
  held.resolve();
  await eventually(async () => {
    await slow(call(), post(2_041));
    expect(reads).toBeGreaterThan(16);
  });
  expect(await listed()).toHaveLength(42 + 2);
});
