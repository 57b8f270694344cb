/**
 * Owns the histograms' bounds, in seconds. They are close round our targets: a cached answer (3 ms) and a loaded one (30 ms) fall into
 * different buckets, and so do the read and write deadlines (1 s and 3 s).
 */
export const CALL_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10];
