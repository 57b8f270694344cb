/** (header to come) */
import type { Call } from '../runtime.ts';
import type { UserId } from '../timeline/ids.ts';

export interface UserPage {
  readonly users: readonly UserId[];
  readonly nextPageToken: string;
}

export interface Relationship {
  readonly following: boolean;
  readonly followedBy: boolean;
  readonly blocking: boolean;
  readonly blockedBy: boolean;
  readonly muting: boolean;
  /** Absent where the mute has no end or there is none. */
  readonly mutedUntilMs?: number;
}

export interface GraphLists {
  relationship(call: Call, input: { readonly viewer: UserId; readonly other: UserId }): Promise<Relationship>;
  followers(call: Call, input: { readonly user: UserId; readonly pageSize: number; readonly pageToken: string }): Promise<UserPage>;
  following(call: Call, input: { readonly user: UserId; readonly pageSize: number; readonly pageToken: string }): Promise<UserPage>;
}
