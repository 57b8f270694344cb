/**
 * Owns reading a page of a timeline with one key a call: while a slot of a cluster moves, a call that names several keys of it is refused, since they may lie on two nodes, or since one that is not
 * there may be on its way. One key is always answered, by the old node or the new one.
 *
 * Invariant: what is answered is what one call could have answered. The parts are read one after the other, so the head is looked at again at the end: a cut or a rebuild in between changes its
 * state, and the page is read again.
 */
import { TributaryError } from '../../errors.ts';
import { parsePostId } from '../../timeline/ids.ts';
import { type Cache, isForeignType, isManyKeysRefusal } from './client.ts';
import type { PageRange, TimelinePage } from './entry-sets.ts';

interface Part {
  /** State member and floor, as the part holds them. */
  readonly member: string;
  readonly floor: number;
  readonly ids: readonly string[];
}

/** Readings of a page whose timeline changes under the reader; a head is cut once in a hundred pushes. */
const READINGS_MAX = 3;

/** `parts`: the head, then the places of the ring. Answers as the page script does. Throws CACHE_UNAVAILABLE where Redis does not answer, and where the timeline changed in every reading. */
export async function readPartByPart(
  cache: Cache,
  signal: AbortSignal,
  parts: readonly string[],
  range: PageRange,
  args: readonly (string | number)[],
): Promise<TimelinePage | 'corrupt'> {
  const partAt = async (place: number): Promise<Part | undefined> => {
    const name = parts[place];
    if (name === undefined) return undefined;
    const [member, floor, ...ids] = (await cache.run(signal, 'part', [name], args)) as string[];
    return member === undefined ? undefined : { member, floor: Number(floor), ids };
  };
  for (let reading = 1; ; reading += 1) {
    const head = await partAt(0);
    if (head === undefined) return { state: 'absent' };
    if (!isFloor(head.floor)) return 'corrupt';
    const chain = await chainFrom(head, range, partAt);
    if (chain.length === 1 && linkOf(head) === undefined) return pageOf(chain, range);
    const now = await partAt(0);
    if (now?.member === head.member && now.floor === head.floor) return pageOf(chain, range);
    if (reading === READINGS_MAX)
      throw new TributaryError('CACHE_UNAVAILABLE', { message: 'a timeline changed while it was read part by part' });
  }
}

/** The parts that a page needs, newest first. A part that is not there, or not older than the one before, is where the timeline ends. */
async function chainFrom(
  head: Part,
  { direction, position, count }: PageRange,
  partAt: (place: number) => Promise<Part | undefined>,
): Promise<readonly Part[]> {
  const chain = [head];
  let last = head;
  let found = head.ids.length;
  // Floors fall from part to part, so this ends.
  for (let link = linkOf(last); link !== undefined; link = linkOf(last)) {
    if (direction === 'older' ? found >= count : last.floor <= position) break;
    const older = await partAt(link);
    // A floor that is no number is below nothing.
    if (older === undefined || !older.member.startsWith('r') || !(older.floor < last.floor)) break;
    chain.push(older);
    found += older.ids.length;
    last = older;
  }
  return chain;
}

function pageOf(chain: readonly Part[], { direction, count }: PageRange): TimelinePage | 'corrupt' {
  const [head, last] = [chain[0] as Part, chain.at(-1) as Part];
  const ordered = direction === 'older' ? chain : [...chain].reverse();
  const ids = ordered.flatMap((part) => part.ids.map(parsePostId)).slice(0, count);
  const state = /^r(?:\d+:\d+)?$/.test(head.member) ? 'ready' : head.member.startsWith('b') ? 'building' : undefined;
  if (state === undefined || !ids.every((id) => id !== undefined)) return 'corrupt';
  if (!isFloor(last.floor)) return 'corrupt';
  return { state, floor: last.floor, ids };
}

/** Others than these nobody of ours has written; one that is no number would be different at each look. */
function isFloor(floor: number): boolean {
  return Number.isSafeInteger(floor) && floor >= 0;
}

function linkOf({ member }: Part): number | undefined {
  const link = /^r(\d+):/.exec(member)?.[1];
  return link === undefined ? undefined : Number(link);
}

/** What `usual` gives; what `apart` gives where the several keys of that were refused. A key of a foreign type is refused as well, and stays an error. */
export async function unlessRefused<Result>(
  usual: () => Promise<Result>,
  apart: () => Promise<Result>,
): Promise<Result> {
  try {
    return await usual();
  } catch (error) {
    if (!(error instanceof TributaryError && isManyKeysRefusal(error)) || isForeignType(error)) throw error;
    return apart();
  }
}
