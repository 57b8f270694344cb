/** Owns how much each call is missed when some must be refused: what the chain tells admission. */
import type { UnaryMethod } from './methods.ts';

export type CallPriority = 'never' | 'write' | 'read' | 'deep';

/** Of reads that are no page, but as little missed as a deep one. */
const DEEP_METHODS: ReadonlySet<string> = new Set(['tributary.v1.TimelineService/GetHomeHead']);

/** `request` is a message of the method's input. A page with a token is a deep one. */
export function priorityOf(method: Pick<UnaryMethod, 'name' | 'access' | 'effect'>, request: unknown): CallPriority {
  if (method.access !== 'service') return 'never';
  if (method.effect === 'write') return 'write';
  const { pageToken = '' } = request as { readonly pageToken?: string };
  return pageToken !== '' || DEEP_METHODS.has(method.name) ? 'deep' : 'read';
}
