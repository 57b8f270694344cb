/**
 * Owns what follows a change once it is durable: the events of the outbox repeat every deletion in the cache, backfill new follows and clean up after ended ones. Idempotent:
 * what the call did already is done again, what it could not do is done now.
 */
import type { Call } from '../runtime.ts';
import type { EventKind } from '../store/postgres/outbox.ts';
import { type PostId, parsePostId, parseUserId, type UserId } from '../timeline/ids.ts';
import type { FollowEntries } from './follow-entries.ts';

export interface ChangeEvent {
  readonly kind: EventKind;
  readonly payload: Readonly<Record<string, unknown>>;
}

export interface AfterChangeParts {
  readonly forget: (
    call: Call,
    changed: {
      readonly posts?: readonly PostId[];
      readonly authors?: readonly UserId[];
      readonly relations?: readonly (readonly [UserId, UserId])[];
    },
  ) => Promise<void>;
  readonly entries: FollowEntries;
  /** From Postgres: the truth now. */
  readonly follows: (call: Call, viewer: UserId, author: UserId) => Promise<boolean>;
}

export function createAfterChange(parts: AfterChangeParts): (call: Call, event: ChangeEvent) => Promise<void> {
  async function followChanged(call: Call, follower: UserId, followee: UserId): Promise<void> {
    await parts.forget(call, { relations: [[follower, followee]] });
    if (await parts.follows(call, follower, followee)) await parts.entries.backfill(call, follower, followee);
    else await parts.entries.cleanUp(call, follower, followee);
  }

  return async function afterChange(call, { kind, payload }) {
    switch (kind) {
      case 'post_published':
        // Nothing of a post is cached before there is one.
        return;
      case 'post_changed':
      case 'post_deleted':
        return parts.forget(call, { posts: [postIn(payload, 'postId')] });
      case 'author_changed':
        return parts.forget(call, { authors: [userIn(payload, 'authorId')] });
      case 'follows_changed': {
        const follower = userIn(payload, 'followerId');
        for (const followee of usersIn(payload, 'followeeIds')) await followChanged(call, follower, followee);
        return;
      }
      case 'block_changed': {
        const blocker = userIn(payload, 'blockerId');
        const blocked = userIn(payload, 'blockedId');
        await followChanged(call, blocker, blocked);
        return followChanged(call, blocked, blocker);
      }
      case 'mute_changed':
        return parts.forget(call, { relations: [[userIn(payload, 'muterId'), userIn(payload, 'mutedId')]] });
      default:
        throw new Error(`unknown event: ${kind satisfies never}`);
    }
  };
}

function postIn(payload: ChangeEvent['payload'], field: string): PostId {
  return parsePostId(String(payload[field])) ?? unreadable(field);
}

function userIn(payload: ChangeEvent['payload'], field: string): UserId {
  return parseUserId(String(payload[field])) ?? unreadable(field);
}

function usersIn(payload: ChangeEvent['payload'], field: string): readonly UserId[] {
  const value = payload[field];
  return Array.isArray(value) ? value.map((id) => parseUserId(String(id)) ?? unreadable(field)) : unreadable(field);
}

function unreadable(field: string): never {
  throw new Error(`an outbox event has an unreadable ${field}`);
}
