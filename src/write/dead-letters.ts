/** Owns what operators do with dead letters of fan-out: look at them, in pages, and put them back, one post's or all, in bounded batches. */
import type { DeadJob } from '../store/postgres/fanout-dead.ts';
import type { FanoutJobKey } from '../store/postgres/fanout-jobs.ts';
import { type PostId, parsePostId, parseTenantId, type TenantId } from '../timeline/ids.ts';
import { LANES, type Lane } from '../timeline/lanes.ts';

export interface DeadLetterName {
  readonly tenant: TenantId;
  readonly postId: PostId;
  /** All of the post's where absent. */
  readonly generation?: number;
}

export interface DeadLetters {
  /** One line for each, and where to go on if there may be more. Throws an Error that says so where `after` names no line. */
  list(
    signal: AbortSignal,
    after: string | undefined,
  ): Promise<{ readonly lines: readonly string[]; readonly more?: string }>;
  /** Answers how many were put back. */
  retry(signal: AbortSignal, name: DeadLetterName): Promise<number>;
  /** Those that are dead now: what dies again is not put back by the same call. */
  retryAll(signal: AbortSignal): Promise<number>;
}

export interface DeadLetterParts {
  readonly list: (
    signal: AbortSignal,
    input: { readonly after?: FanoutJobKey & { readonly lane: Lane }; readonly most: number },
  ) => Promise<readonly DeadJob[]>;
  readonly retry: (signal: AbortSignal, name: DeadLetterName) => Promise<number>;
  readonly retrySome: (
    signal: AbortSignal,
    input: { readonly diedUpTo: string; readonly most: number },
  ) => Promise<number>;
  /** By the clock that says when jobs died. */
  readonly loadNow: (signal: AbortSignal) => Promise<string>;
}

const PAGE = 100;
/** Rows in one statement. */
const BATCH_MAX = 1_000;

export function createDeadLetters(parts: DeadLetterParts): DeadLetters {
  return {
    async list(signal, after) {
      const jobs = await parts.list(signal, { most: PAGE, ...(after !== undefined && { after: parseName(after) }) });
      const last = jobs.at(-1);
      return {
        lines: jobs.map((job) => `${nameOf(job)}  ${describe(job)}`),
        ...(jobs.length === PAGE && last && { more: nameOf(last) }),
      };
    },

    retry: parts.retry,

    async retryAll(signal) {
      const diedUpTo = await parts.loadNow(signal);
      let retried = 0;
      for (let batch = BATCH_MAX; batch === BATCH_MAX; retried += batch) {
        batch = await parts.retrySome(signal, { diedUpTo, most: BATCH_MAX });
      }
      return retried;
    },
  };
}

/** Lane, tenant, post and generation, in the order of the list. */
function nameOf({ lane, tenant, postId, generation }: DeadJob): string {
  return `${lane}/${tenant}/${postId}/${generation}`;
}

function describe({ author, cursor, deadAt, error }: DeadJob): string {
  const far = cursor === '' ? 'before the first follower' : `after follower ${cursor}`;
  return `${deadAt.toISOString()}, by ${author}, ${far}: ${error}`;
}

function parseName(text: string): FanoutJobKey & { readonly lane: Lane } {
  const [lane, tenant = '', post = '', generation = ''] = text.split('/');
  const name = {
    lane: LANES.find((known) => known === lane),
    tenant: parseTenantId(tenant),
    postId: parsePostId(post),
    generation: Number(generation),
  };
  if (name.lane === undefined || name.tenant === undefined || name.postId === undefined || !(name.generation >= 1)) {
    throw new Error('--after must be the beginning of a line of the list, up to the first space.');
  }
  return { lane: name.lane, tenant: name.tenant, postId: name.postId, generation: name.generation };
}
