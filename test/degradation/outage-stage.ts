/** Owns a service whose cache and Postgres are reached through proxies that fail, and what callers and operators see of it then. */
import { inject } from 'vitest';
import { Completeness } from '../../src/gen/tributary/v1/author_pb.ts';
import type { GetHomeTimelineResponse } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { type Cached, openCached } from '../harness/cached.ts';
import { createTestDatabase, type TestDatabase } from '../harness/database.ts';
import { type FaultProxy, startFaultProxy } from '../harness/fault-proxy.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';

export interface OutageStage {
  readonly service: TestService;
  readonly database: TestDatabase;
  readonly tenant: TestTenant;
  readonly cached: Cached;
  readonly redis: FaultProxy;
  readonly postgres: FaultProxy;
  home(viewer: string, pageToken?: string): Promise<GetHomeTimelineResponse>;
  /** Sum of the values of series as scraped, 0 for one that is not there. Written as Prometheus does. */
  scraped(...series: readonly string[]): Promise<number>;
  close(): Promise<void>;
}

export async function openOutageStage(env: Readonly<Record<string, string>> = {}): Promise<OutageStage> {
  const database = await createTestDatabase();
  const postgres = await startFaultProxy({ port: Number(new URL(database.url).port) });
  const { cacheUrl } = inject('servers');
  const redis = await startFaultProxy({ port: Number(new URL(cacheUrl).port) });
  const service = await startTestService({
    database,
    databaseUrl: postgres.through(database.url),
    env: { REDIS_CACHE_URL: redis.through(cacheUrl), API_KEY_CACHE_MS: '600000', ...env },
  });
  const tenant = await service.tenant();
  const cached = openCached(tenant.id);
  return {
    service,
    database,
    tenant,
    cached,
    redis,
    postgres,
    home: (viewer, pageToken = '') => tenant.timeline.getHomeTimeline({ viewerId: viewer, pageSize: 50, pageToken }),
    async scraped(...series) {
      const text = await (await fetch(`http://127.0.0.1:${service.service.httpPort}/metrics`)).text();
      const values = new Map(text.split('\n').map((line) => line.split(/ (?=[^ ]+$)/) as [string, string]));
      return series.reduce((sum, one) => sum + Number(values.get(one) ?? 0), 0);
    },
    async close() {
      await Promise.all([redis.restore(), postgres.restore()]);
      cached.close();
      await service.stop();
      await Promise.all([redis.stop(), postgres.stop()]);
      await database.drop();
    },
  };
}

export const idsOf = (page: GetHomeTimelineResponse): readonly string[] =>
  page.entries.map((view) => view.post?.postId ?? '');

export const completenessOf = ({ completeness }: GetHomeTimelineResponse): string | undefined =>
  Object.entries(Completeness).find(([, value]) => value === completeness)?.[0];
