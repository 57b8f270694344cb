/**
 * Owns whom the hybrid pulls, by Feeding Frenzy's rule (SIGMOD'10): an edge is pushed iff its consumer's query rate is at least H / L of its producer's event rate, with H the cost of one push and L that of
 * pulling one producer. Pure.
 *
 * A class belongs to an author and not to an edge, so the rate of the average reader stands for all; whoever does not read at all has no timeline, and is pushed nothing whatever the class.
 */
import type { TwipGraph } from './twip-graph.ts';

/**
 * Microseconds of CPU of all processes: one push into a timeline that is there, follower read included, and one list more on a page. From `fanout` and from `policy`: what a check of 110 lists costs beyond one
 * of none, by the list. They need to be right within a few times only: the ratio of the rates is tens.
 */
export const PUSH_MICROS = 6;
export const LIST_MICROS = 8;

export function pulledByRule(
  graph: TwipGraph,
  mix: { readonly posts: number; readonly checksEach: number },
): ReadonlySet<number> {
  const weights = graph.postWeights.reduce((sum, weight) => sum + weight, 0);
  const pulled = new Set<number>();
  graph.postWeights.forEach((weight, user) => {
    const posts = (mix.posts * weight) / weights;
    if (mix.checksEach * LIST_MICROS < posts * PUSH_MICROS) pulled.add(user);
  });
  return pulled;
}
