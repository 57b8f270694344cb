/**
 * Owns who a caller is: the bearer key of a call in, tenant and role out. Stands in front of the database with a bounded process cache.
 *
 * An error of the database is never taken for an unknown key, and never remembered. One lookup serves all who ask for the same key at
 * the same time; it runs under its own time limit, so that a caller who leaves does not fail the others. Known and unknown keys are
 * kept apart, so that a flood of invented keys cannot push out the real ones. Keys are held as digests only.
 */
import { hash } from 'node:crypto';
import { LRUCache } from 'lru-cache';
import { TributaryError } from '../errors.ts';
import { after, type Clock } from '../runtime.ts';
import type { TenantId } from '../timeline/ids.ts';

export interface ApiKey {
  readonly tenant: TenantId;
  readonly role: 'service' | 'admin';
}

/** Undefined where there is no such key; throws where that cannot be told. */
export type FindApiKey = (keyText: string, signal: AbortSignal) => Promise<ApiKey | undefined>;

export interface ApiKeys {
  /** Throws INVALID_API_KEY, or an UNAVAILABLE reason where the key could not be looked up. */
  identify(authorization: string | undefined, signal: AbortSignal): Promise<ApiKey>;
  /** Lookups under way now. */
  lookups(): number;
}

const AUTHORIZATION_FORM = /^Bearer +(tk_[A-Za-z0-9_-]{43})$/i;
const PREFIX = 'tk_';
/** Entries of each cache; a key takes some 200 bytes. */
const CACHED_KEYS_MAX = 10_000;
/** An unknown key is looked up again after this: it may have been created meanwhile. */
const UNKNOWN_TTL_MS = 1_000;
/** Different keys that may be looked up at once. */
const LOOKUPS_MAX = 256;
const RETRY_AFTER_MS = 200;

export function createApiKeys(parts: {
  readonly findApiKey: FindApiKey;
  /** How long a known key is trusted; 0 looks up every time. */
  readonly ttlMs: number;
  readonly lookupTimeoutMs: number;
  readonly clock: Clock;
}): ApiKeys {
  const { findApiKey, ttlMs, lookupTimeoutMs, clock } = parts;
  const perf = { now: () => clock.monotonicMs() };
  // lru-cache takes a TTL of 0 for "for ever"; a TTL of 0 here means that nothing is kept.
  const known = new LRUCache<string, ApiKey>({ max: CACHED_KEYS_MAX, ttl: Math.max(ttlMs, 1), ttlResolution: 0, perf });
  const unknown = new LRUCache<string, true>({
    max: CACHED_KEYS_MAX,
    ttl: Math.max(Math.min(ttlMs, UNKNOWN_TTL_MS), 1),
    ttlResolution: 0,
    perf,
  });
  const underWay = new Map<string, Promise<ApiKey | undefined>>();

  async function lookUp(digest: string, keyText: string): Promise<ApiKey | undefined> {
    const controller = new AbortController();
    const { promise: late, reject } = Promise.withResolvers<never>();
    const cancelTimer = after(lookupTimeoutMs, () => {
      const error = new TributaryError('DATABASE_UNAVAILABLE', {
        message: 'the key was not looked up in time',
        retryAfterMs: RETRY_AFTER_MS,
      });
      controller.abort(error);
      reject(error);
    });
    try {
      const found = await Promise.race([findApiKey(keyText, controller.signal), late]);
      if (ttlMs > 0) {
        if (found === undefined) unknown.set(digest, true);
        else known.set(digest, found);
      }
      return found;
    } catch (error) {
      if (error instanceof TributaryError) throw error;
      throw new TributaryError('DATABASE_UNAVAILABLE', { cause: error, retryAfterMs: RETRY_AFTER_MS });
    } finally {
      cancelTimer();
    }
  }

  function shared(digest: string, keyText: string): Promise<ApiKey | undefined> {
    const running = underWay.get(digest);
    if (running !== undefined) return running;
    if (underWay.size >= LOOKUPS_MAX) {
      throw new TributaryError('OVERLOADED', {
        message: 'too many keys are being looked up',
        retryAfterMs: RETRY_AFTER_MS,
      });
    }
    const lookup = lookUp(digest, keyText);
    underWay.set(digest, lookup);
    const settled = (): void => {
      underWay.delete(digest);
    };
    lookup.then(settled, settled);
    return lookup;
  }

  return {
    async identify(authorization, signal) {
      const keyText = keyFrom(authorization);
      const digest = hash('sha256', keyText, 'base64');
      const cached = known.get(digest);
      if (cached !== undefined) return cached;
      if (unknown.has(digest)) throw invalidApiKey();
      const found = await untilAborted(shared(digest, keyText), signal);
      if (found === undefined) throw invalidApiKey();
      return found;
    },
    lookups: () => underWay.size,
  };
}

function keyFrom(authorization: string | undefined): string {
  const key = AUTHORIZATION_FORM.exec(authorization ?? '')?.[1];
  if (key?.startsWith(PREFIX) !== true) throw invalidApiKey();
  return key;
}

function invalidApiKey(): TributaryError {
  return new TributaryError('INVALID_API_KEY', {
    message: 'the call needs `authorization: Bearer <key>` with a valid key',
  });
}

function untilAborted<Value>(promise: Promise<Value>, signal: AbortSignal): Promise<Value> {
  const { promise: aborted, reject } = Promise.withResolvers<never>();
  const onAbort = (): void => reject(signal.reason);
  signal.addEventListener('abort', onAbort, { once: true });
  if (signal.aborted) onAbort();
  return Promise.race([promise, aborted]).finally(() => signal.removeEventListener('abort', onAbort));
}
