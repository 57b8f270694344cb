/**
 * Owns the price of a snapshot, which a rebuild reads: on busy follow lists and on silent ones, beside three single ways to read the same. Each of them is the best somewhere and loses several-fold elsewhere.
 *
 * Invariant: all read the same posts through the same client on one connection, answer in the same form, and must have the same answer. A way that takes longer than is worth waiting for is given
 * up and counts as that long.
 */
import pg from 'pg';
import { systemClock } from '../../src/runtime.ts';
import { createDatabase, type Database, type Statement } from '../../src/store/postgres/client.ts';
import { loadSnapshot } from '../../src/store/postgres/home-snapshot.ts';
import { migrate } from '../../src/store/postgres/migrate.ts';
import { composePostId, ID_EPOCH_MS, POST_ID_MAX, type TenantId, type UserId } from '../../src/timeline/ids.ts';
import { type Bench, withServers } from './bench.ts';
import { type Contender, type Measured, runRounds } from './rounds.ts';

const TENANT = 'bench' as TenantId;
const CAP = 800;
const DAY_MS = 86_400_000;
/** All have written as much; the silent ones more than a year before. */
const BUSY = 10_000;
const SILENT = 5_000;
const SILENT_FROM = composePostId({ ms: ID_EPOCH_MS + 366 * DAY_MS, generator: 0, sequence: 0 });
const BUSY_FROM = composePostId({ ms: ID_EPOCH_MS + 4 * 366 * DAY_MS, generator: 0, sequence: 0 });
/** Ten seconds in an ID: with twenty million posts the silent ones still end a year before the busy ones begin. */
const STEP = 10_000 * 4_096;
const FOLLOWS = [200, 1_000, 5_000] as const;
const KINDS = ['busy', 'silent'] as const;
const MUTES = 2_000;
const PULLED_AUTHORS = 300;
/** Posts in the one recent window. */
const WINDOW_POSTS = 10_000;
const GIVEN_UP_MS = 1_000;
/** Some more than it takes until Postgres keeps a plan. */
const WARM_UPS = 7;
const RATIO_MAX = 1.3;

const ELIGIBLE = `posts.deleted_at IS NULL AND posts.moderation <> 'hidden' AND posts.visibility <> 'private'`;
const FOLLOWED = `followed AS MATERIALIZED (
  SELECT followee_id AS author_id FROM follows WHERE tenant_id = $1 AND follower_id = $2 AND ended_at IS NULL
    AND followee_id NOT IN (SELECT author_id FROM authors WHERE tenant_id = $1 AND fanout_class = 'pull')
)`;
const asText = (page: string): string => `WITH ${FOLLOWED}
SELECT string_agg(post_id::text, ',' ORDER BY post_id DESC) AS post_ids FROM (${page}) AS page`;

/** Each way as good as it gets alone. */
const WAYS: Readonly<Record<string, Statement>> = {
  'any in a window': {
    name: 'any',
    text: asText(`SELECT post_id FROM posts
    WHERE tenant_id = $1 AND author_id = ANY (ARRAY(SELECT author_id FROM followed)) AND post_id > $4 AND ${ELIGIBLE}
    ORDER BY post_id DESC LIMIT $3`),
  },
  'top of each author': {
    name: 'lateral',
    text: asText(`SELECT newest.post_id FROM followed CROSS JOIN LATERAL (
      SELECT posts.post_id FROM posts
      WHERE posts.tenant_id = $1 AND posts.author_id = followed.author_id AND posts.post_id > $4 AND ${ELIGIBLE}
      ORDER BY posts.post_id DESC LIMIT $3
    ) AS newest ORDER BY newest.post_id DESC LIMIT $3`),
  },
  'scan by ID': {
    name: 'scan',
    text: asText(`SELECT post_id FROM (
      SELECT post_id, author_id FROM posts WHERE tenant_id = $1 AND post_id > $4 AND ${ELIGIBLE} ORDER BY post_id DESC OFFSET 0
    ) AS newest WHERE (author_id IN (SELECT author_id FROM followed)) IS TRUE ORDER BY post_id DESC LIMIT $3`),
  },
};

export const bench: Bench = {
  size: { of: 'posts', preset: 3_000_000, min: 30_000, max: 20_000_000 },
  run: ({ rounds, size = 3_000_000, report, signal }) =>
    withServers(async ({ postgres: { url } }) => {
      await migrate(url);
      const seconds = await seed(url, { posts: size, signal, report });
      const quick = openDatabase(url, GIVEN_UP_MS);
      const patient = openDatabase(url, 60_000);
      try {
        const oursBeside: Record<string, Measured> = {};
        const against: Record<string, Measured> = {};
        const figures: Record<string, { readonly value: number; readonly unit: string }> = {};
        const losses = new Map(Object.keys(WAYS).map((way) => [way, 0]));
        for (const kind of KINDS) {
          for (const follows of FOLLOWS) {
            const shape = `${kind} ${follows}`;
            report(shape);
            const viewer = viewerOf(kind, follows);
            const measured = await runRounds({
              contenders: contendersOf({ viewer, quick, patient, signal, windowFrom: windowFrom(size) }),
              rounds,
              warmUps: WARM_UPS,
              report,
            });
            const [ours, ...others] = measured;
            const [fastest] = [...others].sort((one, other) => one.median - other.median);
            if (!ours || !fastest) throw new Error('a contender was not measured');
            oursBeside[shape] = ours;
            against[shape] = { ...fastest, name: `${shape}: ${fastest.name}` };
            for (const { name, median } of measured) figures[`${shape}, ${name}`] = { value: median, unit: 'ms' };
            for (const { name, median } of others)
              losses.set(name, Math.max(losses.get(name) ?? 0, median / fastest.median));
          }
        }
        const last = oursBeside[`silent ${FOLLOWS.at(-1)}`];
        if (!last) throw new Error('a shape was not measured');
        return {
          name: 'rebuild',
          unit: 'ms',
          ours: { ...last, name: `snapshot, silent ${FOLLOWS.at(-1)}` },
          against,
          oursBeside,
          ratioMax: RATIO_MAX,
          figures,
          // Where one way were never far behind, there would be nothing to choose.
          invalid: [...losses].flatMap(([way, most]) =>
            most >= 2 ? [] : [`"${way}" is nowhere more than ${most.toFixed(1)} times as slow as the fastest`],
          ),
          conditions: [
            `${size.toLocaleString('en-US')} posts of ${BUSY.toLocaleString('en-US')} busy authors and ${SILENT.toLocaleString('en-US')} silent ones, made in ${Math.round(seconds)} s, in 16 partitions with the product's indexes; cap ${CAP}; ${MUTES.toLocaleString('en-US')} mutes each;`,
            `each shape beside the fastest of three ways: ${[...losses].map(([way, most]) => `${way} (at worst ${most.toFixed(1)} times the fastest)`).join(', ')};`,
            `one call at a time over one connection; a way is given up after ${GIVEN_UP_MS} ms and counts as that; ${rounds} rounds of one call in turns after ${WARM_UPS} warm-ups.`,
          ],
        };
      } finally {
        await Promise.all([quick.close(), patient.close()]);
      }
    }),
};

function contendersOf(of: {
  readonly viewer: UserId;
  /** Gives a statement up. */
  readonly quick: Database;
  readonly patient: Database;
  readonly signal: AbortSignal;
  readonly windowFrom: number;
}): readonly Contender[] {
  const { viewer, signal } = of;
  let answer: string | undefined;
  async function timed(load: () => Promise<string>): Promise<number> {
    signal.throwIfAborted();
    const startedMs = systemClock.monotonicMs();
    const ids = await load();
    const tookMs = systemClock.monotonicMs() - startedMs;
    answer ??= ids;
    if (ids !== answer) throw new Error(`two ways to read the home of ${viewer} differ`);
    return tookMs;
  }
  const ours: Contender = {
    name: 'snapshot',
    round: () =>
      timed(async () => (await loadSnapshot(of.patient, signal, { tenant: TENANT, viewer, cap: CAP })).postIds.join()),
  };
  const others = Object.entries(WAYS).map(([name, statement]): Contender => {
    const ask = async (above: number): Promise<readonly string[]> => {
      const values = [TENANT, viewer, CAP + 1, above];
      const [row] = await of.quick.query<{ readonly post_ids: string | null }>(signal, statement, values);
      return row?.post_ids?.split(',') ?? [];
    };
    return {
      name,
      async round() {
        try {
          return await timed(async () => {
            const found = name === 'any in a window' ? await ask(of.windowFrom) : [];
            return (found.length > CAP ? found : await ask(0)).slice(0, CAP).join();
          });
        } catch (error) {
          if (isGivenUp(error)) return GIVEN_UP_MS;
          throw error;
        }
      },
    };
  });
  return [ours, ...others];
}

/** SQLSTATE 57014, which a statement time-out has. */
function isGivenUp(error: unknown): boolean {
  return error instanceof Error && (error.cause as { code?: string } | undefined)?.code === '57014';
}

function openDatabase(url: string, statementTimeoutMs: number): Database {
  return createDatabase({
    url,
    pool: 'bench',
    connectionsMax: 1,
    acquireTimeoutMs: 30_000,
    statementTimeoutMs,
    lockTimeoutMs: 30_000,
    waitersMax: 10,
    events: { clientFailed: () => undefined, statementCancelled: () => undefined },
  });
}

function viewerOf(kind: (typeof KINDS)[number], follows: number): UserId {
  return `to-${kind}-${follows}` as UserId;
}

function busyPosts(posts: number): number {
  return Math.floor((posts * BUSY) / (BUSY + SILENT));
}

function windowFrom(posts: number): number {
  return Math.min(BUSY_FROM + (busyPosts(posts) - WINDOW_POSTS) * STEP, POST_ID_MAX);
}

/** Answers in how many seconds. The posts' indexes are made after the posts, by the product's own definitions: some five times as fast. */
async function seed(
  url: string,
  {
    posts,
    signal,
    report,
  }: { readonly posts: number; readonly signal: AbortSignal; readonly report: (line: string) => void },
): Promise<number> {
  const startedMs = systemClock.monotonicMs();
  const clients = [new pg.Client({ connectionString: url }), new pg.Client({ connectionString: url })] as const;
  const [client] = clients;
  await Promise.all(clients.map((each) => each.connect()));
  try {
    report(`writing ${posts.toLocaleString('en-US')} posts`);
    const makeIndexes = await dropIndexes(client);
    const busy = busyPosts(posts);
    const half = Math.floor(busy / 2);
    await Promise.all([
      write(clients[0], { prefix: 'b', authors: BUSY, from: 1, to: half, firstId: BUSY_FROM, step: STEP }),
      write(clients[1], { prefix: 'b', authors: BUSY, from: half + 1, to: busy, firstId: BUSY_FROM, step: STEP }),
    ]);
    const silent = { prefix: 's', authors: SILENT, from: 1, to: posts - busy };
    await write(client, { ...silent, firstId: SILENT_FROM, step: STEP });
    signal.throwIfAborted();
    report('making their indexes');
    for (const statement of makeIndexes) {
      signal.throwIfAborted();
      await client.query(statement);
    }
    for (const kind of KINDS) {
      for (const follows of FOLLOWS) {
        const step = (kind === 'busy' ? BUSY : SILENT) / follows;
        await client.query(
          `INSERT INTO follows (tenant_id, follower_id, followee_id)
           SELECT $1, $2, $3 || lpad((n * $4::int)::text, 6, '0') FROM generate_series(0, $5::int - 1) n`,
          [TENANT, viewerOf(kind, follows), kind[0], step, follows],
        );
        await client.query(
          `INSERT INTO mutes (tenant_id, muter_id, muted_id) SELECT $1, $2, 'b' || lpad(n::text, 6, '0') FROM generate_series(1, $3::int) n`,
          [TENANT, viewerOf(kind, follows), MUTES],
        );
      }
    }
    await client.query(
      `INSERT INTO authors (tenant_id, author_id, fanout_class) SELECT $1, 'p' || lpad(n::text, 6, '0'), 'pull' FROM generate_series(1, $2::int) n
       UNION ALL SELECT $1, 'b' || lpad(n::text, 6, '0'), 'push' FROM generate_series(0, $3::int - 1) n`,
      [TENANT, PULLED_AUTHORS, BUSY],
    );
    for (const table of ['posts', 'follows', 'authors', 'mutes']) await client.query(`VACUUM ANALYZE ${table}`);
    return (systemClock.monotonicMs() - startedMs) / 1_000;
  } finally {
    await Promise.all(clients.map((each) => each.end()));
  }
}

interface Written {
  readonly prefix: string;
  readonly authors: number;
  readonly from: number;
  readonly to: number;
  readonly firstId: number;
  readonly step: number;
}

/** In the order of time, as they are published; authors in no order. */
async function write(client: pg.Client, { prefix, authors, from, to, firstId, step }: Written): Promise<void> {
  await client.query(
    `INSERT INTO posts (tenant_id, author_id, post_id, text, visibility)
     SELECT $1, $2 || lpad(((hashint8(n) & 1073741823) % $3::int)::text, 6, '0'), $4::bigint + n * $5::bigint, repeat('x', 80), 'public'
     FROM generate_series($6::bigint, $7::bigint) n`,
    [TENANT, prefix, authors, firstId, step, from, to],
  );
}

/** Answers the statements that make them again, on the partitions too, which Postgres leaves out when it tells of one. */
async function dropIndexes(client: pg.Client): Promise<readonly string[]> {
  const { rows } = await client.query<{ readonly drop: string; readonly make: string }>(
    `SELECT format('ALTER TABLE posts DROP CONSTRAINT %I', conname) AS drop,
       format('ALTER TABLE posts ADD CONSTRAINT %I %s', conname, pg_get_constraintdef(oid)) AS make
     FROM pg_constraint WHERE conrelid = 'posts'::regclass AND contype = 'p'
     UNION ALL
     SELECT format('DROP INDEX %s', indexrelid::regclass), replace(pg_get_indexdef(indexrelid), ' ON ONLY ', ' ON ')
     FROM pg_index WHERE indrelid = 'posts'::regclass AND NOT indisprimary`,
  );
  for (const { drop } of rows) await client.query(drop);
  return ["SET maintenance_work_mem = '512MB'", ...rows.map(({ make }) => make)];
}
