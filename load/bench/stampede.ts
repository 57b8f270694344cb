/**
 * Owns the question what a large author's post costs the stores at the moment it is made: readers who follow the author ask for their home at once, on two instances, while the post is being published and
 * right after; counted are the loads of the post from Postgres and the reads of Redis, by instance.
 *
 * Invariant: every reader is resident and their pages were warm before; the only thing that is new is the post; and after a second every reader of both instances is shown it first.
 */
import pg from 'pg';
import { type Service, startService } from '../../src/main.ts';
import { pause, systemClock, systemRuntime } from '../../src/runtime.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import type { TenantId, UserId } from '../../src/timeline/ids.ts';
import { type Bench, type BenchOptions, benchConfig, PATIENT, PUSHED, withServers } from './bench.ts';
import { seedFollowers, viewerAt } from './crowd.ts';
import { formatFigure, median, runRounds } from './rounds.ts';

const READERS = 1_000;
/** Posts of each author in the past: pages are full. */
const POSTS = 30;
const SMALL_AUTHORS = 20;
const PAGE_SIZE = 20;
const LOADS_MAX = 2;
const CALL_MS = 30_000;
/** Readers who make their page warm at once: as many timelines as two instances rebuild at once without refusing any. */
const TOGETHER = 12;
/** A copy of a list has ended after it. */
const COPY_MS = 1_100;
const TENANT = 'bench' as TenantId;
const LARGE = 'large' as UserId;

export const bench: Bench = {
  size: { of: 'readers', preset: READERS, min: 20, max: 20_000 },
  run: (options) =>
    withServers(async (servers) => {
      const { size = READERS, report, rounds } = options;
      await migrate(servers.postgres.url);
      const client = new pg.Client({ connectionString: servers.postgres.url });
      const instances: Service[] = [];
      try {
        await client.connect();
        // Two of them, each with its own copies; the first publishes too.
        for (const role of ['all', 'api']) {
          const settings = { ...PATIENT, ...PUSHED, ...DEADLINES, TRIBUTARY_ROLE: role };
          instances.push(await startService(benchConfig(servers, settings), systemRuntime('warn')));
        }
        const run: Run = { instances, options, size };
        report(`making ${size} readers, and posts for their pages`);
        await seed(run, client);
        const stampedes: Stampede[] = [];
        const [ours] = await runRounds({
          contenders: [
            {
              name: 'loads of the post',
              async round() {
                const stampede = await stampedeOnce(run);
                stampedes.push(stampede);
                return stampede.loads;
              },
            },
          ],
          rounds,
          warmUps: 1,
          report,
        });
        if (!ours) throw new Error('nothing was measured');
        const counted = stampedes.slice(1);
        const most = (pick: (stampede: Stampede) => number): number => Math.max(...counted.map(pick));
        const middle = (pick: (stampede: Stampede) => number): number => median(counted.map(pick));
        return {
          name: 'stampede',
          unit: 'loads from Postgres per post, both instances',
          // The worst round counts: a median would hide a stampede.
          ours: { ...ours, median: ours.highest },
          against: {},
          oursMax: LOADS_MAX,
          figures: {
            'list reads': { value: most(({ lists }) => lists), unit: 'of Redis per post and instance, most' },
            'body reads': { value: most(({ bodies }) => bodies), unit: 'of Redis per post and instance, most' },
            'meta reads': { value: middle(({ metas }) => metas), unit: 'of Redis per page, joined by turn' },
            'meta joins': {
              value: middle(({ joins }) => joins),
              unit: 'of metas per page, read by another of the same turn',
            },
            p99: { value: middle(({ p99Ms }) => p99Ms), unit: 'ms for a page, all readers at once' },
          },
          conditions: [
            `${rounds} posts of an author whom ${size.toLocaleString('en-US')} residents follow, all of whom ask for their home at once, three times: while the post is published, right after, and when every copy of the list has ended; half of them on each of two instances in one process;`,
            `the worst post counts; every reader of the instance that published was shown it right after, every reader of the other within ${COPY_MS} ms.`,
          ],
        };
      } finally {
        for (const instance of instances.reverse()) await instance.stop();
        await client.end();
      }
    }),
};

/** All read at once: nobody is to be given up for waiting their turn. */
const DEADLINES: Readonly<Record<string, string>> = {
  READ_DEADLINE_DEFAULT_MS: String(CALL_MS),
  READ_DEADLINE_MAX_MS: String(CALL_MS),
};

interface Run {
  readonly instances: readonly Service[];
  readonly options: BenchOptions;
  readonly size: number;
}

interface Stampede {
  readonly loads: number;
  /** Of the instance that asked most. */
  readonly lists: number;
  readonly bodies: number;
  /** For each page read. */
  readonly metas: number;
  readonly joins: number;
  readonly p99Ms: number;
}

const call = () => ({ tenant: TENANT, signal: AbortSignal.timeout(CALL_MS) });

async function seed(run: Run, client: pg.Client): Promise<void> {
  const { size, options } = run;
  const [first] = run.instances;
  await seedFollowers(client, options.signal, { tenant: TENANT, author: LARGE, from: 0, count: size });
  for (let index = 0; index < SMALL_AUTHORS; index += 1) {
    await seedFollowers(client, options.signal, { tenant: TENANT, author: smallAt(index), from: 0, count: size });
  }
  await client.query(
    `UPDATE authors SET fanout_class = 'pull', class_epoch = 1, class_changed_at = clock_timestamp(), follower_count = 2000000000
    WHERE tenant_id = $1 AND author_id = $2`,
    [TENANT, LARGE],
  );
  const authors = [LARGE, ...Array.from({ length: SMALL_AUTHORS }, (_, index) => smallAt(index))];
  const minuteMs = 60_000;
  await first?.importPosts(
    call(),
    authors.flatMap((author, at) =>
      Array.from({ length: POSTS }, (_, index) => ({
        author,
        text: `post ${index} of ${author}`,
        publishedAtMs: systemClock.nowMs() - (index * authors.length + at + 1) * minuteMs,
      })),
    ),
  );
  await client.query('VACUUM (ANALYZE) follows, authors, posts');
  for (let from = 0; from < size; from += TOGETHER)
    await Promise.all(Array.from({ length: Math.min(TOGETHER, size - from) }, (_, at) => read(run, from + at)));
}

function smallAt(index: number): UserId {
  return `small-${index}` as UserId;
}

/** A reader's page, on the instance that is theirs; answers the newest post and the time it took. */
async function read(run: Run, reader: number) {
  const instance = run.instances[reader % run.instances.length] as Service;
  const startedMs = systemClock.monotonicMs();
  const page = await instance.flows.home.page(call(), { viewer: viewerAt(reader), pageSize: PAGE_SIZE, pageToken: '' });
  if (page.completeness !== 'complete') throw new Error(`a page was ${page.completeness}`);
  return { newest: page.views[0]?.post.meta.postId, tookMs: systemClock.monotonicMs() - startedMs };
}

const readAll = (run: Run) => Promise.all(Array.from({ length: run.size }, (_, reader) => read(run, reader)));

async function stampedeOnce(run: Run): Promise<Stampede> {
  run.options.signal.throwIfAborted();
  await readAll(run);
  await pause(run.options.signal, COPY_MS);
  const before = await Promise.all(run.instances.map(countersOf));
  const [publisher] = run.instances;
  if (!publisher) throw new Error('nobody publishes');
  const during = readAll(run);
  const { post } = await publisher.flows.publish(call(), {
    author: LARGE,
    text: 'a post for many',
    media: [],
    visibility: 'public',
  });
  const { postId } = post.meta;
  const pages = [...(await during), ...(await readAll(run))];
  await pause(run.options.signal, COPY_MS);
  // The other instance's turn to meet the post.
  const late = (await readAll(run)).filter(({ newest }) => newest !== postId).length;
  const after = await Promise.all(run.instances.map(countersOf));
  const missed = pages
    .slice(run.size)
    .filter(({ newest }, reader) => reader % run.instances.length === 0 && newest !== postId).length;
  if (late + missed > 0) throw new Error(`${late + missed} readers were not shown the post`);
  const rise = (pick: (counters: Counters) => number): readonly number[] =>
    after.map((counters, at) => pick(counters) - pick(before[at] as Counters));
  const sum = (values: readonly number[]): number => values.reduce((total, value) => total + value, 0);
  const times = pages.map(({ tookMs }) => tookMs).sort((a, b) => a - b);
  const stampede: Stampede = {
    loads: sum(rise(({ loads }) => loads)),
    lists: Math.max(...rise(({ lists }) => lists)),
    bodies: Math.max(...rise(({ bodies }) => bodies)),
    metas: sum(rise(({ metas }) => metas)) / (pages.length + run.size),
    joins: sum(rise(({ joins }) => joins)) / (pages.length + run.size),
    p99Ms: times[Math.floor(times.length * 0.99)] ?? 0,
  };
  run.options.report(
    `by instance: loads ${rise(({ loads }) => loads).join(', ')}; list reads ${rise(({ lists }) => lists).join(', ')}; body reads ${rise(({ bodies }) => bodies).join(', ')}; p99 ${formatFigure(stampede.p99Ms)} ms`,
  );
  return stampede;
}

interface Counters {
  readonly loads: number;
  readonly lists: number;
  readonly bodies: number;
  readonly metas: number;
  readonly joins: number;
}

/** What an instance says of itself. */
async function countersOf({ httpPort }: Service): Promise<Counters> {
  const text = await (await fetch(`http://127.0.0.1:${httpPort}/metrics`)).text();
  const lines = text.split('\n');
  const sum = (name: string, label: string): number =>
    lines
      .filter((line) => line.startsWith(`${name}{`) && line.includes(label))
      .reduce((total, line) => total + Number(line.split(' ').at(-1)), 0);
  return {
    loads: sum('tributary_cache_loads_total', 'layer="post"'),
    lists: sum('tributary_cache_reads_total', 'layer="list"'),
    bodies: sum('tributary_cache_reads_total', 'layer="body"'),
    metas: sum('tributary_cache_reads_total', 'layer="post"'),
    joins: sum('tributary_single_flight_joins_total', 'what="post"'),
  };
}
