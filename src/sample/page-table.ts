/** Owns how a page of a home timeline is shown on a terminal: one line an entry, nothing wider than asked. Pure. */
import type { AuthorProfile } from '../gen/tributary/v1/author_pb.ts';
import { type Post, type PostView, Visibility } from '../gen/tributary/v1/post_pb.ts';

export interface PageTableOptions {
  readonly entries: readonly PostView[];
  readonly authors: Readonly<Record<string, AuthorProfile>>;
  readonly nowMs: number;
  /** Columns of the terminal. */
  readonly width: number;
}

const AUTHOR_WIDTH_MAX = 20;
/** Of the text, however narrow the terminal is. */
const TEXT_WIDTH_MIN = 24;
const GAP = '  ';
const HEADER = ['AUTHOR', 'AGE', 'KIND', 'VISIBILITY', 'TEXT'] as const;

const VISIBILITY_NAMES: Readonly<Record<Visibility, string>> = {
  [Visibility.UNSPECIFIED]: '',
  [Visibility.PUBLIC]: 'public',
  [Visibility.FOLLOWERS]: 'followers',
  [Visibility.PRIVATE]: 'private',
};

export function pageTable(options: PageTableOptions): readonly string[] {
  const { entries, authors, nowMs, width } = options;
  const nameOf = (post: Post) => authors[post.authorId]?.displayName || post.authorId;
  const rows = entries.flatMap((view) => rowOf(view, { nameOf, nowMs }));
  const widths = HEADER.map((title, column) =>
    Math.max(title.length, ...rows.map((row) => (row[column] ?? '').length)),
  );
  const taken = widths.slice(0, -1).reduce((sum, each) => sum + each + GAP.length, 0);
  const textWidth = Math.max(TEXT_WIDTH_MIN, width - taken);
  const lineOf = (row: readonly string[]) => {
    const last = row.length - 1;
    const cells = row.map((cell, column) =>
      column === last ? cut(cell, textWidth) : cell.padEnd(widths[column] ?? 0),
    );
    return cells.join(GAP).trimEnd();
  };
  return [lineOf(HEADER), ...rows.map(lineOf)];
}

interface Rendering {
  readonly nameOf: (post: Post) => string;
  readonly nowMs: number;
}

/** One row, or none for an answer without a post. */
function rowOf(view: PostView, { nameOf, nowMs }: Rendering): readonly (readonly string[])[] {
  const { post } = view;
  if (post === undefined) return [];
  const author = cut(nameOf(post), AUTHOR_WIDTH_MAX);
  return [[author, ageOf(post, nowMs), kindOf(post), VISIBILITY_NAMES[post.visibility] ?? '', textOf(view, nameOf)]];
}

export function kindOf(post: Post): 'post' | 'reply' | 'quote' | 'repost' {
  if (post.repostOf !== undefined)
    return post.text === '' && post.media.length === 0 && !post.replyTo ? 'repost' : 'quote';
  return post.replyTo === undefined ? 'post' : 'reply';
}

function textOf(view: PostView, nameOf: (post: Post) => string): string {
  const text = view.post?.text ?? '';
  if (view.repostOf !== undefined) {
    const target = `${nameOf(view.repostOf)}: ${view.repostOf.text}`;
    return text === '' ? target : `${text} [${target}]`;
  }
  return view.replyTo === undefined ? text : `@${nameOf(view.replyTo)} ${text}`;
}

/** The largest unit that fits, rounded down. */
function ageOf(post: Post, nowMs: number): string {
  const seconds = Math.max(0, Math.floor(nowMs / 1_000 - Number(post.publishedAt?.seconds ?? 0n)));
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3_600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3_600)} h`;
  return `${Math.floor(seconds / 86_400)} d`;
}

/** On one line: a text may hold line breaks. */
function cut(text: string, width: number): string {
  const line = text.replace(/\s+/g, ' ').trim();
  return line.length <= width ? line : `${line.slice(0, width - 1).trimEnd()}…`;
}
