/** Owns waiting for what has no signal to wait for. Never waits longer than its bound, and says what was still wrong then. */
import { setTimeout as pause } from 'node:timers/promises';

export interface Patience {
  /** Longest wait, in milliseconds; by preset as long as a machine may need that does much else, and shorter than a test may take. */
  readonly timeoutMs?: number;
  /** Between two looks, in milliseconds. */
  readonly everyMs?: number;
}

/** Looks until `look` neither throws nor rejects, and answers what it then gave. Rejects with the last fault at the bound. */
export async function eventually<T>(
  look: () => T | Promise<T>,
  { timeoutMs = 20_000, everyMs = 10 }: Patience = {},
): Promise<T> {
  const deadline = performance.now() + timeoutMs;
  for (;;) {
    try {
      return await look();
    } catch (cause) {
      if (performance.now() >= deadline) {
        const why = cause instanceof Error ? cause.message : String(cause);
        throw new Error(`not within ${timeoutMs} ms: ${why}`, { cause });
      }
    }
    await pause(everyMs);
  }
}

/** What `promise` comes to, or a rejection after `timeoutMs`: for calls that a broken product would leave hanging. */
export async function within<T>(promise: Promise<T>, timeoutMs: number): Promise<T> {
  const timer = new AbortController();
  const late = pause(timeoutMs, undefined, { signal: timer.signal }).then(() => {
    throw new Error(`still waiting after ${timeoutMs} ms`);
  });
  late.catch(() => undefined);
  try {
    return await Promise.race([promise, late]);
  } finally {
    timer.abort();
  }
}
