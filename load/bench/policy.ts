/**
 * Owns the policy sweep (Pequod; Feeding Frenzy, SIGMOD'10): as many posts while ever more of the users read, pushed only, pulled only, and by the hybrid; judged by the CPU of all processes.
 * Invariant: at every point the three are asked for the same operations from the same start, and each shows every reader exactly the posts of whom they follow, or the run fails.
 */
import { Redis } from 'ioredis';
import pg from 'pg';
import type { Servers } from '../../src/embedded/servers.ts';
import { pause } from '../../src/runtime.ts';
import { createSeeded, type Seeded, shuffle } from '../../src/sample/seeded.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import type { TenantId } from '../../src/timeline/ids.ts';
import { type Bench, type BenchOptions, benchConfig, PATIENT, PUSHED, withServers } from './bench.ts';
import { type CpuMeter, type CpuSeconds, createCpuMeter, minus, NO_CPU, plus, totalOf } from './processes-cpu.ts';
import { pulledByRule } from './pull-rule.ts';
import type { BenchResult, Figure } from './result.ts';
import { formatFigure } from './rounds.ts';
import { askFor, IN_FLIGHT, type TwipContender, verifyShown } from './twip-contender.ts';
import { createPick, makeTwipGraph, type TwipGraph, USERS_MIN } from './twip-graph.ts';
import { type TwipOperation, type TwipRun, windowOf } from './twip-operations.ts';
import { openOurs, oursContender, POLICIES, type Policy, seedGraph, seedSets } from './twip-ours.ts';

const USERS = 1_000;
const SEED = 10;
/** Parts of the users that read, in percent. */
const POINTS = [1, 5, 10, 25, 50, 75, 100] as const;
/** Where it is only tried out. */
const POINTS_TINY = [1, 50, 100] as const;
const TINY_MAX = 100;
const CHECKS_EACH = 56;
/** From one post for each check where 1 % read, to one for a hundred where all do. */
const POSTS_PER_USER = 0.56;
/** Each policy performs a point in so many slices, by turns. */
const SLICES = 4;
const WORSE_MAX = 1.1;
const CONNECTIONS = 10;
const MEMORY_MAX = '8gb';
/** Of the whole run: some ten times what the usual size takes. */
const RUN_MAX_MS = 3_600_000;

export const bench: Bench = {
  size: { of: 'users', preset: USERS, min: USERS_MIN, max: 20_000 },
  run: (options) => withServers((servers) => sweep(options, servers), { cacheMemory: MEMORY_MAX }),
};

async function sweep(options: BenchOptions, servers: Servers): Promise<BenchResult> {
  const { size = USERS, report } = options;
  const points: readonly number[] = size > TINY_MAX ? POINTS : POINTS_TINY;
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(RUN_MAX_MS)]);
  const config = benchConfig(servers, {
    ...PATIENT,
    ...PUSHED,
    DATABASE_POOL_REQUESTS: String(CONNECTIONS),
    REBUILDS_MAX: String(IN_FLIGHT),
  });
  await migrate(servers.postgres.url);
  const random = createSeeded(SEED);
  const graph = makeTwipGraph(size, random);
  const everybody = Array.from({ length: size }, (_, user) => user);
  const readers = [...everybody];
  shuffle(readers, random);
  const posts = Math.round(size * POSTS_PER_USER);
  const pulled = pulledByRule(graph, { posts, checksEach: CHECKS_EACH });
  const pulledOf: Readonly<Record<Policy, Iterable<number>>> = { hybrid: pulled, push: [], pull: everybody };

  const client = new pg.Client({ connectionString: servers.postgres.url });
  const redis = new Redis(servers.cache.url);
  const ours = await openOurs(config, signal);
  try {
    await client.connect();
    for (const policy of POLICIES) {
      report(`filling the tenant of ${policy}`);
      await seedGraph(client, {
        tenant: policy as string as TenantId,
        graph,
        pulled: new Set(pulledOf[policy]),
        signal,
      });
    }
    const meter = createCpuMeter(servers, [redis]);
    const figures: Record<string, Figure> = {};
    const costs: Readonly<Record<Policy, number[]>> = { hybrid: [], push: [], pull: [] };
    let worst = 0;
    for (const [turn, percent] of [POINTS[0], ...points].entries()) {
      signal.throwIfAborted();
      const active = readers.slice(0, Math.max(1, Math.round((size * percent) / 100)));
      const run = planPoint(graph, active, posts, createSeeded(SEED + turn));
      await forgetPosts(client, redis, signal);
      const contenders: TwipContender[] = [];
      const starts: CpuSeconds[] = [];
      for (const policy of POLICIES) {
        const tenant = policy as string as TenantId;
        const before = await meter.read();
        const viewers = policy === 'push' ? everybody : [];
        await seedSets(ours, { tenant, pulled: pulledOf[policy], viewers, signal });
        starts.push(minus(await meter.read(), before));
        contenders.push(oursContender(policy, ours, tenant, signal));
      }
      const cpu = await costOf({ contenders, starts, run, meter, signal });
      for (const contender of contenders) await verifyShown(contender, run, signal);
      // Connections and compiled code are made once, by whoever comes first.
      if (turn === 0) continue;
      const [hybrid, push, pull] = POLICIES.map((_, index) => totalOf(cpu[index] ?? NO_CPU)) as [
        number,
        number,
        number,
      ];
      const ratio = hybrid / Math.min(push, pull);
      worst = Math.max(worst, ratio);
      costs.hybrid.push(hybrid);
      costs.push.push(push);
      costs.pull.push(pull);
      const name = `${percent} % active`;
      figures[name] = { value: ratio, unit: 'times the CPU of the better of push and pull', max: WORSE_MAX };
      figures[`${name}, hybrid`] = { value: hybrid, unit: 's of CPU' };
      figures[`${name}, push`] = { value: push, unit: 's of CPU' };
      figures[`${name}, pull`] = { value: pull, unit: 's of CPU' };
      report(
        `${name}: hybrid ${formatFigure(hybrid)} s of CPU, push ${formatFigure(push)}, pull ${formatFigure(pull)}`,
      );
    }
    return {
      name: 'policy',
      unit: 'times the CPU of the better of push and pull, at the worst point',
      ours: { name: 'hybrid', median: worst, lowest: worst, highest: worst },
      against: {},
      oursMax: WORSE_MAX,
      figures,
      sweep: {
        title: 'CPU of all processes for as many posts, by the part of the users that reads',
        x: { label: '% of the users read', values: points },
        y: { label: 's of CPU' },
        series: POLICIES.map((policy) => ({ name: policy, values: costs[policy] })),
      },
      conditions: [
        `${size.toLocaleString('en-US')} users, ${graph.followees.length.toLocaleString('en-US')} follows, ${posts.toLocaleString('en-US')} posts at every point, ${CHECKS_EACH} checks for each reader: from one check a post to a hundred; the rule of costs has the hybrid pull ${pulled.size} authors;`,
        `push: everybody has a timeline, made before the first post; pull: lists of all authors; pull and hybrid: timelines of those who read, made at their first check (those of pull hold own posts alone). The making counts;`,
        `CPU of this process, Redis and Postgres together; ${SLICES} slices by turns; afterwards every reader was shown exactly the posts of whom they follow.`,
      ],
    };
  } finally {
    await ours.close();
    redis.disconnect();
    await client.end();
  }
}

/** Posts and checks of a point in random order; the checks go round the readers. */
function planPoint(graph: TwipGraph, readers: readonly number[], posts: number, random: Seeded): TwipRun {
  const pickPoster = createPick(graph.postWeights, random);
  const checks = readers.length * CHECKS_EACH;
  const operations: TwipOperation[] = [];
  const lastRead = new Map<number, number>();
  for (let post = 0, check = 0; post + check < posts + checks; ) {
    const tick = operations.length + 1;
    if (random.below(posts + checks - post - check) < posts - post) {
      operations.push({ kind: 'post', tick, user: pickPoster() });
      post += 1;
    } else {
      const user = readers[check % readers.length] as number;
      operations.push({ kind: 'check', tick, user, since: lastRead.get(user) ?? 0 });
      lastRead.set(user, tick);
      check += 1;
    }
  }
  return windowOf(graph, operations, { ticks: operations.length, activeUsers: readers.length, logouts: 0 }, [
    ...lastRead.keys(),
  ]);
}

/** What each costs by the end, beginning with what it had cost at the start. */
async function costOf(of: {
  readonly contenders: readonly TwipContender[];
  readonly starts: readonly CpuSeconds[];
  readonly run: TwipRun;
  readonly meter: CpuMeter;
  readonly signal: AbortSignal;
}): Promise<readonly CpuSeconds[]> {
  const { contenders, run, meter, signal } = of;
  const costs = [...of.starts];
  const length = Math.ceil(run.operations.length / SLICES);
  for (let slice = 0; slice < SLICES; slice += 1) {
    const operations = run.operations.slice(slice * length, (slice + 1) * length);
    for (let turn = 0; turn < contenders.length; turn += 1) {
      const index = (turn + slice) % contenders.length;
      const before = await meter.read();
      await askFor(contenders[index] as TwipContender, operations, signal);
      costs[index] = plus(costs[index] ?? NO_CPU, minus(await meter.read(), before));
    }
  }
  return costs;
}

/** How long a process of ours serves its copies of lists at most, and some more. */
const COPIES_OVER_MS = 1_500;

/** All but the graph. */
async function forgetPosts(client: pg.Client, redis: Redis, signal: AbortSignal): Promise<void> {
  await client.query('TRUNCATE posts, post_stats, self_entries, fanout_jobs, outbox, counter_deltas');
  await redis.flushdb();
  await pause(signal, COPIES_OVER_MS);
}
