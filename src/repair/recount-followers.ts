/**
 * Owns the recounting of followers from the follows themselves, for when a count is not to be trusted: after an import that knew nothing of counters, or a fault of ours. Walks a tenant's
 * authors in the order of their IDs, one short transaction each, and says where it stopped; so it may be ended and taken up at any author, and be done twice.
 */
import type { Call, Clock } from '../runtime.ts';
import type { Recount, RecountResult, RecountWhich } from '../store/postgres/counters.ts';
import type { UserId } from '../timeline/ids.ts';

export interface RecountFollowersParts {
  readonly clock: Clock;
  readonly recount: (call: Call, author: UserId) => Promise<Recount>;
  readonly findNextCounted: (call: Call, after: string) => Promise<UserId | undefined>;
}

/** One author, or all after one. Starts no author later than `budgetMs` after its own start. */
export type RecountFollowers = (call: Call, which: RecountWhich, budgetMs: number) => Promise<RecountResult>;

export function createRecountFollowers({ clock, recount, findNextCounted }: RecountFollowersParts): RecountFollowers {
  return async function recountFollowers(call, which, budgetMs) {
    if ('author' in which) {
      const { correction } = await recount(call, which.author);
      return { authors: 1, corrected: correction === 0 ? 0 : 1 };
    }
    const endMs = clock.monotonicMs() + budgetMs;
    let authors = 0;
    let corrected = 0;
    for (let author = await findNextCounted(call, which.after); author !== undefined; ) {
      const { correction } = await recount(call, author);
      authors += 1;
      if (correction !== 0) corrected += 1;
      const next = await findNextCounted(call, author);
      if (next !== undefined && clock.monotonicMs() >= endMs) return { authors, corrected, stoppedAfter: author };
      author = next;
    }
    return { authors, corrected };
  };
}
