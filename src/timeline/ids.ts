/**
 * Owns the form of every identifier. A PostId is made here and nowhere else; whatever holds one holds a valid one.
 *
 * Post IDs are 53-bit integers, so that a JavaScript number, a Redis score (a double) and a JSON string hold them exactly:
 * 41 bits of milliseconds since 2020-01-01T00:00:00Z, 7 bits of generator, 5 bits of sequence. They are unique per tenant
 * and sort by time.
 */

declare const brand: unique symbol;
export type PostId = number & { readonly [brand]: 'PostId' };
export type UserId = string & { readonly [brand]: 'UserId' };
export type TenantId = string & { readonly [brand]: 'TenantId' };

/** 2020-01-01T00:00:00Z in milliseconds since the Unix epoch: the zero of the time in post IDs. */
export const ID_EPOCH_MS = 1_577_836_800_000;
/** Highest millisecond an ID can hold, since the Unix epoch: some 69.7 years after the zero. */
export const ID_MAX_MS = ID_EPOCH_MS + 2 ** 41 - 1;
export const GENERATOR_COUNT = 128;
export const SEQUENCE_COUNT = 32;
/** Generators from here up are never leased: they mint IDs of imported posts from the date those bear. */
export const IMPORT_GENERATOR_MIN = 120;
const IMPORT_SLOTS = (GENERATOR_COUNT - IMPORT_GENERATOR_MIN) * SEQUENCE_COUNT;

const IDS_PER_MS = GENERATOR_COUNT * SEQUENCE_COUNT;
const POST_ID_FORM = /^[1-9][0-9]{0,15}$/;
const NAME_FORM = /^[A-Za-z0-9_.~-]{1,64}$/;

/** The post ID that `text` spells in canonical decimal, 1 to 2^53-1, or undefined. */
export function parsePostId(text: string): PostId | undefined {
  if (!POST_ID_FORM.test(text)) return undefined;
  const value = Number(text);
  return Number.isSafeInteger(value) ? (value as PostId) : undefined;
}

/** The post ID of a number that our own stores hold. Throws RangeError for anything else: it would be our own fault. */
export function postIdFrom(value: number): PostId {
  if (!Number.isSafeInteger(value) || value < 1) throw new RangeError(`not a post ID: ${value}`);
  return value as PostId;
}

export function parseUserId(text: string): UserId | undefined {
  return NAME_FORM.test(text) ? (text as UserId) : undefined;
}

export function parseTenantId(text: string): TenantId | undefined {
  return NAME_FORM.test(text) ? (text as TenantId) : undefined;
}

/** Puts an ID together. Throws RangeError for a part out of its bounds. */
export function composePostId(parts: { ms: number; generator: number; sequence: number }): PostId {
  const { ms, generator, sequence } = parts;
  if (!Number.isInteger(ms) || ms < ID_EPOCH_MS || ms > ID_MAX_MS)
    throw new RangeError(`millisecond out of bounds: ${ms}`);
  if (!Number.isInteger(generator) || generator < 0 || generator >= GENERATOR_COUNT) {
    throw new RangeError(`generator out of bounds: ${generator}`);
  }
  if (!Number.isInteger(sequence) || sequence < 0 || sequence >= SEQUENCE_COUNT) {
    throw new RangeError(`sequence out of bounds: ${sequence}`);
  }
  return postIdFrom((ms - ID_EPOCH_MS) * IDS_PER_MS + generator * SEQUENCE_COUNT + sequence);
}

/**
 * The ID of an imported post from its date. `attempt` counts from 0 and rises with every conflict; there are 256 IDs for each
 * millisecond, and after those the milliseconds that follow are used.
 */
export function importPostId(ms: number, attempt: number): PostId {
  const slot = attempt % IMPORT_SLOTS;
  return composePostId({
    ms: ms + Math.floor(attempt / IMPORT_SLOTS),
    generator: IMPORT_GENERATOR_MIN + Math.floor(slot / SEQUENCE_COUNT),
    sequence: slot % SEQUENCE_COUNT,
  });
}

/** When the post of this ID was published, in milliseconds since the Unix epoch. */
export function postIdMs(id: PostId): number {
  return Math.floor(id / IDS_PER_MS) + ID_EPOCH_MS;
}

/** The greatest position below every ID of the millisecond `ms` and above all earlier ones; 0 before the zero of IDs. */
export function positionBeforeMs(ms: number): number {
  return Math.max(0, (Math.floor(ms) - ID_EPOCH_MS) * IDS_PER_MS - 1);
}

/** Above every post ID: a place to start when walking downwards. 2^53-1 itself is an ID, so the comparison is "at or below". */
export const POST_ID_MAX: PostId = postIdFrom(Number.MAX_SAFE_INTEGER);
