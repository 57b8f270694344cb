/** Owns the words for pulled authors: those so widely followed that their posts are merged in at read time. */
import type { UserId } from './ids.ts';

/** A pulled author, and the class epoch that names the list of their recent posts. */
export interface PulledAuthor {
  readonly author: UserId;
  readonly epoch: number;
}

/** Those of a viewer's follows that are pulled. */
export interface PulledAuthors {
  /** Most followers first. */
  readonly authors: readonly PulledAuthor[];
  /** There are more than may be known: such a viewer's pages come from Postgres. */
  readonly tooMany: boolean;
}

/** Pulled authors of one viewer that are known by name: as many as a viewer may follow by default. */
export const PULLED_AUTHORS_MAX = 5_000;
