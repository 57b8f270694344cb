/** Owns the promise of authors' rows: a round finds exactly those who must change, at a cost that does not grow with the others; one of two who write at the same moment writes. */
import { afterAll, beforeAll, beforeEach, describe, expect, it } from 'vitest';
import * as classes from '../../src/store/postgres/author-classes.ts';
import { claimBackfill } from '../../src/store/postgres/class-backfills.ts';
import { foldCounterDeltas } from '../../src/store/postgres/counters.ts';
import { finishJob, takeLease } from '../../src/store/postgres/fanout-jobs.ts';
import { type FanoutStage, openStage, soon, user } from '../write/fanout-stage.ts';

let stage: FanoutStage;
beforeAll(async () => {
  stage = await openStage();
});
afterAll(() => stage.close());
beforeEach(async () => {
  await stage.rows.sql('DELETE FROM authors');
  await stage.rows.sql('DELETE FROM fanout_jobs');
});

interface Row {
  readonly fanout_class?: 'push' | 'both' | 'pull';
  readonly class_target?: 'push' | 'pull';
  readonly follower_count?: number;
  readonly resident_followers?: number;
  readonly class_changed_at?: string;
}

async function store(author: string, row: Row): Promise<void> {
  const { fanout_class = 'push', class_target = 'push', follower_count = 0, resident_followers = null } = row;
  await stage.rows.sql(
    `INSERT INTO authors (tenant_id, author_id, fanout_class, class_target, follower_count, resident_followers, class_changed_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7)`,
    [
      stage.tenant,
      author,
      fanout_class,
      class_target,
      follower_count,
      resident_followers,
      row.class_changed_at ?? null,
    ],
  );
}

const none = { residentsUp: undefined, residentsDown: undefined };
async function candidates(query: Partial<Parameters<typeof classes.loadClassCandidates>[2]> = {}) {
  const asked = { up: 100_000, down: 80_000, ...none, most: 1_000, ...query };
  return await classes.loadClassCandidates(stage.database, soon(), asked);
}
const names = (found: readonly { readonly author: string }[]) => found.map(({ author }) => author).sort();

describe('a round finds', () => {
  it('those beyond the threshold of their class, to the follower, and all between two classes', async () => {
    for (const [name, count] of [
      ['at', 100_000],
      ['below', 99_999],
      ['far', 3_000_000_000],
      ['few', 3],
    ] as const)
      await store(`push-${name}`, { follower_count: count });
    for (const [name, count] of [
      ['at', 80_000],
      ['above', 80_001],
      ['few', 0],
      ['far', 5_000_000],
    ] as const)
      await store(`pull-${name}`, { fanout_class: 'pull', class_target: 'pull', follower_count: count });
    await store('both-up', { fanout_class: 'both', class_target: 'pull', follower_count: 90_000 });
    await store('both-down', { fanout_class: 'both', class_target: 'push', follower_count: 90_000 });
    expect(names(await candidates())).toEqual(['both-down', 'both-up', 'pull-at', 'pull-few', 'push-at', 'push-far']);
    expect(names(await candidates({ up: 3, down: 2 }))).toContain('push-few');
  });

  it('whose fan-out would take too long, and whom that keeps from coming down', async () => {
    await store('slow', { follower_count: 5_000, resident_followers: 2_001 });
    await store('fast', { follower_count: 5_000, resident_followers: 2_000 });
    await store('shrunk', { follower_count: 1_900, resident_followers: 2_001 });
    await store('unmeasured', { follower_count: 5_000 });
    const pulled = { fanout_class: 'pull', class_target: 'pull', follower_count: 5_000 } as const;
    await store('kept', { ...pulled, resident_followers: 1_601 });
    await store('freed', { ...pulled, resident_followers: 1_600 });
    expect(names(await candidates({ residentsUp: 2_000, residentsDown: 1_600 }))).toEqual(['freed', 'slow']);
    expect(names(await candidates())).toEqual(['freed', 'kept']);
  });

  it('says how long ago the last change was, by the clock of Postgres', async () => {
    await store('never', { follower_count: 100_000 });
    await store('once', { fanout_class: 'both', class_changed_at: new Date(Date.now() - 60_000).toISOString() });
    const found = await candidates();
    expect(found.find(({ author }) => author === 'never')?.elapsedMs).toBeUndefined();
    const elapsed = found.find(({ author }) => author === 'once')?.elapsedMs ?? 0;
    expect(elapsed).toBeGreaterThan(55_000);
    expect(elapsed).toBeLessThan(120_000);
  });

  it('them without looking at the others, and folding a count writes no index', async () => {
    await stage.rows.sql(
      `INSERT INTO authors (tenant_id, author_id, follower_count)
      SELECT $1, 'a' || i, (i * 7919) % 50000 FROM generate_series(1, 50000) AS i`,
      [stage.tenant],
    );
    await store('large', { follower_count: 100_000 });
    await stage.rows.sql('VACUUM ANALYZE authors');
    expect(names(await candidates({ residentsUp: 1_000_000, residentsDown: 800_000 }))).toEqual(['large']);
    const session = await stage.rows.session();
    const blocks = async (): Promise<number> => {
      await session.query('SELECT pg_stat_force_next_flush()');
      const { rows } = await session.query(
        `SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit AS blocks FROM pg_statio_user_tables WHERE relname = 'authors'`,
      );
      return Number(rows[0].blocks);
    };
    const recorded: { text: string; values: readonly unknown[] }[] = [];
    const recorder = {
      query: async (_signal: AbortSignal, { text }: { text: string }, values: readonly unknown[]) => {
        recorded.push({ text, values });
        return [];
      },
    };
    await classes.loadClassCandidates(recorder as never, soon(), {
      up: 100_000,
      down: 80_000,
      residentsUp: 1_000_000,
      residentsDown: 800_000,
      most: 1_000,
    });
    for (const mode of ['force_custom_plan', 'force_generic_plan']) {
      await session.query(`SET plan_cache_mode = ${mode}`);
      await session.query('SELECT pg_stat_force_next_flush()');
      const before = await blocks();
      await session.query({
        name: `candidates-${mode}`,
        text: recorded[0]?.text ?? '',
        values: [...(recorded[0]?.values ?? [])],
      });
      expect((await blocks()) - before).toBeLessThan(60);
    }

    const hot = async () => {
      const { rows } = await session.query(
        `SELECT n_tup_upd::int AS updated, n_tup_hot_upd::int AS hot FROM pg_stat_user_tables WHERE relname = 'authors'`,
      );
      return rows[0] as { updated: number; hot: number };
    };
    // With room on each page: what is looked at is whether an index stands in the way.
    await stage.rows.sql('ALTER TABLE authors SET (fillfactor = 50)');
    await stage.rows.sql('VACUUM FULL authors');
    await session.query('SELECT pg_stat_force_next_flush()');
    const before = await hot();
    const folded = await session.query(
      `UPDATE authors SET follower_count = follower_count + 1 WHERE author_id IN (SELECT author_id FROM authors ORDER BY author_id LIMIT 500)`,
    );
    expect(folded.rowCount).toBe(500);
    await session.query('SELECT pg_stat_force_next_flush()');
    const after = await hot();
    expect(after.updated - before.updated).toBe(500);
    expect(after.hot - before.hot).toBeGreaterThan(400);
  });
});

describe('a change', () => {
  it('is written by one of two who decided it at the same moment', async () => {
    await store('ada', { follower_count: 100_000 });
    const [found] = await candidates();
    const change = { ...found, fanoutClass: 'both', target: 'pull', newEpoch: true } as Parameters<
      typeof classes.changeClass
    >[2];
    const written = await Promise.all([1, 2, 3, 4].map(() => classes.changeClass(stage.database, soon(), change)));
    expect(written.filter(Boolean)).toHaveLength(1);
    expect(await classes.loadShownClass(stage.database, soon(), { tenant: stage.tenant, author: user('ada') })).toEqual(
      {
        fanoutClass: 'both',
        target: 'pull',
        epoch: expect.any(Number),
        changedAt: expect.any(String),
        followers: 100_000,
        residentFollowers: undefined,
        backfillCursor: '',
        backfilled: false,
      },
    );
  });

  it('that needs a new list never bears an epoch of a change that was lost, with the commit, before it', async () => {
    const epochs: number[] = [];
    for (const time of [1, 2]) {
      // As after a restore of the database: the row knows nothing of the change before.
      await store(`ada-${time}`, { follower_count: 100_000 });
      const found = (await candidates()).find(({ author }) => author === `ada-${time}`);
      const change = { ...found, fanoutClass: 'both', target: 'pull', newEpoch: true } as Parameters<
        typeof classes.changeClass
      >[2];
      expect(await classes.changeClass(stage.database, soon(), change)).toBe(true);
      const of = { tenant: stage.tenant, author: user(`ada-${time}`) };
      epochs.push((await classes.loadShownClass(stage.database, soon(), of))?.epoch ?? 0);
    }
    expect(epochs[1]).toBeGreaterThan(epochs[0] ?? Number.NaN);
  });

  it('that was decided before another is not written', async () => {
    await store('ada', { fanout_class: 'both', class_target: 'push', class_changed_at: '2026-01-01T00:00:00.123456Z' });
    const [found] = await candidates();
    if (!found) throw new Error('not found');
    const upwards = { ...found, fanoutClass: 'both', target: 'pull', newEpoch: false } as const;
    expect(await classes.changeClass(stage.database, soon(), upwards)).toBe(true);
    const done = { ...found, fanoutClass: 'push', target: 'push', newEpoch: false } as const;
    expect(await classes.changeClass(stage.database, soon(), done)).toBe(false);
    expect(names(await candidates())).toEqual(['ada']);
  });

  it('is counted by class', async () => {
    await store('one', { fanout_class: 'both' });
    await store('two', { fanout_class: 'pull' });
    await store('three', { fanout_class: 'pull' });
    await store('four', {});
    expect(await classes.countPulledAuthors(stage.database, soon())).toEqual({ both: 1, pull: 2 });
  });
});

describe('the figures of the second guard', () => {
  async function finish(
    author: string,
    lane: string,
    figures: { delivered: number; pushingMs: number; toFollowers?: boolean },
  ) {
    const postId = await stage.publish(author);
    await stage.rows.sql('UPDATE fanout_jobs SET lane = $2 WHERE post_id = $1', [postId, lane]);
    const job = { tenant: stage.tenant, postId, generation: 1 };
    const token = (await takeLease(stage.database, soon(), { ...job, leaseMs: 60_000 }))?.token ?? '';
    await finishJob(stage.database, soon(), { ...job, token, skipped: 0, toFollowers: true, ...figures });
  }
  const residents = async (author: string) =>
    (await classes.loadShownClass(stage.database, soon(), { tenant: stage.tenant, author: user(author) }))
      ?.residentFollowers;

  it('are the pushes and the time of jobs of the larger lanes', async () => {
    await finish('ada', 'bulk', { delivered: 3_000, pushingMs: 500 });
    await finish('ada', 'medium', { delivered: 1_000, pushingMs: 1_500 });
    await finish('ben', 'small', { delivered: 9_999, pushingMs: 1 });
    expect(await classes.loadPushFigures(stage.database, soon(), 200)).toEqual({ pushes: 4_000, seconds: 2 });
    expect((await classes.loadPushFigures(stage.database, soon(), 1)).pushes).toBe(1_000);
  });

  it('keep the resident followers of a large author, where they changed by more than a tenth', async () => {
    await store('ada', { follower_count: 20_000 });
    await finish('ada', 'small', { delivered: 10, pushingMs: 1 });
    expect(await residents('ada')).toBeUndefined();
    await finish('ada', 'bulk', { delivered: 10_000, pushingMs: 1, toFollowers: false });
    expect(await residents('ada')).toBeUndefined();
    await finish('ada', 'bulk', { delivered: 10_000, pushingMs: 1 });
    expect(await residents('ada')).toBe(10_000);
    await finish('ada', 'bulk', { delivered: 10_900, pushingMs: 1 });
    expect(await residents('ada')).toBe(10_000);
    await finish('ada', 'bulk', { delivered: 8_000, pushingMs: 1 });
    expect(await residents('ada')).toBe(8_000);
  });

  it('stand while counts are folded', async () => {
    await store('ada', { follower_count: 20_000, resident_followers: 7 });
    await stage.rows.sql(
      "INSERT INTO counter_deltas (tenant_id, counter, author_id, delta) VALUES ($1, 'followers', 'ada', 3)",
      [stage.tenant],
    );
    await foldCounterDeltas(stage.database, soon(), 100);
    expect(await residents('ada')).toBe(7);
  });
});

describe('a backfill', () => {
  it('is claimed by one at a time, after the wait and not before, and only on the way down', async () => {
    const longAgo = new Date(Date.now() - 60_000).toISOString();
    await store('ada', { fanout_class: 'both', class_target: 'push', class_changed_at: longAgo });
    await store('ben', { fanout_class: 'both', class_target: 'pull', class_changed_at: longAgo });
    await store('cyd', { fanout_class: 'pull', class_target: 'pull', class_changed_at: longAgo });
    const claim = (waitMs: number) => claimBackfill(stage.database, soon(), { waitMs, leaseMs: 60_000 });
    expect(await claim(3_600_000)).toBeUndefined();
    const claims = await Promise.all([claim(1_000), claim(1_000), claim(1_000)]);
    expect(claims.filter((each) => each !== undefined)).toEqual([
      expect.objectContaining({ author: 'ada', cursor: '' }),
    ]);
  });
});
