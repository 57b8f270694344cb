/** Owns the loop around work that is done again and again in the background: one round at a time, jittered, ended by `stop`, never by an error. */
import { after, type Log, type Random } from '../runtime.ts';

export interface Rounds {
  /** Ends the round under way and starts none after it. */
  stop(): Promise<void>;
}

export interface RoundsParts {
  readonly name: string;
  /** Pause between rounds, in milliseconds; lengthened by up to a quarter, so that instances do not keep step. */
  readonly everyMs: number;
  /** Bound of one round. */
  readonly roundMaxMs: number;
  /** Answers whether there is more to do at once. */
  readonly runOnce: (signal: AbortSignal) => Promise<boolean>;
  readonly random: Random;
  readonly log: Log;
}

export function startRounds(parts: RoundsParts): Rounds {
  const stopping = new AbortController();
  let cancelNext: () => void = () => undefined;
  let running: Promise<void> = Promise.resolve();

  async function round(): Promise<void> {
    let more = false;
    try {
      more = await parts.runOnce(AbortSignal.any([stopping.signal, AbortSignal.timeout(parts.roundMaxMs)]));
    } catch (error) {
      if (!stopping.signal.aborted)
        parts.log.warn({ err: error, work: parts.name }, 'a background round failed; the next one goes on');
    }
    if (!stopping.signal.aborted) next(more ? 0 : parts.everyMs * (1 + parts.random.fraction() / 4));
  }

  function next(inMs: number): void {
    cancelNext = after(inMs, () => {
      running = round();
    });
  }

  next(0);
  return {
    async stop() {
      stopping.abort();
      cancelNext();
      await running;
    },
  };
}
