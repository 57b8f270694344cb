/**
 * Owns what is there before a run and may be removed after it, all by RPC: authors with posts, viewers who follow some of them.
 * Invariants: the same seed makes the same graph; a run whose set-up failed in one call does not begin.
 */
import type { Caller, CallName, Calls } from './calls.ts';
import { walkAuthor } from './pages.ts';
import type { Settings } from './settings.ts';

/** What `setup` hands to every VU; names of users follow from it. */
export interface Seeded {
  readonly run: string;
  readonly viewers: number;
  readonly authors: number;
  /** Posts on every viewer's home timeline. */
  readonly entries: number;
}

export function viewerOf({ run }: Pick<Seeded, 'run'>, index: number): string {
  return `${run}.v${index}`;
}

export function authorOf({ run }: Pick<Seeded, 'run'>, index: number): string {
  return `${run}.a${index}`;
}

/** A whole number from 0 to `below` − 1, the same for the same seed and place: the rounds of MurmurHash3's finaliser. */
export function pick(seed: number, place: number, below: number): number {
  let mixed = Math.imul(seed ^ 0x9e37_79b9, 0x85eb_ca6b) ^ Math.imul(place + 1, 0xc2b2_ae35);
  for (const factor of [0x85eb_ca6b, 0xc2b2_ae35]) mixed = Math.imul(mixed ^ (mixed >>> 15), factor);
  return ((mixed ^ (mixed >>> 16)) >>> 0) % below;
}

export function seedGraph(caller: Caller, settings: Settings, viewers = settings.viewers): Seeded {
  const { run, authors, follows, posts, seed } = settings;
  const seeded = { run, viewers, authors, entries: follows * posts };
  for (let post = 0; post < posts; post++) {
    for (let author = 0; author < authors; author++)
      publish(caller, authorOf(seeded, author), `seed-${author}-${post}`);
  }
  for (let viewer = 0; viewer < viewers; viewer++) {
    const first = pick(seed, viewer, authors);
    const followeeIds = Array.from({ length: follows }, (_, at) => authorOf(seeded, (first + at) % authors));
    const { results = [] } = must(caller, 'BatchFollow', { followerId: viewerOf(seeded, viewer), followeeIds });
    const held = results.filter(({ refusal = '' }) => refusal === '' || refusal === 'REFUSAL_UNSPECIFIED').length;
    if (held !== follows) throw new Error(`set-up: ${follows - held} follows of a viewer were refused`);
  }
  return seeded;
}

/** Answers with the ID of the post. `request` is unique for the author in a run; calling again publishes nothing new. */
export function publish(caller: Caller, authorId: string, request: string): string {
  const { post } = must(caller, 'PublishPost', postOf(authorId, request));
  return post?.postId ?? '';
}

export function postOf(authorId: string, request: string): Calls['PublishPost']['request'] {
  return {
    authorId,
    text: `A post of some length, as people write them: ${request}.`,
    requestId: `${authorId}.${request}`,
  };
}

/** For set-up and teardown, where a failed call is a failed run. */
export function must<Name extends CallName>(
  caller: Caller,
  name: Name,
  request: Calls[Name]['request'],
): Calls[Name]['answer'] {
  const answer = caller.call(name, request);
  if (answer === undefined) throw new Error(`${name} failed outside of the measured part`);
  return answer;
}

/** Deletes all posts of these authors. Follows stay: without posts they show nothing. */
export function deletePosts(caller: Caller, authorIds: readonly string[]): void {
  for (const authorId of authorIds) {
    for (const postId of walkAuthor(caller, authorId) ?? []) must(caller, 'DeletePost', { authorId, postId });
  }
}

export function allOf(nameAt: (index: number) => string, count: number): readonly string[] {
  return Array.from({ length: count }, (_, index) => nameAt(index));
}
