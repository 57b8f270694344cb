/**
 * Owns page tokens: what they hold, how they are sealed, and that nothing but our own is ever believed. Pure.
 *
 * A token is base64url, without padding, of: version (1 byte), kind (1 byte), payload, seal (16 bytes). The seal is HMAC-SHA256, cut to 128 bits,
 * over version, kind, tenant, viewer, subject and payload, each with its length before it. So a token of another tenant, viewer, list or author, an
 * altered one, and one with anything appended do not open. The payload is a sequence of unsigned LEB128 numbers, or for lists of users one ID.
 */
import { createHmac, createSecretKey, type KeyObject, timingSafeEqual } from 'node:crypto';
import { TributaryError } from '../errors.ts';
import { type PostId, parseUserId, postIdFrom, type TenantId, type UserId } from '../timeline/ids.ts';
import { LIMITS } from '../timeline/limits.ts';

/** Where a list goes on. Positions are post IDs or 0. */
export type Position =
  /** Home, downwards: entries at or below `from`. */
  | { readonly kind: 'home_older'; readonly from: number }
  | NewerPosition
  /** An author's posts, downwards: at or below `from`. */
  | { readonly kind: 'author'; readonly from: number }
  | { readonly kind: 'followers'; readonly after: UserId }
  | { readonly kind: 'following'; readonly after: UserId };

/** Home, upwards. */
export interface NewerPosition {
  readonly kind: 'home_newer';
  /** Entries above it come next. */
  readonly after: number;
  /** Newest ID examined so far. */
  readonly high: number;
  /** The lowest position from which entries may still arrive late: a later poll starts here, not at `high`. */
  readonly low: number;
  /** IDs above `low` that were shown already, ascending; at most LIMITS.shownIdsMax. */
  readonly shown: readonly PostId[];
}

/** Request fields that hold tokens. */
export type TokenField = 'page_token' | 'since_token';

export type PositionKind = Position['kind'];

/** Whose token it is: a token opens for the same owner only. */
export interface TokenOwner {
  readonly tenant: TenantId;
  /** Who reads; for lists of users, whose list it is. */
  readonly viewer: UserId;
  /** Whose posts, for an author's page; else absent. */
  readonly subject?: UserId;
}

export const TOKEN_FAULTS = ['too_long', 'malformed', 'version', 'kind', 'seal'] as const;
export type TokenFault = (typeof TOKEN_FAULTS)[number];

export interface PageTokens {
  seal(owner: TokenOwner, position: Position): string;
  /** Throws INVALID_PAGE_TOKEN, naming the request's field, unless the token was sealed by us for this owner and is of one of these kinds. */
  open<Kind extends PositionKind>(
    owner: TokenOwner,
    kinds: readonly Kind[],
    token: string,
    field?: TokenField,
  ): Extract<Position, { kind: Kind }>;
}

const VERSION = 1;
const SEAL_BYTES = 16;
const KIND_CODES: Readonly<Record<PositionKind, number>> = {
  home_older: 1,
  home_newer: 2,
  author: 3,
  followers: 4,
  following: 5,
};
const TOKEN_FORM = /^[A-Za-z0-9_-]+$/;

/** `keys`: the first seals, all of them open; so a key can be changed without breaking walks under way. */
export function createPageTokens(parts: {
  readonly keys: readonly Buffer[];
  readonly rejected: (fault: TokenFault) => void;
}): PageTokens {
  // Prepared once: from bytes, each seal would prepare it anew, which takes several times as long as the sealing.
  const keys = parts.keys.map((key) => createSecretKey(key));
  const [sealingKey] = keys;
  if (!sealingKey) throw new Error('page tokens need a key');

  function refused(fault: TokenFault, field: TokenField): TributaryError {
    parts.rejected(fault);
    return new TributaryError('INVALID_PAGE_TOKEN', {
      message: 'the page token is not one of this list and viewer',
      violations: [
        {
          field,
          description: 'must be empty or a token from an earlier answer for the same list and viewer',
        },
      ],
    });
  }

  return {
    seal(owner, position) {
      const body = Buffer.concat([Buffer.from([VERSION, KIND_CODES[position.kind]]), payloadOf(position)]);
      return Buffer.concat([body, sealOf(sealingKey, owner, body)]).toString('base64url');
    },

    open<Kind extends PositionKind>(
      owner: TokenOwner,
      kinds: readonly Kind[],
      token: string,
      field: TokenField = 'page_token',
    ): Extract<Position, { kind: Kind }> {
      const refuse = (fault: TokenFault): TributaryError => refused(fault, field);
      if (token.length > LIMITS.pageTokenCharsMax) throw refuse('too_long');
      if (!TOKEN_FORM.test(token)) throw refuse('malformed');
      const bytes = Buffer.from(token, 'base64url');
      // The decoder takes stray bits at the end; only the canonical spelling is ours.
      if (bytes.toString('base64url') !== token || bytes.length < 2 + SEAL_BYTES) throw refuse('malformed');
      const body = bytes.subarray(0, bytes.length - SEAL_BYTES);
      const seal = bytes.subarray(bytes.length - SEAL_BYTES);
      if (body[0] !== VERSION) throw refuse('version');
      const kind = kinds.find((candidate) => KIND_CODES[candidate] === body[1]);
      if (kind === undefined) throw refuse('kind');
      if (!keys.some((key) => timingSafeEqual(sealOf(key, owner, body), seal))) throw refuse('seal');
      const position = positionFrom(kind, body.subarray(2));
      if (!position) throw refuse('malformed');
      return position as Extract<Position, { kind: Kind }>;
    },
  };
}

function sealOf(key: KeyObject, { tenant, viewer, subject = '' as UserId }: TokenOwner, body: Buffer): Buffer {
  const owner = `${tenant.length}:${tenant}${viewer.length}:${viewer}${subject.length}:${subject}`;
  return createHmac('sha256', key).update(owner).update(body).digest().subarray(0, SEAL_BYTES);
}

function payloadOf(position: Position): Buffer {
  switch (position.kind) {
    case 'home_older':
    case 'author':
      return numbers([position.from]);
    case 'home_newer': {
      // Ascending, each as the distance from the one before: some five bytes an ID.
      let before = position.low;
      const steps = position.shown.map((id) => {
        const step = id - before;
        before = id;
        return step;
      });
      return numbers([position.after, position.high, position.low, steps.length, ...steps]);
    }
    case 'followers':
    case 'following':
      return Buffer.from(position.after, 'latin1');
    default:
      throw new Error(`unknown position: ${JSON.stringify(position satisfies never)}`);
  }
}

function positionFrom(kind: PositionKind, payload: Buffer): Position | undefined {
  switch (kind) {
    case 'home_older':
    case 'author': {
      const [from, ...rest] = readNumbers(payload) ?? [];
      return from === undefined || rest.length > 0 ? undefined : { kind, from };
    }
    case 'home_newer':
      return newerFrom(readNumbers(payload) ?? []);
    case 'followers':
    case 'following': {
      const after = parseUserId(payload.toString('latin1'));
      return after && { kind, after };
    }
    default:
      throw new Error(`unknown kind: ${kind satisfies never}`);
  }
}

function newerFrom(values: readonly number[]): NewerPosition | undefined {
  const [after, high, low, count, ...steps] = values;
  if (
    after === undefined ||
    high === undefined ||
    low === undefined ||
    count !== steps.length ||
    count > LIMITS.shownIdsMax
  )
    return undefined;
  let id = low;
  const shown = steps.map((step) => {
    id += step;
    return postIdFrom(id);
  });
  return { kind: 'home_newer', after, high, low, shown };
}

/** Unsigned LEB128; numbers up to 2^53-1, so no bit operators, which would cut at 32. */
function numbers(values: readonly number[]): Buffer {
  const bytes: number[] = [];
  for (const value of values) {
    let rest = value;
    while (rest >= 128) {
      bytes.push((rest % 128) + 128);
      rest = Math.floor(rest / 128);
    }
    bytes.push(rest);
  }
  return Buffer.from(bytes);
}

function readNumbers(payload: Buffer): readonly number[] | undefined {
  const values: number[] = [];
  let value = 0;
  let scale = 1;
  for (const byte of payload) {
    value += (byte % 128) * scale;
    scale *= 128;
    if (!Number.isSafeInteger(value)) return undefined;
    if (byte >= 128) continue;
    values.push(value);
    value = 0;
    scale = 1;
  }
  return scale === 1 ? values : undefined;
}
