/** Owns pushing one post into its author's list, by the rules of pushing into a timeline: looked at, tried again, never left as if it were whole. */
import { TributaryError } from '../errors.ts';
import type { Random } from '../runtime.ts';
import type { PulledListOf } from '../store/redis/pulled-lists.ts';
import type { PushOutcome } from '../store/redis/timelines.ts';
import type { PostId } from '../timeline/ids.ts';
import { createPushPost, type Pushed, type PushPostEvents } from './push-post.ts';

export type PushToList = (
  signal: AbortSignal,
  post: PulledListOf & { readonly postId: PostId; readonly once: boolean; readonly lastResort: boolean },
) => Promise<Pushed>;

export interface PushToListParts {
  readonly push: (signal: AbortSignal, post: PulledListOf & { readonly postId: PostId }) => Promise<PushOutcome>;
  readonly drop: (signal: AbortSignal, of: PulledListOf) => Promise<void>;
  readonly random: Random;
  readonly events: PushPostEvents;
}

export function createPushToList({ push, drop, random, events }: PushToListParts): PushToList {
  return async function pushToList(signal, { postId, once, lastResort, ...of }) {
    // The list stands where a timeline would, under the author's name.
    const pushPost = createPushPost({
      async push(within) {
        try {
          return [await push(within, { ...of, postId })];
        } catch (error) {
          if (within.aborted || !(error instanceof TributaryError)) throw error;
          return [error];
        }
      },
      drop: (within) => drop(within, of),
      random,
      events,
    });
    return pushPost(signal, { tenant: of.tenant, postId, viewers: [of.author], once, lastResort });
  };
}
