/** Owns the lanes of fan-out: by the author's follower count, so that a post of few followers never waits behind one of many. */

/** From the smallest to the largest. */
export const LANES = ['small', 'medium', 'bulk'] as const;
export type Lane = (typeof LANES)[number];

/** Followers up to which a lane takes a post; the last takes all others. */
export const LANE_FOLLOWERS_MAX = { small: 1_000, medium: 10_000 } as const;

/** The lane of a post with so many followers. */
export function laneOf(followers: number): Lane {
  if (followers <= LANE_FOLLOWERS_MAX.small) return 'small';
  return followers <= LANE_FOLLOWERS_MAX.medium ? 'medium' : 'bulk';
}

export function isLargerLane(lane: Lane, than: Lane): boolean {
  return LANES.indexOf(lane) > LANES.indexOf(than);
}
