/**
 * Owns the process's memory of whom posts name: their authors, and their targets with those whom they name. It is fixed at a post's publish, so it never grows old. With it a page asks for the facts of
 * these people together with the meta of the posts, a batch earlier than the meta could tell.
 *
 * Decides nothing: a post that is not remembered, or that turns out to be gone, costs a batch more or some facts too many. Bounded in entries, the longest unused goes first.
 */
import { LRUCache } from 'lru-cache';
import type { PostId, TenantId } from '../timeline/ids.ts';
import type { PostMeta, TargetRef } from '../timeline/post.ts';

export type NamedPeople = Pick<PostMeta, 'author' | 'replyTo' | 'repostOf'>;

export interface NamedPeopleMemory {
  of(tenant: TenantId, postId: PostId): NamedPeople | undefined;
  learn(tenant: TenantId, meta: PostMeta): void;
}

/** Some 300 bytes each; the newest posts of some thousand authors. */
const POSTS_MAX = 50_000;

export function createNamedPeople(): NamedPeopleMemory {
  const named = new LRUCache<string, NamedPeople>({ max: POSTS_MAX });
  const nameOf = (tenant: TenantId, postId: PostId): string => `${tenant}:${postId}`;
  return {
    of: (tenant, postId) => named.get(nameOf(tenant, postId)),
    learn(tenant, { postId, author, replyTo, repostOf }) {
      const name = nameOf(tenant, postId);
      const known = named.peek(name);
      if (known && knowsAll(known.replyTo) && knowsAll(known.repostOf)) return;
      named.set(name, { author, ...(replyTo && { replyTo }), ...(repostOf && { repostOf }) });
    },
  };
}

/** Whom a target names may be told later than the target. */
function knowsAll(target: TargetRef | undefined): boolean {
  return target === undefined || target.names !== undefined;
}
