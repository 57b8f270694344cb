/** Owns the promise of fan-out to authors of any class: a post comes to the author's list whenever there is one, and to followers' timelines whenever nobody could know the list; jobs follow a change of class in mid run. */
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { TributaryError } from '../../src/errors.ts';
import type { FanoutJobKey } from '../../src/store/postgres/fanout-jobs.ts';
import { insertPost, PUBLISH, publishValues } from '../../src/store/postgres/publish.ts';
import { composePostId, POST_ID_MAX, type PostId } from '../../src/timeline/ids.ts';
import { eventually } from '../harness/eventually.ts';
import { type FanoutStage, followers, openStage, soon, user } from './fanout-stage.ts';

const ALL = followers(35);
const ADA = user('ada');

let stage: FanoutStage;
beforeEach(async () => {
  stage = await openStage();
  await stage.arrange({ author: 'ada', followers: ALL, resident: [...ALL, 'ada'] });
});
afterEach(() => stage.close());

async function become(fanoutClass: 'push' | 'both' | 'pull', epoch = 1, followerCount = 0): Promise<void> {
  await stage.rows.sql(
    `INSERT INTO authors (tenant_id, author_id, fanout_class, class_epoch, follower_count) VALUES ($1, 'ada', $2, $3, $4)
    ON CONFLICT (tenant_id, author_id) DO UPDATE SET fanout_class = $2, class_epoch = $3, follower_count = $4`,
    [stage.tenant, fanoutClass, epoch, followerCount],
  );
}

/** As the first reader of the list makes it: empty, since nothing was published before. */
async function openList(epoch = 1): Promise<void> {
  const of = { tenant: stage.tenant, author: ADA, epoch, token: 'arranged' };
  await stage.lists.begin(soon(), of);
  await stage.lists.commit(soon(), { ...of, floor: 0 });
}

/** IDs on the list; undefined where it is absent. */
async function listed(epoch = 1): Promise<readonly number[] | undefined> {
  const range = { direction: 'older', position: POST_ID_MAX, count: 100 } as const;
  const [page] = await stage.lists.pages(soon(), { tenant: stage.tenant, lists: [{ author: ADA, epoch }], ...range });
  if (page === undefined || page instanceof TributaryError) throw new Error('the list was not read');
  return page.state === 'absent' ? undefined : page.ids;
}

async function publish(): Promise<FanoutJobKey> {
  return { tenant: stage.tenant, postId: await stage.publish('ada'), generation: 1 };
}

const refused = new TributaryError('CACHE_UNAVAILABLE', { message: 'away' });

describe('a post', () => {
  it('of a pulled author goes to the list and the author alone, by a job of the small lane', async () => {
    await become('pull', 1, 3_000_000);
    await openList();
    const job = await publish();
    const [row] = await stage.rows.sql<{ lane: string }>('SELECT lane FROM fanout_jobs WHERE post_id = $1', [
      job.postId,
    ]);
    expect(row?.lane).toBe('small');
    expect(await stage.deliverer()(soon(), job)).toBe('pulled');
    expect(await listed()).toEqual([job.postId]);
    expect(await stage.holders(job.postId, [...ALL, 'ada'])).toEqual(['ada']);
    expect(await stage.job(job.postId)).toMatchObject({ done: true });
  });

  it('of an author between the two goes everywhere', async () => {
    await become('both');
    await openList();
    const job = await publish();
    expect(await stage.deliverer()(soon(), job)).toBe('delivered');
    expect(await listed()).toEqual([job.postId]);
    expect(await stage.holders(job.postId, [...ALL, 'ada'])).toEqual([...ALL, 'ada']);
  });

  it('of an ordinary author goes to no list, whatever list is left over', async () => {
    await become('push');
    await openList();
    const job = await publish();
    expect(await stage.deliverer()(soon(), job)).toBe('delivered');
    expect(await listed()).toEqual([]);
  });

  it('makes no list that nobody reads', async () => {
    await become('pull');
    const job = await publish();
    expect(await stage.deliverer()(soon(), job)).toBe('pulled');
    expect(await listed()).toBeUndefined();
  });

  it('that is private goes to no list', async () => {
    await become('pull');
    await openList();
    const postId = await stage.publish('ada', 'private');
    expect(await stage.deliverer()(soon(), { tenant: stage.tenant, postId, generation: 1 })).toBe('author_only');
    expect(await listed()).toEqual([]);
  });
});

describe('a job that began before a change of class', () => {
  /** Runs it with a change after the second page. */
  async function runOver(job: FanoutJobKey, change: () => Promise<void>): Promise<string> {
    let pages = 0;
    return stage.deliverer(
      {},
      {
        async push(signal, post) {
          const results = await stage.timelines.push(signal, post);
          pages += 1;
          if (pages === 2) await change();
          return results;
        },
      },
    )(soon(), job);
  }

  it('brings the post to the list that began meanwhile, and goes on to the followers', async () => {
    await become('push', 0);
    const job = await publish();
    const outcome = await runOver(job, async () => {
      await become('both', 1);
      await openList(1);
    });
    expect(outcome).toBe('delivered');
    expect(await listed(1)).toEqual([job.postId]);
    expect(await stage.holders(job.postId, ALL)).toEqual(ALL);
  });

  it('is cut off where the author is pulled now, with the post on the list', async () => {
    await become('push', 0);
    const job = await publish();
    const outcome = await runOver(job, async () => {
      await become('pull', 1);
      await openList(1);
    });
    expect(outcome).toBe('pulled');
    expect(await listed(1)).toEqual([job.postId]);
    // Two pages of ten; the others have the list.
    expect(await stage.holders(job.postId, ALL)).toEqual(ALL.slice(0, 20));
  });

  it('of a pulled author pushes to all followers where that is over', async () => {
    await become('pull');
    const job = await publish();
    await become('both');
    expect(await stage.deliverer()(soon(), job)).toBe('delivered');
    expect(await stage.holders(job.postId, ALL)).toEqual(ALL);
  });

  it('and goes on after a crash, brings the post to the list of the class that is now', async () => {
    await become('both', 1);
    await openList(1);
    const job = await publish();
    const stop = new AbortController();
    let pages = 0;
    const dying = stage.deliverer(
      {},
      {
        push(signal, post) {
          pages += 1;
          if (pages < 3) return stage.timelines.push(signal, post);
          stop.abort();
          return Promise.reject(signal.reason);
        },
      },
    );
    expect(await dying(stop.signal, job)).toBe('stopped');
    await become('both', 2);
    await openList(2);
    await eventually(async () => expect(await stage.deliverer()(soon(), job)).toBe('delivered'));
    expect(await listed(2)).toEqual([job.postId]);
    expect(await stage.holders(job.postId, ALL)).toEqual(ALL);
  });
});

describe('a publish that is still open while its author changes class', () => {
  it('was written for the class it saw, and its job delivers for the class that is', async () => {
    await become('push', 0);
    const session = await stage.rows.session();
    await session.query('BEGIN');
    const postId = composePostId({ ms: Date.now(), generator: 117, sequence: 1 });
    const post = { tenant: stage.tenant, author: ADA, postId, text: 'open', media: [], plainRepost: false };
    const { rows } = await session.query(PUBLISH.text, [...publishValues({ ...post, visibility: 'public' })]);
    expect(rows[0]).toMatchObject({ lane: 'small', fanout_class: 'push' });
    // A list that is made now cannot know the post; nobody reads it in a timeline either.
    await become('pull', 1);
    await openList(1);
    await session.query('COMMIT');
    expect(await stage.deliverer()(soon(), { tenant: stage.tenant, postId, generation: 1 })).toBe('pulled');
    expect(await listed(1)).toEqual([postId]);
  });

  it('is answered with the class and the epoch that its statement saw', async () => {
    await become('both', 7);
    const postId = composePostId({ ms: Date.now(), generator: 117, sequence: 2 });
    const post = { tenant: stage.tenant, author: ADA, postId, text: 'hi', media: [], plainRepost: false } as const;
    expect(await insertPost(stage.database, soon(), { ...post, visibility: 'public' })).toEqual({
      kind: 'published',
      lane: 'small',
      fanoutClass: 'both',
      classEpoch: 7,
    });
  });
});

describe('a list that does not confirm', () => {
  it('keeps the job open until it does, and holds no follower up', async () => {
    await become('both');
    await openList();
    const job = await publish();
    let isAway = true;
    const away = stage.deliverer(
      {},
      {},
      { push: (signal, post) => (isAway ? Promise.reject(refused) : stage.lists.push(signal, post)) },
    );
    expect(await away(soon(), job)).toBe('failed');
    expect(await stage.holders(job.postId, ALL)).toEqual(ALL);
    expect(await listed()).toEqual([]);
    expect(await stage.job(job.postId)).toMatchObject({ done: false, follower_cursor: expect.stringMatching(/^f/) });
    isAway = false;
    await eventually(async () => expect(await away(soon(), job)).toBe('delivered'));
    expect(await listed()).toEqual([job.postId]);
  });

  it('and is the last to refuse is dropped, for its next reader to make it anew', async () => {
    await become('pull');
    await openList();
    const job = await publish();
    await stage.rows.sql('UPDATE fanout_jobs SET attempts = 2 WHERE post_id = $1', [job.postId]);
    const broken = stage.deliverer({}, {}, { push: () => Promise.reject(refused) });
    expect(await broken(soon(), job)).toBe('pulled');
    expect(await listed()).toBeUndefined();
    expect(stage.events.dropped).toBe(1);
  });

  it('of a pulled author keeps the job open too', async () => {
    await become('pull');
    await openList();
    const job = await publish();
    const away = stage.deliverer({}, {}, { push: () => Promise.reject(refused) });
    expect(await away(soon(), job)).toBe('failed');
    await eventually(async () => expect(await stage.deliverer()(soon(), job)).toBe('pulled'));
    expect(await listed()).toEqual([job.postId]);
  });
});

it('measures the time of its pushes, also over several runs', async () => {
  const job = await publish();
  const stop = new AbortController();
  let pages = 0;
  const dying = stage.deliverer(
    {},
    {
      async push(signal, post) {
        pages += 1;
        if (pages === 3) stop.abort();
        signal.throwIfAborted();
        return stage.timelines.push(signal, post);
      },
    },
  );
  expect(await dying(stop.signal, job)).toBe('stopped');
  const pushing = async (): Promise<number> => {
    const [row] = await stage.rows.sql<{ pushing_ms: number }>(
      'SELECT pushing_ms FROM fanout_jobs WHERE post_id = $1',
      [job.postId satisfies PostId],
    );
    return row?.pushing_ms ?? 0;
  };
  const half = await pushing();
  expect(half).toBeGreaterThan(0);
  await eventually(async () => expect(await stage.deliverer()(soon(), job)).toBe('delivered'));
  expect(await pushing()).toBeGreaterThan(half);
});
