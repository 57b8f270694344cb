/**
 * Owns the merge of the sources of a home page: the viewer's timeline and what stands for pulled authors. Pure.
 *
 * A source is complete above its floor. So together they are complete above the newest of their floors, the line, and below it not one of them can be trusted to know what another lacks:
 * there the page goes on from Postgres, over all authors.
 */
import type { PostId } from './ids.ts';

/** Entries beyond one position, in the direction of the page. Left out above the floor are only entries with as many better ones before them as the page asks for. */
export interface Source {
  readonly floor: number;
  readonly ids: readonly PostId[];
}

/** The ID above which all sources together are complete. */
export function lineOf(sources: readonly Source[]): number {
  return sources.reduce((line, { floor }) => Math.max(line, floor), 0);
}

/** The newest entries above the line, newest first, each once, at most `limit`. */
export function mergeOlder(sources: readonly Source[], limit: number): readonly PostId[] {
  const line = lineOf(sources);
  return firstOf(
    sources,
    limit,
    (id) => id > line,
    (a, b) => b - a,
  );
}

/** The oldest entries, oldest first, each once, at most `limit`: right where the position is not below the line. */
export function mergeNewer(sources: readonly Source[], limit: number): readonly PostId[] {
  return firstOf(
    sources,
    limit,
    () => true,
    (a, b) => a - b,
  );
}

function firstOf(
  sources: readonly Source[],
  limit: number,
  counts: (id: PostId) => boolean,
  order: (a: PostId, b: PostId) => number,
): readonly PostId[] {
  const all = new Set<PostId>();
  for (const { ids } of sources) for (const id of ids) if (counts(id)) all.add(id);
  return [...all].sort(order).slice(0, limit);
}
