/**
 * Owns the deletion of cached facts after a change has been committed. A call that hides something may only answer OK once its deletions are confirmed; else the answer is
 * UNAVAILABLE with the change durable already, and its retry, or the event in the outbox, repeats the deletion.
 */
import { type Call, pause } from '../runtime.ts';
import type { AuthorFacts, PostFacts, PulledFacts, RelationFacts } from '../store/redis/facts.ts';
import type { PostId, UserId } from '../timeline/ids.ts';

export interface Changed {
  readonly posts?: readonly PostId[];
  readonly authors?: readonly UserId[];
  /** Pairs of viewer and author whose relation, in this direction, changed. */
  readonly relations?: readonly (readonly [UserId, UserId])[];
}

/** Throws CACHE_UNAVAILABLE where Redis did not confirm every deletion within the tries. */
export type Forget = (call: Call, changed: Changed) => Promise<void>;

export interface ForgetParts {
  readonly posts: PostFacts;
  readonly authors: AuthorFacts;
  readonly relations: RelationFacts;
  /** By viewer: go with every relation of the viewer, whether or not a follow is what changed in it. */
  readonly pulled: PulledFacts;
  readonly events: { forgotten(outcome: 'confirmed' | 'failed'): void };
}

const TRIES_MAX = 3;
/** Pause before the second try, in milliseconds; doubled after that. */
const PAUSE_MS = 25;

export function createForget(parts: ForgetParts): Forget {
  async function once(call: Call, { posts = [], authors = [], relations = [] }: Changed): Promise<void> {
    const { tenant, signal } = call;
    const viewers = byViewer(relations);
    await Promise.all([
      posts.length > 0 && parts.posts.forget(signal, tenant, posts),
      authors.length > 0 && parts.authors.forget(signal, tenant, authors),
      viewers.length > 0 &&
        parts.pulled.forget(
          signal,
          tenant,
          viewers.map(([viewer]) => viewer),
        ),
      ...viewers.map(([viewer, others]) => parts.relations.forget(signal, { tenant, viewer }, others)),
    ]);
  }

  return async function forget(call, changed) {
    for (let attempt = 1; ; attempt += 1) {
      try {
        await once(call, changed);
        parts.events.forgotten('confirmed');
        return;
      } catch (error) {
        if (call.signal.aborted || attempt === TRIES_MAX) {
          parts.events.forgotten('failed');
          throw error;
        }
        await pause(call.signal, PAUSE_MS * 2 ** (attempt - 1));
      }
    }
  };
}

function byViewer(pairs: readonly (readonly [UserId, UserId])[]): readonly (readonly [UserId, readonly UserId[]])[] {
  const authors = new Map<UserId, UserId[]>();
  for (const [viewer, author] of pairs) {
    const known = authors.get(viewer);
    if (known) known.push(author);
    else authors.set(viewer, [author]);
  }
  return [...authors];
}
