/** Owns reading single posts by ID: judged by the same function as every other surface. */
import { TributaryError } from '../errors.ts';
import type { Call, Clock } from '../runtime.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { PostMeta } from '../timeline/post.ts';
import { hiddenReason } from '../timeline/visibility.ts';
import { measureRead, type ReadEvents } from './measure.ts';
import type { Views } from './page.ts';
import type { OpenPageFacts } from './page-facts.ts';
import type { OpenPresenter } from './present.ts';

export interface ReadPosts {
  /** Throws POST_NOT_FOUND, the same whether the post never was, is gone or is hidden; `views` holds exactly one else. */
  one(call: Call, input: { readonly viewer: UserId; readonly postId: PostId }): Promise<Views>;
  /** `postIds` are different from each other; at most 100. Answers in the order asked for. */
  batch(call: Call, input: { readonly viewer: UserId; readonly postIds: readonly PostId[] }): Promise<Views>;
}

export interface ReadPostsParts {
  readonly clock: Clock;
  readonly openFacts: OpenPageFacts;
  readonly openPresenter: OpenPresenter;
  readonly events: ReadEvents;
}

export function createReadPosts(parts: ReadPostsParts): ReadPosts {
  const { events } = parts;

  function visible(
    call: Call,
    viewer: UserId,
    postIds: readonly PostId[],
    surface: 'single' | 'batch',
  ): Promise<Views> {
    return measureRead(parts, call, surface, async (read) => {
      const facts = parts.openFacts(read, viewer);
      const presenter = parts.openPresenter(read, facts);
      await facts.gather({ ids: postIds }, presenter.begin);
      const metas: PostMeta[] = [];
      for (const postId of postIds) {
        const meta = facts.meta(postId);
        if (!meta) {
          events.missingEntry(surface);
          continue;
        }
        const reason = hiddenReason(meta, facts);
        if (reason === undefined) metas.push(meta);
        else events.entryFiltered({ surface, reason });
      }
      const { views, authors, reduced, missing } = await presenter.present(metas, hiddenReason);
      for (let counted = 0; counted < missing; counted += 1) events.missingEntry(surface);
      if (surface === 'single' && views.length === 0)
        throw new TributaryError('POST_NOT_FOUND', { message: 'there is no such post for this viewer' });
      return { views, authors, completeness: reduced ? 'reduced' : 'complete' };
    });
  }

  return {
    one: (call, { viewer, postId }) => visible(call, viewer, [postId], 'single'),
    batch: (call, { viewer, postIds }) => visible(call, viewer, postIds, 'batch'),
  };
}
