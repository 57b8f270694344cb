/** Owns the promises of the stand-in for k6: it fails where k6 would, drops what k6 would drop, and leaves no thread behind. */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { createServer, type Server } from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { scenarioFrom } from './executors.ts';
import { runScript } from './run-script.ts';
import { evaluateThresholds, validateThresholds } from './thresholds.ts';

let folder = '';
let server: Server;
let address = '';

beforeAll(async () => {
  folder = mkdtempSync(path.join(tmpdir(), 'tributary-k6-'));
  server = createServer((request, response) => {
    response.statusCode = request.url === '/fails' ? 503 : 200;
    request.on('data', (chunk: Buffer) => response.write(chunk)).on('end', () => response.end());
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const bound = server.address();
  address = typeof bound === 'object' && bound !== null ? `http://127.0.0.1:${bound.port}` : '';
});
afterAll(async () => {
  await new Promise((resolve) => server.close(resolve));
  rmSync(folder, { recursive: true, force: true });
});

let written = 0;

function script(text: string): string {
  written += 1;
  const file = path.join(folder, `script-${written}.mjs`);
  writeFileSync(file, text);
  return file;
}

/** One scenario whose iterations run `body`: `arrivals` of them within a moment. */
function oneScenario(options: {
  readonly arrivals: number;
  readonly vus: number;
  readonly thresholds?: Readonly<Record<string, readonly string[]>>;
  readonly body: string;
  readonly more?: string;
  readonly gracefulStop?: string;
}): string {
  const { arrivals, vus, thresholds = {}, body, more = '', gracefulStop = '30s' } = options;
  return script(`
    import { check, sleep } from 'k6';
    import exec from 'k6/execution';
    import http from 'k6/http';
    import { Trend } from 'k6/metrics';
    const seen = new Trend('seen');
    export const options = {
      scenarios: { one: { executor: 'constant-arrival-rate', exec: 'iterate', rate: ${arrivals * 10}, duration: '100ms',
        preAllocatedVUs: ${vus}, maxVUs: ${vus}, gracefulStop: '${gracefulStop}' } },
      thresholds: ${JSON.stringify(thresholds)},
    };
    ${more}
    export function iterate(data) { ${body} }
  `);
}

describe('a run', () => {
  it('hands every iteration what set-up returned, its number, and the environment', async () => {
    const file = oneScenario({
      arrivals: 3,
      vus: 3,
      more: `export function setup() { return { base: Number(__ENV.BASE) }; }`,
      body: 'seen.add(data.base + exec.scenario.iterationInTest);',
    });
    const report = await runScript(file, { BASE: '40' });
    expect(report.errors).toEqual([]);
    const seen = report.samples.filter(({ metric }) => metric === 'seen').map(({ value }) => value);
    expect(seen.toSorted()).toEqual([40, 41, 42]);
    expect(report).toMatchObject({ passed: true, iterations: 3, dropped: 0 });
  });

  it('drops iterations that find no VU, and fails by it where a threshold says so', async () => {
    const file = oneScenario({
      arrivals: 5,
      vus: 1,
      thresholds: { dropped_iterations: ['count==0'] },
      // Longer than all five arrive in.
      body: 'sleep(1);',
    });
    const report = await runScript(file, {});
    expect(report.dropped).toBeGreaterThan(0);
    expect(report.iterations + report.dropped).toBe(5);
    expect(report.passed).toBe(false);
  });

  it('shows a check that fails, and passes all the same where no threshold is about it', async () => {
    const body = `check(2, { 'is two': (n) => n === 2, 'is three': (n) => n === 3 }, { kind: 'truth' });`;
    const report = await runScript(oneScenario({ arrivals: 1, vus: 1, body }), {});
    expect(report.checks).toEqual({ 'is two': { passes: 1, fails: 0 }, 'is three': { passes: 0, fails: 1 } });
    expect(report.passed).toBe(true);
    const thresholds = { 'checks{kind:truth}': ['rate==1'], 'checks{kind:other}': ['rate==1'] };
    const strict = await runScript(oneScenario({ arrivals: 1, vus: 1, body, thresholds }), {});
    expect(strict.thresholds.map(({ metric, passed }) => [metric, passed])).toEqual([
      ['checks{kind:truth}', false],
      ['checks{kind:other}', true],
    ]);
    expect(strict.passed).toBe(false);
  });

  it('gives answers to calls at once, and counts those that fail', async () => {
    const body = `
      const answer = http.post('${address}/echo', 'hello');
      check(answer, { 'answers': ({ status, body }) => status === 200 && body === 'hello' });
      check(http.post('${address}/fails', ''), { 'fails': ({ status }) => status === 503 });
      check(http.post('http://127.0.0.1:1/', '', { timeout: '2s' }), { 'cannot be reached': ({ status, error }) => status === 0 && error !== '' });`;
    const thresholds = { http_req_failed: ['rate<0.5'], 'http_req_duration{scenario:one}': ['p(99)<60000'] };
    const report = await runScript(oneScenario({ arrivals: 1, vus: 1, body, thresholds }), {});
    expect(report.errors).toEqual([]);
    expect(Object.values(report.checks)).toEqual(Array(3).fill({ passes: 1, fails: 0 }));
    expect(report.thresholds.map(({ samples, passed }) => [samples, passed])).toEqual([
      [3, false],
      [3, true],
    ]);
  });

  it('goes on after an iteration that throws, and cuts off one that does not end', async () => {
    const throws = await runScript(oneScenario({ arrivals: 2, vus: 2, body: `throw new Error('no luck');` }), {});
    expect(throws.errors).toHaveLength(2);
    expect(throws.errors[0]).toContain('no luck');
    const hangs = await runScript(oneScenario({ arrivals: 1, vus: 1, body: 'for (;;);', gracefulStop: '200ms' }), {});
    expect(hangs.errors).toHaveLength(1);
    expect(hangs.iterations).toBe(0);
  });

  it.each([
    { what: 'set-up throws', more: `export function setup() { throw new Error('no seed'); }`, message: 'no seed' },
    { what: 'a Node module is imported', more: `import 'node:fs';`, message: 'unknown module: node:fs' },
    { what: 'a package is imported', more: `import 'pg';`, message: 'unknown module: pg' },
    {
      what: 'a file is loaded that is not there',
      more: `import grpc from 'k6/net/grpc'; new grpc.Client().load(['/'], 'no.proto');`,
      message: 'no.proto',
    },
    {
      what: 'a call is made in the init context',
      more: `http.post('${'http://127.0.0.1:1'}', '');`,
      message: 'init context',
    },
  ])('fails where $what', async ({ more, message }) => {
    await expect(runScript(oneScenario({ arrivals: 1, vus: 1, more, body: '' }), {})).rejects.toThrow(message);
  });
});

describe('thresholds', () => {
  const kinds = { taken: 'trend', failed: 'rate', done: 'counter' } as const;
  const samples = [
    ...[40, 10, 30, 20].map((value) => ({ metric: 'taken', value, tags: { by: value > 20 ? 'old' : 'new' } })),
    ...[1, 0, 0, 0].map((value) => ({ metric: 'failed', value, tags: {} })),
    ...[2, 3].map((value) => ({ metric: 'done', value, tags: {} })),
  ];

  it.each([
    { metric: 'taken', source: 'p(50)<25', value: 25, passed: false },
    { metric: 'taken', source: 'p(99)<=39.7', value: 39.7, passed: true },
    { metric: 'taken', source: 'med>24', value: 25, passed: true },
    { metric: 'taken', source: 'avg!=25', value: 25, passed: false },
    { metric: 'taken', source: 'min>=10', value: 10, passed: true },
    { metric: 'taken{by:new}', source: 'max==20', value: 20, passed: true },
    { metric: 'taken{by:nobody}', source: 'p(99)<1', value: 0, passed: true },
    { metric: 'failed', source: 'rate<0.25', value: 0.25, passed: false },
    { metric: 'failed{by:nobody}', source: 'rate==1', value: undefined, passed: true },
    { metric: 'done', source: 'count==5', value: 5, passed: true },
    { metric: 'done', source: 'rate>2.4', value: 2.5, passed: true },
    { metric: 'done{by:nobody}', source: 'count>0', value: 0, passed: false },
  ])('$metric: $source is $passed', ({ metric, source, value, passed }) => {
    const [result] = evaluateThresholds({ [metric]: [source] }, { kinds, samples, durationMs: 2_000 });
    expect(result?.passed).toBe(passed);
    if (value === undefined) expect(result?.value).toBeUndefined();
    else expect(result?.value).toBeCloseTo(value, 9);
  });

  it.each([
    { metric: 'taken', source: 'p(99)' },
    { metric: 'taken', source: 'rate<1' },
    { metric: 'failed', source: 'p(99)<1' },
    { metric: 'done', source: 'avg<1' },
    { metric: 'nothing', source: 'count==0' },
    { metric: 'taken{by:new', source: 'max<1' },
  ])('are refused before a run: $metric, $source', ({ metric, source }) => {
    expect(() => validateThresholds({ [metric]: [source] }, kinds)).toThrow('invalid threshold');
  });
});

describe('arrivals', () => {
  const shared = { preAllocatedVUs: 1, maxVUs: 1 };

  it('come evenly, from the first moment on', () => {
    const given = { executor: 'constant-arrival-rate', rate: 2, timeUnit: '2s', duration: '3s', ...shared };
    expect(scenarioFrom('x', given).arrivalsMs).toEqual([0, 1_000, 2_000]);
  });

  it('come more and more often on a ramp, then evenly', () => {
    const stages = [
      { target: 4, duration: '2s' },
      { target: 4, duration: '500ms' },
    ];
    const { arrivalsMs } = scenarioFrom('x', { executor: 'ramping-arrival-rate', startRate: 0, stages, ...shared });
    expect(arrivalsMs.map(Math.round)).toEqual([1_000, 1_414, 1_732, 2_000, 2_250, 2_500]);
  });

  it.each([
    { why: 'no rate', given: { duration: '1s', ...shared } },
    {
      why: 'another number of VUs at most than at first',
      given: { rate: 1, duration: '1s', preAllocatedVUs: 2, maxVUs: 3 },
    },
    { why: 'a word that is none', given: { rate: 1, duration: '1s', vus: 3, ...shared } },
    { why: 'a duration without a unit', given: { rate: 1, duration: '10', ...shared } },
    { why: 'more than a stand-in is for', given: { rate: 1_000_000, duration: '1m', ...shared } },
  ])('are refused with $why', ({ given }) => {
    expect(() => scenarioFrom('x', { executor: 'constant-arrival-rate', ...given })).toThrow();
  });

  it('are of executors that the stand-in has', () => {
    expect(() => scenarioFrom('x', { executor: 'constant-vus', vus: 1, duration: '1s' })).toThrow('constant-vus');
  });
});
