/**
 * Owns the form of a hint: what a queue's job says, and its ID. A hint holds identifiers only, some hundred bytes; whatever else a worker needs it
 * reads from the row that the hint names, which is the truth. Reads strictly: what is not a hint of this version is no hint at all.
 */
import { type PostId, parsePostId, parseTenantId, type TenantId } from '../timeline/ids.ts';

/** Names one fan-out job. */
export interface FanoutHint {
  readonly tenant: TenantId;
  readonly postId: PostId;
  /** From 1. */
  readonly generation: number;
}

export interface HintPayload {
  readonly v: 1;
  readonly tenant: string;
  /** Decimal: 53 bits survive every reader as text. */
  readonly post: string;
  readonly generation: number;
}

/** Largest payload in bytes of JSON: a hint has at most some 150. */
export const PAYLOAD_BYTES_MAX = 1_024;

const FIELDS = ['generation', 'post', 'tenant', 'v'];
/** A Postgres integer. */
const GENERATION_MAX = 2 ** 31 - 1;

export function encodeHint(hint: FanoutHint): HintPayload {
  return { v: 1, tenant: hint.tenant, post: String(hint.postId), generation: hint.generation };
}

/** The hint that a payload spells, or undefined. */
export function parseHint(payload: unknown): FanoutHint | undefined {
  if (typeof payload !== 'object' || payload === null || Array.isArray(payload)) return undefined;
  const { v, tenant, post, generation } = payload as Readonly<Record<string, unknown>>;
  if (Object.keys(payload).sort().join() !== FIELDS.join() || v !== 1) return undefined;
  if (typeof tenant !== 'string' || typeof post !== 'string' || !isGeneration(generation)) return undefined;
  const tenantId = parseTenantId(tenant);
  const postId = parsePostId(post);
  return tenantId === undefined || postId === undefined ? undefined : { tenant: tenantId, postId, generation };
}

function isGeneration(value: unknown): value is number {
  return typeof value === 'number' && Number.isInteger(value) && value >= 1 && value <= GENERATION_MAX;
}

/**
 * The ID of a hint's job: one for each fan-out job, so that hinting twice queues once. Numbers first, so that no two hints spell the same text,
 * whatever stands in the tenant's name. BullMQ takes neither ":" nor a bare number.
 */
export function hintJobId({ tenant, postId, generation }: FanoutHint): string {
  return `${postId}.${generation}.${tenant}`;
}
