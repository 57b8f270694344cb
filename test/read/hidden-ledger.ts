/**
 * Owns the safety half of the law of reading: what must not be shown at this moment, as far as that is certain. A call that hides something counts from its answer on, until a
 * call that may show it again begins; where the two overlap nothing is certain. A read is judged by the time at which it started.
 */
import assert from 'node:assert/strict';
import type { PostView } from '../../src/read/page.ts';
import type { PostId, UserId } from '../../src/timeline/ids.ts';
import type { Post, Visibility } from '../../src/timeline/post.ts';

/** Names of what can be hidden; the first word says by what. */
export type Hiding =
  | `deleted ${PostId}`
  | `moderated ${PostId}`
  | `private ${PostId}`
  | `followers-only ${PostId}`
  | `suspended ${UserId}`
  | `protected ${UserId}`
  | `${'blocked' | 'muted' | 'not-following'} ${UserId} ${UserId}`;

export interface HiddenLedger {
  /** Runs a call that hides and shows; what it throws changes nothing that was certain before, but for what it might have shown. */
  record<Result>(
    effect: { readonly hides?: readonly Hiding[]; readonly shows?: readonly Hiding[] },
    call: () => Promise<Result>,
  ): Promise<Result>;
  /** What holds of a post from its publishing on, before anybody else could change it. */
  published(postId: PostId, visibility: Visibility): void;
  /** Throws where a read that started at `startedMs` shows what was hidden then and has been since. */
  judge(read: {
    readonly viewer: UserId;
    readonly surface: 'home' | 'author' | 'batch';
    readonly startedMs: number;
    readonly views: readonly PostView[];
  }): void;
  /** Rises with every call that hides or shows, when it begins and when it ends. */
  readonly changes: () => number;
  /** Calls that hide or show and have not ended: whether they took effect yet, nobody can say. */
  readonly underWay: () => number;
}

interface Entry {
  /** When the answer came after which this is hidden; absent where it may be shown. */
  hiddenSinceMs: number | undefined;
  showing: number;
  shown: number;
}

/** `strangers`: pairs of which the first does not follow the second to begin with. */
export function createHiddenLedger(strangers: Iterable<readonly [UserId, UserId]>): HiddenLedger {
  const entries = new Map<Hiding, Entry>();
  let changes = 0;
  let underWay = 0;
  const entryOf = (hiding: Hiding): Entry => {
    const known = entries.get(hiding);
    if (known) return known;
    const made: Entry = { hiddenSinceMs: undefined, showing: 0, shown: 0 };
    entries.set(hiding, made);
    return made;
  };
  for (const [viewer, author] of strangers) entryOf(`not-following ${viewer} ${author}`).hiddenSinceMs = -Infinity;

  const hiddenAt = (startedMs: number, hiding: Hiding): boolean => {
    const since = entries.get(hiding)?.hiddenSinceMs;
    return since !== undefined && since < startedMs;
  };

  /** The first reason why a viewer must not be shown a post. */
  function reasonAgainst(viewer: UserId, home: boolean, startedMs: number, { meta }: Post): Hiding | undefined {
    const { postId, author } = meta;
    const reasons: Hiding[] = [`deleted ${postId}`, `moderated ${postId}`, `suspended ${author}`];
    if (author !== viewer) {
      for (const other of [author, meta.replyTo?.author, meta.repostOf?.author]) {
        if (other === undefined || other === viewer) continue;
        reasons.push(`blocked ${viewer} ${other}`, `blocked ${other} ${viewer}`, `muted ${viewer} ${other}`);
      }
      reasons.push(`private ${postId}`);
      const stranger: Hiding = `not-following ${viewer} ${author}`;
      const closed = ([`followers-only ${postId}`, `protected ${author}`] satisfies Hiding[]).some((hiding) =>
        hiddenAt(startedMs, hiding),
      );
      if (home || closed) reasons.push(stranger);
    }
    return reasons.find((hiding) => hiddenAt(startedMs, hiding));
  }

  return {
    async record({ hides = [], shows = [] }, call) {
      changes += 1;
      underWay += 1;
      for (const hiding of shows) {
        const entry = entryOf(hiding);
        entry.hiddenSinceMs = undefined;
        entry.showing += 1;
        entry.shown += 1;
      }
      const before = hides.map((hiding) => ({ ...entryOf(hiding) }));
      try {
        const result = await call();
        const nowMs = performance.now();
        hides.forEach((hiding, index) => {
          const entry = entryOf(hiding);
          if (before[index]?.showing === 0 && entry.shown === before[index].shown) entry.hiddenSinceMs ??= nowMs;
        });
        return result;
      } finally {
        changes += 1;
        underWay -= 1;
        for (const hiding of shows) entryOf(hiding).showing -= 1;
      }
    },

    published(postId, visibility) {
      if (visibility !== 'public') entryOf(`followers-only ${postId}`).hiddenSinceMs = -Infinity;
      if (visibility === 'private') entryOf(`private ${postId}`).hiddenSinceMs = -Infinity;
    },

    judge({ viewer, surface, startedMs, views }) {
      for (const view of views) {
        const against = reasonAgainst(viewer, surface === 'home', startedMs, view.post);
        assert.equal(against, undefined, `${surface} showed ${viewer} the post ${view.post.meta.postId}: ${against}`);
        for (const target of [view.replyTo, view.repostOf]) {
          const inside = target && reasonAgainst(viewer, false, startedMs, target);
          assert.equal(inside, undefined, `${surface} showed ${viewer} a target inside a post: ${inside}`);
        }
      }
    },

    changes: () => changes,
    underWay: () => underWay,
  };
}
