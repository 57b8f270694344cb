/**
 * Owns whether calls may be sent here: the database answered its last probe and takes writes. Liveness is another matter: a process that
 * waits for its database is alive. One failed probe is not enough to turn calls away, since they would all go to the next instance at once.
 */
import { after, type Log } from '../runtime.ts';

export interface Readiness {
  isReady(): boolean;
  /** Calls the listener with every change; the function that is returned takes it back. */
  onChange(listener: (ready: boolean) => void): () => void;
}

export interface ProbedReadiness extends Readiness {
  /** Probes once; never throws. */
  probeOnce(): Promise<void>;
  /** Probes again and again until stopped; answers after the first probe. */
  start(): Promise<void>;
  stop(): void;
}

const PROBE_EVERY_MS = 1_000;
const PROBE_TIMEOUT_MS = 1_000;
/** Failed probes in a row after which the process is not ready. */
const FAILURES_MAX = 2;

export function createReadiness(parts: {
  readonly probe: (signal: AbortSignal) => Promise<boolean>;
  readonly log: Log;
}): ProbedReadiness {
  const listeners = new Set<(ready: boolean) => void>();
  let ready = false;
  let failures = FAILURES_MAX;
  let stopped = false;
  let cancelNext: () => void = () => undefined;

  function set(next: boolean): void {
    if (ready === next) return;
    ready = next;
    parts.log.info({ ready }, 'readiness changed');
    for (const listener of listeners) listener(ready);
  }

  async function probeOnce(): Promise<void> {
    const answered = await parts.probe(AbortSignal.timeout(PROBE_TIMEOUT_MS)).catch((error: unknown) => {
      parts.log.warn({ err: error }, 'the database did not answer a probe');
      return false;
    });
    if (stopped) return;
    failures = answered ? 0 : failures + 1;
    if (answered) set(true);
    else if (failures >= FAILURES_MAX) set(false);
  }

  async function loop(): Promise<void> {
    await probeOnce();
    if (!stopped) cancelNext = after(PROBE_EVERY_MS, () => void loop());
  }

  return {
    isReady: () => ready,
    onChange(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    probeOnce,
    start: loop,
    stop() {
      stopped = true;
      cancelNext();
      set(false);
    },
  };
}
