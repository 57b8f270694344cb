/** Owns the bounds of what callers may ask for and store. Each is a count unless its name ends in a unit. */

export const LIMITS = {
  pageSizeDefault: 50,
  pageSizeMax: 100,
  /** Longest page token taken, in characters; the longest we make holds 100 IDs and stays below it. */
  pageTokenCharsMax: 2_048,
  batchPostsMax: 100,
  batchFollowsMax: 500,
  textCodePointsMax: 5_000,
  mediaMax: 10,
  mediaAddressCharsMax: 128,
  mediaTypeCharsMax: 100,
  altTextCodePointsMax: 1_000,
  mediaPixelsMax: 100_000,
  displayNameCodePointsMax: 100,
  avatarAddressCharsMax: 128,
  bioCodePointsMax: 500,
  /** Entries that a "n new posts" badge counts to. */
  newCountMax: 99,
  /** IDs already shown that a token for newer pages carries. */
  shownIdsMax: 100,
  /** How far a newer page looks back below the head for entries that arrive late: the freshness objective. */
  freshnessObjectiveMs: 30_000,
  /** Rounds of candidates that one page may take: a page of hidden posts must end at some time. */
  pageRoundsMax: 3,
} as const;

/** Entries on a page for the number a caller asked for; undefined where the number is refused. */
export function pageSizeFrom(asked: number): number | undefined {
  if (!Number.isInteger(asked) || asked < 0) return undefined;
  if (asked === 0) return LIMITS.pageSizeDefault;
  return Math.min(asked, LIMITS.pageSizeMax);
}
