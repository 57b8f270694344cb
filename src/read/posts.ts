/** Owns reading single posts by ID: judged by the same function as every other surface. */
import { TributaryError } from '../errors.ts';
import type { Call, Clock } from '../runtime.ts';
import type { LoadedPosts } from '../store/postgres/post-rows.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import { hiddenReason } from '../timeline/visibility.ts';
import type { Hydrate } from './hydrate.ts';
import { measureRead, type ReadEvents, type Surface } from './measure.ts';
import type { PostView, Views } from './page.ts';

export interface ReadPosts {
  /** Throws POST_NOT_FOUND, the same whether the post never was, is gone or is hidden; `views` holds exactly one else. */
  one(call: Call, input: { readonly viewer: UserId; readonly postId: PostId }): Promise<Views>;
  /** `postIds` are different from each other; at most 100. Answers in the order asked for. */
  batch(call: Call, input: { readonly viewer: UserId; readonly postIds: readonly PostId[] }): Promise<Views>;
}

export interface ReadPostsParts {
  readonly clock: Clock;
  readonly loadPosts: (call: Call, postIds: readonly PostId[]) => Promise<LoadedPosts>;
  readonly hydrate: Hydrate;
  readonly events: ReadEvents;
}

export function createReadPosts(parts: ReadPostsParts): ReadPosts {
  const { events } = parts;

  async function visible(call: Call, viewer: UserId, postIds: readonly PostId[], surface: Surface): Promise<Views> {
    const loaded = await parts.loadPosts(call, postIds);
    const hydrated = await parts.hydrate(call, viewer, loaded);
    const posts = new Map(loaded.entries.map((entry) => [entry.postId, entry.post]));
    const views: PostView[] = [];
    for (const postId of postIds) {
      const post = posts.get(postId);
      if (!post) {
        events.missingEntry(surface);
        continue;
      }
      const reason = hiddenReason(post.meta, hydrated.facts);
      if (reason === undefined) views.push(hydrated.view(post));
      else events.entryFiltered({ surface, reason });
    }
    return { views, authors: hydrated.profilesOf(views), completeness: hydrated.reduced ? 'reduced' : 'complete' };
  }

  return {
    one: (call, { viewer, postId }) =>
      measureRead(parts.clock, events, 'single', async () => {
        const views = await visible(call, viewer, [postId], 'single');
        if (views.views.length === 0)
          throw new TributaryError('POST_NOT_FOUND', { message: 'there is no such post for this viewer' });
        return views;
      }),
    batch: (call, { viewer, postIds }) =>
      measureRead(parts.clock, events, 'batch', () => visible(call, viewer, postIds, 'batch')),
  };
}
