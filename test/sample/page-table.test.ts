/** Owns how a page looks on a terminal. */
import { create } from '@bufbuild/protobuf';
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import { expect, it } from 'vitest';
import { AuthorProfileSchema } from '../../src/gen/tributary/v1/author_pb.ts';
import { type PostView, PostViewSchema, Visibility } from '../../src/gen/tributary/v1/post_pb.ts';
import { pageTable } from '../../src/sample/page-table.ts';

const NOW_MS = 1_700_000_000_000;

function view(
  content: Partial<{ text: string; reply: string; repost: string; ageMs: number; visibility: Visibility }>,
): PostView {
  const other = (text: string) => ({ authorId: 'bo', text });
  const { text = '', reply, repost, ageMs = 0, visibility = Visibility.PUBLIC } = content;
  return create(PostViewSchema, {
    post: {
      authorId: 'ann',
      text,
      visibility,
      publishedAt: timestampFromMs(NOW_MS - ageMs),
      ...(reply !== undefined && { replyTo: { postId: '1', authorId: 'bo' } }),
      ...(repost !== undefined && { repostOf: { postId: '1', authorId: 'bo' } }),
    },
    ...(reply !== undefined && { replyTo: other(reply) }),
    ...(repost !== undefined && { repostOf: other(repost) }),
  });
}

const authors = { ann: create(AuthorProfileSchema, { authorId: 'ann', displayName: 'Ann Berg' }) };

it('shows each kind of entry in a line of its own, with its age in the largest unit', () => {
  const entries = [
    view({ text: 'Good morning.', ageMs: 59_000 }),
    view({ text: 'Indeed.', reply: 'Is it?', ageMs: 60_000, visibility: Visibility.FOLLOWERS }),
    view({ text: 'This.', repost: 'A fine thing', ageMs: 7_300_000 }),
    view({ repost: 'A fine thing', ageMs: 3 * 86_400_000, visibility: Visibility.PRIVATE }),
  ];
  expect(pageTable({ entries, authors, nowMs: NOW_MS, width: 100 })).toEqual([
    'AUTHOR    AGE    KIND    VISIBILITY  TEXT',
    'Ann Berg  59 s   post    public      Good morning.',
    'Ann Berg  1 min  reply   followers   @bo Indeed.',
    'Ann Berg  2 h    quote   public      This. [bo: A fine thing]',
    'Ann Berg  3 d    repost  private     bo: A fine thing',
  ]);
});

it('is no wider than asked, as long as some text can be shown', () => {
  const entries = [view({ text: 'word '.repeat(100) })];
  const lines = pageTable({ entries, authors, nowMs: NOW_MS, width: 80 });
  expect(Math.max(...lines.map((line) => line.length))).toBeLessThanOrEqual(80);
  expect(lines[1]).toMatch(/word.*…$/);
});

it('shows an age of nothing for a post from the future', () => {
  expect(
    pageTable({ entries: [view({ text: 'Hi.', ageMs: -5_000 })], authors, nowMs: NOW_MS, width: 80 })[1],
  ).toContain(' 0 s ');
});
