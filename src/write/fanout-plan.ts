/**
 * Owns the decision to whom a post is delivered, from the post and its author as they are when the job runs, not as they were at publish. Pure.
 *
 * A suspended author's post is delivered: visibility hides it wherever it is read, and a restored author's posts are in their places at once, without a
 * second fan-out for each. What is hidden by moderation is not: when it is shown again it gets a new generation.
 */
import type { FanoutSubject } from '../store/postgres/fanout-jobs.ts';

export type FanoutPlan =
  | { readonly kind: 'nothing'; readonly why: 'missing' | 'deleted' | 'moderated' | 'author_erased' }
  | { readonly kind: 'author_only' }
  /** All active followers, and the author. */
  | { readonly kind: 'followers' };

export function planFanout(subject: FanoutSubject | undefined): FanoutPlan {
  if (subject === undefined) return { kind: 'nothing', why: 'missing' };
  if (subject.deleted) return { kind: 'nothing', why: 'deleted' };
  if (subject.moderation === 'hidden') return { kind: 'nothing', why: 'moderated' };
  if (subject.lifecycle === 'erased') return { kind: 'nothing', why: 'author_erased' };
  return subject.visibility === 'private' ? { kind: 'author_only' } : { kind: 'followers' };
}
