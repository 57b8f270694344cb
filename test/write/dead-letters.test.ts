/** Owns what becomes of fan-out jobs that fail and fail: put aside by their own fault only, kept, shown, and put back; an outage never costs a post. */
import { runner } from 'node-pg-migrate';
import { afterEach, beforeEach, describe, expect, inject, it } from 'vitest';
import { runAdmin } from '../../src/admin.ts';
import { TributaryError } from '../../src/errors.ts';
import { countDeadJobs } from '../../src/store/postgres/fanout-dead.ts';
import * as fanoutJobs from '../../src/store/postgres/fanout-jobs.ts';
import type { PostId } from '../../src/timeline/ids.ts';
import { createBlame } from '../../src/write/fanout-blame.ts';
import type { Deliver, DeliverParts } from '../../src/write/fanout-deliver.ts';
import { eventually } from '../harness/eventually.ts';
import { startFaultProxy } from '../harness/fault-proxy.ts';
import { startTestService } from '../harness/service.ts';
import { wholeHome } from '../harness/walk.ts';
import { ATTEMPTS_MAX, type FanoutStage, followers, openStage, soon } from './fanout-stage.ts';

let stage: FanoutStage;
beforeEach(async () => {
  stage = await openStage();
});
afterEach(() => stage.close());

const ALL = followers(35);
const jobOf = (postId: PostId): fanoutJobs.FanoutJobKey => ({ tenant: stage.tenant, postId, generation: 1 });

async function publish(author = 'ada'): Promise<fanoutJobs.FanoutJobKey> {
  await stage.arrange({ author, followers: ALL, resident: author === 'ada' ? ALL : [] });
  return jobOf(await stage.publish(author));
}

/** Runs a job so often, each time as if its pause were over; answers the outcomes. */
async function run(deliver: Deliver, job: fanoutJobs.FanoutJobKey, times: number): Promise<readonly string[]> {
  const outcomes: string[] = [];
  for (let time = 0; time < times; time += 1) {
    await stage.rows.sql("UPDATE fanout_jobs SET lease_until = now() - interval '1 ms' WHERE post_id = $1", [
      job.postId,
    ]);
    outcomes.push(await deliver(soon(), job));
  }
  return outcomes;
}

const broken = (error: Error): Partial<DeliverParts> => ({ loadFollowers: () => Promise.reject(error) });
const away = (reason: 'CACHE_UNAVAILABLE' | 'DATABASE_UNAVAILABLE') => new TributaryError(reason, { message: 'away' });
const due = async (): Promise<readonly number[]> =>
  (await fanoutJobs.claimDueJobs(stage.database, soon(), { most: 100, hintAgainMs: 0 })).map((job) => job.postId);

describe('a job that fails by its own fault', () => {
  it('is a dead letter after so many attempts: kept with its error, hinted no more, worked on no more', async () => {
    const job = await publish();
    const deliver = stage.deliverer(broken(new Error('followers make no sense')));
    expect(await run(deliver, job, ATTEMPTS_MAX)).toEqual([...Array(ATTEMPTS_MAX - 1).fill('failed'), 'dead']);
    expect(await stage.job(job.postId)).toMatchObject({ dead: true, done: false, error: 'followers make no sense' });
    expect(stage.events.died).toEqual(['followers make no sense']);
    expect(await due()).toEqual([]);
    expect(await run(deliver, job, 2)).toEqual(['not_held', 'not_held']);
    expect(await countDeadJobs(stage.database, soon())).toEqual([{ lane: 'small', dead: 1 }]);
    expect(await fanoutJobs.loadOpenFigures(stage.database, soon())).toEqual([]);
    expect(await fanoutJobs.removeDoneJobs(stage.database, soon(), { minutes: 0, most: 10 })).toBe(0);
  });

  it('lives on as long as it comes further', async () => {
    const job = await publish();
    let pages = 0;
    const deliver = stage.deliverer({
      loadFollowers(signal, query) {
        pages += 1;
        // The first of the pages that each run begins goes through.
        if (pages % 2 === 0) return Promise.reject(new Error('on purpose'));
        return fanoutJobs.loadFollowerPage(stage.database, signal, query);
      },
    });
    const failing = stage.deliverer(broken(new Error('on purpose')));
    for (let page = 0; page < 3; page += 1) {
      expect(await run(failing, job, ATTEMPTS_MAX - 1)).not.toContain('dead');
      expect(await run(deliver, job, 1)).toEqual(['failed']);
      expect(await stage.job(job.postId)).toMatchObject({ blamed: 0, follower_cursor: ALL[10 * (page + 1) - 1] });
    }
  });

  it('by taking its workers with it is one too, and is not tried once more to find out', async () => {
    const job = await publish();
    for (let killed = 0; killed < ATTEMPTS_MAX; killed += 1) {
      expect(
        await fanoutJobs.takeLease(stage.database, soon(), { ...job, leaseMs: 0, attemptsMax: ATTEMPTS_MAX }),
      ).toBeDefined();
    }
    expect(await stage.job(job.postId)).toMatchObject({ blamed: ATTEMPTS_MAX - 1, dead: false });
    expect(await stage.deliverer()(soon(), job)).toBe('dead');
    expect(await stage.job(job.postId)).toMatchObject({ dead: true, leased: false });
    expect((await stage.job(job.postId)).error).toContain('without a word');
    expect(await stage.holders(job.postId, ALL)).toEqual([]);
  });

  it('because only its own query cannot be done in time is one, while others come through', async () => {
    const blame = createBlame();
    const job = await publish();
    const others = await publish('ben');
    const rest = stage.deliverer({ blame });
    const deliver = stage.deliverer({
      blame,
      async loadFollowers() {
        await stage.rows.sql('UPDATE fanout_jobs SET done_at = NULL WHERE post_id = $1', [others.postId]);
        await rest(soon(), others);
        throw away('DATABASE_UNAVAILABLE');
      },
    });
    expect((await run(deliver, job, ATTEMPTS_MAX)).at(-1)).toBe('dead');
  });
});

describe('an outage makes no dead letter, however long', () => {
  it('of Redis', async () => {
    const job = await publish();
    const refused = away('CACHE_UNAVAILABLE');
    const push = {
      push: async (_signal: AbortSignal, post: { readonly viewers: readonly unknown[] }) =>
        post.viewers.map(() => refused),
      drop: () => Promise.reject(refused),
      random: { fraction: () => 0, bytes: (count: number) => Buffer.alloc(count) },
    };
    const outcomes = await run(stage.deliverer({}, push), job, 3 * ATTEMPTS_MAX);
    expect(new Set(outcomes)).toEqual(new Set(['failed']));
    expect(await stage.job(job.postId)).toMatchObject({ blamed: 0, dead: false });
    expect(await run(stage.deliverer(), job, 1)).toEqual(['delivered']);
  });

  it('of Postgres', async () => {
    const job = await publish();
    const outcomes = await run(stage.deliverer(broken(away('DATABASE_UNAVAILABLE'))), job, 3 * ATTEMPTS_MAX);
    expect(new Set(outcomes)).toEqual(new Set(['failed']));
    expect(await stage.job(job.postId)).toMatchObject({ blamed: 0, dead: false });
    expect(await run(stage.deliverer(), job, 1)).toEqual(['delivered']);
  });

  it('of whatever it be that fails all jobs alike', async () => {
    const all = [await publish(), await publish('ben'), await publish('cyd'), await publish('dan')];
    const deliver = stage.deliverer(broken(new Error('relation "follows" does not exist')));
    for (let round = 0; round < 3 * ATTEMPTS_MAX; round += 1) {
      for (const job of all) expect(await run(deliver, job, 1)).toEqual(['failed']);
    }
    for (const job of all) expect((await stage.job(job.postId)).blamed).toBeLessThanOrEqual(2);
  });

  it('nor do workers that are told to stop', async () => {
    const job = await publish();
    for (let stop = 0; stop < 2 * ATTEMPTS_MAX; stop += 1) {
      const stopping = new AbortController();
      const deliver = stage.deliverer({
        loadFollowers() {
          stopping.abort();
          return Promise.reject(stopping.signal.reason);
        },
      });
      expect(await deliver(stopping.signal, job)).toBe('stopped');
    }
    expect(await stage.job(job.postId)).toMatchObject({ blamed: 0, dead: false });
  });
});

describe('an operator', () => {
  const admin = async (...args: readonly string[]): Promise<string> => {
    const lines: string[] = [];
    const env = { DATABASE_URL: stage.rows.url, REDIS_CACHE_URL: inject('servers').cacheUrl };
    await runAdmin(args, env, (line) => lines.push(line));
    return lines.join('\n');
  };
  const bury = (lane: string, from: number, count: number) =>
    stage.rows.sql(
      `INSERT INTO fanout_jobs (tenant_id, post_id, author_id, lane, dead_at, error, hinted_at)
       SELECT $1, n, 'ada', $2, now(), 'why', 'infinity' FROM generate_series($3::bigint, $3::bigint + $4 - 1) n`,
      [stage.tenant, lane, from, count],
    );

  it('sees dead letters in pages, each once', async () => {
    expect(await admin('fanout-dead')).toBe('no dead letters');
    await bury('small', 1, 130);
    await bury('bulk', 1_000, 5);
    const first = (await admin('fanout-dead')).split('\n');
    expect(first).toHaveLength(101);
    expect(first[0]).toMatch(new RegExp(`^bulk/${stage.tenant}/1000/1  .*Z, by ada, before the first follower: why$`));
    const after = /^more: --after (\S+)$/.exec(first.at(-1) ?? '')?.[1] ?? '';
    const rest = (await admin('fanout-dead', '--after', after)).split('\n');
    const seen = [...first.slice(0, -1), ...rest].map((line) => line.split(' ')[0]);
    expect(new Set(seen).size).toBe(135);
    expect(seen).toHaveLength(135);
    await expect(admin('fanout-dead', '--after', 'nonsense')).rejects.toThrow('--after must be');
  });

  it('puts one back, which is then delivered', async () => {
    const job = await publish();
    await run(stage.deliverer(broken(new Error('on purpose'))), job, ATTEMPTS_MAX);
    expect(await admin('fanout-retry', stage.tenant, String(job.postId), '2')).toBe('no such dead letter');
    expect(await admin('fanout-retry', stage.tenant, String(job.postId), '1')).toBe('put back: 1');
    expect(await admin('fanout-retry', stage.tenant, String(job.postId))).toBe('no such dead letter');
    expect(await due()).toEqual([job.postId]);
    expect(await stage.deliverer()(soon(), job)).toBe('delivered');
    expect(await stage.holders(job.postId, ALL)).toEqual(ALL);
    for (const wrong of [[], ['acme'], ['acme', 'x'], ['acme', '1', '0']]) {
      await expect(admin('fanout-retry', ...wrong)).rejects.toThrow('Usage');
    }
  });

  it('puts all back, whatever their number', async () => {
    await bury('small', 1, 1_700);
    await bury('medium', 5_000, 1_000);
    expect(await admin('fanout-retry', '--all')).toBe('put back: 2700');
    expect(await countDeadJobs(stage.database, soon())).toEqual([]);
    expect(await due()).toHaveLength(200);
  });

  it('who goes back to the schema before finds every dead letter open again, and can come forward anew', async () => {
    await bury('small', 1, 3);
    const step = (direction: 'up' | 'down') =>
      runner({
        databaseUrl: stage.rows.url,
        dir: 'src/store/postgres/migrations',
        migrationsTable: 'schema_migrations',
        direction,
        // Down to the schema that knew no dead letters, whatever has come after them.
        ...(direction === 'down' ? { count: 1_700_000_004_000, timestamp: true } : { count: Number.POSITIVE_INFINITY }),
        log: () => undefined,
      });
    await step('down');
    const open = "SELECT 1 FROM fanout_jobs WHERE done_at IS NULL AND hinted_at = '-infinity'";
    expect(await stage.rows.sql(open)).toHaveLength(3);
    await step('up');
    expect(await due()).toHaveLength(3);
  });
});

it('a service delivers what was published while Redis, then Postgres, was away, with no dead letter, and says so in its measures', {
  timeout: 90_000,
}, async () => {
  const servers = inject('servers');
  const cacheProxy = await startFaultProxy({ port: Number(new URL(servers.cacheUrl).port) });
  const databaseProxy = await startFaultProxy({ port: Number(new URL(servers.postgresUrl).port) });
  const database = stage.rows;
  const service = await startTestService({
    database,
    databaseUrl: databaseProxy.through(database.url),
    env: {
      REDIS_CACHE_URL: cacheProxy.through(servers.cacheUrl),
      FANOUT_ATTEMPTS_MAX: '2',
      FANOUT_FOLLOWER_PAGE: '2',
      // What was held when Postgres went away is free again when its lease is over.
      FANOUT_LEASE_MS: '2000',
      RELAY_EVERY_MS: '100',
    },
  });
  const attempts = async (): Promise<number> =>
    (
      await database.sql<{ most: number }>(
        'SELECT coalesce(max(attempts), 0) AS most FROM fanout_jobs WHERE done_at IS NULL',
      )
    )[0]?.most ?? 0;
  try {
    const tenant = await service.tenant();
    const cast = tenant.cast();
    await cast.play('rita follows ada; ruth follows ada; rory follows ada');
    for (const reader of ['rita', 'ruth', 'rory']) await wholeHome(tenant, reader);
    await service.settle();

    await cacheProxy.refuse();
    await cast.play('ada posts "one" as one');
    await eventually(async () => expect(await attempts()).toBeGreaterThanOrEqual(3), { timeoutMs: 30_000 });
    await cacheProxy.restore();
    await service.settle();

    await cast.play('ada posts "two" as two');
    await databaseProxy.refuse();
    const failedRounds = () => service.logLines.filter((line) => line.includes('a background round failed')).length;
    const before = failedRounds();
    await eventually(() => expect(failedRounds()).toBeGreaterThan(before + 5), { timeoutMs: 20_000 });
    await databaseProxy.restore();
    await eventually(() => service.settle(), { timeoutMs: 30_000 });
    await eventually(async () => {
      for (const reader of ['rita', 'ruth', 'rory'])
        expect(await wholeHome(tenant, reader)).toEqual([...cast.ids('one', 'two')].reverse());
    });
    const { body } = await service.service.metrics.exposition();
    expect(body).not.toMatch(/^tributary_fanout_died_total\{/m);
    expect(await database.sql('SELECT 1 FROM fanout_jobs WHERE dead_at IS NOT NULL')).toEqual([]);

    // And one that is to blame.
    await database.sql(
      `INSERT INTO fanout_jobs (tenant_id, post_id, generation, author_id, lane, lease_token, lease_until, blamed)
       VALUES ($1, $2, 7, 'ada', 'bulk', gen_random_uuid(), now() - interval '1 s', 1)`,
      [tenant.id, cast.post('one').postId],
    );
    await eventually(
      async () => {
        const measured = (await service.service.metrics.exposition()).body;
        expect(measured).toContain('tributary_fanout_died_total{lane="bulk"} 1');
        expect(measured).toContain('tributary_fanout_dead_jobs{lane="bulk"} 1');
      },
      { timeoutMs: 20_000 },
    );
    expect(
      service.logLines.some((line) => line.includes('a dead letter') && line.includes(cast.post('one').postId)),
    ).toBe(true);
  } finally {
    await Promise.all([cacheProxy.restore(), databaseProxy.restore()]);
    await service.stop();
    await Promise.all([cacheProxy.stop(), databaseProxy.stop()]);
  }
});
