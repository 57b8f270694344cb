/**
 * Owns the flows as the front door's tests need them: in memory, and with viewers whose calls do something special. Everything else about
 * the flows is tested elsewhere, on real servers.
 */
import { TributaryError } from '../../src/errors.ts';
import type { HomePage } from '../../src/read/page.ts';
import type { Flows } from '../../src/rpc/flows.ts';
import type { Call } from '../../src/runtime.ts';
import { encodeBody, encodeProfile } from '../../src/store/encode-bodies.ts';
import { type PostId, parseUserId, postIdFrom, type UserId } from '../../src/timeline/ids.ts';
import type { AuthorProfile, Post, WrittenPost } from '../../src/timeline/post.ts';

/** Its reads end only with their signal. */
export const HANGING_VIEWER = 'hangs';
/** Its reads never end, not even with their signal. */
export const DEAF_VIEWER = 'deaf';
/** Its reads break with an error that nobody threw on purpose. */
export const BROKEN_VIEWER = 'broken';
/** Its reads fail as a blocked follow does. */
export const REFUSED_VIEWER = 'refused';
/** Its pages hold authors with the names of an object's own parts. */
export const ODD_VIEWER = 'odd';
export const ODD_AUTHORS = ['__proto__', 'constructor', 'toString', 'hasOwnProperty', 'plain'];
export const SECRET = 'SELECT * FROM api_keys WHERE tenant = 47';

export interface FakeFlows extends Flows {
  /** Calls that are inside a flow now. */
  running(): number;
  /** Every call that reached a flow so far: its name and what it was given. */
  readonly reached: { readonly flow: string; readonly call: Call; readonly input: unknown }[];
  /** Resolves once exactly `count` calls are inside a flow. */
  untilRunning(count: number): Promise<void>;
}

export function createFakeFlows(): FakeFlows {
  const reached: { flow: string; call: Call; input: unknown }[] = [];
  const waiters: { readonly count: number; readonly resolve: () => void }[] = [];
  let running = 0;

  function settle(): void {
    for (const waiter of waiters) if (running === waiter.count) waiter.resolve();
  }

  async function inside<Result>(
    flow: string,
    call: Call,
    input: unknown,
    viewer: string,
    result: () => Result,
  ): Promise<Result> {
    reached.push({ flow, call, input });
    running += 1;
    settle();
    try {
      if (viewer === HANGING_VIEWER) await hang(call.signal);
      if (viewer === DEAF_VIEWER) await new Promise(() => undefined);
      if (viewer === BROKEN_VIEWER) throw new Error(SECRET);
      if (viewer === REFUSED_VIEWER)
        throw new TributaryError('BLOCKED', { message: 'one blocks the other', retryAfterMs: 1_500 });
      return result();
    } finally {
      running -= 1;
      settle();
    }
  }

  const page = (authors: readonly string[]): HomePage => ({
    views: authors.map((author, index) => ({ post: postOf(author, index + 1), counts: { reposts: 0 } })),
    authors: new Map(authors.map((author) => [author as UserId, profileOf(author)])),
    completeness: 'complete',
    nextPageToken: '',
    headToken: 'head',
  });

  return {
    reached,
    running: () => running,
    untilRunning(count) {
      return running === count ? Promise.resolve() : new Promise((resolve) => waiters.push({ count, resolve }));
    },
    publish: (call, input) =>
      inside('publish', call, input, input.author, () => ({
        post: writtenPost(input.author, Number.MAX_SAFE_INTEGER, input.text),
        ownTimelinePending: false,
      })),
    edit: (call, input) =>
      inside('edit', call, input, input.author, () => writtenPost(input.author, input.postId, input.text)),
    remove: (call, input) => inside('remove', call, input, input.author, () => undefined),
    relate: {
      follow: (call, input) => inside('follow', call, input, input.follower, () => ({ relationVersion: 1 })),
      batchFollow: (call, input) =>
        inside('batchFollow', call, input, input.follower, () =>
          input.followees.map((followee, index) => ({
            followee,
            relationVersion: index,
            ...(index === 0 ? { refusal: 'blocked' as const } : {}),
          })),
        ),
      unfollow: (call, input) => inside('unfollow', call, input, input.follower, () => ({ relationVersion: 2 })),
      removeFollower: (call, input) => inside('removeFollower', call, input, input.author, () => undefined),
      block: (call, input) => inside('block', call, input, input.blocker, () => undefined),
      unblock: (call, input) => inside('unblock', call, input, input.blocker, () => undefined),
      mute: (call, input) => inside('mute', call, input, input.muter, () => undefined),
      unmute: (call, input) => inside('unmute', call, input, input.muter, () => undefined),
      putAuthor: (call, input) =>
        inside('putAuthor', call, input, input.author, () => ({ ...input, profileVersion: 1 })),
    },
    home: {
      page: (call, input) =>
        inside('page', call, input, input.viewer, () =>
          page(input.viewer === ODD_VIEWER ? ODD_AUTHORS : [input.viewer]),
        ),
      head: (call, input) =>
        inside('head', call, input, input.viewer, () => ({
          newCount: 1,
          newestPostId: postIdFrom(Number.MAX_SAFE_INTEGER),
          headToken: 'head',
          completeness: 'complete' as const,
        })),
    },
    posts: {
      one: (call, input) =>
        inside('one', call, input, input.viewer, () => ({
          ...page([]),
          views: [{ post: postOf('alice', input.postId) }],
        })),
      batch: (call, input) =>
        inside('batch', call, input, input.viewer, () => ({
          ...page([]),
          views: input.postIds.map((id) => ({ post: postOf('alice', id) })),
        })),
    },
    authorPosts: (call, input) => inside('authorPosts', call, input, input.viewer, () => page([input.author])),
    graph: {
      relationship: (call, input) =>
        inside('relationship', call, input, input.viewer, () => ({
          following: true,
          followedBy: false,
          blocking: false,
          blockedBy: false,
          muting: false,
        })),
      followers: (call, input) =>
        inside('followers', call, input, input.user, () => ({ users: [input.user], nextPageToken: '' })),
      following: (call, input) =>
        inside('following', call, input, input.user, () => ({ users: [input.user], nextPageToken: '' })),
    },
  };
}

function hang(signal: AbortSignal): Promise<never> {
  return new Promise((_, reject) => {
    const onAbort = (): void => reject(signal.reason);
    signal.addEventListener('abort', onAbort, { once: true });
    if (signal.aborted) onAbort();
  });
}

function postOf(author: string, id: number): Post {
  const { meta, body } = writtenPost(author, id);
  return { meta, body: encodeBody(body) };
}

function writtenPost(author: string, id: number, text = 'hello'): WrittenPost {
  const postId: PostId = postIdFrom(id);
  return {
    meta: {
      postId,
      author: parseUserId(author) ?? ('' as UserId),
      visibility: 'public',
      moderation: 'clear',
      deleted: false,
      plainRepost: false,
      metaVersion: 1,
      bodyVersion: 1,
    },
    body: { text, media: [] },
  };
}

function profileOf(author: string): AuthorProfile {
  return encodeProfile({
    author: author as UserId,
    displayName: `The ${author}`,
    avatarAddress: '',
    bio: '',
    protected: false,
    profileVersion: 3,
  });
}
