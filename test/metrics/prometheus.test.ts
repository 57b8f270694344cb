/** Owns what Prometheus itself says of us: that it takes our rules and our measures, that each alert fires when it should and only then, and that it can scrape a service that runs. */
import { spawn } from 'node:child_process';
import path from 'node:path';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { isRunning } from '../../src/embedded/processes.ts';
import { eventually } from '../harness/eventually.ts';
import { findPrometheus, type PrometheusServer, startPrometheus } from '../harness/prometheus.ts';
import { startTestService, type TestService } from '../harness/service.ts';
import { dashboardExpressions } from './dashboard.ts';

const ROOT = path.resolve(import.meta.dirname, '../..');
const RULES = path.join(ROOT, 'src/metrics/alerts.yaml');
/** A second or two on an idle machine. */
const PROMTOOL_MAX_MS = 60_000;
const SCRAPE_MAX_MS = 30_000;

const programs = await findPrometheus();

/** Runs promtool; answers what it printed, or rejects with that. */
async function promtool(args: readonly string[], input = ''): Promise<string> {
  if (!programs) throw new Error('there is no promtool');
  const child = spawn(programs.promtool, args, {
    cwd: import.meta.dirname,
    signal: AbortSignal.timeout(PROMTOOL_MAX_MS),
    stdio: ['pipe', 'pipe', 'pipe'],
  });
  const { promise, resolve, reject } = Promise.withResolvers<string>();
  let text = '';
  for (const stream of [child.stdout, child.stderr])
    stream.setEncoding('utf8').on('data', (part: string) => {
      text += part;
    });
  // It may end before it has read everything; then it says why by itself.
  child.stdin.on('error', () => undefined).end(input);
  child.once('error', reject);
  child.once('close', (code) =>
    code === 0 ? resolve(text) : reject(new Error(`promtool ${args[0]}: ${code}\n${text}`)),
  );
  return promise;
}

describe.runIf(programs)('promtool', { timeout: PROMTOOL_MAX_MS }, () => {
  it('takes the rules', async () => {
    expect(await promtool(['check', 'rules', RULES])).toMatch(/SUCCESS: \d\d rules found/);
  });

  it('sees each alert fire on the series that should make it, and on no other', async () => {
    expect(await promtool(['test', 'rules', 'alerts.promtool.yaml'])).toContain('SUCCESS');
  });
});

describe.runIf(programs)('a service that runs', { timeout: PROMTOOL_MAX_MS }, () => {
  let service: TestService;
  let server: PrometheusServer | undefined;
  beforeAll(async () => {
    service = await startTestService();
    const tenant = await service.tenant();
    const cast = tenant.cast();
    await cast.play('rita follows ada; ada posts 2 times');
    await service.settle();
    // Brings her timeline into the cache, so that the next posts are delivered.
    await tenant.timeline.getHomeTimeline({ viewerId: 'rita' });
    await cast.play('ada posts 3 times');
    await service.settle();
  });
  afterAll(async () => {
    await server?.stop();
    await service.stop();
  });

  it('exports what promtool finds no fault with', async () => {
    const text = await eventually(async () => {
      const body = await (await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`)).text();
      // Of every part something that only a service that works has.
      for (const series of [
        /^tributary_deliveries_total\{lane="small"\} [1-9]/m,
        /^tributary_page_entries_total\{surface="home"\} [1-9]/m,
        /^tributary_queue_memory_used_bytes [1-9]/m,
        /^tributary_queue_memory_limit_bytes [1-9]/m,
      ])
        expect(body).toMatch(series);
      return body;
    });
    expect(await promtool(['check', 'metrics'], text)).toBe('');
  });

  it('is scraped by a Prometheus, which holds its series, has loaded every rule, fires none and answers the dashboard', async () => {
    if (!programs) throw new Error('there is no Prometheus');
    const target = `127.0.0.1:${service.service.httpPort}`;
    const started = await startPrometheus(programs, { target, rules: RULES });
    server = started;
    const patience = { timeoutMs: SCRAPE_MAX_MS, everyMs: 100 };
    await eventually(async () => {
      const { activeTargets } = await started.ask<{ activeTargets: unknown[] }>('/api/v1/targets');
      expect(activeTargets).toMatchObject([{ health: 'up', lastError: '', scrapeUrl: `http://${target}/metrics` }]);
    }, patience);
    const query = encodeURIComponent('sum(tributary_deliveries_total{job="tributary"})');
    await eventually(async () => {
      const { result } = await started.ask<{ result: { value: [number, string] }[] }>(`/api/v1/query?query=${query}`);
      expect(Number(result[0]?.value[1])).toBeGreaterThan(0);
    }, patience);
    await eventually(async () => {
      const { groups } = await started.ask<{ groups: { rules: { health: string; state: string; name: string }[] }[] }>(
        '/api/v1/rules?type=alert',
      );
      const loaded = groups.flatMap((group) => group.rules);
      expect(loaded.length).toBeGreaterThan(20);
      expect(loaded.filter(({ health }) => health !== 'ok')).toEqual([]);
      expect(loaded.filter(({ state }) => state === 'firing')).toEqual([]);
    }, patience);
    // Grafana asks as we do here: each expression of the dashboard is one that Prometheus answers.
    for (const expression of dashboardExpressions())
      await started.ask(`/api/v1/query?query=${encodeURIComponent(expression)}`);
    await started.stop();
    expect(isRunning(started.pid)).toBe(false);
  });
});
