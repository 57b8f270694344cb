/**
 * Owns whether calls may be sent here. Ready is who can serve pages, whole ones or of less: while Postgres answers, and without it while the cache does and callers' keys are still remembered. Not
 * while it starts, since what it could serve without Postgres it has learnt from Postgres; not while it stops; and not where it could serve nobody. So an outage of Postgres, which all
 * instances share, leaves a balancer with instances that serve what the cache holds, and not with none. Writes are ready apart: they need a Postgres that takes them.
 *
 * Liveness is another matter: a process that waits for its database is alive. One failed probe is not enough to turn calls away, since they would all go to the next instance at once.
 */
import { after, type Clock, type Log } from '../runtime.ts';

export interface Readiness {
  isReady(): boolean;
  takesWrites(): boolean;
  /** Calls the listener with every change of either; the function that is returned takes it back. */
  onChange(listener: () => void): () => void;
}

export interface ProbedReadiness extends Readiness {
  /** Probes once; never throws. */
  probeOnce(): Promise<void>;
  /** Probes again and again until stopped; answers after the first probe. */
  start(): Promise<void>;
  stop(): void;
}

export interface ReadinessParts {
  /** Whether Postgres takes writes; rejects where it does not answer. */
  readonly probeDatabase: (signal: AbortSignal) => Promise<boolean>;
  readonly probeCache: (signal: AbortSignal) => Promise<void>;
  /** How long a caller's key is remembered that Postgres cannot confirm. */
  readonly keyOutageMs: number;
  readonly clock: Clock;
  readonly log: Log;
}

const PROBE_EVERY_MS = 1_000;
const PROBE_TIMEOUT_MS = 1_000;
/** Failed probes in a row after which a dependency counts as away. */
const FAILURES_MAX = 2;

export function createReadiness(parts: ReadinessParts): ProbedReadiness {
  const { clock, log } = parts;
  const listeners = new Set<() => void>();
  const database = inARow();
  const writes = inARow();
  const cache = inARow();
  let answeredAtMs: number | undefined;
  let standing = { ready: false, writes: false };
  let stopped = false;
  let cancelNext: () => void = () => undefined;

  function set(next: typeof standing): void {
    if (standing.ready === next.ready && standing.writes === next.writes) return;
    standing = next;
    log.info(standing, 'readiness changed');
    for (const listener of listeners) listener();
  }

  async function probeOnce(): Promise<void> {
    const signal = AbortSignal.timeout(PROBE_TIMEOUT_MS);
    const [written, cached] = await Promise.allSettled([parts.probeDatabase(signal), parts.probeCache(signal)]);
    if (stopped) return;
    if (written.status === 'rejected') log.warn({ err: written.reason }, 'the database did not answer a probe');
    else answeredAtMs = clock.monotonicMs();
    database.count(written.status === 'fulfilled');
    writes.count(written.status === 'fulfilled' && written.value);
    cache.count(cached.status === 'fulfilled');
    const remembered = answeredAtMs !== undefined && clock.monotonicMs() - answeredAtMs < parts.keyOutageMs;
    set({ ready: database.isThere() || (cache.isThere() && remembered), writes: writes.isThere() });
  }

  async function loop(): Promise<void> {
    await probeOnce();
    if (!stopped) cancelNext = after(PROBE_EVERY_MS, () => void loop());
  }

  return {
    isReady: () => standing.ready,
    takesWrites: () => standing.writes,
    onChange(listener) {
      listeners.add(listener);
      return () => void listeners.delete(listener);
    },
    probeOnce,
    start: loop,
    stop() {
      stopped = true;
      cancelNext();
      set({ ready: false, writes: false });
    },
  };
}

/** Away at first, there with one success, and away after enough failures in a row. */
function inARow(): { count(success: boolean): void; isThere(): boolean } {
  let failures = FAILURES_MAX;
  return {
    count(success) {
      failures = success ? 0 : failures + 1;
    },
    isThere: () => failures < FAILURES_MAX,
  };
}
