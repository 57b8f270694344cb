/**
 * Owns the ceiling of fan-out: the product's own push script in calls that were made ready before, over one connection, and nothing else: no followers to read, no names to make, no results to sort.
 * Invariant: what is counted was answered by Redis.
 */
import type { Redis } from 'ioredis';
import { systemClock } from '../../src/runtime.ts';
import { PUSH, TRIM_STRIDE } from '../../src/store/redis/entry-scripts.ts';
import { KEYS_PER_CALL_MAX } from '../../src/store/redis/keys.ts';
import type { PostId } from '../../src/timeline/ids.ts';
import { CAP } from './worker-under-test.ts';

/** Enough to keep Redis busy while answers are read. */
const IN_FLIGHT = 16;

type Push = (keyCount: number, ...args: (string | number)[]) => Promise<readonly number[]>;

export type BareScript = (
  nextId: () => PostId,
  durationMs: number,
  count: (deliveries: number) => void,
) => Promise<void>;

/** `keys`: of timelines that all exist. */
export function openBareScript({
  redis,
  keys,
}: {
  readonly redis: Redis;
  readonly keys: readonly string[];
}): BareScript {
  redis.defineCommand('barePush', { lua: PUSH });
  const push = (redis as unknown as { readonly barePush: Push }).barePush.bind(redis);
  const calls: (readonly string[])[] = [];
  for (let at = 0; at < keys.length; at += KEYS_PER_CALL_MAX) calls.push(keys.slice(at, at + KEYS_PER_CALL_MAX));
  let turn = 0;
  let postId: PostId | undefined;

  return async (nextId, durationMs, count) => {
    const end = systemClock.monotonicMs() + durationMs;
    async function send(): Promise<void> {
      while (systemClock.monotonicMs() < end) {
        // One post for all timelines, then the next.
        if (postId === undefined || turn % calls.length === 0) postId = nextId();
        const call = calls[turn++ % calls.length] ?? [];
        const answers = await push(call.length, ...call, postId, CAP, TRIM_STRIDE);
        count(answers.length);
      }
    }
    await Promise.all(Array.from({ length: IN_FLIGHT }, send));
  };
}
