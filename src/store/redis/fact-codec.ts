/** Owns how facts are written in Redis: `v` and short text. A value that does not read as one is treated as not there. */
import { type PostId, parseUserId, postIdFrom, type UserId } from '../../timeline/ids.ts';
import {
  AUTHOR_STATES,
  type AuthorState,
  MODERATION_STATES,
  type PostMeta,
  type Relation,
  type TargetRef,
  VISIBILITIES,
} from '../../timeline/post.ts';
import type { PulledAuthor, PulledAuthors } from '../../timeline/pulled.ts';

/** An author's state, and the version of the profile that goes with it (0: none). */
export interface AuthorFact {
  readonly state: AuthorState;
  readonly profileVersion: number;
}

/** `v`, then follows, blocks, blocked by as 0 or 1, then the end of the mute in ms, `inf` or nothing. The clean-up script reads the first two characters. */
export function encodeRelation(relation: Relation): string {
  const bit = (flag: boolean): string => (flag ? '1' : '0');
  return `v${bit(relation.follows)}${bit(relation.blocks)}${bit(relation.blockedBy)}${muteEnd(relation.mutedUntilMs)}`;
}

/** Rounded up to a whole millisecond: a mute may last a moment longer, and not less. */
function muteEnd(untilMs: number | undefined): string {
  if (untilMs === undefined) return '';
  return untilMs >= Number.MAX_SAFE_INTEGER ? 'inf' : String(Math.max(0, Math.ceil(untilMs)));
}

export function decodeRelation(text: string): Relation | undefined {
  const match = /^v([01])([01])([01])(inf|\d{1,16})?$/.exec(text);
  if (!match) return undefined;
  const [, follows, blocks, blockedBy, mute] = match;
  return {
    follows: follows === '1',
    blocks: blocks === '1',
    blockedBy: blockedBy === '1',
    ...(mute !== undefined && { mutedUntilMs: mute === 'inf' ? Number.POSITIVE_INFINITY : Number(mute) }),
  };
}

/** `v` and a JSON list; enumerations by their place, each target with whom it names. */
export function encodeMeta(meta: PostMeta): string {
  const ref = (target: TargetRef | undefined): readonly (number | string)[] =>
    target ? [target.postId, target.author, ...(target.names ?? [])] : [];
  return `v${JSON.stringify([
    meta.author,
    VISIBILITIES.indexOf(meta.visibility),
    MODERATION_STATES.indexOf(meta.moderation),
    meta.deleted ? 1 : 0,
    meta.plainRepost ? 1 : 0,
    meta.metaVersion,
    meta.bodyVersion,
    ref(meta.replyTo),
    ref(meta.repostOf),
  ])}`;
}

export function decodeMeta(text: string, postId: PostId): PostMeta | undefined {
  const fields = listIn(text);
  if (fields?.length !== 9) return undefined;
  const [author, visibility, moderation, deleted, plainRepost, metaVersion, bodyVersion, replyTo, repostOf] = fields;
  const visible = typeof visibility === 'number' ? VISIBILITIES[visibility] : undefined;
  const moderated = typeof moderation === 'number' ? MODERATION_STATES[moderation] : undefined;
  const who = userIn(author);
  if (!who || !visible || !moderated || !isVersion(metaVersion) || !isVersion(bodyVersion)) return undefined;
  const reply = refIn(replyTo);
  const repost = refIn(repostOf);
  // A part that does not read must spoil the whole: a target that went missing would hide nothing any more.
  if (reply === 'unreadable' || repost === 'unreadable' || !isBit(deleted) || !isBit(plainRepost)) return undefined;
  return {
    postId,
    author: who,
    visibility: visible,
    moderation: moderated,
    deleted: deleted === 1,
    plainRepost: plainRepost === 1,
    metaVersion,
    bodyVersion,
    ...(reply && { replyTo: reply }),
    ...(repost && { repostOf: repost }),
  };
}

export function encodeAuthor({ state, profileVersion }: AuthorFact): string {
  return `v${JSON.stringify([AUTHOR_STATES.indexOf(state.lifecycle), state.protected ? 1 : 0, profileVersion])}`;
}

export function decodeAuthor(text: string): AuthorFact | undefined {
  const fields = listIn(text);
  if (fields?.length !== 3) return undefined;
  const [lifecycle, isProtected, profileVersion] = fields;
  const state = typeof lifecycle === 'number' ? AUTHOR_STATES[lifecycle] : undefined;
  if (!state || !isBit(isProtected) || !isVersion(profileVersion)) return undefined;
  return { state: { lifecycle: state, protected: isProtected === 1 }, profileVersion };
}

/** `v` and a JSON list: 1 where there are too many, then author and epoch by turns. */
export function encodePulled({ authors, tooMany }: PulledAuthors): string {
  return `v${JSON.stringify([tooMany ? 1 : 0, ...authors.flatMap(({ author, epoch }) => [author, epoch])])}`;
}

export function decodePulled(text: string): PulledAuthors | undefined {
  const fields = listIn(text);
  if (fields === undefined || fields.length % 2 !== 1 || !isBit(fields[0])) return undefined;
  const authors: PulledAuthor[] = [];
  for (let at = 1; at < fields.length; at += 2) {
    const author = userIn(fields[at]);
    const epoch = fields[at + 1];
    // An author who went missing would be missing from the page.
    if (!author || !isVersion(epoch)) return undefined;
    authors.push({ author, epoch });
  }
  return { authors, tooMany: fields[0] === 1 };
}

function listIn(text: string): readonly unknown[] | undefined {
  try {
    const value: unknown = JSON.parse(text.slice(1));
    return Array.isArray(value) ? value : undefined;
  } catch {
    return undefined;
  }
}

/** A target, then whom it names: at most two. */
function refIn(value: unknown): TargetRef | undefined | 'unreadable' {
  if (!Array.isArray(value)) return 'unreadable';
  if (value.length === 0) return undefined;
  const [postId, author, ...named] = value as readonly unknown[];
  const who = userIn(author);
  const names = named.map(userIn).filter((user) => user !== undefined);
  if (!isVersion(postId) || postId < 1 || !who || named.length > 2 || names.length < named.length) return 'unreadable';
  return { postId: postIdFrom(postId), author: who, ...(names.length > 0 && { names }) };
}

function userIn(value: unknown): UserId | undefined {
  return typeof value === 'string' ? parseUserId(value) : undefined;
}

function isVersion(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function isBit(value: unknown): boolean {
  return value === 0 || value === 1;
}
