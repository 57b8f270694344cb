/** Owns pushing a post to one place while its publish waits to be answered: a bounded number of tries within a small budget. Never rejects: the post is durable already, and its fan-out job heals. */
import { TributaryError } from '../errors.ts';
import { after, type Call, pause, type Random, untilAborted } from '../runtime.ts';
import type { PushOutcome } from '../store/redis/timelines.ts';

const TRIES_MAX = 3;
/** All tries together, pauses included: no publish waits longer than this for one place. */
const BUDGET_MS = 300;
/** Pause before the second try, in milliseconds, with full jitter; doubled before the third. */
const RETRY_BASE_MS = 20;

/** Whether the push was confirmed, whatever its outcome. */
export async function pushAtOnce(
  call: Call,
  random: Random,
  push: (signal: AbortSignal) => Promise<PushOutcome | TributaryError | undefined>,
): Promise<boolean> {
  // By hand and not by AbortSignal.timeout, whose timer fires for every publish although it was answered long ago.
  const limit = new AbortController();
  const { signal } = limit;
  const cancelLimit = after(BUDGET_MS, () => limit.abort(new TributaryError('DEADLINE_EXCEEDED')));
  const leave = (): void => limit.abort(call.signal.reason);
  call.signal.addEventListener('abort', leave);
  if (call.signal.aborted) leave();
  try {
    for (let attempt = 1; attempt <= TRIES_MAX; attempt += 1) {
      if (attempt > 1) await pause(signal, RETRY_BASE_MS * 2 ** (attempt - 2) * random.fraction());
      const outcome = await untilAborted(push(signal), signal);
      if (outcome !== undefined && !(outcome instanceof TributaryError)) return true;
    }
  } catch {
    // The budget or the caller's deadline has passed; the fan-out job goes on.
  } finally {
    cancelLimit();
    call.signal.removeEventListener('abort', leave);
  }
  return false;
}
