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
  /** The author's list of this epoch, and the author: followers read the list. */
  | { readonly kind: 'pulled'; readonly listEpoch: number }
  /** All active followers, and the author; the list as well while the author is on the way between pushing and pulling. */
  | { readonly kind: 'followers'; readonly listEpoch?: number };

export function planFanout(subject: FanoutSubject | undefined): FanoutPlan {
  if (subject === undefined) return { kind: 'nothing', why: 'missing' };
  if (subject.deleted) return { kind: 'nothing', why: 'deleted' };
  if (subject.moderation === 'hidden') return { kind: 'nothing', why: 'moderated' };
  if (subject.lifecycle === 'erased') return { kind: 'nothing', why: 'author_erased' };
  if (subject.visibility === 'private') return { kind: 'author_only' };
  const { fanoutClass, classEpoch } = subject;
  switch (fanoutClass) {
    case 'push':
      return { kind: 'followers' };
    case 'both':
      return { kind: 'followers', listEpoch: classEpoch };
    case 'pull':
      return { kind: 'pulled', listEpoch: classEpoch };
    default:
      throw new Error(`unknown class: ${fanoutClass satisfies never}`);
  }
}
