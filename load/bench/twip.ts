/**
 * Owns Twip, the benchmark of Pequod (NSDI'14): ours by three policies, beside a client that pushes into Redis and a table that triggers of Postgres maintain. All are asked for the same operations, in
 * slices by turns.
 *
 * Invariant: a contender that in the end shows anybody something else than the posts of whom they follow ends the run.
 */
import { Redis } from 'ioredis';
import pg from 'pg';
import type { Servers } from '../../src/embedded/servers.ts';
import { systemClock } from '../../src/runtime.ts';
import { createSeeded } from '../../src/sample/seeded.ts';
import { startFollows } from '../../src/store/postgres/graph.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { insertPost } from '../../src/store/postgres/publish.ts';
import { composePostId, ID_EPOCH_MS, postIdFrom, type TenantId } from '../../src/timeline/ids.ts';
import { type Bench, type BenchOptions, benchConfig, PATIENT, PUSHED, withServers } from './bench.ts';
import { type CpuSeconds, createCpuMeter, minus, NO_CPU, plus } from './processes-cpu.ts';
import { pulledByRule } from './pull-rule.ts';
import type { BenchResult, Figure } from './result.ts';
import { formatFigure, type Measured } from './rounds.ts';
import { askFor, IN_FLIGHT, type TwipContender, verifyShown } from './twip-contender.ts';
import { makeTwipGraph, type TwipGraph, USERS_MIN } from './twip-graph.ts';
import { planTwip, type TwipRun } from './twip-operations.ts';
import {
  type OursParts,
  openOurs,
  oursContender,
  POLICIES,
  type Policy,
  seedGraph,
  seedSets,
  userIdOf,
  wholePages,
} from './twip-ours.ts';
import { openClientPush, openTriggerTable, type Truth } from './twip-rivals.ts';

const USERS = 5_000;
const SEED = 14;
/** Enough that what disturbs the machine for some seconds meets all contenders. */
const SLICES = 20;
const CONNECTIONS = 10;
const FOLLOWS_MAX = 5_000;
/** Texts are copied into every timeline of the client push. */
const MEMORY_MAX = '10gb';
/** Of the whole run: some ten times what the usual size takes. */
const RUN_MAX_MS = 3_600_000;
/** Total seconds of ours to those of the rival. */
const RATIO_MAX = { 'client push': 0.9 };
const RIVAL_TENANT = 'rival' as TenantId;
const COUNTED_FROM = composePostId({ ms: ID_EPOCH_MS + 366 * 86_400_000, generator: 0, sequence: 0 });

export const bench: Bench = {
  size: { of: 'users', preset: USERS, min: USERS_MIN, max: 200_000 },
  run: (options) => withServers((servers) => compare(options, servers), { cacheMemory: MEMORY_MAX }),
};

interface Total {
  readonly contender: TwipContender;
  seconds: number;
  cpu: CpuSeconds;
  shown: number;
}

async function compare(options: BenchOptions, servers: Servers): Promise<BenchResult> {
  const { size = USERS, report } = options;
  const signal = AbortSignal.any([options.signal, AbortSignal.timeout(RUN_MAX_MS)]);
  const config = benchConfig(servers, {
    ...PATIENT,
    ...PUSHED,
    DATABASE_POOL_REQUESTS: String(CONNECTIONS),
    FOLLOWS_MAX: String(FOLLOWS_MAX),
    // A page for which there is no place among the rebuilds would come from Postgres.
    REBUILDS_MAX: String(IN_FLIGHT),
  });
  await migrate(servers.postgres.url);
  const random = createSeeded(SEED);
  const graph = makeTwipGraph(size, random);
  const run = planTwip(graph, random);
  const posts = run.operations.filter(({ kind }) => kind === 'post').length;
  const pulled = pulledByRule(graph, { posts, checksEach: checksEachOf(run) });
  report(
    `${size} users, ${graph.followees.length} follows, ${run.operations.length} operations; the hybrid pulls ${pulled.size} authors`,
  );

  const closing: (() => Promise<void> | void)[] = [];
  try {
    const client = new pg.Client({ connectionString: servers.postgres.url });
    await client.connect();
    closing.push(() => client.end());
    const redis = new Redis(servers.cache.url);
    closing.push(() => redis.disconnect());
    const ours = await openOurs(config, signal);
    closing.push(() => ours.close());

    const contenders: TwipContender[] = [];
    const everybody = Array.from({ length: size }, (_, user) => user);
    const pulledOf: Readonly<Record<Policy, Iterable<number>>> = { hybrid: pulled, push: [], pull: everybody };
    for (const policy of POLICIES) {
      report(`filling the tenant of ours, ${policy}`);
      const tenant = policy as string as TenantId;
      await seedGraph(client, { tenant, graph, pulled: new Set(pulledOf[policy]), signal });
      const viewers = policy === 'push' ? everybody : [];
      await seedSets(ours, { tenant, pulled: pulledOf[policy], viewers, signal });
      contenders.push(oursContender(NAMES[policy], ours, tenant, signal));
    }
    const pagesTenant = 'pages' as TenantId;
    await seedGraph(client, { tenant: pagesTenant, graph, pulled, signal });
    await seedSets(ours, { tenant: pagesTenant, pulled, viewers: [], signal });
    contenders.push(wholePages(ours, pagesTenant, signal));

    report('filling the rivals');
    for (const [name, truth] of [
      ['client push', undefined],
      ['client push, durable', durably(ours, signal)],
    ] as const) {
      const rival = openClientPush(name, servers.cache.url, truth);
      closing.push(() => rival.close());
      await rival.seed(graph, signal);
      contenders.push(rival);
    }
    const triggers = openTriggerTable(ours.database, signal);
    await triggers.seed(client, graph, signal);
    contenders.push(triggers);

    const totals = await runSlices(contenders, run, servers, redis, options, signal);
    for (const contender of contenders) {
      report(`looking at what ${contender.name} shows ${run.loggedIn.length} users`);
      await verifyShown(contender, run, signal);
    }
    await refuseEvictions(redis);
    return resultOf(totals, { graph, run, posts, pulled: pulled.size });
  } finally {
    for (const close of closing.reverse()) await close();
  }
}

const NAMES: Readonly<Record<Policy, string>> = { hybrid: 'ours', push: 'push only', pull: 'pull only' };

function checksEachOf(run: TwipRun): number {
  return run.operations.filter(({ kind }) => kind === 'check').length / run.activeUsers;
}

/** Every contender performs a slice of the operations before the next slice begins; each goes first as often as the others. */
async function runSlices(
  contenders: readonly TwipContender[],
  run: TwipRun,
  servers: Servers,
  redis: Redis,
  { report }: BenchOptions,
  signal: AbortSignal,
): Promise<readonly Total[]> {
  const meter = createCpuMeter(servers, [redis]);
  const totals = contenders.map((contender): Total => ({ contender, seconds: 0, cpu: NO_CPU, shown: 0 }));
  const length = Math.ceil(run.operations.length / SLICES);
  for (let slice = 0; slice < SLICES; slice += 1) {
    const operations = run.operations.slice(slice * length, (slice + 1) * length);
    const shift = slice % totals.length;
    const figures: string[] = [];
    for (const total of [...totals.slice(shift), ...totals.slice(0, shift)]) {
      const before = await meter.read();
      const startedMs = systemClock.monotonicMs();
      const { shown } = await askFor(total.contender, operations, signal);
      const seconds = (systemClock.monotonicMs() - startedMs) / 1_000;
      total.seconds += seconds;
      total.cpu = plus(total.cpu, minus(await meter.read(), before));
      total.shown += shown;
      figures.push(`${total.contender.name} ${formatFigure(seconds)} s`);
    }
    report(`slice ${slice + 1} of ${SLICES}: ${figures.join(', ')}`);
  }
  return totals;
}

function durably(ours: OursParts, signal: AbortSignal): Truth {
  let counted: number = COUNTED_FROM;
  return {
    async post({ user, text }) {
      const outcome = await insertPost(ours.database, signal, {
        tenant: RIVAL_TENANT,
        postId: postIdFrom(++counted),
        author: userIdOf(user),
        text,
        media: [],
        plainRepost: false,
        visibility: 'public',
      });
      if (outcome.kind !== 'published') throw new Error(`a post was not published: ${outcome.kind}`);
    },
    async subscribe({ user, to }) {
      await startFollows(ours.database, signal, {
        tenant: RIVAL_TENANT,
        follower: userIdOf(user),
        followees: [userIdOf(to)],
        followsMax: FOLLOWS_MAX,
      });
    },
  };
}

function resultOf(
  totals: readonly Total[],
  of: { readonly graph: TwipGraph; readonly run: TwipRun; readonly posts: number; readonly pulled: number },
): BenchResult {
  const { graph, run, posts, pulled } = of;
  const [ours, ...others] = totals;
  if (!ours) throw new Error('nobody took part');
  const figures: Record<string, Figure> = {};
  for (const { contender, cpu, shown } of totals) {
    figures[`${contender.name} client CPU`] = { value: cpu.client, unit: 's' };
    figures[`${contender.name} Redis CPU`] = { value: cpu.redis, unit: 's' };
    figures[`${contender.name} Postgres CPU`] = { value: cpu.postgres, unit: 's' };
    figures[`${contender.name} shown`] = { value: shown, unit: 'posts in all checks' };
    if (contender.partials) figures[`${contender.name} partial`] = { value: contender.partials(), unit: 'pages' };
  }
  const count = (value: number): string => value.toLocaleString('en-US');
  return {
    name: 'twip',
    unit: 's in total',
    ours: measuredOf(ours),
    against: Object.fromEntries(others.map((total) => [total.contender.name, measuredOf(total)])),
    ratioMax: RATIO_MAX,
    figures,
    conditions: [
      `${count(graph.users)} users (${count(run.activeUsers)} active), ${count(graph.followees.length)} follows, shape ${graph.shape.toFixed(1)}, ${count(run.operations.length)} operations in ${count(run.ticks)} ticks: ${count(posts)} posts, ${count(run.logouts)} logouts; the rule of costs has the hybrid pull ${pulled} authors;`,
      `all in one process, ${IN_FLIGHT} operations at once, those of one user in order; Redis by one ioredis connection for commands (ours one more for fan-out), Postgres by a pool of ${CONNECTIONS} (ours 4 more for fan-out), fsync on; ${SLICES} slices by turns;`,
      `ours: publish, deliver and follow as the service does them, a check answers the texts of home entries; without queue, relays and front door. push only: everybody has a timeline from the start, which does not count; ours: who has read, made at the first check; pull only: lists of all authors. whole pages: ours, with visibility, profiles and counts, and a look back of 30 s for late entries;`,
      'client push, trigger table: as published; posts and follows of client push are in Redis alone, which keeps nothing. client push, durable: both are committed by our own statements first;',
      `at the end everybody who was logged in (${count(run.loggedIn.length)}) was shown exactly the posts of whom they follow, by every contender.`,
    ],
  };
}

function measuredOf({ contender, seconds }: Total): Measured {
  return { name: contender.name, median: seconds, lowest: seconds, highest: seconds };
}

async function refuseEvictions(redis: Redis): Promise<void> {
  const evicted = /^evicted_keys:(\d+)/m.exec(await redis.info('stats'))?.[1];
  if (evicted !== '0') throw new Error(`${evicted} keys were evicted: the run compared other timelines than it says`);
}
