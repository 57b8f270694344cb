/**
 * Owns the process's memory of whom posts name: their authors, and their targets with those whom they name. It is fixed at a post's publish, so it never grows old. With it a page asks for the facts of
 * these people together with the meta of the posts, a batch earlier than the meta could tell.
 *
 * Decides nothing: a post that is not remembered, or that turns out to be gone, costs a batch more or some facts too many. Bounded in entries: when there are enough new ones, those that have not been
 * asked for since the last time go.
 */
import type { PostId, TenantId } from '../timeline/ids.ts';
import type { PostMeta } from '../timeline/post.ts';

export type NamedPeople = Pick<PostMeta, 'author' | 'replyTo' | 'repostOf'>;

export interface NamedPeopleMemory {
  of(tenant: TenantId, postId: PostId): NamedPeople | undefined;
  learn(tenant: TenantId, meta: PostMeta): void;
}

/** Entries after which the old ones go, of some 300 bytes; twice as many are there at most. */
const POSTS_MAX = 25_000;

export function createNamedPeople(postsMax = POSTS_MAX): NamedPeopleMemory {
  // Two generations, and not the order of use, which would have to be kept up at every one of a page's thirty looks.
  let young = new Map<TenantId, Map<PostId, NamedPeople>>();
  let old = young;
  let count = 0;

  function keep(tenant: TenantId, postId: PostId, names: NamedPeople): void {
    let named = young.get(tenant);
    if (!named) {
      named = new Map();
      young.set(tenant, named);
    }
    count += named.has(postId) ? 0 : 1;
    named.set(postId, names);
    if (count < postsMax) return;
    old = young;
    young = new Map();
    count = 0;
  }

  return {
    of(tenant, postId) {
      const recent = young.get(tenant)?.get(postId);
      if (recent) return recent;
      const names = old.get(tenant)?.get(postId);
      if (names) keep(tenant, postId, names);
      return names;
    },
    learn(tenant, { postId, author, replyTo, repostOf }) {
      keep(tenant, postId, { author, ...(replyTo && { replyTo }), ...(repostOf && { repostOf }) });
    },
  };
}
