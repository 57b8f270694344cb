/**
 * Owns crowds of followers for benchmarks: rows in Postgres, resident timelines of a given length in Redis, and the count of those that hold a post.
 * Invariant: everything is written in bounded portions, and the abort is looked at between them.
 */
import type { Redis } from 'ioredis';
import type pg from 'pg';
import type { Keys } from '../../src/store/redis/keys.ts';
import { partSizesFor } from '../../src/store/redis/timeline-parts.ts';
import type { Timelines } from '../../src/store/redis/timelines.ts';
import {
  composePostId,
  ID_EPOCH_MS,
  type PostId,
  postIdFrom,
  type TenantId,
  type UserId,
} from '../../src/timeline/ids.ts';

/** Rows of one statement, keys of one pipeline, keys of one script. */
const ROWS_AT_ONCE = 100_000;
const COPIES_AT_ONCE = 1_000;
const LOOKED_AT_AT_ONCE = 100;
const CALL_MS = 30_000;
/** What timelines hold from the start lies in the past. */
const FILLED_FROM = composePostId({ ms: ID_EPOCH_MS + 366 * 86_400_000, generator: 0, sequence: 0 });
const ID_STEP = 9_973;

/** Viewers are numbered. All names have one length, as real IDs of one kind have. */
export function viewerAt(index: number): UserId {
  return `v${String(index).padStart(9, '0')}` as UserId;
}

/** The posts that timelines are filled with, newest first. */
export function filledIds(count: number): readonly PostId[] {
  return Array.from({ length: count }, (_, index) => postIdFrom(FILLED_FROM + (count - index) * ID_STEP));
}

export interface Following {
  readonly tenant: TenantId;
  readonly author: UserId;
  /** The numbers of the followers: `count` from `from` on. */
  readonly from: number;
  readonly count: number;
  /** Followers beside each of them, right after it in the order of IDs, who have no timeline. */
  readonly absentEach?: number;
}

/** Makes an author with followers, and their count, as if the follows had been made one by one and counted. */
export async function seedFollowers(client: pg.Client, signal: AbortSignal, following: Following): Promise<void> {
  const { tenant, author, from, count, absentEach = 0 } = following;
  const portion = Math.max(1, Math.floor(ROWS_AT_ONCE / (1 + absentEach)));
  for (let at = from; at < from + count; at += portion) {
    signal.throwIfAborted();
    await client.query(
      `INSERT INTO follows (tenant_id, follower_id, followee_id)
      SELECT $1, 'v' || lpad(i::text, 9, '0') || CASE k WHEN 0 THEN '' ELSE '-' || k END, $2
      FROM generate_series($3::int, $4::int) i, generate_series(0, $5::int) k`,
      [tenant, author, at, Math.min(at + portion, from + count) - 1, absentEach],
    );
  }
  await client.query('INSERT INTO authors (tenant_id, author_id, follower_count) VALUES ($1, $2, $3)', [
    tenant,
    author,
    count * (1 + absentEach),
  ]);
}

export interface Filling {
  readonly redis: Redis;
  readonly timelines: Timelines;
  readonly keys: Keys;
  readonly tenant: TenantId;
  readonly count: number;
  /** Entries of a timeline at least. */
  readonly entries: number;
  /** Viewer i gets i modulo this more, so that no two of so many are cut and trimmed by the same post. 1: all are alike. */
  readonly phases: number;
}

/** Pushes between two cuts of a timeline of this cap: as many phases spread the cuts evenly. */
export function phasesOf(cap: number): number {
  return partSizesFor(cap).entries;
}

/** Makes the timelines of the viewers 0 to `count` − 1: one of each phase by the product's own pushes, in parts as they come, the others copies of it. */
export async function seedTimelines(signal: AbortSignal, filling: Filling): Promise<void> {
  const { redis, timelines, keys, tenant, count, entries, phases } = filling;
  const templates = Array.from({ length: phases }, (_, index) => `template-${index}` as UserId);
  const deadline = (): AbortSignal => AbortSignal.any([signal, AbortSignal.timeout(CALL_MS)]);
  for (const viewer of templates) {
    const of = { tenant, viewer, token: 'bench' };
    await timelines.begin(deadline(), of);
    if (!(await timelines.commit(deadline(), { ...of, floor: 0 }))) throw new Error('a rebuild lost its token');
  }
  for (const [index, postId] of filledIds(entries + phases - 1)
    .toReversed()
    .entries()) {
    // Those of the later phases begin earlier.
    const viewers = templates.slice(Math.max(0, phases - 1 - index));
    for (const outcome of await timelines.push(deadline(), { tenant, postId, viewers }))
      if (outcome !== 'added') throw new Error(`a push came to ${outcome}`);
  }
  const copies: { readonly from: string; readonly to: (viewer: UserId) => string }[][] = [];
  for (const viewer of templates) {
    const names = (of: UserId): readonly string[] => partsOf(keys, tenant, of);
    const there: (typeof copies)[number] = [];
    for (const [index, from] of names(viewer).entries()) {
      if ((await redis.exists(from)) === 1) there.push({ from, to: (of) => names(of)[index] as string });
    }
    copies.push(there);
  }
  await copyKeys(signal, redis, function* () {
    for (let index = 0; index < count; index += 1) {
      for (const { from, to } of copies[index % phases] ?? []) yield { from, to: to(viewerAt(index)) };
    }
  });
  for (const there of copies) await redis.del(there.map(({ from }) => from));
}

/** Copies keys inside the server, which takes a tenth of the time of writing them. */
export async function copyKeys(
  signal: AbortSignal,
  redis: Redis,
  copies: () => Iterable<{ readonly from: string; readonly to: string }>,
): Promise<void> {
  const rest = copies()[Symbol.iterator]();
  for (let over = false; !over; ) {
    signal.throwIfAborted();
    const pipeline = redis.pipeline();
    for (let count = 0; count < COPIES_AT_ONCE; count += 1) {
      const next = rest.next();
      over = next.done === true;
      if (next.done) break;
      pipeline.copy(next.value.from, next.value.to);
    }
    const results = (await pipeline.exec()) ?? [];
    if (results.some(([error, copied]) => error !== null || copied !== 1)) throw new Error('a key was not copied');
  }
}

/**
 * KEYS: timelines, each with its ring. ARGV: keys of each, post ID. Answers how many of the timelines hold the post in any part that their links lead to, how many timelines there are, and the members of
 * their newest parts: a sorted set holds a post once or not at all.
 */
const HOLDERS = `
local each = tonumber(ARGV[1])
local holders, present, members = 0, 0, 0
for head = 1, #KEYS, each do
  local size = redis.call('ZCARD', KEYS[head])
  if size > 0 then present = present + 1 end
  members = members + size
  local at, looks = head, 0
  while at and looks < each do
    looks = looks + 1
    if redis.call('ZSCORE', KEYS[at], ARGV[2]) == '-' .. ARGV[2] then
      holders = holders + 1
      break
    end
    local state = redis.call('ZRANGE', KEYS[at], -1, -1)[1]
    local link = state and string.match(state, '^r(%d+):')
    at = link and head + tonumber(link)
  end
end
return {holders, present, members}
`;

export interface Holders {
  readonly holders: number;
  /** Timelines that there are at all. */
  readonly present: number;
  /** Entries and state members of their newest parts. */
  readonly members: number;
}

export async function countHolders(
  redis: Redis,
  of: { readonly keys: Keys; readonly tenant: TenantId; readonly postId: PostId; readonly viewers: readonly UserId[] },
): Promise<Holders> {
  let holders = 0;
  let present = 0;
  let members = 0;
  for (let at = 0; at < of.viewers.length; at += LOOKED_AT_AT_ONCE) {
    const some = of.viewers.slice(at, at + LOOKED_AT_AT_ONCE).map((viewer) => partsOf(of.keys, of.tenant, viewer));
    const each = some[0]?.length ?? 1;
    const answer = (await redis.eval(HOLDERS, some.length * each, ...some.flat(), each, String(of.postId))) as [
      number,
      number,
      number,
    ];
    holders += answer[0];
    present += answer[1];
    members += answer[2];
  }
  return { holders, present, members };
}

/** The keys of a timeline: of its newest part, then of the places of the older ones. */
export function partsOf(keys: Keys, tenant: TenantId, viewer: UserId): readonly string[] {
  return [keys.timeline(tenant, viewer), ...keys.timelineRing(tenant, viewer)];
}
