/** Owns the names of the lanes of fan-out: by the author's follower count, so that a post of few followers never waits behind one of many. */

export const LANES = ['small', 'medium', 'bulk'] as const;
export type Lane = (typeof LANES)[number];
