/**
 * Owns the strict reading of request fields: wire values in, domain values out. All faults of a request are collected, so that a caller
 * learns of them at once.
 *
 * A refused field reads as a placeholder; `readFields` throws before a value that holds one can leave, so no flow ever sees it.
 * Descriptions name bounds and never repeat what was sent.
 */
import type { Timestamp } from '@bufbuild/protobuf/wkt';
import { type FieldViolation, TributaryError } from '../errors.ts';
import { type MediaRef as WireMediaRef, Visibility as WireVisibility } from '../gen/tributary/v1/post_pb.ts';
import { type PostId, parsePostId, parseUserId, type UserId } from '../timeline/ids.ts';
import { LIMITS, pageSizeFrom } from '../timeline/limits.ts';
import type { MediaRef, Visibility } from '../timeline/post.ts';

/** Faults collected of one request; the rest of a wholly wrong list tells nothing new. */
const VIOLATIONS_MAX = 20;

const ADDRESS_FORM = /^[A-Za-z0-9_.:=+/-]+$/;
const MEDIA_TYPE_FORM = /^[A-Za-z0-9!#$&^_.+-]+\/[A-Za-z0-9!#$&^_.+-]+$/;
const REQUEST_ID_FORM = /^[A-Za-z0-9_.~-]{1,64}$/;
const MEDIA_TYPE_CHARS_MIN = 3;
/** 9999-12-31T23:59:59.999Z: the last instant that a Timestamp may name. */
const TIMESTAMP_MAX_MS = 253_402_300_799_999;
const NANOS_MAX = 999_999_999;
const USER_ID_RULE = 'must be 1 to 64 characters of [A-Za-z0-9_.~-]';
const POST_ID_RULE = 'must be a decimal integer from 1 to 2^53-1';

/** What `build` makes of the fields. Throws INVALID_FIELD with every fault found. */
export function readFields<Value>(build: (fields: Fields) => Value): Value {
  const fields = new Fields();
  const value = build(fields);
  fields.throwIfRefused();
  return value;
}

export class Fields {
  readonly #violations: FieldViolation[] = [];

  refuse(field: string, description: string): void {
    if (this.#violations.length < VIOLATIONS_MAX) this.#violations.push({ field, description });
  }

  throwIfRefused(): void {
    const [first] = this.#violations;
    if (first === undefined) return;
    throw new TributaryError('INVALID_FIELD', {
      message: `${first.field}: ${first.description}`,
      violations: this.#violations,
    });
  }

  user(field: string, text: string): UserId {
    const user = parseUserId(text);
    if (user === undefined) this.refuse(field, USER_ID_RULE);
    return user ?? ('' as UserId);
  }

  /** A second user, who must be somebody else than the first. */
  otherUser(field: string, text: string, first: { readonly field: string; readonly user: UserId }): UserId {
    const user = this.user(field, text);
    if (user !== '' && user === first.user) this.refuse(field, `must differ from ${first.field}`);
    return user;
  }

  /** Users who are all different: a result for each could not tell which mention it is for. */
  users(field: string, texts: readonly string[], max: number): readonly UserId[] {
    if (!this.#counted(field, texts.length, { min: 1, max })) return [];
    const users = new Set<UserId>();
    for (const [index, text] of texts.entries()) {
      const user = this.user(`${field}[${index}]`, text);
      if (user !== '' && users.has(user)) this.refuse(`${field}[${index}]`, 'is named twice');
      users.add(user);
    }
    return [...users];
  }

  post(field: string, text: string): PostId {
    const postId = parsePostId(text);
    if (postId === undefined) this.refuse(field, POST_ID_RULE);
    return postId ?? (0 as PostId);
  }

  /** Undefined for an empty field. */
  optionalPost(field: string, text: string): PostId | undefined {
    return text === '' ? undefined : this.post(field, text);
  }

  /** The different posts of a list, in the order of their first mention. */
  posts(field: string, texts: readonly string[], max: number): readonly PostId[] {
    if (!this.#counted(field, texts.length, { min: 1, max })) return [];
    return [...new Set(texts.map((text, index) => this.post(`${field}[${index}]`, text)))];
  }

  text(field: string, text: string, codePointsMax: number): string {
    if (!text.isWellFormed()) this.refuse(field, 'holds half of a surrogate pair');
    else if (text.includes('\0')) this.refuse(field, 'holds the character U+0000');
    else if (isLonger(text, codePointsMax)) this.refuse(field, `must have at most ${codePointsMax} code points`);
    return text;
  }

  /** Text bounded in characters instead of code points. */
  address(field: string, text: string, charsMax: number): string {
    return text.length > charsMax
      ? this.#refused(field, `must have at most ${charsMax} characters`)
      : this.text(field, text, charsMax);
  }

  pageSize(field: string, asked: number): number {
    const size = pageSizeFrom(asked);
    if (size === undefined) this.refuse(field, 'must not be negative');
    return size ?? 0;
  }

  /** Undefined where the caller leaves it open. */
  visibility(field: string, value: WireVisibility): Visibility | undefined {
    switch (value) {
      case WireVisibility.UNSPECIFIED:
        return undefined;
      case WireVisibility.PUBLIC:
        return 'public';
      case WireVisibility.FOLLOWERS:
        return 'followers';
      case WireVisibility.PRIVATE:
        return 'private';
      default:
        // Enums are open: any number can come, and its type says no more than that.
        this.refuse(field, 'is not a known visibility');
        return undefined;
    }
  }

  media(field: string, list: readonly WireMediaRef[]): readonly MediaRef[] {
    if (!this.#counted(field, list.length, { min: 0, max: LIMITS.mediaMax })) return [];
    return list.map((item, index) => this.#mediaRef(`${field}[${index}]`, item));
  }

  requestId(field: string, text: string): string {
    if (!REQUEST_ID_FORM.test(text)) this.refuse(field, USER_ID_RULE);
    return text;
  }

  /** A version: an integer from 1 that a number holds exactly. */
  version(field: string, value: bigint): number {
    if (value < 1n || value > BigInt(Number.MAX_SAFE_INTEGER)) this.refuse(field, 'must be from 1 to 2^53-1');
    return Number(value);
  }

  /** Milliseconds since the Unix epoch, after `nowMs`. Parts of a millisecond are cut. */
  future(field: string, timestamp: Timestamp, nowMs: number): number {
    const { seconds, nanos } = timestamp;
    const inRange = seconds >= 0n && seconds * 1_000n <= BigInt(TIMESTAMP_MAX_MS);
    if (!inRange || nanos < 0 || nanos > NANOS_MAX) {
      this.refuse(field, 'is not an instant from 1970 to 9999');
      return 0;
    }
    const ms = Number(seconds) * 1_000 + Math.floor(nanos / 1_000_000);
    if (ms <= nowMs) this.refuse(field, 'must lie in the future');
    return ms;
  }

  #mediaRef(field: string, item: WireMediaRef): MediaRef {
    const { address, mediaType, altText, widthPixels, heightPixels } = item;
    if (address.length > LIMITS.mediaAddressCharsMax || !ADDRESS_FORM.test(address)) {
      this.refuse(`${field}.address`, `must be 1 to ${LIMITS.mediaAddressCharsMax} characters of [A-Za-z0-9_.:=+/-]`);
    }
    const { length } = mediaType;
    if (length < MEDIA_TYPE_CHARS_MIN || length > LIMITS.mediaTypeCharsMax || !MEDIA_TYPE_FORM.test(mediaType)) {
      this.refuse(`${field}.media_type`, `must be "type/subtype" with at most ${LIMITS.mediaTypeCharsMax} characters`);
    }
    this.text(`${field}.alt_text`, altText, LIMITS.altTextCodePointsMax);
    this.#pixels(`${field}.width_pixels`, widthPixels);
    this.#pixels(`${field}.height_pixels`, heightPixels);
    return { address, mediaType, altText, widthPixels, heightPixels };
  }

  #pixels(field: string, value: number): void {
    if (value < 0 || value > LIMITS.mediaPixelsMax) this.refuse(field, `must be from 0 to ${LIMITS.mediaPixelsMax}`);
  }

  /** Checked before the items are, so that an endless list costs nothing. */
  #counted(field: string, length: number, bounds: { readonly min: number; readonly max: number }): boolean {
    if (length >= bounds.min && length <= bounds.max) return true;
    this.refuse(field, `must have ${bounds.min} to ${bounds.max} items`);
    return false;
  }

  #refused(field: string, description: string): string {
    this.refuse(field, description);
    return '';
  }
}

/** Whether a text has more than `max` code points; a text that is much longer is not counted through. */
function isLonger(text: string, max: number): boolean {
  if (text.length <= max) return false;
  if (text.length > max * 2) return true;
  let codePoints = 0;
  for (const _ of text) codePoints += 1;
  return codePoints > max;
}
