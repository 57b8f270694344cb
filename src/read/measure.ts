/** Owns what the read path reports of itself, and the timing of every read. */
import { type Outcome, outcomeOf } from '../errors.ts';
import type { Call, Clock } from '../runtime.ts';
import type { HiddenReason } from '../timeline/visibility.ts';
import { createReadBatches, type ReadCall } from './batches.ts';
import type { Completeness } from './page.ts';

export const SURFACES = ['home', 'home_newer', 'head', 'author', 'single', 'batch'] as const;
export type Surface = (typeof SURFACES)[number];

export interface ReadEvents {
  readFinished(event: {
    readonly surface: Surface;
    readonly seconds: number;
    readonly outcome: Outcome;
    /** Batches that went out one after the other. */
    readonly redisBatches: number;
    readonly postgresBatches: number;
  }): void;
  entryFiltered(event: { readonly surface: Surface; readonly reason: HiddenReason }): void;
  /** An entry or an asked-for ID names a post that is not there. */
  missingEntry(surface: Surface): void;
  pageServed(event: {
    readonly surface: Surface;
    readonly completeness: Completeness;
    readonly rounds: number;
    readonly entries: number;
    readonly pageSize: number;
    readonly end: boolean;
  }): void;
}

export async function measureRead<Result>(
  { clock, events }: { readonly clock: Clock; readonly events: Pick<ReadEvents, 'readFinished'> },
  call: Call,
  surface: Surface,
  read: (call: ReadCall) => Promise<Result>,
): Promise<Result> {
  const startedMs = clock.monotonicMs();
  const batches = createReadBatches();
  const finished = (outcome: Outcome): void =>
    events.readFinished({
      surface,
      seconds: (clock.monotonicMs() - startedMs) / 1_000,
      outcome,
      redisBatches: batches.redis.count(),
      postgresBatches: batches.postgres.count(),
    });
  try {
    const result = await read({ ...call, batches });
    finished('ok');
    return result;
  } catch (error) {
    finished(outcomeOf(error));
    throw error;
  }
}
