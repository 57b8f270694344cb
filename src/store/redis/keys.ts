/**
 * Owns the names of all keys in the cache Redis and how batches of keys become calls.
 *
 * Every key carries a shard tag in braces, so that on Redis Cluster all keys of one viewer (and of one post, and of one author) live in one slot
 * and a script may touch several of them. Shards are many fewer than slots; their tags are chosen so that shard i falls into the i-th
 * part of the 16,384 slots, which spreads any number of masters evenly.
 */
import { crc32 } from 'node:zlib';
import type { PostId, TenantId, UserId } from '../../timeline/ids.ts';

const SLOTS = 16_384;

/** Keys of one call at most: a script of 1,000 keys holds Redis for some 17 ms, of 128 for about one. */
export const KEYS_PER_CALL_MAX = 128;

/**
 * Marks of one cache at most, in shards that lie evenly over the slots: on a cluster every master that holds some 60th of them has one. On one server they are one call, on a cluster one each.
 */
const MARKS_MAX = 64;

/** Older parts of a timeline at most: one more than eight whole ones, which hold the cap, and the one that a cut makes. */
export const RING_PLACES = 10;

export interface Keys {
  /** Home timeline of a viewer, or the newest part of it: a sorted set. */
  timeline(tenant: TenantId, viewer: UserId): string;
  /** The places of the older parts of a timeline, from the first to the last: sorted sets, most of them not there. */
  timelineRing(tenant: TenantId, viewer: UserId): readonly string[];
  /** Recent posts of a pulled author in one class epoch: a sorted set like a timeline. */
  pulledList(tenant: TenantId, author: UserId, epoch: number): string;
  /** Pulled authors whom a viewer follows. */
  pulledAuthors(tenant: TenantId, viewer: UserId): string;
  /** Relations of a viewer: a hash by author. */
  relations(tenant: TenantId, viewer: UserId): string;
  /** Mutable facts of a post. */
  postMeta(tenant: TenantId, postId: PostId): string;
  /** State of an author. */
  authorState(tenant: TenantId, author: UserId): string;
  /** Body of a post under one version: immutable. */
  postBody(tenant: TenantId, postId: PostId, bodyVersion: number): string;
  /** Profile of an author under one version: immutable. */
  authorProfile(tenant: TenantId, author: UserId, profileVersion: number): string;
  /** A mark for each part of the cache. */
  readonly marks: readonly string[];
  /** Counters of a post. */
  postCounts(tenant: TenantId, postId: PostId): string;
}

/** `shards`: fixed at birth; another number is a cold cache. 1 to 16,384. */
export function createKeys(shards: number): Keys {
  if (!Number.isInteger(shards) || shards < 1 || shards > SLOTS)
    throw new RangeError(`1 to ${SLOTS} shards: ${shards}`);
  const tags = tagsFor(shards);
  const tagOf = (tenant: TenantId, id: string): string => tags[crc32(`${tenant}:${id}`) % shards] as string;
  const timeline = (tenant: TenantId, viewer: UserId): string => `tl:${tagOf(tenant, viewer)}:${tenant}:${viewer}`;
  const marks = Math.min(MARKS_MAX, shards);
  return {
    marks: Array.from({ length: marks }, (_, index) => `mark:${tags[Math.floor((index * shards) / marks)]}`),
    timeline,
    timelineRing(tenant, viewer) {
      const name = timeline(tenant, viewer);
      return Array.from({ length: RING_PLACES }, (_, index) => `${name}:${index + 1}`);
    },
    pulledList: (tenant, author, epoch) => `al:${tagOf(tenant, author)}:${tenant}:${author}:${epoch}`,
    pulledAuthors: (tenant, viewer) => `pull:${tagOf(tenant, viewer)}:${tenant}:${viewer}`,
    relations: (tenant, viewer) => `rel:${tagOf(tenant, viewer)}:${tenant}:${viewer}`,
    postMeta: (tenant, postId) => `pm:${tagOf(tenant, String(postId))}:${tenant}:${postId}`,
    authorState: (tenant, author) => `am:${tagOf(tenant, author)}:${tenant}:${author}`,
    postBody: (tenant, postId, bodyVersion) => `pb:${tagOf(tenant, String(postId))}:${tenant}:${postId}:${bodyVersion}`,
    authorProfile: (tenant, author, profileVersion) =>
      `ap:${tagOf(tenant, author)}:${tenant}:${author}:${profileVersion}`,
    postCounts: (tenant, postId) => `pc:${tagOf(tenant, String(postId))}:${tenant}:${postId}`,
  };
}

/** The slot of a key on Redis Cluster: CRC-16/XMODEM of what stands in its first braces, else of the key, modulo 16,384. */
export function slotOf(key: string): number {
  const open = key.indexOf('{');
  const close = open < 0 ? -1 : key.indexOf('}', open + 1);
  return crc16(close > open + 1 ? key.slice(open + 1, close) : key) % SLOTS;
}

/**
 * Cuts a batch into calls: by count alone on one server, by slot on a cluster. Answers groups of indexes into `keys`.
 */
export function groupKeys(
  keys: readonly string[],
  { cluster, keysMax = KEYS_PER_CALL_MAX }: { readonly cluster: boolean; readonly keysMax?: number },
): readonly (readonly number[])[] {
  const open = new Map<number, number[]>();
  const groups: number[][] = [];
  keys.forEach((key, index) => {
    const slot = cluster ? slotOf(key) : 0;
    let group = open.get(slot);
    if (!group || group.length === keysMax) {
      group = [];
      open.set(slot, group);
      groups.push(group);
    }
    group.push(index);
  });
  return groups;
}

/** One tag for each shard: the first of `s0`, `s1`, … whose slot falls into the shard's part. Some n · ln n tries for n shards. */
function tagsFor(shards: number): readonly string[] {
  const tags = new Array<string | undefined>(shards).fill(undefined);
  let missing = shards;
  for (let attempt = 0; missing > 0; attempt += 1) {
    const tag = `s${attempt}`;
    const slot = crc16(tag) % SLOTS;
    // The part of shard i is [floor(i · SLOTS / shards), floor((i + 1) · SLOTS / shards)).
    const shard = Math.ceil(((slot + 1) * shards) / SLOTS) - 1;
    if (tags[shard] !== undefined) continue;
    tags[shard] = `{${tag}}`;
    missing -= 1;
  }
  return tags as readonly string[];
}

function crc16(text: string): number {
  let crc = 0;
  for (let index = 0; index < text.length; index += 1) {
    crc ^= text.charCodeAt(index) << 8;
    for (let bit = 0; bit < 8; bit += 1) crc = crc & 0x8000 ? ((crc << 1) ^ 0x1021) & 0xffff : (crc << 1) & 0xffff;
  }
  return crc;
}
