/** Owns the promise that a run of a k6 script fails where it must: what it calls is slow, wrong or refused, or it cannot keep its rate. */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { startFaultProxy } from '../harness/fault-proxy.ts';
import { startTestService, type TestService } from '../harness/service.ts';
import { type RunReport, runScript } from '../k6/run-script.ts';
import { BY_GRPC, BY_JSON, failedThresholds, PAGE, runSmall, SCRIPTS, SMALL } from './k6-stage.ts';

let service: TestService;
beforeAll(async () => {
  service = await startTestService();
});
afterAll(() => service?.stop());

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
    return await runScript(path.join(SCRIPTS, `${name}.ts`), {
      ...SMALL,
      ...BY_JSON,
      LOAD_HTTP_URL: `http://127.0.0.1:${port}`,
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

describe('a run fails', () => {
  it('where calls are refused', async () => {
    await expect(runSmall(service, 'home-reads', { LOAD_API_KEY: 'nobody-was-given-this' })).rejects.toThrow(
      'PublishPost failed outside of the measured part',
    );
  });

  it('where iterations are dropped: with fewer VUs than calls at a time', async () => {
    const report = await runSmall(service, 'home-reads', { ...BY_JSON, LOAD_VUS: '1', LOAD_RATE: '2000' });
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
      expect(failedThresholds(await runSmall(service, 'home-reads', env))).toEqual([
        'grpc_req_duration{scenario:reads_grpc}',
      ]);
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
      Object.entries(wrong).map(([name, value]) =>
        expect(runSmall(service, 'home-reads', { [name]: value })).rejects.toThrow(name),
      ),
    );
  });
});
