/**
 * Owns synthetic follow graphs with the shape of a real network: follower counts by the quantiles of 400,000 active accounts
 * (O'Reilly Radar, 2013), a Pareto tail above them, following counts log-normal.
 *
 * Invariants: the same options give the same graph; nobody follows themselves or anybody twice; no author has more than
 * 0.3 of all users as followers; nobody follows more than `followingMax`.
 *
 * Each author gets an exact follower count by inverse CDF, and draws that many different followers from an alias table weighted by
 * how much each user follows. (The other way about, every user drawing authors, blurs the small counts and flattens the largest:
 * whoever follows many draws the same few authors again and again.) 100,000 users with 5 million edges take some 1 s and 40 MB.
 */
import { createSeeded, type Seeded, shuffle } from './seeded.ts';

/** Lists in one piece: those of `index` are `members[offsets[index]]` up to but excluding `members[offsets[index + 1]]`. */
export interface Lists {
  /** One more than there are lists. */
  readonly offsets: Uint32Array;
  readonly members: Uint32Array;
}

export interface FollowGraph {
  readonly users: number;
  readonly edges: number;
  /** Followers of each user, in ascending order. */
  readonly followers: Lists;
  /** Whom each user follows, in ascending order. */
  readonly following: Lists;
}

export interface GraphOptions {
  readonly users: number;
  readonly seed: number;
  /**
   * Follower counts are those of the real network times this. 0.15 gives some 50 follows per user at 100,000 users and some 30 at
   * 2,000: the smaller the network, the more of the tail is above 0.3 of its users and cut.
   */
  readonly scale: number;
  /** Most authors that anybody follows; the service's own limit by default. */
  readonly followingMax?: number;
}

/** Followers at a share of all accounts, smallest first. The first is ours: the source begins at a tenth. */
const FOLLOWER_QUANTILES: readonly (readonly [share: number, followers: number])[] = [
  [0, 1],
  [0.1, 3],
  [0.2, 9],
  [0.3, 19],
  [0.4, 36],
  [0.5, 61],
  [0.6, 98],
  [0.7, 154],
  [0.8, 246],
  [0.9, 458],
  [0.95, 819],
  [0.96, 978],
  [0.97, 1_211],
  [0.98, 1_675],
  [0.99, 2_991],
  [0.999, 24_964],
];
const TAIL_FROM = { share: 0.999, followers: 24_964 };
const TAIL_EXPONENT = 1.085;
/** The largest author's share of all users. */
export const FOLLOWERS_SHARE_MAX = 0.3;
/** Deviation of the logarithm of following counts: the most eager tenth follows some 4.7 times the median. Ours; the source has the median alone. */
const FOLLOWING_SIGMA = 1.2;
const FOLLOWING_MAX_DEFAULT = 5_000;
/** Draws for one edge before the search turns to walking the users one by one: keeps a graph that is nearly full from spinning. */
const DRAWS_MAX = 64;

/** Followers of the account that a share of all accounts is smaller than; `share` in [0, 1). */
export function followersAt(share: number): number {
  if (share >= TAIL_FROM.share)
    return TAIL_FROM.followers * ((1 - TAIL_FROM.share) / (1 - share)) ** (1 / TAIL_EXPONENT);
  let [lowerShare, lower] = [0, 1];
  for (const [upperShare, upper] of FOLLOWER_QUANTILES) {
    if (share < upperShare) return lower * (upper / lower) ** ((share - lowerShare) / (upperShare - lowerShare));
    [lowerShare, lower] = [upperShare, upper];
  }
  return lower;
}

/** Most followers that an author of this graph can have. */
export function followersMax(users: number): number {
  return Math.floor(users * FOLLOWERS_SHARE_MAX);
}

export function buildGraph(options: GraphOptions): FollowGraph {
  const { users, seed, scale, followingMax = FOLLOWING_MAX_DEFAULT } = options;
  if (!Number.isInteger(users) || users < 2) throw new RangeError(`a graph needs at least 2 users: ${users}`);
  const random = createSeeded(seed);
  const counts = followerCounts({ users, scale, random });
  const weights = Float64Array.from({ length: users }, () => Math.exp(FOLLOWING_SIGMA * random.normal()));
  const draw = createAliasTable(weights, random);

  const offsets = new Uint32Array(users + 1);
  for (let author = 0; author < users; author++) offsets[author + 1] = at(offsets, author) + at(counts, author);
  const edges = at(offsets, users);
  if (edges > users * Math.min(followingMax, users - 1)) throw new RangeError('more edges than the users may follow');
  const members = new Uint32Array(edges);
  const followed = new Uint32Array(users);
  /** Last author (plus one) whom a user was drawn for: tells a repeat without a set. */
  const drawnFor = new Uint32Array(users);

  for (let author = 0; author < users; author++) {
    const isFree = (user: number) =>
      user !== author && at(drawnFor, user) !== author + 1 && at(followed, user) < followingMax;
    const end = at(offsets, author + 1);
    let slot = at(offsets, author);
    while (slot < end) {
      const follower = findFree({ users, draw, isFree, random });
      if (follower === undefined) throw new RangeError('no user left who may follow');
      drawnFor[follower] = author + 1;
      followed[follower] = at(followed, follower) + 1;
      members[slot++] = follower;
    }
    members.subarray(at(offsets, author), end).sort();
  }
  const followers = { offsets, members };
  return { users, edges, followers, following: transpose(followers) };
}

/** The members of one list; a view, not a copy. */
export function listOf(lists: Lists, index: number): Uint32Array {
  return lists.members.subarray(at(lists.offsets, index), at(lists.offsets, index + 1));
}

/** Who is in whose list, seen from the members. Lists come out in ascending order. */
export function transpose(lists: Lists): Lists {
  const count = lists.offsets.length - 1;
  const offsets = new Uint32Array(count + 1);
  for (const member of lists.members) offsets[member + 1] = at(offsets, member + 1) + 1;
  for (let index = 0; index < count; index++) offsets[index + 1] = at(offsets, index + 1) + at(offsets, index);
  const next = offsets.slice(0, count);
  const members = new Uint32Array(lists.members.length);
  for (let index = 0; index < count; index++) {
    for (const member of listOf(lists, index)) {
      const slot = at(next, member);
      members[slot] = index;
      next[member] = slot + 1;
    }
  }
  return { offsets, members };
}

/** Exact counts: one user at each of `users` evenly spaced shares, in random order. */
function followerCounts(given: { users: number; scale: number; random: Seeded }): Uint32Array {
  const { users, scale, random } = given;
  const most = followersMax(users);
  const counts = Uint32Array.from({ length: users }, (_, rank) =>
    Math.min(most, Math.round(followersAt((rank + 0.5) / users) * scale)),
  );
  shuffle(counts, random);
  return counts;
}

function findFree(given: {
  users: number;
  draw: () => number;
  isFree: (user: number) => boolean;
  random: Seeded;
}): number | undefined {
  for (let attempt = 0; attempt < DRAWS_MAX; attempt++) {
    const user = given.draw();
    if (given.isFree(user)) return user;
  }
  const start = given.random.below(given.users);
  for (let step = 0; step < given.users; step++) {
    const user = (start + step) % given.users;
    if (given.isFree(user)) return user;
  }
  return undefined;
}

/** Draws an index with a probability in proportion to its weight, in constant time (Walker's alias method, as Vose builds it). */
export function createAliasTable(weights: Float64Array, random: Seeded): () => number {
  const size = weights.length;
  const total = weights.reduce((sum, weight) => sum + weight, 0);
  const share = weights.map((weight) => (weight * size) / total);
  const alias = Uint32Array.from({ length: size }, (_, index) => index);
  const small: number[] = [];
  const large: number[] = [];
  share.forEach((value, index) => {
    (value < 1 ? small : large).push(index);
  });
  for (let less = small.pop(); less !== undefined; less = small.pop()) {
    const more = large.pop();
    if (more === undefined) {
      // What rounding left over.
      share[less] = 1;
      continue;
    }
    alias[less] = more;
    const rest = (share[more] ?? 0) + (share[less] ?? 0) - 1;
    share[more] = rest;
    (rest < 1 ? small : large).push(more);
  }
  return () => {
    const index = random.below(size);
    return random.fraction() < (share[index] ?? 1) ? index : at(alias, index);
  };
}

/** An element that is there: the index comes from the array's own bounds. */
function at(array: Uint32Array, index: number): number {
  return array[index] ?? 0;
}
