/**
 * Owns the network that pages are read from: authors with profiles and posts, viewers who follow and mute, one author whom everybody pulls and one who is pushed to everybody; and bringing
 * all of its viewers into the cache.
 *
 * Invariant: what lies in the cache was put there by the service itself. Viewers come in as many kinds as there are authors; those of one kind follow and mute the same authors, so that one
 * of each is read through the service, and the keys of the others are copies of theirs.
 */
import type { Redis } from 'ioredis';
import type pg from 'pg';
import type { Keys } from '../../src/store/redis/keys.ts';
import { composePostId, ID_EPOCH_MS, type TenantId, type UserId } from '../../src/timeline/ids.ts';
import { hashApiKey } from '../../src/write/administer.ts';
import { copyKeys, viewerAt } from './crowd.ts';

export const TENANT = 'bench' as TenantId;
export const API_KEY = `tk_${'r'.repeat(43)}`;
/** Primes, so that the followees of a viewer are all different; the smaller one to try it out. */
const KINDS = { usual: 1_009, small: 211 } as const;
const USUAL_FROM_VIEWERS = 10_000;
/** Everybody follows them: one is pulled, the other pushed. */
export const PULLED = 'pulled' as UserId;
export const PUSHED_TO_ALL = 'pushed' as UserId;
export const FOLLOWEES = 50;
const POSTS_PER_AUTHOR = 50;
/** Every so many posts is one of the pulled author's. */
const PULLED_EACH = 97;
const MUTING_EACH = 10;
/** Beyond any threshold of this run. */
const COUNT_OF_PULLED = 2_000_000_000;
const VIEWERS_AT_ONCE = 10_000;
const SORT_MEMORY = '512MB';
const FIRST_POST = composePostId({ ms: ID_EPOCH_MS + 6 * 365 * 86_400_000, generator: 0, sequence: 0 });
/** Between two posts, in IDs: some seconds. */
const ID_STEP = 9_000_017;

export interface Network {
  readonly viewers: number;
  /** Kinds of viewers, and authors. */
  readonly kinds: number;
}

export function networkOf(viewers: number): Network {
  return { viewers, kinds: viewers < USUAL_FROM_VIEWERS ? KINDS.small : KINDS.usual };
}

/** As `viewerAt`, of i. */
const VIEWER_SQL = `'v' || lpad(i::text, 9, '0')`;
const authorSql = (number: string): string => `'a' || lpad((${number})::text, 6, '0')`;
/** The followee number k of viewer i. */
const followeeSql = (viewer: string, k: string, kinds: number): string =>
  authorSql(`(${viewer} * 31 + ${k} * 41) % ${kinds}`);

export async function seedNetwork(client: pg.Client, signal: AbortSignal, { viewers, kinds }: Network): Promise<void> {
  await client.query('SET synchronous_commit = off');
  await client.query('INSERT INTO tenants (tenant_id) VALUES ($1)', [TENANT]);
  await client.query(`INSERT INTO api_keys (key_hash, tenant_id, role) VALUES ($1, $2, 'service')`, [
    hashApiKey(API_KEY),
    TENANT,
  ]);
  await client.query(
    `INSERT INTO authors (tenant_id, author_id, display_name, avatar_address, bio, profile_version, follower_count, fanout_class, class_epoch)
    SELECT $1, author, 'Name of ' || author, 'sha256:' || md5(author) || md5(author || 'x'), 'Writes about this and that, mostly in the evening.', 1,
      CASE author WHEN $2 THEN ${COUNT_OF_PULLED} ELSE $4::int END, CASE author WHEN $2 THEN 'pull' ELSE 'push' END, CASE author WHEN $2 THEN 1 ELSE 0 END
    FROM (SELECT ${authorSql('i')} AS author FROM generate_series(0, ${kinds - 1}) i UNION ALL VALUES ($2::text), ($3::text)) a`,
    [TENANT, PULLED, PUSHED_TO_ALL, viewers],
  );
  await client.query(
    `WITH made AS (
      INSERT INTO posts (tenant_id, author_id, post_id, text, visibility)
      SELECT $1, CASE WHEN n % ${PULLED_EACH} = 0 THEN $2 ELSE ${authorSql(`(n::bigint * 7919 % 100003) % ${kinds}`)} END, ${FIRST_POST} + n::bigint * ${ID_STEP},
        left('Post number ' || n || '. ' || repeat('It says what its author had in mind at that moment. ', 4), 60 + n % 120), 'public'
      FROM generate_series(0, ${POSTS_PER_AUTHOR * kinds - 1}) n RETURNING post_id, author_id
    )
    INSERT INTO post_stats (tenant_id, post_id, author_id, reposts, replies) SELECT $1, post_id, author_id, post_id % 7, post_id % 3 FROM made`,
    [TENANT, PULLED],
  );
  const rebuildIndexes = await dropIndexes(client, 'follows');
  for (let from = 0; from < viewers; from += VIEWERS_AT_ONCE) {
    signal.throwIfAborted();
    const range = [TENANT, from, Math.min(from + VIEWERS_AT_ONCE, viewers) - 1];
    await client.query(
      `INSERT INTO follows (tenant_id, follower_id, followee_id)
      SELECT $1, ${VIEWER_SQL}, followee FROM generate_series($2::int, $3::int) i, LATERAL (
        SELECT ${followeeSql('i', 'k', kinds)} AS followee FROM generate_series(0, ${FOLLOWEES - 1}) k UNION ALL VALUES ('${PULLED}'), ('${PUSHED_TO_ALL}')
      ) f`,
      range,
    );
    await client.query(
      `INSERT INTO mutes (tenant_id, muter_id, muted_id) SELECT $1, ${VIEWER_SQL}, ${followeeSql('i', '3', kinds)} FROM generate_series($2::int, $3::int) i
      WHERE i % ${kinds} % ${MUTING_EACH} = 0`,
      range,
    );
  }
  await rebuildIndexes();
  await client.query('VACUUM (ANALYZE) follows, authors, posts, post_stats, mutes');
  await client.query('CHECKPOINT');
}

/** Millions of rows go in several times as fast where their order is not kept meanwhile; the primary key stays. Answers what brings the others back. */
async function dropIndexes(client: pg.Client, table: string): Promise<() => Promise<void>> {
  const { rows } = await client.query<{ readonly name: string; readonly definition: string }>(
    `SELECT indexrelid::regclass::text AS name, pg_get_indexdef(indexrelid) AS definition FROM pg_index WHERE indrelid = $1::regclass AND NOT indisprimary`,
    [table],
  );
  for (const { name } of rows) await client.query(`DROP INDEX ${name}`);
  return async () => {
    await client.query(`SET maintenance_work_mem = '${SORT_MEMORY}'`);
    for (const { definition } of rows) await client.query(definition);
  };
}

/** Gives every viewer what one of their kind, who was read through the service, has in the cache. */
export function copyKinds(signal: AbortSignal, redis: Redis, keys: Keys, { viewers, kinds }: Network): Promise<void> {
  const kindsOfKey = [keys.timeline, keys.relations, keys.pulledAuthors];
  const keyOf = (kind: number, viewer: number): string => {
    const name = kindsOfKey[kind];
    if (!name) throw new RangeError(`no kind of key ${kind}`);
    return name(TENANT, viewerAt(viewer));
  };
  const each = kindsOfKey.length;
  return copyKeys(signal, redis, function* () {
    for (let index = 0; index < (viewers - kinds) * each; index += 1) {
      const [kind, viewer] = [index % each, Math.floor(index / each)];
      yield { from: keyOf(kind, viewer % kinds), to: keyOf(kind, kinds + viewer) };
    }
  });
}
