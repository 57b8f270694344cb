/** Owns how tests run a k6 script: in the stand-in of test/k6, for a moment, against a service of the test. */
import path from 'node:path';
import type { TestService } from '../harness/service.ts';
import { type RunReport, runScript } from '../k6/run-script.ts';

export const SCRIPTS = path.resolve(import.meta.dirname, '../../load/k6');

/** Rates and durations so small that no scenario has more iterations than VUs: then none can be dropped, however slow the machine. */
export const SMALL = {
  LOAD_RATE: '20',
  LOAD_DURATION: '300ms',
  LOAD_STORM_RATE: '24',
  LOAD_VUS: '3',
  LOAD_VIEWERS: '6',
  LOAD_AUTHORS: '4',
  LOAD_FOLLOWS: '2',
  LOAD_POSTS: '3',
  LOAD_FOLLOWERS: '5',
  LOAD_PAGE_SIZE: '4',
  // A machine that is busy with other tests answers late, and with pages that are not complete in time.
  LOAD_COMPLETE_RATE: '0',
  LOAD_P99_MS: '60000',
  LOAD_VISIBLE_P99_MS: '60000',
};

/** One protocol has the whole rate. */
export const BY_GRPC = { LOAD_PROTOCOLS: 'grpc', LOAD_RATE: '10' };
export const BY_JSON = { LOAD_PROTOCOLS: 'json', LOAD_RATE: '10' };

/** Checks that every page has. */
export const PAGE = [
  'IDs are exact numbers',
  'a page falls by ID',
  'a page is complete',
  'a page is no longer than asked for',
];
export const WALK = ['a walk ends', 'a walk falls by ID', 'a walk holds nothing twice'];

/** With a tenant of its own. */
export async function runSmall(
  { service, tenant }: TestService,
  name: string,
  more: Readonly<Record<string, string>> = {},
): Promise<RunReport> {
  const { key } = await tenant();
  return runScript(path.join(SCRIPTS, `${name}.ts`), {
    ...SMALL,
    LOAD_GRPC_ADDRESS: `127.0.0.1:${service.grpcPort}`,
    LOAD_HTTP_URL: `http://127.0.0.1:${service.httpPort}`,
    LOAD_API_KEY: key,
    ...more,
  });
}

export function failedThresholds(report: RunReport): readonly string[] {
  return report.thresholds.filter(({ passed }) => !passed).map(({ metric }) => metric);
}
