/** Owns the pages for operators on the HTTP port: /metrics, /livez and /readyz. Liveness asks nothing of others: a process that waits for its database is alive. */
import type { Metrics } from './metrics.ts';

export interface Page {
  readonly status: number;
  readonly contentType: string;
  readonly body: string;
}

const PLAIN = 'text/plain; charset=utf-8';

/** The page of a path, or undefined where there is none. */
export async function operatorPage(
  path: string,
  parts: { readonly metrics: Pick<Metrics, 'exposition'>; readonly isReady: () => boolean },
): Promise<Page | undefined> {
  switch (path) {
    case '/metrics':
      return { status: 200, ...(await parts.metrics.exposition()) };
    case '/livez':
      return { status: 200, contentType: PLAIN, body: 'ok\n' };
    case '/readyz':
      return parts.isReady()
        ? { status: 200, contentType: PLAIN, body: 'ok\n' }
        : { status: 503, contentType: PLAIN, body: 'not ready\n' };
    default:
      return undefined;
  }
}
