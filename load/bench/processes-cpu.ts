/**
 * Owns what a stretch of work costs all processes together: this one, the Redis servers, and Postgres with all its backends. Needs /proc, so Linux.
 * Invariant: of Postgres nothing is lost with a backend that ends: its parent has its time.
 */
import { readdirSync, readFileSync } from 'node:fs';
import type { Redis } from 'ioredis';
import type { Servers } from '../../src/embedded/servers.ts';

/** Seconds of CPU. */
export interface CpuSeconds {
  readonly client: number;
  readonly redis: number;
  readonly postgres: number;
}

export interface CpuMeter {
  /** So far; the difference of two is what was between them. */
  read(): Promise<CpuSeconds>;
}

/** Of all Linux that Node runs on. */
const TICKS_PER_SECOND = 100;
const MICROS_PER_SECOND = 1e6;

/** `servers`: connections to every Redis whose work counts. */
export function createCpuMeter(servers: Pick<Servers, 'postgres'>, redises: readonly Redis[]): CpuMeter {
  return {
    async read() {
      const infos = await Promise.all(redises.map((redis) => redis.info('cpu')));
      const client = process.cpuUsage();
      return {
        client: (client.user + client.system) / MICROS_PER_SECOND,
        redis: infos.reduce((sum, info) => sum + secondsIn(info), 0),
        postgres: treeSeconds(servers.postgres.pid),
      };
    },
  };
}

export const NO_CPU: CpuSeconds = { client: 0, redis: 0, postgres: 0 };

export function plus(one: CpuSeconds, other: CpuSeconds): CpuSeconds {
  return {
    client: one.client + other.client,
    redis: one.redis + other.redis,
    postgres: one.postgres + other.postgres,
  };
}

export function minus(one: CpuSeconds, other: CpuSeconds): CpuSeconds {
  return plus(one, { client: -other.client, redis: -other.redis, postgres: -other.postgres });
}

export function totalOf(cpu: CpuSeconds): number {
  return cpu.client + cpu.redis + cpu.postgres;
}

function secondsIn(info: string): number {
  return ['used_cpu_user', 'used_cpu_sys']
    .map((name) => {
      const seconds = new RegExp(`^${name}:([0-9.]+)`, 'm').exec(info)?.[1];
      if (seconds === undefined) throw new Error(`Redis does not say its ${name}`);
      return Number(seconds);
    })
    .reduce((sum, seconds) => sum + seconds, 0);
}

/** A process with the children that it has waited for, and its living children. */
function treeSeconds(pid: number): number {
  const own = statOf(pid);
  if (!own) throw new Error(`/proc does not know process ${pid}`);
  let ticks = own.own + own.waitedFor;
  for (const name of readdirSync('/proc')) {
    if (!/^\d+$/.test(name)) continue;
    const stat = statOf(Number(name));
    if (stat?.parent === pid) ticks += stat.own;
  }
  return ticks / TICKS_PER_SECOND;
}

interface Stat {
  readonly parent: number;
  readonly own: number;
  readonly waitedFor: number;
}

/** Undefined for a process that is gone. */
function statOf(pid: number): Stat | undefined {
  let text: string;
  try {
    text = readFileSync(`/proc/${pid}/stat`, 'utf8');
  } catch {
    return undefined;
  }
  // After the name, which may hold anything: state, parent, …; proc(5) counts from the process ID as 1.
  const fields = text.slice(text.lastIndexOf(')') + 2).split(' ');
  const at = (field: number): number => Number(fields[field - 3]);
  return { parent: at(4), own: at(14) + at(15), waitedFor: at(16) + at(17) };
}
