/**
 * Owns the promises of the k6 scripts: each runs against the real service by both protocols, its checks hold, its thresholds are evaluated
 * over samples, and it is a script that k6 can load. They run in the stand-in of test/k6, since k6 is not among what tests may need.
 */
import { globSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { eventually } from '../harness/eventually.ts';
import { startFaultProxy } from '../harness/fault-proxy.ts';
import { startTestService, type TestService } from '../harness/service.ts';
import type { RunReport } from '../k6/run-script.ts';
import { BY_GRPC, PAGE, runSmall, SCRIPTS, WALK } from './k6-stage.ts';

let service: TestService;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(() => service?.stop());

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
    const report = await runSmall(service, name, env);
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
      const { errors, samples } = await runSmall(service, 'soak', {
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
    const { iterations } = await runSmall(service, 'cold-cache');
    expect(iterations).toBe(6);
    expect((await rebuildsSoFar()) - before).toBeGreaterThanOrEqual(iterations);
  });

  it('and leaves no post where it is asked to clean up', async () => {
    const tenant = await service.tenant();
    const report = await runSmall(service, 'home-reads', {
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

/** What follows an opening bracket, up to the one that closes it. Brackets inside of text are none. */
function insideOf(text: string, from: number): string {
  let depth = 1;
  for (const { 0: token, index } of text.slice(from).matchAll(/'[^']*'|`[^`]*`|[([{]|[)\]}]/g)) {
    if ('([{'.includes(token)) depth += 1;
    else if (')]}'.includes(token)) depth -= 1;
    if (depth === 0) return text.slice(from, from + index);
  }
  throw new Error('a bracket is left open');
}

/** Metrics, and arguments of checks, of which some name is not written down in the script. */
function openNamesIn(script: string): readonly string[] {
  const open: string[] = [];
  for (const { 0: call, index } of script.matchAll(/\bnew (?:Rate|Trend|Counter|Gauge)\(|\bcheck\(/g)) {
    const given = insideOf(script, index + call.length);
    const isOpen = call.startsWith('new')
      ? !/^'[a-z_]+'(?:, true)?$/.test(given)
      : // Its sets are literals, or constants, without a key that is worked out.
        /[{,]\s*\[/.test(given.replaceAll(/'[^']*'/g, "''")) ||
        !/,\s*\{[\s\S]*\}\s*(?:,\s*[A-Z]+\s*)?,?\s*$/.test(given);
    if (isOpen) open.push(given);
  }
  return open;
}

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
    expect(openNamesIn(text)).toEqual([]);
  });

  it.each([
    ['a metric', 'new Rate(`walk_` + viewer)'],
    ['a metric that a function names', "new Trend(nameOf('walk'), true)"],
    ['a check', 'check(ids(), { [`page of ` + viewer]: () => true }, TRUTH)'],
    ['a check by a variable', "check(\n  page,\n  { 'a page (of many) falls': () => falls(ids), [name]: ok },\n)"],
    ['a check elsewhere', 'check(page, checksOf(viewer))'],
    ['a tag', 'check(page, { full }, { [viewer]: 1 })'],
  ])('would be found out where they named %s so', (_what, text) => expect(openNamesIn(text)).toHaveLength(1));

  it('may name what is known before', () => {
    expect(
      openNamesIn("new Rate('walks'); check(ids[0], { 'a walk (of all) ends': () => ids[1] === '' }, TRUTH)"),
    ).toEqual([]);
  });
});
