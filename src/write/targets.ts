/**
 * Owns the check of reply and repost targets: a target must be visible to the author who names it, by the same function that every read
 * uses. A target that is a plain repost stands for the post it reposts, so that no chain of reposts ever forms.
 */

import type { Call, Clock } from '../runtime.ts';
import type { LoadedAuthor } from '../store/postgres/authors.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import { NO_RELATION, type Post, type PostRef, type Relation, UNKNOWN_AUTHOR } from '../timeline/post.ts';
import { hiddenReason, targetsOf } from '../timeline/visibility.ts';

export interface VisibleTargets {
  readonly replyTo?: PostRef;
  readonly repostOf?: PostRef;
  /** Whether one of them is not there for the author. */
  readonly missing: boolean;
}

export type FindVisibleTargets = (
  call: Call,
  author: UserId,
  named: { readonly replyTo?: PostId; readonly repostOf?: PostId },
) => Promise<VisibleTargets>;

export interface TargetParts {
  readonly clock: Clock;
  readonly loadPosts: (call: Call, postIds: readonly PostId[]) => Promise<LoadedPosts>;
  readonly loadRelations: (
    call: Call,
    viewer: UserId,
    authors: readonly UserId[],
  ) => Promise<ReadonlyMap<UserId, Relation>>;
  readonly loadAuthors: (call: Call, authors: readonly UserId[]) => Promise<ReadonlyMap<UserId, LoadedAuthor>>;
}

const NOTHING: VisibleTargets = { missing: false };

export function createFindTargets(parts: TargetParts): FindVisibleTargets {
  return async function findVisibleTargets(call, author, named) {
    const ids = [named.replyTo, named.repostOf].filter((id) => id !== undefined);
    if (ids.length === 0) return NOTHING;
    const loaded = await parts.loadPosts(call, [...new Set(ids)]);
    const posts = new Map<PostId, Post>(loaded.targets);
    for (const entry of loaded.entries) if (entry.post) posts.set(entry.postId, entry.post);

    const authors = new Set<UserId>();
    for (const { meta } of posts.values()) {
      authors.add(meta.author);
      for (const target of targetsOf(meta)) authors.add(target.author);
    }
    const [relations, states] = await Promise.all([
      parts.loadRelations(call, author, [...authors]),
      parts.loadAuthors(call, [...authors]),
    ]);
    const facts = {
      viewer: author,
      nowMs: parts.clock.nowMs(),
      authorState: (id: UserId) => states.get(id)?.state ?? UNKNOWN_AUTHOR,
      relation: (id: UserId) => relations.get(id) ?? NO_RELATION,
      target: (id: PostId) => posts.get(id)?.meta,
    };

    const visible = (id: PostId | undefined): PostRef | undefined => {
      const meta = id === undefined ? undefined : posts.get(id)?.meta;
      if (!meta || hiddenReason(meta, facts) !== undefined) return undefined;
      return meta.plainRepost && meta.repostOf ? meta.repostOf : { postId: meta.postId, author: meta.author };
    };
    const replyTo = visible(named.replyTo);
    const repostOf = visible(named.repostOf);
    return {
      ...(replyTo && { replyTo }),
      ...(repostOf && { repostOf }),
      missing: (named.replyTo !== undefined && !replyTo) || (named.repostOf !== undefined && !repostOf),
    };
  };
}
