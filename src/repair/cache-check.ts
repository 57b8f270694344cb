/**
 * Owns that the cache's settings are looked at before anybody relies on them: at the start or, where the cache is away then, as soon as it answers. A cache that keeps its past is not gone on with, however
 * late it is found out.
 */
import type { Log } from '../runtime.ts';
import { CacheRefused } from '../store/redis/checks.ts';

export interface CacheCheckParts {
  /** Warnings; throws CacheRefused, or whatever else where the cache did not answer. */
  readonly check: (signal: AbortSignal) => Promise<readonly string[]>;
  readonly log: Log;
}

export interface CacheCheck {
  /** Throws CacheRefused. A cache that does not answer is no reason not to start: pages come from Postgres then. */
  atStart(): Promise<void>;
  /** A round of the background, which does nothing once there has been an answer. Refusals go to `refused`. */
  again(signal: AbortSignal, refused: (error: CacheRefused) => void): Promise<void>;
}

const CHECK_TIMEOUT_MS = 3_000;

export function createCacheCheck({ check, log }: CacheCheckParts): CacheCheck {
  let isAnswered = false;

  async function ask(signal: AbortSignal): Promise<void> {
    try {
      const warnings = await check(signal);
      isAnswered = true;
      for (const warning of warnings) log.warn(warning);
    } catch (error) {
      if (!(error instanceof CacheRefused)) throw error;
      isAnswered = true;
      throw error;
    }
  }

  return {
    async atStart() {
      try {
        await ask(AbortSignal.timeout(CHECK_TIMEOUT_MS));
      } catch (error) {
        if (error instanceof CacheRefused) throw error;
        log.warn({ err: error }, 'the cache does not answer; its settings are checked once it does');
      }
    },

    async again(signal, refused) {
      if (isAnswered) return;
      try {
        await ask(AbortSignal.any([signal, AbortSignal.timeout(CHECK_TIMEOUT_MS)]));
      } catch (error) {
        if (error instanceof CacheRefused) refused(error);
        // Else it is still away, which the breaker has said.
      }
    },
  };
}
