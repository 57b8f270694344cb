/**
 * Owns the verdict on an attempt that failed: is it the job's own fault, or is something away that every job needs? Only the first counts towards a dead letter; an outage, however
 * long, never makes one.
 *
 * How to tell: a timeline that alone refuses a post is dropped (push-post.ts), so pushes that stay unconfirmed mean that Redis, or a node of it, takes no writes: an outage. Postgres
 * that could not do it now is one unless other jobs come further meanwhile. Any other error is the job's, unless job after job fails and none comes further.
 */
import { TributaryError } from '../errors.ts';
import { type FanoutJobKey, keyText } from '../store/postgres/fanout-jobs.ts';

export interface Blame {
  /** Some job came further, or was done. */
  cameFurther(): void;
  /** Begins an attempt; to be called with its error where it fails. Answers whether the job is to blame. */
  begin(job: FanoutJobKey): (error: unknown) => boolean;
}

/** Different jobs that fail, with none that comes further in between: then it is no longer the jobs. */
const OUTAGE_FAILURES = 3;

/** One for all lanes of a process: what one lane gets through Postgres and Redis, another could. */
export function createBlame(): Blame {
  let further = 0;
  /** Jobs that have failed since something last came further; no more than tell an outage. */
  const failing = new Set<string>();

  return {
    cameFurther() {
      further += 1;
      failing.clear();
    },
    begin(job) {
      const furtherBefore = further;
      return (error) => {
        if (failing.size < OUTAGE_FAILURES) failing.add(keyText(job));
        switch (storeAway(error)) {
          case 'cache':
            return false;
          case 'database':
            return further > furtherBefore;
          case undefined:
            return failing.size < OUTAGE_FAILURES;
        }
      };
    },
  };
}

/** The store that an error says is away; the error may be wrapped. */
function storeAway(error: unknown): 'cache' | 'database' | undefined {
  if (!(error instanceof Error)) return undefined;
  if (error instanceof TributaryError) {
    if (error.reason === 'CACHE_UNAVAILABLE') return 'cache';
    if (error.reason === 'DATABASE_UNAVAILABLE' || error.reason === 'OVERLOADED') return 'database';
  }
  return storeAway(error.cause);
}
