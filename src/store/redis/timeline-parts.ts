/**
 * Owns the sizes of a timeline's parts, and the calls that its scripts are asked in: the newest part alone where that will do, since a call that names keys which are not there cannot be answered while
 * their slot moves between the nodes of a cluster.
 */
import { POST_ID_MAX } from '../../timeline/ids.ts';
import { type PageRange, pageIn, type TimelinePage } from './entry-sets.ts';
import { KEYS_PER_CALL_MAX, RING_PLACES } from './keys.ts';

export interface PartSizes {
  /** Entries of an older part when it is made. */
  readonly entries: number;
  /** Entries that a head keeps when it is cut: a first page of the default size, with its spare candidates. */
  readonly keep: number;
}

/** 100 entries and the state just fit 2,048 bytes, a size of the allocator: 21 bytes an entry with everything. */
const PART_ENTRIES = 100;
const KEEP_ENTRIES = 60;
/** With larger caps the parts grow instead of their number. */
const PARTS_MAX = 8;
/** With caps below the smallest that is configured the parts shrink, so that there are some. */
const PARTS_MIN = 4;

export function partSizesFor(cap: number): PartSizes {
  const few = Math.ceil(cap / PARTS_MIN);
  return {
    entries: Math.max(Math.min(PART_ENTRIES, few), Math.ceil(cap / PARTS_MAX)),
    keep: Math.min(KEEP_ENTRIES, few),
  };
}

/** Timelines of one call that names all of their keys. */
export const TIMELINES_PER_CALL = Math.floor(KEYS_PER_CALL_MAX / (RING_PLACES + 1));

/** Entries of a head from which it is cut. */
export function fullFrom({ entries, keep }: PartSizes): number {
  return entries + keep;
}

/** Entries that a timeline holds at most: older parts, and a head that nobody could cut, each of which is trimmed beyond cap and stride. Where cuts succeed it holds no more than the cap and one part. */
export function entriesMaxOf({ cap, stride }: { readonly cap: number; readonly stride: number }): number {
  return 2 * (cap + stride);
}

/** Asks the head alone, and the ring too where the answer says so or the page is sure to need it. */
export async function askParts<Reply>(
  { position, count, direction }: PageRange,
  sizes: PartSizes,
  ask: (withRing: boolean) => Promise<Reply>,
  entriesOf: (reply: Reply) => unknown,
): Promise<{ readonly reply: Reply; readonly page: TimelinePage | 'corrupt' }> {
  const beyondHead = direction === 'older' && (count > sizes.keep || position < POST_ID_MAX);
  for (const withRing of beyondHead ? [true] : [false, true]) {
    const reply = await ask(withRing);
    const page = pageIn(entriesOf(reply));
    if (page !== 'more') return { reply, page };
  }
  throw new Error('a page asked for parts that it was given');
}
