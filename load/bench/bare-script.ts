/**
 * Owns the ceiling of fan-out: the product's own scripts, push and cut, in calls that were made ready before, over one connection, and nothing else: no followers to read, no names to make, no results to sort.
 * Invariant: what is counted was answered by Redis.
 */
import type { Redis } from 'ioredis';
import { systemClock } from '../../src/runtime.ts';
import { CUT, PUSH, TRIM_STRIDE } from '../../src/store/redis/entry-scripts.ts';
import { KEYS_PER_CALL_MAX } from '../../src/store/redis/keys.ts';
import { fullFrom, partSizesFor, TIMELINES_PER_CALL } from '../../src/store/redis/timeline-parts.ts';
import type { PostId } from '../../src/timeline/ids.ts';
import { CAP } from './worker-under-test.ts';

/** Enough to keep Redis busy while answers are read. */
const IN_FLIGHT = 16;

/** What the push script answers where a head is to be cut. */
const IS_FULL = 4;

type Script<Answer> = (keyCount: number, ...args: (string | number)[]) => Promise<Answer>;

export type BareScript = (
  nextId: () => PostId,
  durationMs: number,
  count: (deliveries: number) => void,
) => Promise<void>;

/** `timelines`: keys of each, the newest part first, which must exist. */
export function openBareScript({
  redis,
  timelines,
}: {
  readonly redis: Redis;
  readonly timelines: readonly (readonly string[])[];
}): BareScript {
  redis.defineCommand('barePush', { lua: PUSH });
  redis.defineCommand('bareCut', { lua: CUT });
  const scripts = redis as unknown as {
    readonly barePush: Script<readonly number[]>;
    readonly bareCut: Script<number>;
  };
  const sizes = partSizesFor(CAP);
  const calls: { readonly heads: readonly string[]; readonly parts: readonly (readonly string[])[] }[] = [];
  for (let at = 0; at < timelines.length; at += KEYS_PER_CALL_MAX) {
    const parts = timelines.slice(at, at + KEYS_PER_CALL_MAX);
    calls.push({ heads: parts.map(([head]) => head as string), parts });
  }
  let turn = 0;
  let postId: PostId | undefined;

  return async (nextId, durationMs, count) => {
    const end = systemClock.monotonicMs() + durationMs;
    async function send(): Promise<void> {
      while (systemClock.monotonicMs() < end) {
        // One post for all timelines, then the next.
        if (postId === undefined || turn % calls.length === 0) postId = nextId();
        const call = calls[turn++ % calls.length];
        if (!call) throw new Error('there are no timelines');
        const { heads, parts } = call;
        const answers = await scripts.barePush(heads.length, ...heads, postId, CAP, TRIM_STRIDE, fullFrom(sizes));
        const full = parts.filter((_, index) => answers[index] === IS_FULL);
        for (let at = 0; at < full.length; at += TIMELINES_PER_CALL) {
          const some = full.slice(at, at + TIMELINES_PER_CALL);
          const each = some[0]?.length ?? 0;
          await scripts.bareCut(each * some.length, ...some.flat(), each, sizes.entries, sizes.keep, CAP);
        }
        count(answers.length);
      }
    }
    await Promise.all(Array.from({ length: IN_FLIGHT }, send));
  };
}
