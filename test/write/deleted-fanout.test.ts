/** Owns the race of a deletion against a large fan-out: the deletion wins, whenever it comes. */
import { afterAll, afterEach, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import { eventually } from '../harness/eventually.ts';
import { openResidents, type Residents } from '../harness/residents.ts';
import { holdUpdates } from '../harness/row-barrier.ts';
import { storeManyFollowers } from '../harness/rows.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';

const FOLLOWERS = 50_000;
const PAGE = 1_000;
/** One follower in so many is resident. */
const RESIDENT_EVERY = 16;
const PATIENT = { timeoutMs: 30_000, everyMs: 50 };

let service: TestService;
let tenant: TestTenant;
let residents: Residents;
beforeAll(async () => {
  service = await startTestService({
    // The test holds a row for a while, and nobody is to take the job from the worker meanwhile.
    env: { FANOUT_FOLLOWER_PAGE: String(PAGE), DATABASE_LOCK_TIMEOUT_MS: '60000', FANOUT_LEASE_MS: '120000' },
  });
});
afterAll(() => service.stop());
beforeEach(async () => {
  tenant = await service.tenant();
  residents = await openResidents(tenant.id);
});
afterEach(() => residents.close());

async function arrange(
  count: number,
): Promise<{ readonly all: readonly string[]; readonly resident: readonly string[] }> {
  const all = await storeManyFollowers(service.database, tenant.id, { followee: 'ada', count });
  const resident = all.filter((_, index) => index % RESIDENT_EVERY === 0);
  await residents.make(resident);
  return { all, resident };
}

async function holders(postId: string, viewers: readonly string[]): Promise<readonly string[]> {
  const entries = await residents.entries(viewers);
  return viewers.filter((_, index) => entries[index]?.includes(postId));
}

/** Pages of many readers, some at once. */
async function shown(viewers: readonly string[]): Promise<readonly string[]> {
  const pages: string[] = [];
  for (let from = 0; from < viewers.length; from += 20)
    pages.push(
      ...(await Promise.all(viewers.slice(from, from + 20).map((viewer) => wholeHome(tenant, viewer)))).flat(),
    );
  return pages;
}

async function publish(): Promise<string> {
  const { post } = await tenant.posts.publishPost({ authorId: 'ada', text: 'ghost' });
  if (post === undefined) throw new Error('a publish was answered without its post');
  return post.postId;
}

async function job(postId: string) {
  const [row] = await service.database.sql<{ done: boolean; delivered: number }>(
    'SELECT done_at IS NOT NULL AS done, delivered FROM fanout_jobs WHERE tenant_id = $1 AND post_id = $2',
    [tenant.id, postId],
  );
  return row;
}

describe('a post that is deleted', { timeout: 90_000 }, () => {
  it('when a tenth of 50,000 followers have been fanned out to is seen by nobody from the answer on, goes to nobody else, and leaves the timelines it is met on', async () => {
    const { all, resident } = await arrange(FOLLOWERS);
    const tenth = all[FOLLOWERS / 10 - 1] ?? '';
    const barrier = await holdUpdates(service.database, {
      table: 'fanout_jobs',
      when: `NEW.tenant_id = '${tenant.id}' AND NEW.follower_cursor = '${tenth}'`,
    });
    const postId = await publish();
    await barrier.reached();
    const first = resident.filter((viewer) => viewer <= tenth);
    const rest = resident.filter((viewer) => viewer > tenth);
    expect(await holders(postId, resident)).toEqual(first);

    await tenant.posts.deletePost({ authorId: 'ada', postId });
    const some = [...first.slice(0, 20), ...rest.slice(0, 20), 'ada'];
    expect(await shown(some)).not.toContain(postId);
    await barrier.open();
    await eventually(async () => expect(await job(postId)).toMatchObject({ done: true }), PATIENT);
    expect(await holders(postId, rest)).toEqual([]);

    expect(await shown([...first, ...rest.slice(0, 20)])).not.toContain(postId);
    await eventually(async () => expect(await holders(postId, first)).toEqual([]), PATIENT);
  });

  it('before its first page goes to nobody at all', async () => {
    const { resident } = await arrange(2_000);
    const barrier = await holdUpdates(service.database, {
      table: 'fanout_jobs',
      when: `NEW.tenant_id = '${tenant.id}' AND OLD.lease_token IS NULL AND NEW.lease_token IS NOT NULL`,
    });
    const postId = await publish();
    await barrier.reached();
    await tenant.posts.deletePost({ authorId: 'ada', postId });
    await barrier.open();
    await eventually(async () => expect(await job(postId)).toMatchObject({ done: true, delivered: 0 }), PATIENT);
    expect(await holders(postId, resident)).toEqual([]);
    expect(await shown([...resident.slice(0, 20), 'ada'])).toEqual([]);
  });
});
