/** Owns what the threads of the k6 stand-in say to each other: a run and its VUs, and a VU's calls, which k6 makes synchronously. */
import type { MessagePort } from 'node:worker_threads';

export type Tags = Readonly<Record<string, string>>;
export type MetricKind = 'counter' | 'gauge' | 'rate' | 'trend';

export interface MetricSample {
  readonly metric: string;
  readonly value: number;
  readonly tags: Tags;
}

/** What a thread of a VU is made with. */
export interface VuData {
  readonly vu: number;
  /** Address of the script. */
  readonly script: string;
  readonly env: Readonly<Record<string, string>>;
  readonly port: MessagePort;
  /** One Int32: 0 while a call is open, 1 once its answer is in the port. */
  readonly signal: SharedArrayBuffer;
}

/** What a script is, once its init context has run. */
export interface LoadedScript {
  readonly options: unknown;
  readonly functions: readonly string[];
  readonly metrics: Readonly<Record<string, MetricKind>>;
}

export interface Task {
  /** Name of an exported function. */
  readonly exec: string;
  /** What `setup` returned, as JSON; undefined for `setup` itself. */
  readonly data: string | undefined;
  readonly tags: Tags;
  /** Undefined outside of scenarios. */
  readonly scenario: { readonly name: string; readonly executor: string; readonly iterationInTest: number } | undefined;
}

export type FromVu =
  | { readonly kind: 'loaded'; readonly script: LoadedScript }
  | {
      readonly kind: 'done';
      readonly samples: readonly MetricSample[];
      readonly durationMs: number;
      /** What the function returned, as JSON. */
      readonly result: string | undefined;
      /** What it threw. */
      readonly error: string | undefined;
    };

export type Call =
  | {
      readonly kind: 'http';
      readonly method: string;
      readonly url: string;
      readonly body: string;
      readonly headers: Readonly<Record<string, string>>;
      readonly timeoutMs: number;
    }
  | {
      readonly kind: 'grpc connect';
      readonly client: number;
      readonly address: string;
      readonly plaintext: boolean;
      readonly timeoutMs: number;
    }
  | {
      readonly kind: 'grpc invoke';
      readonly client: number;
      readonly service: string;
      readonly method: string;
      /** The request in protobuf's JSON form. */
      readonly request: string;
      readonly metadata: Readonly<Record<string, string>>;
      readonly timeoutMs: number;
    }
  | { readonly kind: 'grpc close'; readonly client: number; readonly timeoutMs: number };

/** An HTTP or a gRPC status; 0 with an error where HTTP got none. */
export interface CallAnswer {
  readonly status: number;
  readonly body: string;
  readonly error: string;
  readonly durationMs: number;
}

/** `refusal`: the call could not be made as asked, which k6 throws. */
export type Answered = CallAnswer | { readonly refusal: string };
