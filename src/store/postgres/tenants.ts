/** Owns tenants and their API keys. Only a key's SHA-256 is stored: keys hold 256 random bits, so no slow hash is needed. */
import type { TenantId } from '../../timeline/ids.ts';
import { brokenUniqueConstraint, type Database, type Statement } from './client.ts';

export const KEY_ROLES = ['service', 'admin'] as const;
export type KeyRole = (typeof KEY_ROLES)[number];

const INSERT_TENANT: Statement = { name: 'tenant-insert', text: 'INSERT INTO tenants (tenant_id) VALUES ($1)' };

/** False where the tenant exists already. */
export async function insertTenant(database: Database, signal: AbortSignal, tenant: TenantId): Promise<boolean> {
  try {
    await database.query(signal, INSERT_TENANT, [tenant]);
    return true;
  } catch (error) {
    if (brokenUniqueConstraint(error) === 'tenants_pkey') return false;
    throw error;
  }
}

const FIND_TENANT: Statement = { name: 'tenant-find', text: 'SELECT 1 AS found FROM tenants WHERE tenant_id = $1' };

export async function hasTenant(database: Database, signal: AbortSignal, tenant: TenantId): Promise<boolean> {
  return (await database.query(signal, FIND_TENANT, [tenant])).length > 0;
}

const INSERT_KEY: Statement = {
  name: 'key-insert',
  text: 'INSERT INTO api_keys (key_hash, tenant_id, role) SELECT $1, tenant_id, $3 FROM tenants WHERE tenant_id = $2 RETURNING 1 AS stored',
};

/** False where there is no such tenant. */
export async function insertApiKey(
  database: Database,
  signal: AbortSignal,
  key: { readonly hash: Buffer; readonly tenant: TenantId; readonly role: KeyRole },
): Promise<boolean> {
  return (await database.query(signal, INSERT_KEY, [key.hash, key.tenant, key.role])).length > 0;
}

const REVOKE_KEY: Statement = {
  name: 'key-revoke',
  text: 'UPDATE api_keys SET revoked_at = now() WHERE key_hash = $1 AND revoked_at IS NULL RETURNING 1 AS revoked',
};

/** False where there is no such key in force. */
export async function revokeApiKey(database: Database, signal: AbortSignal, hash: Buffer): Promise<boolean> {
  return (await database.query(signal, REVOKE_KEY, [hash])).length > 0;
}

const FIND_KEY: Statement = {
  name: 'key-find',
  text: 'SELECT tenant_id, role FROM api_keys WHERE key_hash = $1 AND revoked_at IS NULL',
};

/** Whom a key speaks for, or undefined where it is not in force. */
export async function findApiKey(
  database: Database,
  signal: AbortSignal,
  hash: Buffer,
): Promise<{ readonly tenant: TenantId; readonly role: KeyRole } | undefined> {
  const [row] = await database.query<{ readonly tenant_id: string; readonly role: KeyRole }>(signal, FIND_KEY, [hash]);
  return row && { tenant: row.tenant_id as TenantId, role: row.role };
}
