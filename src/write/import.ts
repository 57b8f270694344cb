/** Owns taking over posts that bear an old date: each gets an ID minted from its date by the reserved generators, the next one on a conflict. No events. */
import { TributaryError } from '../errors.ts';
import type { Call } from '../runtime.ts';
import type { ImportRow } from '../store/postgres/publish.ts';
import { importPostId, type PostId, type UserId } from '../timeline/ids.ts';
import type { Visibility } from '../timeline/post.ts';

export interface ImportedPost {
  readonly author: UserId;
  readonly text: string;
  /** Milliseconds since the Unix epoch, from 2020-01-01T00:00:00Z on. */
  readonly publishedAtMs: number;
  readonly visibility?: Visibility;
}

/** Answers the IDs in the order given. Posts of one millisecond get rising IDs in that order where none was taken before. */
export type ImportPosts = (
  call: Call,
  posts: readonly ImportedPost[],
  options?: ImportOptions,
) => Promise<readonly PostId[]>;

export interface ImportOptions {
  /** Whether the posts go to timelines that are resident, with their old dates; true by default. False is for a database that nobody has read from yet. */
  readonly fanOut?: boolean;
}

export interface ImportParts {
  readonly insertImportedPosts: (
    call: Call,
    rows: readonly ImportRow[],
    fanOut: boolean,
  ) => Promise<ReadonlySet<PostId>>;
}

/** Posts in one statement. */
const BATCH_MAX = 1_000;
/** Each round moves what collided on to the next free slot of its millisecond, 256 for each. */
const ROUNDS_MAX = 1_000;

export function createImport(parts: ImportParts): ImportPosts {
  return async function importPosts(call, posts, { fanOut = true } = {}) {
    const ids: PostId[] = [];
    for (let from = 0; from < posts.length; from += BATCH_MAX) {
      ids.push(...(await importBatch(call, posts.slice(from, from + BATCH_MAX), fanOut)));
    }
    return ids;
  };

  async function importBatch(call: Call, posts: readonly ImportedPost[], fanOut: boolean): Promise<readonly PostId[]> {
    const ids = new Array<PostId>(posts.length);
    const attempts = new Map<number, number>();
    const nextId = (ms: number): PostId => {
      const attempt = attempts.get(ms) ?? 0;
      attempts.set(ms, attempt + 1);
      return importPostId(ms, attempt);
    };

    let open = posts.map((post, index) => ({ post, index }));
    for (let round = 0; open.length > 0; round += 1) {
      if (round === ROUNDS_MAX)
        throw new TributaryError('ID_LEASE_UNAVAILABLE', { message: 'too many posts of one millisecond' });
      const rows = new Map<PostId, ImportRow>();
      for (const { post, index } of open) {
        let postId = nextId(post.publishedAtMs);
        while (rows.has(postId)) postId = nextId(post.publishedAtMs);
        rows.set(postId, { postId, author: post.author, text: post.text, visibility: post.visibility ?? 'public' });
        ids[index] = postId;
      }
      const stored = await parts.insertImportedPosts(call, [...rows.values()], fanOut);
      open = open.filter(({ index }) => !stored.has(ids[index] as PostId));
    }
    return ids;
  }
}
