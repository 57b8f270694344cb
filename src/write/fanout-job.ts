/** Owns the name of a fan-out job: a row of `fanout_jobs`. */
import type { PostId, TenantId } from '../timeline/ids.ts';

export interface FanoutJobName {
  readonly tenant: TenantId;
  readonly postId: PostId;
  /** From 1; rises when a post becomes eligible again. */
  readonly generation: number;
}
