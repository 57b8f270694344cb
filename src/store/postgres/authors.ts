/** Owns authors' rows: their profile, whether they are protected, and whether they are active. An absent row is an active author without a profile. */
import type { TenantId, UserId } from '../../timeline/ids.ts';
import type { AuthorLifecycle, AuthorProfile, AuthorState, WrittenProfile } from '../../timeline/post.ts';
import { encodeProfile } from '../encode-bodies.ts';
import type { Database, Statement, Transaction } from './client.ts';

interface AuthorRow {
  readonly author_id: string;
  readonly lifecycle: AuthorLifecycle;
  readonly protected: boolean;
  readonly display_name: string;
  readonly avatar_address: string;
  readonly bio: string;
  readonly profile_version: number;
}

export interface LoadedAuthor {
  readonly state: AuthorState;
  /** Absent where none was ever stored. */
  readonly profile?: AuthorProfile;
}

const COLUMNS = 'author_id, lifecycle, protected, display_name, avatar_address, bio, profile_version';

const LOAD: Statement = {
  name: 'authors-load',
  text: `SELECT ${COLUMNS} FROM authors WHERE tenant_id = $1 AND author_id = ANY ($2::text[])`,
};

/** Those of the authors about whom something is stored. */
export async function loadAuthors(
  database: Database,
  signal: AbortSignal,
  query: { readonly tenant: TenantId; readonly authors: readonly UserId[] },
): Promise<ReadonlyMap<UserId, LoadedAuthor>> {
  if (query.authors.length === 0) return new Map();
  const rows = await database.query<AuthorRow>(signal, LOAD, [query.tenant, query.authors]);
  return new Map(rows.map((row) => [row.author_id as UserId, authorFromRow(row)]));
}

const PUT: Statement = {
  name: 'author-put',
  text: `INSERT INTO authors AS a (tenant_id, author_id, display_name, avatar_address, bio, protected, profile_version)
  VALUES ($1, $2, $3, $4, $5, $6, 1)
  ON CONFLICT (tenant_id, author_id) DO UPDATE SET display_name = $3, avatar_address = $4, bio = $5, protected = $6,
    profile_version = a.profile_version + (a.profile_version = 0 OR (a.display_name, a.avatar_address, a.bio, a.protected) IS DISTINCT FROM ($3, $4, $5, $6))::int
  RETURNING ${COLUMNS}`,
};

/** Stores the profile whole; its version rises only if something changed. */
export async function putProfile(
  transaction: Transaction,
  input: { readonly tenant: TenantId } & Omit<WrittenProfile, 'profileVersion'>,
): Promise<WrittenProfile> {
  const [row] = await transaction.query<AuthorRow>(PUT, [
    input.tenant,
    input.author,
    input.displayName,
    input.avatarAddress,
    input.bio,
    input.protected,
  ]);
  if (!row) throw new Error('a stored profile was not answered');
  return profileFromRow(row);
}

const SET_LIFECYCLE: Statement = {
  name: 'author-lifecycle',
  text: `INSERT INTO authors AS a (tenant_id, author_id, lifecycle) VALUES ($1, $2, $3)
  ON CONFLICT (tenant_id, author_id) DO UPDATE SET lifecycle = $3 WHERE a.lifecycle <> $3 AND a.lifecycle <> 'erased'
  RETURNING 1 AS changed`,
};

/** Suspends or restores an author; false where nothing changed. An erased author stays erased. */
export async function setLifecycle(
  transaction: Transaction,
  input: { readonly tenant: TenantId; readonly author: UserId; readonly lifecycle: 'active' | 'suspended' },
): Promise<boolean> {
  return (await transaction.query(SET_LIFECYCLE, [input.tenant, input.author, input.lifecycle])).length > 0;
}

function authorFromRow(row: AuthorRow): LoadedAuthor {
  return {
    state: { lifecycle: row.lifecycle, protected: row.protected },
    ...(row.profile_version > 0 && { profile: encodeProfile(profileFromRow(row)) }),
  };
}

function profileFromRow(row: AuthorRow): WrittenProfile {
  return {
    author: row.author_id as UserId,
    displayName: row.display_name,
    avatarAddress: row.avatar_address,
    bio: row.bio,
    protected: row.protected,
    profileVersion: row.profile_version,
  };
}
