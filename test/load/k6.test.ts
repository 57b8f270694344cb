/**
 * Owns the promises of the k6 scripts: each runs against the real service by both protocols, its checks hold, its thresholds are evaluated
 * over samples, and it is a script that k6 can load. They run in the stand-in of test/k6, since k6 is not among what tests may need.
 */
import { globSync, readFileSync } from 'node:fs';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually } from '../harness/eventually.ts';
import { startFaultProxy } from '../harness/fault-proxy.ts';
import { startTestService, type TestService } from '../harness/service.ts';
import { type RunReport, runScript } from '../k6/run-script.ts';

const SCRIPTS = path.resolve(import.meta.dirname, '../../load/k6');

/** Rates and durations so small that no scenario has more iterations than VUs: then none can be dropped, however slow the machine. */
const SMALL = {
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
const BY_GRPC = { LOAD_PROTOCOLS: 'grpc', LOAD_RATE: '10' };
const BY_JSON = { LOAD_PROTOCOLS: 'json', LOAD_RATE: '10' };

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

/** Of timelines that nobody had read, as the service counts them. */
async function rebuildsSoFar(): Promise<number> {
  const text = await (await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`)).text();
  const counted = text.matchAll(/^tributary_rebuild_seconds_count\{[^}]*what="timeline"[^}]*\} (\d+)$/gm);
  return [...counted].reduce((sum, [, count]) => sum + Number(count), 0);
}

/** Tags beside those whose values are known before a run: each value of a tag is a time series of its own. */
function openTags({ samples }: RunReport): readonly string[] {
  const calls =
    /^(?:BatchFollow|DeletePost|Follow|GetHomeHead|GetHomeTimeline|GetRelationship|ListAuthorPosts|PublishPost)$/;
  const closed = /^(?:check|group|kind|method|protocol|purpose|scenario|status)$/;
  const isClosed = ([tag, value]: readonly [string, string]): boolean =>
    tag === 'name' ? calls.test(value) : closed.test(tag);
  return samples.flatMap(({ tags }) => Object.entries(tags).filter((each) => !isClosed(each))).map(String);
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
      env: {},
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
    expect(openTags(report)).toEqual([]);
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

  it('and soaks with a connection for each client, and none left open', async () => {
    const { grpcPort, httpPort } = service.service;
    const [grpc, json] = await Promise.all([startFaultProxy({ port: grpcPort }), startFaultProxy({ port: httpPort })]);
    try {
      // One VU is several clients, one after the other; whether it has the time for all of them is not the question.
      const { errors, samples } = await run('soak', {
        LOAD_GRPC_ADDRESS: `127.0.0.1:${grpc.port}`,
        LOAD_HTTP_URL: `http://127.0.0.1:${json.port}`,
        LOAD_VUS: '1',
        LOAD_RATE: '8',
        LOAD_DURATION: '1s',
      });
      expect(errors).toEqual([]);
      const visits = ['visits_grpc', 'visits_json'].map(
        (scenario) =>
          samples.filter(({ metric, tags }) => metric === 'iterations' && tags['scenario'] === scenario).length,
      );
      // Set-up is a client as well.
      expect([grpc.connectionsTaken - 1, json.connectionsTaken]).toEqual(visits);
      await eventually(() => expect([grpc.connectionsOpen, json.connectionsOpen]).toEqual([0, 0]));
    } finally {
      await Promise.all([grpc.stop(), json.stop()]);
    }
  });

  it('and rebuilds a timeline in every iteration of cold-cache', async () => {
    const before = await rebuildsSoFar();
    const { iterations } = await run('cold-cache');
    expect(iterations).toBe(6);
    expect((await rebuildsSoFar()) - before).toBe(iterations);
  });

  it('and leaves no post where it is asked to clean up', async () => {
    const tenant = await service.tenant();
    const report = await run('home-reads', {
      LOAD_API_KEY: tenant.key,
      LOAD_RUN: 'tidy',
      LOAD_CLEAN_UP: 'true',
      ...BY_GRPC,
    });
    expect(report.passed).toBe(true);
    const page = await tenant.timeline.getHomeTimeline({ viewerId: 'tidy.v0' });
    expect(page.entries).toEqual([]);
    const { userIds } = await tenant.graph.listFollowing({ userId: 'tidy.v0' });
    expect(userIds).toHaveLength(2);
  });
});

describe('a run fails', () => {
  it('where calls are refused', async () => {
    await expect(run('home-reads', { LOAD_API_KEY: 'nobody-was-given-this' })).rejects.toThrow(
      'PublishPost failed outside of the measured part',
    );
  });

  it('where iterations are dropped: with fewer VUs than calls at a time', async () => {
    const report = await run('home-reads', { ...BY_JSON, LOAD_VUS: '1', LOAD_RATE: '2000' });
    expect(report.dropped).toBeGreaterThan(0);
    expect(failedThresholds(report)).toEqual(['dropped_iterations']);
  });

  it('where answers are slower than asked for', async () => {
    const proxy = await startFaultProxy({ port: service.service.grpcPort });
    try {
      proxy.delay(20);
      const env = {
        LOAD_GRPC_ADDRESS: `127.0.0.1:${proxy.port}`,
        ...BY_GRPC,
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
    {
      script: 'home-reads',
      what: 'pages of posts that are too many, in no order, partly twice, partly of another API and not all',
      page: { entries: entries('5', '7', '7', '9007199254740993', '3'), completeness: 'COMPLETENESS_PARTIAL' },
      checks: [
        ...PAGE,
        'a walk falls by ID',
        'a walk holds nothing twice',
        'a walk holds every post of the authors followed',
      ],
    },
    {
      script: 'publish-mix',
      what: 'an own post that is not there, and a follow that does not hold',
      page: { completeness: 'COMPLETENESS_COMPLETE' },
      checks: ['a follow holds once it is answered', 'an own post is visible at once, or the answer said not'],
    },
    {
      script: 'cold-cache',
      what: 'a page that is empty at first, and then not',
      page: { completeness: 'COMPLETENESS_COMPLETE' },
      second: { entries: entries('7') },
      checks: ['a rebuilt page is full', 'a rebuilt page stays as it is'],
    },
  ])('where the service answers with $what', async ({ script, page, second = {}, checks }) => {
    const env = { LOAD_MIX: '0,1,1', LOAD_COMPLETE_RATE: '0.99', LOAD_VIEWERS: '2' };
    const report = await runAgainst(script, env, (call, calls) =>
      call === 'GetHomeTimeline' ? { ...page, ...(calls % 2 === 0 ? second : {}) } : {},
    );
    expect(checks.filter((check) => !((report.checks[check]?.fails ?? 0) > 0))).toEqual([]);
    expect(failedThresholds(report)).toContain('checks{kind:truth}');
    expect(failedThresholds(report).includes('checks{kind:complete}')).toBe(checks.includes('a page is complete'));
  });

  it('before its first call where a setting is wrong, and names it', async () => {
    const wrong = { LOAD_RATE: '0', LOAD_DURATION: '10', LOAD_PROTOCOLS: 'soap', LOAD_MIX: '0,0,0', LOAD_API_KEY: '' };
    await Promise.all(
      Object.entries(wrong).map(([name, value]) => expect(run('home-reads', { [name]: value })).rejects.toThrow(name)),
    );
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
});
