/**
 * Owns telling which data a server holds: the ID of its replication history. A replica that takes over goes on under a new ID and tells the one before; a server that began empty tells
 * none before. So a failover shows although the address stays the same.
 */
import type { Cache } from './client.ts';

export interface Lineage {
  readonly replicationId: string;
  /** Whether the server was a replica once, and may lack the last of what its primary had. */
  readonly promoted: boolean;
  /** The history of that primary, where it was one. */
  readonly before?: string;
}

const NEVER_A_REPLICA = /^0*$/;
/** A key that is never there. */
const NO_KEY = 'no:lineage';

/**
 * One for each master that answers. Throws CACHE_UNAVAILABLE where none does, and where a connection leads to a server that was demoted: it is made anew then, since a write was refused, and the
 * next look sees who took over.
 */
export async function readLineages(cache: Cache, signal: AbortSignal): Promise<readonly Lineage[]> {
  const lineages: Lineage[] = [];
  let demoted = false;
  for (const text of await cache.info(signal, 'replication')) {
    const field = (name: string): string => new RegExp(`^${name}:(\\S*)`, 'm').exec(text)?.[1] ?? '';
    const replicationId = field('master_replid');
    if (field('role') !== 'master') demoted = true;
    else if (replicationId !== '') {
      const before = field('master_replid2');
      const promoted = !NEVER_A_REPLICA.test(before);
      lineages.push({ replicationId, promoted, ...(promoted && { before }) });
    }
  }
  if (demoted) await cache.remove(signal, [NO_KEY]);
  return lineages;
}
