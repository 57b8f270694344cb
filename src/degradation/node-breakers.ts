/**
 * Owns whether calls to single masters of a cache cluster are worth making: a breaker for each. A page reads from most of the masters, since its posts and authors lie anywhere; without this,
 * one master that does not answer would make every page of every viewer wait out a time-out in each of its batches, which is longer than a read may take.
 *
 * Invariant: what is refused here has been sent to nobody, and tells nothing about the other masters; what the breaker of the whole cache refuses tells nothing about any.
 */
import { type Breaker, type BreakerParts, createBreaker } from './breaker.ts';

export interface NodeBreakers {
  isClosed(node: string): boolean;
  call<Result>(node: string, work: () => Promise<Result>): Promise<Result>;
  stop(): void;
}

export interface NodeBreakersParts extends Pick<BreakerParts, 'isFailure' | 'refusal' | 'clock'> {
  /** Behind which all masters stand together: it hears how every call ended, and refuses for all of them. */
  readonly whole: Pick<Breaker, 'isClosed' | 'call'>;
  /** Asks one master for a sign of life, past its breaker. Resolves also where it owns nothing any more: another one took over, and nobody calls it. */
  readonly probe: (signal: AbortSignal, node: string) => Promise<unknown>;
  /** A master went away, by its breaker, or is back. `away`: how many are then. */
  readonly changed: (
    node: string,
    news: { readonly isAway: boolean; readonly away: number; readonly cause?: unknown },
  ) => void;
}

/** As many masters as a cluster is meant to have at most; what comes after so many different ones, as addresses change over the years, goes unguarded. */
const NODES_MAX = 1_000;

export function createNodeBreakers(parts: NodeBreakersParts): NodeBreakers {
  const breakers = new Map<string, Breaker>();
  const away = new Set<string>();

  function breakerOf(node: string): Breaker | undefined {
    const found = breakers.get(node);
    if (found || breakers.size === NODES_MAX) return found;
    const made = createBreaker({
      ...parts,
      probe: (signal) => parts.probe(signal, node),
      changed(state, cause) {
        const isAway = state !== 'closed';
        // Probes that fail change the state as well.
        if (isAway === away.has(node)) return;
        if (isAway) away.add(node);
        else away.delete(node);
        parts.changed(node, { isAway, away: away.size, cause });
      },
    });
    breakers.set(node, made);
    return made;
  }

  return {
    isClosed: (node) => breakers.get(node)?.isClosed() ?? true,
    call(node, work) {
      const whole = () => parts.whole.call(work);
      // A refusal is no failure of this master, nor a sign of life.
      if (!parts.whole.isClosed()) return whole();
      return breakerOf(node)?.call(whole) ?? whole();
    },
    stop() {
      for (const breaker of breakers.values()) breaker.stop();
    },
  };
}
