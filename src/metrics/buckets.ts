/**
 * Owns the histograms' bounds, in seconds. Each is there to tell two things apart that lead to different deeds, and each objective is a bound itself: the share
 * of observations beyond it is then counted, not estimated between two bounds. They are few elsewhere: every bound costs a line for each series, and some 12 kB of the 200 that a scrape may have where it is a bound of calls.
 */

/** A cached answer (3 ms), a loaded one (30 ms) and a slow one (past 50 ms) lie apart; 1 s and 5 s stand round the deadlines, where nothing is to be told apart but late from lost. */
export const CALL_SECONDS = [0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5];

/** Reads are meant to take less than 100 ms, 99 in 100: one bound there and one to either side, so that a p99 of 80 ms and one of 120 ms differ. 1 s is a read's preset deadline. */
export const READ_SECONDS = [0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 5];

/**
 * From publishing to a timeline; the objective is 30 s, 99 in 100. Below 1 s close enough to see a lane that grows slower while it is far from late: pushed at once (10 ms), by a nudge (50 ms),
 * by the next round of the relay (500 ms). From there to 30 s a lane falls behind; up to 300 s tells how late what is late is.
 */
export const FRESHNESS_SECONDS = [
  0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75, 1, 2.5, 5, 10, 20, 25, 30, 35, 45, 60, 120, 300,
];
