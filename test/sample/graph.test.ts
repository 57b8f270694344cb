/** Owns the promises of the synthetic graph: its shape, its bounds, its repeatability. */
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { buildGraph, type FollowGraph, followersAt, followersMax, listOf, transpose } from '../../src/sample/graph.ts';

const SAMPLE = { users: 2_000, seed: 1, scale: 0.15 } as const;

/** Lengths of all lists, shortest first. */
function sizes(graph: FollowGraph, side: 'followers' | 'following'): readonly number[] {
  return Array.from({ length: graph.users }, (_, user) => listOf(graph[side], user).length).sort((a, b) => a - b);
}

function quantile(sorted: readonly number[], share: number): number {
  return sorted[Math.floor(share * sorted.length)] ?? Number.NaN;
}

describe('the quantiles of follower counts', () => {
  it.each([
    [0.1, 3],
    [0.5, 61],
    [0.9, 458],
    [0.95, 819],
    [0.99, 2_991],
    [0.999, 24_964],
  ])('has %f of all accounts below %i followers', (share, followers) => {
    expect(followersAt(share)).toBeCloseTo(followers, 6);
  });

  it('rises all the way, in logarithmic steps between the given shares', () => {
    const walked = Array.from({ length: 9_999 }, (_, step) => followersAt(step / 10_000));
    expect(walked.every((value, index) => index === 0 || value >= (walked[index - 1] ?? 0))).toBe(true);
    expect(followersAt(0.85)).toBeCloseTo(Math.sqrt(246 * 458), 6);
  });

  it('ends in a Pareto tail', () => {
    const ratio = followersAt(0.9999) / followersAt(0.999);
    expect(ratio).toBeCloseTo(10 ** (1 / 1.085), 6);
  });
});

describe('a graph of 2,000 users', () => {
  const graph = buildGraph(SAMPLE);

  it('has the follower counts of the quantiles, scaled and cut at 0.3 of the users', () => {
    const counts = sizes(graph, 'followers');
    for (const share of [0.1, 0.3, 0.5, 0.7, 0.9, 0.95, 0.98]) {
      const wanted = Math.min(followersMax(graph.users), followersAt(share) * SAMPLE.scale);
      expect(Math.abs(quantile(counts, share) - wanted), `at ${share}`).toBeLessThanOrEqual(1 + wanted * 0.02);
    }
    expect(counts.at(-1)).toBe(600);
  });

  it('has following counts that are log-normal: the most eager tenth follows 3 to 6 times the median', () => {
    const counts = sizes(graph, 'following');
    const ratio = quantile(counts, 0.9) / quantile(counts, 0.5);
    expect(ratio).toBeGreaterThan(3);
    expect(ratio).toBeLessThan(6);
    expect(quantile(counts, 0.5) / quantile(counts, 0.1)).toBeGreaterThan(3);
  });

  it('says the same from both sides', () => {
    expect(graph.edges).toBe(graph.followers.members.length);
    expect(transpose(graph.following)).toEqual(graph.followers);
  });

  it('is the same for the same seed, and another for another', () => {
    expect(buildGraph(SAMPLE)).toEqual(graph);
    expect(buildGraph({ ...SAMPLE, seed: 2 }).followers.members).not.toEqual(graph.followers.members);
  });
});

describe('every graph', () => {
  it('has nobody following themselves or anybody twice, and keeps its bounds', () => {
    fc.assert(
      fc.property(
        fc.record({
          users: fc.integer({ min: 2, max: 400 }),
          seed: fc.nat(),
          scale: fc.double({ min: 0.001, max: 2, noNaN: true }),
        }),
        (options) => {
          const graph = buildGraph(options);
          for (let user = 0; user < graph.users; user++) {
            const followers = [...listOf(graph.followers, user)];
            expect(followers).not.toContain(user);
            expect(new Set(followers).size).toBe(followers.length);
            expect(followers.length).toBeLessThanOrEqual(0.3 * graph.users);
          }
        },
      ),
      { numRuns: 60 },
    );
  });

  it('lets nobody follow more than the limit, even where the draw alone would', () => {
    const graph = buildGraph({ ...SAMPLE, followingMax: 60 });
    expect(sizes(graph, 'following').at(-1)).toBe(60);
    expect(graph.edges).toBe(buildGraph(SAMPLE).edges);
  });

  it('refuses what cannot be: a lonely user, more follows than anybody may have', () => {
    expect(() => buildGraph({ users: 1, seed: 1, scale: 1 })).toThrow(RangeError);
    expect(() => buildGraph({ ...SAMPLE, followingMax: 5 })).toThrow(RangeError);
  });

  it('serves benchmarks too: 100,000 users with 5 million follows in a few seconds and flat arrays', () => {
    const startedAt = performance.now();
    const graph = buildGraph({ users: 100_000, seed: 7, scale: 0.15 });
    expect(performance.now() - startedAt).toBeLessThan(15_000);
    expect(graph.edges).toBeGreaterThan(4_500_000);
    expect(graph.edges).toBeLessThan(5_500_000);
    expect(graph.followers.members.byteLength).toBe(graph.edges * 4);
  });
});
