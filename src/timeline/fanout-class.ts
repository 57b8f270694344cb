/**
 * Owns the names of the classes of authors: whose posts are pushed into followers' timelines (`push`), read from one list of the author's (`pull`), or, between
 * the two, both.
 */

export const FANOUT_CLASSES = ['push', 'both', 'pull'] as const;
export type FanoutClass = (typeof FANOUT_CLASSES)[number];

/** Where class `both` is heading. */
export type ClassTarget = Exclude<FanoutClass, 'both'>;

export interface AuthorClass {
  readonly fanoutClass: FanoutClass;
  /** Rises whenever the author leaves class `push`: names the list of this time. */
  readonly classEpoch: number;
}
