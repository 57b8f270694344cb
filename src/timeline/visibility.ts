/**
 * Owns the answer to "may this viewer see this post?". One function, the same for every surface (home, author page, single post,
 * batch, repost and reply targets), applied last. Pure: the facts are fetched before.
 *
 * The rules, in order:
 *  1. deleted, hidden by moderation, author suspended or erased: nobody sees it, its author included.
 *  2. the author sees their own post.
 *  3. private: nobody else. A block in either direction, or the viewer's running mute of the author: hidden.
 *  4. followers-only, or a protected author: only who follows the author now.
 *  5. a post that answers, reposts or quotes an author whom the viewer blocks, is blocked by, or mutes: hidden (not for one's own post).
 *  6. a plain repost whose target the viewer may not see has nothing to show: hidden, for its author too. A reply or quote stays,
 *     without the target.
 * Home asks for one thing more: that the viewer is the author or follows the author now.
 * Where something about an author cannot be told now, whatever is theirs or names them is hidden: nobody knows that it may be seen.
 *
 * A target is judged by rules 1 to 5. Rule 6 cannot apply to it: publishing resolves a target that is a plain repost to the original.
 */
import type { PostId, UserId } from './ids.ts';
import type { AuthorState, PostMeta, Relation, TargetRef } from './post.ts';

export const HIDDEN_REASONS = [
  'deleted',
  'moderated',
  'author_suspended',
  'author_erased',
  'private',
  'blocked',
  'blocked_by',
  'muted',
  'not_follower',
  'target_author',
  'target_hidden',
  'not_followed',
  'unknown',
] as const;
export type HiddenReason = (typeof HIDDEN_REASONS)[number];

/** Facts of one page, fetched in batches beforehand. A fact that is asked for and was not fetched must throw: fail closed. */
export interface VisibilityFacts {
  readonly viewer: UserId;
  readonly nowMs: number;
  authorState(author: UserId): AuthorState;
  relation(author: UserId): Relation;
  /** Authors whose state or relation could not be loaded; neither is asked for then. */
  readonly unknown?: ReadonlySet<UserId>;
  /** Meta of a target, or undefined where there is no such post any more. */
  target(postId: PostId): PostMeta | undefined;
}

/** Why the viewer may not see the post, or undefined where they may. */
export function hiddenReason(post: PostMeta, facts: VisibilityFacts): HiddenReason | undefined {
  return hiddenAsTarget(post, facts) ?? hiddenForTarget(post, facts);
}

/** The same, on a home timeline. */
export function hiddenFromHome(post: PostMeta, facts: VisibilityFacts): HiddenReason | undefined {
  if (facts.unknown?.has(post.author)) return 'unknown';
  if (post.author !== facts.viewer && !facts.relation(post.author).follows) return 'not_followed';
  return hiddenReason(post, facts);
}

/** Rules 1 to 5: for a post that is embedded in another. */
export function hiddenAsTarget(post: PostMeta, facts: VisibilityFacts): HiddenReason | undefined {
  if (post.deleted) return 'deleted';
  if (post.moderation === 'hidden') return 'moderated';
  if (facts.unknown?.has(post.author)) return 'unknown';
  const author = facts.authorState(post.author);
  if (author.lifecycle === 'suspended') return 'author_suspended';
  if (author.lifecycle === 'erased') return 'author_erased';
  if (post.author === facts.viewer) return undefined;
  if (post.visibility === 'private') return 'private';
  const relation = facts.relation(post.author);
  const between = hiddenBetween(relation, facts.nowMs);
  if (between !== undefined) return between;
  if ((post.visibility === 'followers' || author.protected) && !relation.follows) return 'not_follower';
  for (const target of targetsOf(post)) {
    if (target.author === facts.viewer) continue;
    if (facts.unknown?.has(target.author)) return 'unknown';
    if (hiddenBetween(facts.relation(target.author), facts.nowMs) !== undefined) return 'target_author';
  }
  return undefined;
}

/** The posts that this one names: at most two. */
export function targetsOf(post: Pick<PostMeta, 'replyTo' | 'repostOf'>): readonly TargetRef[] {
  const targets: TargetRef[] = [];
  if (post.replyTo) targets.push(post.replyTo);
  if (post.repostOf) targets.push(post.repostOf);
  return targets;
}

function hiddenForTarget(post: PostMeta, facts: VisibilityFacts): HiddenReason | undefined {
  if (!post.plainRepost || !post.repostOf) return undefined;
  const target = facts.target(post.repostOf.postId);
  return target === undefined || hiddenAsTarget(target, facts) !== undefined ? 'target_hidden' : undefined;
}

function hiddenBetween(relation: Relation, nowMs: number): HiddenReason | undefined {
  if (relation.blocks) return 'blocked';
  if (relation.blockedBy) return 'blocked_by';
  if (relation.mutedUntilMs !== undefined && relation.mutedUntilMs > nowMs) return 'muted';
  return undefined;
}
