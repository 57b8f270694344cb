/**
 * Owns what the modules of the k6 stand-in share inside the thread of a VU: samples, tags, and calls that block until the answer is there.
 * Invariant: a call ends within its time-out and a little more, whatever the other side does.
 */
import { type MessagePort, receiveMessageOnPort } from 'node:worker_threads';
import type { Answered, Call, CallAnswer, MetricKind, MetricSample, Tags, Task } from './messages.ts';

/** The side that makes the calls keeps their time-outs; this is for when it does not. */
const GRACE_MS = 5_000;
/** An iteration makes some calls and checks. */
const SAMPLES_MAX = 100_000;

export const BUILT_IN: Readonly<Record<string, MetricKind>> = {
  checks: 'rate',
  dropped_iterations: 'counter',
  grpc_req_duration: 'trend',
  http_req_duration: 'trend',
  http_req_failed: 'rate',
  http_reqs: 'counter',
  iteration_duration: 'trend',
  iterations: 'counter',
};

interface Link {
  readonly port: MessagePort;
  readonly signal: Int32Array;
}

let link: Link | undefined;
let task: Task | undefined;
let samples: MetricSample[] = [];
let callsMade = 0;
export const metrics = new Map<string, MetricKind>();

export function connectHost(to: Link): void {
  link = to;
}

export function beginTask(next: Task): void {
  task = next;
  samples = [];
}

export function endTask(): readonly MetricSample[] {
  task = undefined;
  return samples;
}

/** Undefined in the init context. */
export function currentTask(): Task | undefined {
  return task;
}

export function declareMetric(name: string, kind: MetricKind): void {
  const there = metrics.get(name) ?? BUILT_IN[name];
  if (there !== undefined && there !== kind) throw new Error(`metric ${name} is a ${there} already`);
  metrics.set(name, kind);
}

export function addSample(metric: string, value: number, tags: Tags = {}): void {
  if (task === undefined) throw new Error(`${metric} takes no samples in the init context`);
  if (samples.length >= SAMPLES_MAX) throw new Error(`more than ${SAMPLES_MAX} samples in one iteration`);
  samples.push({ metric, value, tags: { ...task.tags, ...tags } });
}

/** Throws what k6 throws. */
export function callAndWait(call: Call): CallAnswer {
  if (link === undefined || task === undefined) throw new Error('calls in the init context are not supported');
  const { port, signal } = link;
  callsMade += 1;
  Atomics.store(signal, 0, 0);
  port.postMessage({ id: callsMade, call });
  if (Atomics.wait(signal, 0, 0, call.timeoutMs + GRACE_MS) === 'timed-out') {
    throw new Error(`the stand-in got no answer to ${call.kind}`);
  }
  // An answer that came after its call was given up is still in the port.
  for (;;) {
    const received = receiveMessageOnPort(port)?.message as
      | { readonly id: number; readonly answer: Answered }
      | undefined;
    if (received === undefined) throw new Error(`the stand-in lost the answer to ${call.kind}`);
    if (received.id !== callsMade) continue;
    if ('refusal' in received.answer) throw new Error(received.answer.refusal);
    return received.answer;
  }
}

export function waitMs(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/** k6 takes milliseconds, or text such as "10s". */
export function timeoutFrom(given: string | number | undefined, preset: number): number {
  if (given === undefined) return preset;
  if (typeof given === 'number') return given;
  return durationFrom(given);
}

export function durationFrom(text: string): number {
  const [, amount, unit] = /^(\d+(?:\.\d+)?)(ms|s|m|h)$/.exec(text) ?? [];
  if (amount === undefined || unit === undefined) throw new Error(`"${text}" is not a duration`);
  return Number(amount) * { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 }[unit as 'ms' | 's' | 'm' | 'h'];
}
