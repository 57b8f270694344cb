/**
 * Owns the order of a stop: stage after stage, each within its bound. What fails or does not end in time is logged and left, and the next stage begins all the same: a server that is away must keep
 * nothing else from being closed.
 */
import { after, type Log } from './runtime.ts';

export interface StopStage {
  readonly name: string;
  /** Longest wait for the stage, in milliseconds: what its parts promise themselves and something over, so that it is met by faults of ours alone. */
  readonly maxMs: number;
  /** Begun together. */
  readonly parts: readonly (() => unknown)[];
}

/** Goes through all stages; throws afterwards where one of them was not done, and names it. */
export async function stopInOrder(stages: Iterable<StopStage>, log: Log): Promise<void> {
  const undone: string[] = [];
  for (const { name, maxMs, parts } of stages) {
    const ended = Promise.allSettled(parts.map(async (part) => part()));
    const outcomes = await withinMs(ended, maxMs);
    const faults = outcomes?.flatMap((outcome) => (outcome.status === 'rejected' ? [outcome.reason] : []));
    if (faults?.length === 0) continue;
    undone.push(name);
    for (const error of faults ?? []) log.error({ err: error, stage: name }, 'a part could not be stopped');
    if (!faults) log.error({ stage: name, maxMs }, 'a stage of the stop did not end in time, and was left');
  }
  if (undone.length > 0) throw new Error(`not everything was stopped: ${undone.join(', ')}`);
}

/** What the work came to; undefined where it had not ended within `ms`. */
function withinMs<Result>(work: Promise<Result>, ms: number): Promise<Result | undefined> {
  return new Promise((resolve, reject) => {
    const giveUp = after(ms, () => resolve(undefined));
    work.finally(giveUp).then(resolve, reject);
  });
}
