/**
 * Owns bringing an author's newest posts into a timeline that is resident. The list never claims what it does not hold: where the author has more posts above the floor than
 * the cap, the floor rises to the oldest that comes.
 */
import type { TimelineOf, Timelines } from '../store/redis/timelines.ts';
import type { PostId } from '../timeline/ids.ts';

export interface BringIn extends TimelineOf {
  /** The author's newest posts, newest first; one more than the cap where there are so many. */
  readonly newest: readonly PostId[];
  readonly floor: number;
  readonly cap: number;
}

/** Answers how many posts were brought, those that were there already included. Does nothing to a timeline that has gone meanwhile. */
export async function bringIn(
  timelines: Pick<Timelines, 'raiseFloor' | 'addOlder'>,
  signal: AbortSignal,
  { tenant, viewer, newest, floor, cap }: BringIn,
): Promise<number> {
  const above = newest.filter((id) => id > floor);
  const postIds = above.slice(0, cap);
  const oldest = postIds.at(-1);
  if (oldest === undefined) return 0;
  // The claim goes before the entries come: between the two the list must not claim what it does not hold.
  if (above.length > cap) await timelines.raiseFloor(signal, { tenant, viewer, floor: oldest - 1 });
  await timelines.addOlder(signal, { tenant, viewer, postIds });
  return postIds.length;
}
