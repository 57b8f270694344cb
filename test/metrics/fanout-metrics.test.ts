import { describe, expect, it } from 'vitest';
import { createMetrics } from '../../src/metrics/metrics.ts';
import { LANES } from '../../src/timeline/lanes.ts';

async function lines(metrics: ReturnType<typeof createMetrics>, name: string): Promise<readonly string[]> {
  const { body } = await metrics.exposition();
  return body.split('\n').filter((line) => line.startsWith(name));
}

describe('post-to-timeline', () => {
  it('weighs each page by its deliveries, and none where nothing was delivered', async () => {
    const metrics = createMetrics();
    metrics.fanoutDelivered({ lane: 'small', count: 1_999, seconds: 0.02 });
    metrics.fanoutDelivered({ lane: 'small', count: 1, seconds: 45 });
    metrics.fanoutDelivered({ lane: 'small', count: 0, seconds: 45 });
    const name = 'tributary_post_to_timeline_seconds';
    expect(await lines(metrics, `${name}_count`)).toEqual([`${name}_count{lane="small"} 2000`]);
    expect(await lines(metrics, `${name}_bucket{le="30"`)).toEqual([`${name}_bucket{le="30",lane="small"} 1999`]);
    expect(await lines(metrics, 'tributary_deliveries_total')).toEqual([
      'tributary_deliveries_total{lane="small"} 2000',
    ]);
  });

  it('counts a job apart, once it is done', async () => {
    const metrics = createMetrics();
    metrics.fanoutJobEnded({ lane: 'bulk', outcome: 'failed', seconds: 3 });
    metrics.fanoutJobEnded({ lane: 'bulk', outcome: 'delivered', seconds: 3 });
    const [count] = await lines(metrics, 'tributary_fanout_job_seconds_count');
    expect(count).toBe('tributary_fanout_job_seconds_count{lane="bulk"} 1');
  });
});

it('a lane in which nothing is open any more shows zero, not what it last had', async () => {
  const metrics = createMetrics();
  metrics.fanoutOpen(LANES.map((lane) => ({ lane, open: 7, oldestSeconds: 3 })));
  metrics.fanoutOpen([{ lane: 'bulk', open: 1, oldestSeconds: 0.5 }]);
  expect(await lines(metrics, 'tributary_fanout_open_jobs')).toEqual([
    'tributary_fanout_open_jobs{lane="small"} 0',
    'tributary_fanout_open_jobs{lane="medium"} 0',
    'tributary_fanout_open_jobs{lane="bulk"} 1',
  ]);
});

describe('the queue Redis', () => {
  it('shows what it holds beside what it may hold', async () => {
    const metrics = createMetrics();
    metrics.queueMemory({ usedBytes: 40, limitBytes: 100 });
    expect(await lines(metrics, 'tributary_queue_memory_')).toEqual([
      'tributary_queue_memory_used_bytes 40',
      'tributary_queue_memory_limit_bytes 100',
    ]);
  });
});

describe('a lane', () => {
  it('shows its queue, its dead letters and how deaf its worker is, and zero once that is over', async () => {
    const metrics = createMetrics();
    metrics.queueDepth({ lane: 'bulk', waiting: 7, active: 2, oldestWaitingSeconds: 12.5 });
    metrics.fanoutDied('bulk');
    metrics.fanoutDead([{ lane: 'bulk', dead: 1 }]);
    metrics.workerDeaf('bulk', 4);
    expect(await lines(metrics, 'tributary_queue_jobs{')).toEqual([
      'tributary_queue_jobs{lane="bulk",state="waiting"} 7',
      'tributary_queue_jobs{lane="bulk",state="active"} 2',
    ]);
    expect(await lines(metrics, 'tributary_queue_oldest_waiting_seconds{')).toEqual([
      'tributary_queue_oldest_waiting_seconds{lane="bulk"} 12.5',
    ]);
    expect(await lines(metrics, 'tributary_worker_deaf_seconds{')).toEqual([
      'tributary_worker_deaf_seconds{lane="bulk"} 4',
    ]);
    metrics.fanoutDead([]);
    expect(await lines(metrics, 'tributary_fanout_dead_jobs{')).toEqual(
      LANES.map((lane) => `tributary_fanout_dead_jobs{lane="${lane}"} 0`),
    );
    expect(await lines(metrics, 'tributary_fanout_died_total{')).toEqual([
      'tributary_fanout_died_total{lane="bulk"} 1',
    ]);
  });

  it('tells a p99 just below the objective of 30 s from one just above', async () => {
    const metrics = createMetrics();
    for (const seconds of [19, 29, 31, 46]) metrics.fanoutDelivered({ lane: 'small', count: 1, seconds });
    const buckets = (await lines(metrics, 'tributary_post_to_timeline_seconds_bucket')).map((line) =>
      line.split(' ').at(-1),
    );
    expect(new Set(buckets)).toEqual(new Set(['0', '1', '2', '3', '4']));
  });
});
