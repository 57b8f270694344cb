/**
 * Owns the one signal of a call. It aborts at the deadline, when the caller leaves or when the server stops, always with a
 * TributaryError as its reason; `close` takes the timer and the listener back, so that an answered call leaves nothing behind.
 */
import { TributaryError } from '../errors.ts';
import { after } from '../runtime.ts';

export interface CallSignal {
  readonly signal: AbortSignal;
  /** Rejects with the reason once the signal aborts; else stays pending. */
  readonly ended: Promise<never>;
  end(error: TributaryError): void;
  close(): void;
}

export function openCallSignal(options: {
  /** Undefined for no deadline. */
  readonly remainingMs: number | undefined;
  readonly left: AbortSignal;
}): CallSignal {
  const controller = new AbortController();
  const { promise: ended, reject } = Promise.withResolvers<never>();
  // A call that fails before anybody waits for `ended` must not count as an unhandled rejection.
  ended.catch(() => undefined);
  let open = true;
  let cancelTimer = (): void => undefined;

  function close(): void {
    if (!open) return;
    open = false;
    cancelTimer();
    options.left.removeEventListener('abort', onLeft);
  }
  function end(error: TributaryError): void {
    if (!open) return;
    close();
    // First, so that what a handler makes of its aborted signal always comes second.
    reject(error);
    controller.abort(error);
  }
  function onLeft(): void {
    end(new TributaryError('CALL_CANCELLED', { message: 'the caller left' }));
  }

  if (options.remainingMs !== undefined) {
    cancelTimer = after(options.remainingMs, () => end(deadlineExceeded()));
  }
  options.left.addEventListener('abort', onLeft);
  if (options.left.aborted) onLeft();
  else if (options.remainingMs !== undefined && options.remainingMs <= 0) end(deadlineExceeded());
  return { signal: controller.signal, ended, end, close };
}

export function deadlineExceeded(): TributaryError {
  return new TributaryError('DEADLINE_EXCEEDED', { message: 'the deadline passed before there was an answer' });
}
