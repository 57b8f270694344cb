/**
 * Owns the joining of what different requests ask of Redis within one turn of the event loop: one call for some of them instead of a call each. What a call costs beside what it asks for (a command,
 * its guard, its time-out, its answer) costs the process more than a page's share of the call itself.
 *
 * Invariants: nobody joins a call that was sent before they asked; a caller who leaves, or whose part fails, decides nothing for the others; nothing is sent for those who have left before.
 */
import { abortError, atEndOfTurn, untilAborted } from '../../runtime.ts';

export interface TurnCallsParts<Ask, Answer> {
  /** Those of one name may be asked together. */
  readonly nameOf: (ask: Ask) => string;
  /** How much an ask asks for. */
  readonly sizeOf: (ask: Ask) => number;
  /** What one call asks for at most, where it is for more than one. */
  readonly sizeMax: number;
  /** Answers each, in order. Bounded by the time-out of a command: its signal never aborts. */
  readonly send: (signal: AbortSignal, asks: readonly Ask[]) => Promise<readonly Answer[]>;
}

interface Waiting<Ask, Answer> {
  readonly ask: Ask;
  readonly signal: AbortSignal;
  readonly resolve: (answer: Answer) => void;
  readonly reject: (error: unknown) => void;
}

const UNENDING = new AbortController().signal;

export function createTurnCalls<Ask, Answer>(
  parts: TurnCallsParts<Ask, Answer>,
): (signal: AbortSignal, ask: Ask) => Promise<Answer> {
  let waiting = new Map<string, Waiting<Ask, Answer>[]>();

  async function send(some: readonly Waiting<Ask, Answer>[]): Promise<void> {
    try {
      const answers = await parts.send(
        UNENDING,
        some.map(({ ask }) => ask),
      );
      some.forEach(({ resolve }, index) => {
        resolve(answers[index] as Answer);
      });
    } catch (error) {
      for (const { reject } of some) reject(error);
    }
  }

  function sendAll(): void {
    const all = waiting;
    waiting = new Map();
    for (const asked of all.values()) {
      let some: Waiting<Ask, Answer>[] = [];
      let size = 0;
      for (const each of asked) {
        if (each.signal.aborted) {
          each.reject(abortError(each.signal));
          continue;
        }
        const more = parts.sizeOf(each.ask);
        if (some.length > 0 && size + more > parts.sizeMax) {
          void send(some);
          some = [];
          size = 0;
        }
        some.push(each);
        size += more;
      }
      if (some.length > 0) void send(some);
    }
  }

  return (signal, ask) => {
    const answer = new Promise<Answer>((resolve, reject) => {
      if (waiting.size === 0) atEndOfTurn(sendAll);
      const each = { ask, signal, resolve, reject };
      const name = parts.nameOf(ask);
      const others = waiting.get(name);
      if (others) others.push(each);
      else waiting.set(name, [each]);
    });
    return untilAborted(answer, signal);
  };
}
