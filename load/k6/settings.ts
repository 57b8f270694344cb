/**
 * Owns what a run is told by the environment (`k6 run -e LOAD_RATE=200 …`): names, defaults, bounds. README's table of them is checked
 * against this file.
 * Invariant: a setting that cannot be understood ends the run before the first call.
 */

export type Protocol = 'grpc' | 'json';

/** What scripts presume when the environment says nothing; each may have its own. */
export interface Presets {
  readonly rate: number;
  readonly duration: string;
}

export interface Settings {
  readonly grpcAddress: string;
  readonly grpcTls: boolean;
  readonly httpUrl: string;
  readonly apiKey: string;
  readonly protocols: readonly Protocol[];
  /** Iterations a second of a scenario, all protocols together. */
  readonly rate: number;
  readonly stormRate: number;
  /** As k6 writes it. */
  readonly duration: string;
  readonly vus: number;
  readonly viewers: number;
  readonly authors: number;
  readonly follows: number;
  readonly posts: number;
  readonly followers: number;
  readonly pageSize: number;
  readonly mix: readonly [reads: number, posts: number, follows: number];
  /** Share of pages that must be complete. */
  readonly completeRate: number;
  readonly p99Ms: number;
  readonly visibleP99Ms: number;
  readonly seed: number;
  /** Begins every user ID of the run. For set-up alone, which hands it on: each VU has settings of its own, made at another time. */
  readonly run: string;
  readonly cleanUp: boolean;
}

const UNIT_MS = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000 } as const;

export function settingsFrom({ rate, duration }: Presets): Settings {
  const authors = wholeFrom('LOAD_AUTHORS', '50', 1, 10_000);
  return {
    grpcAddress: textFrom('LOAD_GRPC_ADDRESS', '127.0.0.1:50051', /^[^\s/]+:\d+$/),
    grpcTls: flagFrom('LOAD_GRPC_TLS', 'false'),
    httpUrl: textFrom('LOAD_HTTP_URL', 'http://127.0.0.1:8080', /^https?:\/\/[^\s/]+$/),
    apiKey: textFrom('LOAD_API_KEY', '', /^\S+$/),
    protocols: protocolsFrom('LOAD_PROTOCOLS', 'grpc,json'),
    rate: wholeFrom('LOAD_RATE', `${rate}`, 1, 1_000_000),
    stormRate: wholeFrom('LOAD_STORM_RATE', '5', 1, 10_000),
    duration: textFrom('LOAD_DURATION', duration, /^[1-9]\d*(?:ms|s|m|h)$/),
    vus: wholeFrom('LOAD_VUS', '50', 1, 10_000),
    // Each costs a call of the set-up or two, one after the other: more would not be done in its time.
    viewers: wholeFrom('LOAD_VIEWERS', '200', 2, 200_000),
    authors,
    // One call follows at most 500.
    follows: Math.min(authors, wholeFrom('LOAD_FOLLOWS', '20', 1, 500)),
    posts: wholeFrom('LOAD_POSTS', '5', 1, 1_000),
    followers: wholeFrom('LOAD_FOLLOWERS', '1000', 1, 200_000),
    pageSize: wholeFrom('LOAD_PAGE_SIZE', '20', 1, 100),
    mix: mixFrom('LOAD_MIX', '80,15,5'),
    completeRate: Number(textFrom('LOAD_COMPLETE_RATE', '0.99', /^(?:0(?:\.\d{1,6})?|1)$/)),
    p99Ms: wholeFrom('LOAD_P99_MS', '250', 1, 600_000),
    visibleP99Ms: wholeFrom('LOAD_VISIBLE_P99_MS', '30000', 1, 600_000),
    seed: wholeFrom('LOAD_SEED', '1', 0, 2 ** 31),
    // Users of an earlier run have timelines, posts and follows that this one does not know of. Longer names would not fit into IDs.
    run: textFrom('LOAD_RUN', `k6-${Date.now().toString(36)}`, /^[A-Za-z0-9_.~-]{1,30}$/),
    cleanUp: flagFrom('LOAD_CLEAN_UP', 'false'),
  };
}

export function durationMs(text: string): number {
  const [, amount = '', unit = ''] = /^(\d+)(ms|s|m|h)$/.exec(text) ?? [];
  return Number(amount) * UNIT_MS[unit as keyof typeof UNIT_MS];
}

function textFrom(name: string, preset: string, form: RegExp): string {
  const text = __ENV[name] ?? preset;
  // Not the value: it may be a key.
  if (!form.test(text)) throw new Error(text === '' ? `${name} must be set.` : `${name} does not match ${form}.`);
  return text;
}

function wholeFrom(name: string, preset: string, min: number, max: number): number {
  const value = Number(textFrom(name, preset, /^\d{1,10}$/));
  if (value < min || value > max) throw new Error(`${name} takes a whole number from ${min} to ${max}.`);
  return value;
}

function flagFrom(name: string, preset: string): boolean {
  return textFrom(name, preset, /^(?:true|false)$/) === 'true';
}

function protocolsFrom(name: string, preset: string): readonly Protocol[] {
  return textFrom(name, preset, /^(?:grpc|json|grpc,json)$/).split(',') as Protocol[];
}

function mixFrom(name: string, preset: string): readonly [number, number, number] {
  const [reads = 0, posts = 0, follows = 0] = textFrom(name, preset, /^\d{1,4},\d{1,4},\d{1,4}$/)
    .split(',')
    .map(Number);
  if (reads + posts + follows === 0)
    throw new Error(`${name} has weights for reads, posts and follows; one must be above 0.`);
  return [reads, posts, follows];
}
