/**
 * Owns the histograms' bounds, in seconds. They are close where our targets lie: a cached answer (3 ms), a loaded one (30 ms) and a slow one
 * (past 50 ms) fall into different buckets. They are few where nothing is to be told apart: every bound costs a line for each series.
 */
export const CALL_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5];
