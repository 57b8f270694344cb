/** Owns when a fan-out job stops before its end, to go on from its checkpoint later: so that large ones take turns, and none holds a lane up that it is too large for. */
import { isLargerLane, type Lane, laneOf } from '../timeline/lanes.ts';

export interface Turn {
  /** Pages after which it is asked whether others wait; absent where jobs are never that long. */
  readonly pages?: number;
  /** Whether other jobs of the lane wait for their turn. Answers false where that cannot be known: then there is nobody to give way to. */
  readonly othersWait: (signal: AbortSignal) => Promise<boolean>;
  /** Whether this worker is about to stop: another goes on at the next page. */
  readonly isEnding: () => boolean;
}

/** The lane in which a job goes on later, where it is to stop after a page that is not its last; `passed`: followers up to the end of that page. */
export async function laneToGiveWayIn(
  signal: AbortSignal,
  turn: Turn,
  { lane, page, passed }: { readonly lane: Lane; readonly page: number; readonly passed: number },
): Promise<Lane | undefined> {
  // Counts of followers are folded late, and not every job comes from a publish.
  const fitting = laneOf(passed);
  if (isLargerLane(fitting, lane)) return fitting;
  if (turn.isEnding()) return lane;
  if (turn.pages === undefined || page % turn.pages !== 0) return undefined;
  return (await turn.othersWait(signal)) ? lane : undefined;
}
