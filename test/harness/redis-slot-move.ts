/** Owns moving one slot of a cluster to another master, step by step, as `redis-cli --cluster reshard` does: a test decides what is moved when, and what happens meanwhile. */
import type { ClusterNode, RedisCluster } from './redis-cluster.ts';

export interface SlotMove {
  readonly source: ClusterNode;
  readonly target: ClusterNode;
  /** Moves these keys, or all that the slot still holds. */
  keys(...names: readonly string[]): Promise<void>;
  /** Moves the rest and tells every node who owns the slot. */
  end(): Promise<void>;
}

/** Longest wait of one node for the other, in milliseconds. */
const MOVE_TIMEOUT_MS = 5_000;
/** Keys of one step: each holds both nodes. */
const KEYS_PER_STEP = 100;
/** Rounds after which a slot must be empty, while others write to it. */
const ROUNDS_MAX = 1_000;

/** Opens the slot on both sides. To the next master where none is named. */
export async function beginSlotMove(cluster: RedisCluster, slot: number, to?: ClusterNode): Promise<SlotMove> {
  const source = cluster.ownerOf(slot);
  const target = to ?? (cluster.nodes[(cluster.nodes.indexOf(source) + 1) % cluster.nodes.length] as ClusterNode);
  if (target === source) throw new Error('a slot moves to another master');
  await target.client.cluster('SETSLOT', slot, 'IMPORTING', source.id);
  await source.client.cluster('SETSLOT', slot, 'MIGRATING', target.id);

  async function move(names: readonly string[]): Promise<void> {
    for (let from = 0; from < names.length; from += KEYS_PER_STEP) {
      const some = names.slice(from, from + KEYS_PER_STEP);
      await source.client.migrate('127.0.0.1', target.port, '', 0, MOVE_TIMEOUT_MS, 'KEYS', ...some);
    }
  }
  async function moveAll(): Promise<void> {
    for (let round = 0; round < ROUNDS_MAX; round += 1) {
      const names = (await source.client.cluster('GETKEYSINSLOT', slot, KEYS_PER_STEP)) as string[];
      if (names.length === 0) return;
      await move(names);
    }
    throw new Error('a slot does not become empty');
  }

  return {
    source,
    target,
    keys: (...names) => (names.length > 0 ? move(names) : moveAll()),
    async end() {
      await moveAll();
      for (const node of [target, source, ...cluster.nodes])
        await node.client.cluster('SETSLOT', slot, 'NODE', target.id);
      cluster.gave(slot, target);
    },
  };
}
