import { afterEach, describe, expect, it } from 'vitest';
import { Health } from '../../src/gen/grpc/health/v1/health_pb.ts';
import { ServerReflection } from '../../src/gen/grpc/reflection/v1/reflection_pb.ts';
import { ServerReflection as ServerReflectionAlpha } from '../../src/gen/grpc/reflection/v1alpha/reflection_pb.ts';
import { GraphService } from '../../src/gen/tributary/v1/graph_service_pb.ts';
import { PostService } from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { operatorPage } from '../../src/metrics/endpoint.ts';
import { createMetrics, type Metrics } from '../../src/metrics/metrics.ts';
import { LISTENERS } from '../../src/metrics/rpc-metrics.ts';
import { HIDDEN_REASONS } from '../../src/timeline/visibility.ts';
import { openClient } from '../rpc/clients.ts';
import { SERVICE_KEY, startDoor, type TestDoor } from '../rpc/door.ts';

const SCRAPE_BYTES_MAX = 200_000;
const METHOD = 'tributary.v1.TimelineService/GetHomeTimeline';
/** Codes in which a method ends in practice; several of each class of outcome. */
const ENDINGS = [
  'OK',
  'CANCELLED',
  'INVALID_ARGUMENT',
  'DEADLINE_EXCEEDED',
  'NOT_FOUND',
  'INTERNAL',
  'UNAVAILABLE',
  'UNAUTHENTICATED',
] as const;
const doors: TestDoor[] = [];
afterEach(async () => {
  for (const door of doors.splice(0)) await door.frontDoor.stop();
});

async function start(): Promise<TestDoor> {
  const door = await startDoor();
  doors.push(door);
  return door;
}

describe('the measures', () => {
  it('put 50 ms between 0.05 and 0.1 s, and tell 3 ms from 30 ms', async () => {
    const metrics = createMetrics();
    for (const seconds of [0.003, 0.03, 0.0501])
      metrics.rpcFinished({ method: METHOD, code: 'OK', seconds, listener: 'grpc' });
    const at = async (le: string) =>
      sample(metrics, 'tributary_rpc_seconds_bucket', `le="${le}",method="${METHOD}",outcome="ok"`);
    expect([await at('0.0025'), await at('0.005'), await at('0.025'), await at('0.05'), await at('0.1')]).toEqual([
      0, 1, 1, 2, 3,
    ]);
    expect(await sample(metrics, 'tributary_rpc_seconds_sum', `method="${METHOD}",outcome="ok"`)).toBeCloseTo(
      0.0831,
      6,
    );
  });

  it('tell a read just below the objective of 100 ms from one just above', async () => {
    const metrics = createMetrics();
    for (const seconds of [0.08, 0.099, 0.101, 0.14])
      metrics.readFinished({ surface: 'home', seconds, outcome: 'ok', redisBatches: 4, postgresBatches: 0 });
    const at = async (le: string) =>
      sample(metrics, 'tributary_read_seconds_bucket', `le="${le}",surface="home",outcome="ok"`);
    expect([await at('0.075'), await at('0.1'), await at('0.15')]).toEqual([0, 2, 4]);
  });

  it('stay apart in two servers of one process', async () => {
    for (let round = 1; round <= 2; round += 1) {
      const door = await start();
      const client = openClient('Connect JSON over HTTP/1.1', door);
      await client.unary(
        TimelineService.method.getHomeTimeline,
        { viewerId: 'a' },
        { headers: { authorization: `Bearer ${SERVICE_KEY}` } },
      );
      client.close();
      const counted = `code="OK",listener="http"`;
      expect(await sample(door.metrics, 'tributary_rpc_calls_total', `method="${METHOD}",${counted}`)).toBe(1);
      if (round === 1) await door.frontDoor.stop();
    }
  });

  it('gain at most one series for all the methods that nobody has, and fit into one scrape', {
    timeout: 120_000,
  }, async () => {
    const door = await start();
    const grpc = openClient('grpc-js on the gRPC port', door);
    await scanGrpc(grpc, 1);
    await scanHttp(door, 'warm', 20);
    const before = await seriesOf(door.metrics);
    await scanGrpc(grpc, 500);
    for (let round = 0; round < 10; round += 1) await scanHttp(door, `scan${round}`, 200);
    grpc.close();
    const after = await seriesOf(door.metrics);
    expect(after.filter((series) => !before.includes(series))).toEqual([]);
    expect(after.filter((series) => series.includes('scan'))).toEqual([]);
    expect(
      await sample(door.metrics, 'tributary_rpc_calls_total', 'method="unknown",code="UNIMPLEMENTED",listener="http"'),
    ).toBeGreaterThan(2_000);
    expect(
      await sample(door.metrics, 'tributary_rpc_calls_total', 'method="unknown",code="UNIMPLEMENTED",listener="grpc"'),
    ).toBeGreaterThan(500);
  });

  it('fit into 200 kB when every method has ended in every way, on both listeners and every surface', async () => {
    const metrics = createMetrics();
    const services = [PostService, GraphService, TimelineService, Health, ServerReflection, ServerReflectionAlpha];
    for (const method of services.flatMap((service) => service.methods)) {
      for (const code of ENDINGS) {
        for (const listener of LISTENERS) {
          metrics.rpcFinished({ method: `${method.parent.typeName}/${method.name}`, code, seconds: 1, listener });
        }
      }
    }
    for (const surface of ['home', 'home_newer', 'head', 'author', 'single', 'batch'] as const) {
      for (const reason of HIDDEN_REASONS) metrics.entryFiltered({ surface, reason });
      for (const outcome of ['ok', 'refused', 'unavailable', 'failed'] as const)
        metrics.readFinished({ surface, seconds: 1, outcome, redisBatches: 4, postgresBatches: 2 });
      for (const completeness of ['complete', 'reduced', 'stale', 'partial', 'unavailable'] as const) {
        metrics.pageServed({ surface, completeness, rounds: 2, entries: 7, short: true, empty: true });
      }
    }
    expect((await metrics.exposition()).body.length).toBeLessThan(SCRAPE_BYTES_MAX);
  });

  it('read gauges when they are scraped, and each pool once', async () => {
    const metrics = createMetrics();
    let busy = 3;
    metrics.databasePool('requests', () => ({ total: busy + 1, idle: 1, waiting: 7 }));
    metrics.databasePool('requests', () => ({ total: busy + 2, idle: 2, waiting: 9 }));
    metrics.watchCallsInFlight(() => busy);
    expect(await sample(metrics, 'tributary_database_connections', 'pool="requests",state="busy"')).toBe(3);
    busy = 5;
    expect(await sample(metrics, 'tributary_database_connections', 'pool="requests",state="busy"')).toBe(5);
    expect(await sample(metrics, 'tributary_database_waiting_callers', 'pool="requests"')).toBe(9);
    expect((await metrics.exposition()).body).toMatch(/^tributary_rpc_in_flight_calls 5$/m);
  });

  it('count each event under its reason', async () => {
    const metrics = createMetrics();
    metrics.publishFinished(0.004, 'ok');
    metrics.missingEntry('home');
    metrics.tokenRejected('seal');
    metrics.fieldRejected(METHOD);
    metrics.databaseClientError('requests');
    metrics.databaseCancelled('requests');
    metrics.idLeaseLost();
    metrics.idMintRefused('clock_behind');
    metrics.pageServed({ surface: 'home', completeness: 'complete', rounds: 3, entries: 7, short: true, empty: false });
    metrics.idLeaseFailed('no_answer');
    expect(await sample(metrics, 'tributary_publish_seconds_count', 'outcome="ok"')).toBe(1);
    expect(await sample(metrics, 'tributary_missing_entries_total', 'surface="home"')).toBe(1);
    expect(await sample(metrics, 'tributary_rejected_tokens_total', 'reason="seal"')).toBe(1);
    expect(await sample(metrics, 'tributary_rejected_fields_total', `method="${METHOD}"`)).toBe(1);
    expect(await sample(metrics, 'tributary_database_client_errors_total', 'pool="requests"')).toBe(1);
    expect(await sample(metrics, 'tributary_database_cancelled_statements_total', 'pool="requests"')).toBe(1);
    expect(await sample(metrics, 'tributary_id_mints_refused_total', 'reason="clock_behind"')).toBe(1);
    expect(await sample(metrics, 'tributary_id_lease_failures_total', 'why="no_answer"')).toBe(1);
    expect(await sample(metrics, 'tributary_page_entries_total', 'surface="home"')).toBe(7);
    expect(await sample(metrics, 'tributary_short_pages_total', 'surface="home"')).toBe(1);
    expect(await sample(metrics, 'tributary_empty_pages_total', 'surface="home"')).toBe(0);
    expect(await sample(metrics, 'tributary_page_rounds_bucket', 'le="2",surface="home"')).toBe(0);
  });

  it('have help and a name of ours each', async () => {
    const { body, contentType } = await createMetrics().exposition();
    expect(contentType).toContain('text/plain');
    for (const name of body.match(/^# TYPE \S+/gm) ?? []) expect(name).toMatch(/^# TYPE tributary_/);
    expect(body).toContain('tributary_nodejs_eventloop_lag_p99_seconds');
    expect(body).toContain('tributary_process_resident_memory_bytes');
  });
});

it('what an alert takes the rise of is zero from the start, so that the first event is a rise', async () => {
  const { body } = await createMetrics().exposition();
  for (const series of [
    'tributary_id_lease_failures_total{why="no_answer"}',
    'tributary_id_mints_refused_total{reason="no_lease"}',
    'tributary_queue_faults_total{fault="memory_full"}',
    'tributary_drift_entries_total{kind="missing"}',
    'tributary_author_class_changes_total{from="push",to="both",cause="slow_fanout"}',
  ])
    expect(body).toContain(`\n${series} 0\n`);
});

describe('the pages for operators', () => {
  it('tell liveness from readiness', async () => {
    const parts = { metrics: createMetrics(), isReady: () => false };
    expect(await operatorPage('/livez', parts)).toMatchObject({ status: 200 });
    expect(await operatorPage('/readyz', parts)).toMatchObject({ status: 503 });
    expect(await operatorPage('/metrics', parts)).toMatchObject({ status: 200 });
    expect(await operatorPage('/metrics/', parts)).toBeUndefined();
  });
});

/** Value of one series; 0 where it is not there. Labels are given in any order. */
async function sample(metrics: Metrics, name: string, labels: string): Promise<number> {
  const wanted = labels.split(',').sort().join(',');
  for (const line of (await metrics.exposition()).body.split('\n')) {
    const match = /^(\w+)\{(.*)\} (\S+)$/.exec(line);
    if (match?.[1] === name && (match[2] ?? '').split(',').sort().join(',') === wanted) return Number(match[3]);
  }
  return 0;
}

async function seriesOf(metrics: Metrics): Promise<readonly string[]> {
  const { body } = await metrics.exposition();
  expect(body.length).toBeLessThan(SCRAPE_BYTES_MAX);
  // What the process reports of itself comes and goes.
  const lines = body.split('\n').filter((line) => /^tributary_(?!nodejs|process)/.test(line));
  return lines.map((line) => line.slice(0, line.lastIndexOf(' ')));
}

async function scanHttp(door: TestDoor, word: string, calls: number): Promise<void> {
  const contentTypes = ['application/json', 'application/proto', 'application/grpc-web+proto', 'text/html'];
  for (let index = 0; index < calls; index += 1) {
    await Promise.all(
      contentTypes.map(async (contentType) => {
        const url = `http://127.0.0.1:${door.httpPort}/${word}.v1.Service${index}/Do`;
        const response = await fetch(url, { method: 'POST', headers: { 'content-type': contentType }, body: '{}' });
        await response.arrayBuffer();
      }),
    );
  }
}

async function scanGrpc(client: ReturnType<typeof openClient>, calls: number): Promise<void> {
  const base = TimelineService.method.getHomeTimeline;
  const failures = Array.from({ length: calls }, (_, index) => {
    const method = { ...base, name: `Scan${index}` } as typeof base;
    return client.unary(method, { viewerId: `user${index}` }).then(
      () => 'OK',
      (error: { code: string }) => error.code,
    );
  });
  expect(new Set(await Promise.all(failures))).toEqual(new Set(['UNIMPLEMENTED']));
}
