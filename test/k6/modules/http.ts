/** Stand-in for the module `k6/http`: only what our scripts use. */
import { addSample, callAndWait, timeoutFrom } from '../host.ts';
import type { Tags } from '../messages.ts';

interface Params {
  readonly headers?: Readonly<Record<string, string>>;
  readonly tags?: Tags;
  readonly timeout?: string | number;
  readonly responseType?: 'text';
}

/** As k6 has it. */
const TIMEOUT_MS = 60_000;

function post(url: string, body: string, params: Params = {}) {
  const { headers = {}, tags = {}, timeout } = params;
  const timeoutMs = timeoutFrom(timeout, TIMEOUT_MS);
  const answer = callAndWait({ kind: 'http', method: 'POST', url, body, headers, timeoutMs });
  const { status, error, durationMs } = answer;
  const all = { name: url, status: String(status), method: 'POST', ...tags };
  addSample('http_reqs', 1, all);
  addSample('http_req_duration', durationMs, all);
  addSample('http_req_failed', status >= 200 && status < 400 ? 0 : 1, all);
  return { status, error, body: status === 0 ? null : answer.body, timings: { duration: durationMs } };
}

export default { post };
