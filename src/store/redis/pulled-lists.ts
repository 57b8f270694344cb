/**
 * Owns the verbs over the lists of pulled authors: the newest posts of one author, of whatever era, that belong on followers' timelines. One list for each class epoch, so that one
 * that was left behind when the author became ordinary is never taken for that of a later time.
 */
import { TributaryError } from '../../errors.ts';
import { throwIfAborted } from '../../runtime.ts';
import type { PostId, TenantId } from '../../timeline/ids.ts';
import type { PulledAuthor } from '../../timeline/pulled.ts';
import { type Cache, isForeignType } from './client.ts';
import {
  createEntrySets,
  type EntrySetOptions,
  type EntrySets,
  NEVER_CUT,
  type PageRange,
  type PushOutcome,
  pageArgs,
  pageIn,
  pushAnswerIn,
  type TimelinePage,
} from './entry-sets.ts';
import type { Keys } from './keys.ts';

export interface PulledListOf extends PulledAuthor {
  readonly tenant: TenantId;
}

export interface PulledLists extends EntrySets<PulledListOf> {
  /** Adds one post where the list is there; never creates one. Throws CACHE_UNAVAILABLE where Redis did not confirm. */
  push(signal: AbortSignal, post: PulledListOf & { readonly postId: PostId }): Promise<PushOutcome>;
  /**
   * Pages of many lists, one page or error for each, in order. Of the READY ones the best `count` entries together are there, and each page is complete as far as it goes; an entry that
   * is left out has `count` better ones before it. Lengthens the lives of lists that are read.
   */
  pages(
    signal: AbortSignal,
    query: PageRange & { readonly tenant: TenantId; readonly lists: readonly PulledAuthor[] },
  ): Promise<readonly (TimelinePage | TributaryError)[]>;
}

export function createPulledLists(cache: Cache, keys: Keys, options: EntrySetOptions): PulledLists {
  const keyOf = ({ tenant, author, epoch }: PulledListOf): string => keys.pulledList(tenant, author, epoch);

  return {
    ...createEntrySets(cache, keyOf, () => [], options),

    async push(signal, { postId, ...of }) {
      const [result] = await cache.runEach(
        signal,
        'push',
        [keyOf(of)],
        [postId, options.cap, options.stride, NEVER_CUT],
      );
      if (result === undefined) throw new Error('a push was not answered');
      const answer = pushAnswerIn(result);
      if (answer instanceof TributaryError) throw answer;
      if (answer === 'full' || answer === 'older') throw new Error('a list has no parts');
      return answer;
    },

    async pages(signal, { tenant, lists, ...range }) {
      const names = lists.map((list) => keyOf({ tenant, ...list }));
      const corrupt: string[] = [];
      const results = await cache.runEach(signal, 'pages', names, pageArgs(range, options));
      const pages = results.map((result, index): TimelinePage | TributaryError => {
        if ('error' in result && !isForeignType(result.error)) return result.error;
        const page = 'error' in result ? 'corrupt' : pageIn(result.value);
        if (typeof page !== 'string') return page;
        corrupt.push(names[index] as string);
        return { state: 'absent' };
      });
      // What is absent is rebuilt. Where it could not be taken away, the rebuild fails or finds it READY, and the next reader is here again.
      if (corrupt.length > 0) await cache.remove(signal, corrupt).catch(() => throwIfAborted(signal));
      return pages;
    },
  };
}
