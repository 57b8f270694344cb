/**
 * Owns what a slice of work costs: time, CPU of this process, CPU of the Redis servers, for each delivery.
 * Invariant: all three are taken over the same stretch, from before the first delivery until the last is confirmed.
 */
import type { Redis } from 'ioredis';
import { systemClock } from '../../src/runtime.ts';
import { median } from './rounds.ts';

export interface Cost {
  readonly deliveries: number;
  readonly perSecond: number;
  /** Microseconds of CPU for each delivery: of this process, and of the servers together. */
  readonly clientMicros: number;
  readonly redisMicros: number;
}

/** `work` answers how many deliveries were confirmed. */
export async function measureCost(servers: readonly Redis[], work: () => Promise<number>): Promise<Cost> {
  const redisBefore = await cpuMicros(servers);
  const clientBefore = process.cpuUsage();
  const startedMs = systemClock.monotonicMs();
  const deliveries = await work();
  const seconds = (systemClock.monotonicMs() - startedMs) / 1_000;
  const client = process.cpuUsage(clientBefore);
  const redis = (await cpuMicros(servers)) - redisBefore;
  return {
    deliveries,
    perSecond: deliveries / seconds,
    clientMicros: (client.user + client.system) / deliveries,
    redisMicros: redis / deliveries,
  };
}

export function medianOf(costs: readonly Cost[], part: Exclude<keyof Cost, 'deliveries'>): number {
  return median(costs.map((cost) => cost[part]));
}

async function cpuMicros(servers: readonly Redis[]): Promise<number> {
  let micros = 0;
  for (const server of servers) {
    const info = await server.info('cpu');
    for (const name of ['used_cpu_user', 'used_cpu_sys']) {
      const seconds = new RegExp(`^${name}:([0-9.]+)`, 'm').exec(info)?.[1];
      if (seconds === undefined) throw new Error(`Redis does not say its ${name}`);
      micros += Number(seconds) * 1e6;
    }
  }
  return micros;
}
