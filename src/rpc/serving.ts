/**
 * Owns whether the server says that it can be called, and that it can be called to change something: while the process is ready for that, and until it begins to stop. Health, /readyz and
 * load balancers all see this one state.
 */

/** What the front door has to know of the process behind it. */
export interface Readiness {
  /** For pages, if only for what is left of them in an outage. */
  isReady(): boolean;
  takesWrites(): boolean;
  /** Calls `listener` after every change; the function that is returned ends that. */
  onChange(listener: () => void): () => void;
}

export interface Serving extends Readiness {
  /** From now on not ready, whatever the process says. */
  stop(): void;
}

export function createServing(readiness: Readiness): Serving {
  const listeners = new Set<() => void>();
  let stopped = false;
  const notify = (): void => {
    for (const listener of [...listeners]) listener();
  };
  const forget = readiness.onChange(notify);
  return {
    isReady: () => !stopped && readiness.isReady(),
    takesWrites: () => !stopped && readiness.takesWrites(),
    onChange(listener) {
      listeners.add(listener);
      return () => {
        listeners.delete(listener);
      };
    },
    stop() {
      if (stopped) return;
      stopped = true;
      forget();
      notify();
    },
  };
}
