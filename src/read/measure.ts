/** Owns what the read path reports of itself, and the timing of every read. */
import { type Outcome, outcomeOf } from '../errors.ts';
import type { Clock } from '../runtime.ts';
import type { HiddenReason } from '../timeline/visibility.ts';
import type { Completeness } from './page.ts';

export const SURFACES = ['home', 'home_newer', 'head', 'author', 'single', 'batch'] as const;
export type Surface = (typeof SURFACES)[number];

export interface ReadEvents {
  readFinished(event: { readonly surface: Surface; readonly seconds: number; readonly outcome: Outcome }): void;
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
  clock: Clock,
  events: ReadEvents,
  surface: Surface,
  read: () => Promise<Result>,
): Promise<Result> {
  const startedMs = clock.monotonicMs();
  const finished = (outcome: Outcome): void =>
    events.readFinished({ surface, seconds: (clock.monotonicMs() - startedMs) / 1_000, outcome });
  try {
    const result = await read();
    finished('ok');
    return result;
  } catch (error) {
    finished(outcomeOf(error));
    throw error;
  }
}
