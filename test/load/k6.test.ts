/**
 * Owns the promises of the k6 scripts: each runs against the real service by both protocols, its checks hold, its thresholds are evaluated
 * over samples, and it is a script that k6 can load. They run in the stand-in of test/k6, since k6 is not among what tests may need.
 */
import { globSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startFaultProxy } from '../harness/fault-proxy.ts';
import { startTestService, type TestService } from '../harness/service.ts';
import { type RunReport, runScript } from '../k6/run-script.ts';

const SCRIPTS = path.resolve(import.meta.dirname, '../../load/k6');

/** Rates and durations so small that no scenario has more iterations than VUs: then none can be dropped, however slow the machine. */
const SMALL = {
  LOAD_RATE: '6',
  LOAD_DURATION: '1s',
  LOAD_STORM_RATE: '8',
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

let service: TestService;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(() => service?.stop());

async function run(name: string, more: Readonly<Record<string, string>> = {}): Promise<RunReport> {
  const tenant = await service.tenant();
  return runScript(path.join(SCRIPTS, `${name}.ts`), {
    ...SMALL,
    LOAD_GRPC_ADDRESS: `127.0.0.1:${service.service.grpcPort}`,
    LOAD_HTTP_URL: `http://127.0.0.1:${service.service.httpPort}`,
    LOAD_API_KEY: tenant.key,
    ...more,
  });
}

/** Runs a script by JSON against a service that is none: its answers are given, undefined for a failure; the rest is as set-up wants it. */
async function runAgainst(
  name: string,
  more: Readonly<Record<string, string>>,
  answerOf: (call: string, calls: number) => object | undefined,
): Promise<RunReport> {
  const results = Array.from({ length: Number(SMALL.LOAD_FOLLOWS) }, () => ({}));
  const presets: Readonly<Record<string, object>> = {
    BatchFollow: { results },
    PublishPost: { post: { postId: '1' } },
  };
  const calls = new Map<string, number>();
  const server = createServer((request, response) => {
    const call = path.basename(request.url ?? '');
    calls.set(call, (calls.get(call) ?? 0) + 1);
    const answer = answerOf(call, calls.get(call) ?? 0);
    response.statusCode = answer === undefined ? 503 : 200;
    request.resume().on('end', () => response.end(JSON.stringify({ ...presets[call], ...answer })));
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  try {
    const { port } = server.address() as AddressInfo;
    return await run(name, {
      LOAD_HTTP_URL: `http://127.0.0.1:${port}`,
      LOAD_PROTOCOLS: 'json',
      LOAD_API_KEY: 'any',
      ...more,
    });
  } finally {
    server.closeAllConnections();
    await new Promise((resolve) => server.close(resolve));
  }
}

function entries(...ids: readonly string[]) {
  return ids.map((postId) => ({ post: { postId } }));
}

function failedThresholds(report: RunReport): readonly string[] {
  return report.thresholds.filter(({ passed }) => !passed).map(({ metric }) => metric);
}

/** Checks that every page has. */
const PAGE = [
  'IDs are exact numbers',
  'a page falls by ID',
  'a page is complete',
  'a page is no longer than asked for',
];
const WALK = ['a walk ends', 'a walk falls by ID', 'a walk holds nothing twice'];

describe('a script runs by both protocols, holds its thresholds and makes all of its checks', () => {
  it.each([
    {
      name: 'home-reads',
      roles: ['reads'],
      checks: [...PAGE, ...WALK, 'a walk holds every post of the authors followed'],
      env: { LOAD_CLEAN_UP: 'true' },
    },
    {
      name: 'publish-mix',
      roles: ['mix'],
      checks: [
        ...PAGE,
        ...WALK,
        'a follow holds once it is answered',
        'an own post is visible at once, or the answer said not',
      ],
      // Three iterations each: seeds and weights such that there is one of each kind.
      env: { LOAD_MIX: '1,1,1' },
    },
    {
      name: 'author-storm',
      roles: ['reads', 'small', 'storm'],
      checks: [...PAGE, ...WALK, 'a follower has every post of the storm', 'a post of a small author arrives'],
      env: {},
    },
    {
      name: 'cold-cache',
      roles: ['cold'],
      checks: [...PAGE, 'a rebuilt page is full', 'a rebuilt page stays as it is'],
      env: {},
    },
    { name: 'soak', roles: ['visits'], checks: [...PAGE, 'a head is complete', 'a page says how to read on'], env: {} },
  ])('$name', async ({ name, roles, checks, env }) => {
    const report = await run(name, env);
    expect(report.errors).toEqual([]);
    expect(report.thresholds.filter(({ passed }) => !passed)).toEqual([]);
    expect(report.passed).toBe(true);
    expect(Object.keys(report.checks).sort()).toEqual([...checks].sort());
    const untrue = report.samples.filter(
      ({ metric, value, tags }) => metric === 'checks' && tags['kind'] === 'truth' && value === 0,
    );
    expect(untrue).toEqual([]);
    const scenarios = roles.flatMap((role) => [`${role}_grpc`, `${role}_json`]);
    const measured = report.thresholds.filter(({ metric }) => metric !== 'dropped_iterations');
    expect(measured.filter(({ samples }) => samples === 0)).toEqual([]);
    expect(measured.map(({ metric }) => metric)).toEqual(
      expect.arrayContaining(scenarios.map((scenario) => `iterations{scenario:${scenario}}`)),
    );
    expect(report.thresholds).toContainEqual(
      expect.objectContaining({ metric: 'dropped_iterations', source: 'count==0' }),
    );
  });

  it('and leaves no post where it is asked to clean up', async () => {
    const tenant = await service.tenant();
    const report = await run('home-reads', { LOAD_API_KEY: tenant.key, LOAD_RUN: 'tidy', LOAD_CLEAN_UP: 'true' });
    expect(report.passed).toBe(true);
    const page = await tenant.timeline.getHomeTimeline({ viewerId: 'tidy.v0' });
    expect(page.entries).toEqual([]);
    const { userIds } = await tenant.graph.listFollowing({ userId: 'tidy.v0' });
    expect(userIds).toHaveLength(2);
  });
});

describe('a run fails', () => {
  it('where calls are refused', async () => {
    await expect(run('home-reads', { LOAD_API_KEY: 'nobody-was-given-this' })).rejects.toThrow('setup');
  });

  it('where iterations are dropped: with fewer VUs than calls at a time', async () => {
    const report = await run('home-reads', { LOAD_VUS: '1', LOAD_RATE: '2000', LOAD_PROTOCOLS: 'json' });
    expect(report.dropped).toBeGreaterThan(0);
    expect(failedThresholds(report)).toEqual(['dropped_iterations']);
  });

  it('where answers are slower than asked for', async () => {
    const proxy = await startFaultProxy({ port: service.service.grpcPort });
    try {
      proxy.delay(20);
      const env = {
        LOAD_GRPC_ADDRESS: `127.0.0.1:${proxy.port}`,
        LOAD_PROTOCOLS: 'grpc',
        LOAD_P99_MS: '9',
        LOAD_VIEWERS: '2',
      };
      expect(failedThresholds(await run('home-reads', env))).toEqual(['grpc_req_duration{scenario:reads_grpc}']);
    } finally {
      await proxy.stop();
    }
  });

  it('where calls fail', async () => {
    const report = await runAgainst('home-reads', {}, (call, calls) =>
      call === 'GetHomeTimeline' && calls === 1 ? undefined : {},
    );
    expect(failedThresholds(report)).toContain('calls_failed');
  });

  it.each([
    { what: 'pages out of order', page: { entries: entries('5', '7') }, check: 'a page falls by ID' },
    { what: 'an entry twice', page: { entries: entries('7', '7') }, check: 'a walk holds nothing twice' },
    {
      what: 'a walk that misses posts',
      page: { entries: entries('7') },
      check: 'a walk holds every post of the authors followed',
    },
    {
      what: 'an ID that numbers cannot hold',
      page: { entries: entries('9007199254740993') },
      check: 'IDs are exact numbers',
    },
    {
      what: 'more entries than asked for',
      page: { entries: entries('7', '6', '5', '4', '3') },
      check: 'a page is no longer than asked for',
    },
    {
      what: 'pages that are not complete',
      page: { completeness: 'COMPLETENESS_PARTIAL' },
      check: 'a page is complete',
    },
    {
      what: 'an own post that is not there',
      script: 'publish-mix',
      page: {},
      check: 'an own post is visible at once, or the answer said not',
    },
    {
      what: 'a follow that does not hold',
      script: 'publish-mix',
      page: {},
      check: 'a follow holds once it is answered',
    },
    { what: 'a page that shrinks', script: 'cold-cache', page: {}, check: 'a rebuilt page is full' },
  ])('where the service answers with $what', async ({ script = 'home-reads', page, check }) => {
    const env = { LOAD_MIX: '0,1,1', LOAD_COMPLETE_RATE: '0.99' };
    const report = await runAgainst(script, env, (call) =>
      call === 'GetHomeTimeline' ? { completeness: 'COMPLETENESS_COMPLETE', ...page } : {},
    );
    expect(report.checks[check]?.fails).toBeGreaterThan(0);
    const kind = check === 'a page is complete' ? 'complete' : 'truth';
    expect(failedThresholds(report)).toContain(`checks{kind:${kind}}`);
  });

  it.each([
    { LOAD_RATE: '0' },
    { LOAD_DURATION: '10' },
    { LOAD_PROTOCOLS: 'soap' },
    { LOAD_MIX: '0,0,0' },
    { LOAD_API_KEY: '' },
  ])('before its first call where a setting is wrong: %o', async (wrong) => {
    await expect(run('home-reads', wrong)).rejects.toThrow(Object.keys(wrong)[0]);
  });
});

describe('scripts', () => {
  const sources = globSync('*.ts', { cwd: SCRIPTS }).map((file) => ({
    file,
    text: readFileSync(path.join(SCRIPTS, file), 'utf8'),
  }));

  it.each(sources)('import k6 and each other, nothing else: $file', ({ text }) => {
    const imported = [...text.matchAll(/(?:\bfrom|\bimport)\s*\(?\s*['"]([^'"]+)['"]/g)].map(([, from = '']) => from);
    expect(imported.length > 0 || /settings/.test(text)).toBe(true);
    expect(imported.filter((from) => !/^(?:k6(?:\/[a-z/]+)?|\.\/[a-z-]+\.ts)$/.test(from))).toEqual([]);
  });

  it.each(sources)('name no metric, tag or check after what they were given: $file', ({ text }) => {
    for (const [, argument = ''] of text.matchAll(/new (?:Rate|Trend|Counter)\(([^)]*)\)/g))
      expect(argument).toMatch(/^'[a-z_]+'$/);
    // Keys of checks are plain text.
    expect(text).not.toMatch(/check\([^)]*\[`/);
  });

  it('have tags from closed sets alone', async () => {
    const report = await run('soak', { LOAD_PROTOCOLS: 'json' });
    const tagged = new Map<string, Set<string>>();
    for (const { tags } of report.samples) {
      for (const [tag, value] of Object.entries(tags)) tagged.set(tag, (tagged.get(tag) ?? new Set()).add(value));
    }
    expect([...tagged.keys()].sort()).toEqual([
      'check',
      'group',
      'kind',
      'method',
      'name',
      'protocol',
      'scenario',
      'status',
    ]);
    expect([...(tagged.get('name') ?? [])].sort()).toEqual([
      'BatchFollow',
      'GetHomeHead',
      'GetHomeTimeline',
      'PublishPost',
    ]);
  });
});
