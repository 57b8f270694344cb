/**
 * Owns the shape of a post and of its author's facts: what visibility is decided from, apart from what is merely shown. What is shown is fields to those who write it, and to
 * readers bytes: encoded once, for the wire, and opened by nobody on the way.
 */
import type { PostId, UserId } from './ids.ts';

declare const encoded: unique symbol;

export const VISIBILITIES = ['public', 'followers', 'private'] as const;
export type Visibility = (typeof VISIBILITIES)[number];

export const MODERATION_STATES = ['clear', 'sensitive', 'hidden'] as const;
export type ModerationState = (typeof MODERATION_STATES)[number];

export const AUTHOR_STATES = ['active', 'suspended', 'erased'] as const;
export type AuthorLifecycle = (typeof AUTHOR_STATES)[number];

export interface PostRef {
  readonly postId: PostId;
  readonly author: UserId;
}

/** A post that another one answers or reposts. */
export interface TargetRef extends PostRef {
  /** Whom that post names in turn, where that is known: fixed at its publish, so that relations to them can be asked for before it is read. */
  readonly names?: readonly UserId[];
}

/** The mutable facts of a post: all that visibility needs, and nothing to show. */
export interface PostMeta extends PostRef {
  readonly visibility: Visibility;
  readonly moderation: ModerationState;
  readonly deleted: boolean;
  /** Reposts without text, media or reply target have nothing to show once their target is gone. Fixed at publish. */
  readonly plainRepost: boolean;
  readonly replyTo?: TargetRef;
  readonly repostOf?: TargetRef;
  readonly metaVersion: number;
  readonly bodyVersion: number;
}

export interface MediaRef {
  readonly address: string;
  readonly mediaType: string;
  readonly altText: string;
  readonly widthPixels: number;
  readonly heightPixels: number;
}

/** What a post shows, as its author wrote it. */
export interface PostContent {
  readonly text: string;
  readonly media: readonly MediaRef[];
  readonly editedAtMs?: number;
}

/** What a post shows: those fields of the API's post that its content fills, encoded. Immutable, also for one (post, bodyVersion). */
export type PostBody = Uint8Array & { readonly [encoded]: 'PostBody' };

/** The body of a post that shows nothing. */
export const NO_BODY = new Uint8Array(0) as PostBody;

export interface Post<Body = PostBody> {
  readonly meta: PostMeta;
  readonly body: Body;
}

/** A post as those see it who write it. */
export type WrittenPost = Post<PostContent>;

export interface PostCounts {
  readonly reposts?: number;
  readonly replies?: number;
}

export interface AuthorState {
  readonly lifecycle: AuthorLifecycle;
  readonly protected: boolean;
}

/** What holds for an author about whom nothing was ever stored. */
export const UNKNOWN_AUTHOR: AuthorState = { lifecycle: 'active', protected: false };

/** A profile as those see it who write it. */
export interface WrittenProfile {
  readonly author: UserId;
  readonly displayName: string;
  readonly avatarAddress: string;
  readonly bio: string;
  readonly protected: boolean;
  readonly profileVersion: number;
}

/** The API's whole profile, encoded. Immutable, also for one (author, profileVersion). */
export type ProfileBody = Uint8Array & { readonly [encoded]: 'ProfileBody' };

export interface AuthorProfile {
  readonly author: UserId;
  readonly profileVersion: number;
  readonly body: ProfileBody;
}

/** How a viewer stands to an author. */
export interface Relation {
  readonly follows: boolean;
  readonly blocks: boolean;
  readonly blockedBy: boolean;
  /** End of the viewer's mute in milliseconds since the Unix epoch, Infinity without an end; absent where there is none. */
  readonly mutedUntilMs?: number;
}

export const NO_RELATION: Relation = { follows: false, blocks: false, blockedBy: false };
