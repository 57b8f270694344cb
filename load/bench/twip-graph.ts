/**
 * Owns the synthetic follow graph of Twip (Pequod, NSDI'14): how many follow whom, and how often each posts. Lives in typed arrays.
 * Invariant: the same for the same seed and size; nobody follows themselves, nobody follows anybody twice.
 */
import { type Seeded, shuffle } from '../../src/sample/seeded.ts';

export interface TwipGraph {
  readonly users: number;
  /** Whom user u follows: `followees[starts[u]]` up to before `followees[starts[u + 1]]`. */
  readonly starts: Uint32Array;
  readonly followees: Uint32Array;
  /** By user. */
  readonly followerCounts: Uint32Array;
  /** How often each posts, in proportion to the others. */
  readonly postWeights: Float64Array;
  /** As it became by the rule that keeps the largest author's share of the users in bounds. */
  readonly shape: number;
}

const SHAPE = 55;
/** While more than this part of all users would follow the largest author, the shape is made flatter by this factor. */
const FOLLOWERS_PART_MAX = 1 / 4;
const FLATTER = 0.7;
/** Of the published graph. Where there are fewer users than 1,000 the same parts of them. */
const FOLLOWS_MIN = 20;
const FOLLOWS_MAX = 200;
const FOLLOWERS_MIN = 10;
const USERS_FOR_THESE = 1_000;
/** Followers below which somebody hardly posts. */
const POSTER_FOLLOWERS_MIN = 10;
const RARE_POSTER_WEIGHT = 0.1;
export const USERS_MIN = 50;

export function makeTwipGraph(users: number, random: Seeded): TwipGraph {
  if (users < USERS_MIN) throw new RangeError(`a graph has at least ${USERS_MIN} users: ${users}`);
  const scale = Math.min(1, users / USERS_FOR_THESE);
  const followsMin = Math.max(1, Math.floor(FOLLOWS_MIN * scale));
  const followsMax = Math.max(followsMin, Math.floor(FOLLOWS_MAX * scale));
  const followersMin = Math.max(1, Math.floor(FOLLOWERS_MIN * scale));
  const { shape, popularity } = popularityOf(users, (followsMin + followsMax) / 2, followersMin);
  shuffle(popularity, random);

  const pick = createPick(popularity, random);
  const starts = new Uint32Array(users + 1);
  for (let user = 0; user < users; user += 1) {
    starts[user + 1] = (starts[user] as number) + followsMin + random.below(followsMax - followsMin + 1);
  }
  const followees = new Uint32Array(starts[users] as number);
  const followerCounts = new Uint32Array(users);
  const drawn = new Set<number>();
  for (let user = 0; user < users; user += 1) {
    const end = starts[user + 1] as number;
    drawn.clear();
    for (let at = starts[user] as number; at < end; ) {
      const followee = pick();
      if (followee === user || drawn.has(followee)) continue;
      drawn.add(followee);
      followees[at++] = followee;
      followerCounts[followee] = (followerCounts[followee] as number) + 1;
    }
  }
  const postWeights = Float64Array.from(followerCounts, (followers) => postWeight(followers, random));
  return { users, starts, followees, followerCounts, postWeights, shape };
}

export function followeesOf(graph: TwipGraph, user: number): Uint32Array {
  return graph.followees.subarray(graph.starts[user], graph.starts[user + 1]);
}

function popularityOf(
  users: number,
  followsMean: number,
  followersMin: number,
): { readonly shape: number; readonly popularity: Float64Array } {
  for (let shape = SHAPE; ; shape *= FLATTER) {
    const x = Float64Array.from({ length: users }, (_, index) => ((index + 1) / users) ** shape);
    const mean = x.reduce((sum, each) => sum + each, 0) / users;
    const followersMax = (followsMean - followersMin) / mean;
    if (followersMax <= users * FOLLOWERS_PART_MAX) {
      return { shape, popularity: x.map((each) => followersMin + each * followersMax) };
    }
  }
}

/** Draws an index in proportion to its weight: binary search in the running sum. */
export function createPick(weights: Float64Array, random: Seeded): () => number {
  const sums = new Float64Array(weights.length);
  let total = 0;
  weights.forEach((weight, index) => {
    total += weight;
    sums[index] = total;
  });
  if (!(total > 0)) throw new RangeError('nothing to pick from');
  return () => {
    const at = random.fraction() * total;
    let low = 0;
    let high = sums.length - 1;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if ((sums[middle] as number) > at) high = middle;
      else low = middle + 1;
    }
    return low;
  };
}

function postWeight(followers: number, random: Seeded): number {
  if (followers === 0) return 0;
  if (followers < POSTER_FOLLOWERS_MIN) return RARE_POSTER_WEIGHT;
  return 1 + random.below(Math.floor(2 * Math.log10(followers)));
}
