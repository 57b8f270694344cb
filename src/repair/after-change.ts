/**
 * Owns what follows a change once it is durable: the events of the outbox repeat every deletion in the cache, backfill new follows and clean up after ended ones. Idempotent:
 * what the call did already is done again, what it could not do is done now. They come late, twice and in any order, so what they do follows from the truth now; an event of a follow that
 * changed again since leaves it to the event of that later change.
 */
import type { Call } from '../runtime.ts';
import type { FollowState } from '../store/postgres/graph.ts';
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
  readonly loadFollowStates: (
    call: Call,
    follower: UserId,
    followees: readonly UserId[],
  ) => Promise<ReadonlyMap<UserId, FollowState>>;
}

export function createAfterChange(parts: AfterChangeParts): (call: Call, event: ChangeEvent) => Promise<void> {
  async function followsChanged(call: Call, payload: ChangeEvent['payload']): Promise<void> {
    const follower = userIn(payload, 'followerId');
    const followees = usersIn(payload, 'followeeIds');
    const versions = versionsIn(payload, followees.length);
    const now = await parts.loadFollowStates(call, follower, followees);
    const begun: UserId[] = [];
    const ended: UserId[] = [];
    for (const [at, followee] of followees.entries()) {
      const state = now.get(followee);
      const version = versions?.[at];
      if (!state || (version !== undefined && version < state.version)) continue;
      (state.active ? begun : ended).push(followee);
    }
    const changed = [...begun, ...ended];
    if (changed.length === 0) return;
    await parts.forget(call, { relations: changed.map((followee) => [follower, followee] as const) });
    await parts.entries.begun(call, follower, begun);
    for (const followee of ended) {
      // Either the guard was deleted each time, or the follow has begun anew: the next attempt will see.
      if (!(await parts.entries.cleanUp(call, follower, followee))) throw new Error('a clean-up was not decided');
    }
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
      case 'follows_changed':
        return followsChanged(call, payload);
      case 'block_changed': {
        const blocker = userIn(payload, 'blockerId');
        const blocked = userIn(payload, 'blockedId');
        // Follows that a block ended have an event of their own.
        return parts.forget(call, {
          relations: [
            [blocker, blocked],
            [blocked, blocker],
          ],
        });
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

/** Absent in events that were appended before versions were. */
function versionsIn(payload: ChangeEvent['payload'], count: number): readonly number[] | undefined {
  const value = payload['versions'];
  if (value === undefined) return undefined;
  if (!Array.isArray(value) || value.length !== count) return unreadable('versions');
  const versions = value.map(Number);
  return versions.every((version) => Number.isSafeInteger(version) && version > 0) ? versions : unreadable('versions');
}

function unreadable(field: string): never {
  throw new Error(`an outbox event has an unreadable ${field}`);
}
