/**
 * Owns publishing: checks the targets as the author would see them, mints the ID, writes everything in one statement. What it answers is
 * durable; the author's own home timeline shows the post from then on.
 */
import { createHash } from 'node:crypto';
import { invalidField, type Outcome, outcomeOf, TributaryError } from '../errors.ts';
import type { Call, Clock } from '../runtime.ts';
import type { DueJob } from '../store/postgres/fanout-jobs.ts';
import type { KnownRequest, NewPost, PublishOutcome } from '../store/postgres/publish.ts';
import type { AuthorClass } from '../timeline/fanout-class.ts';
import type { PostId, UserId } from '../timeline/ids.ts';
import type { MediaRef, PostMeta, PostRef, Visibility, WrittenPost } from '../timeline/post.ts';
import type { MintPostId } from './mint.ts';
import type { ShowOwn } from './own-timeline.ts';
import type { ShowPulled } from './pulled-list.ts';
import type { FindVisibleTargets } from './targets.ts';

export interface PublishInput {
  readonly author: UserId;
  readonly text: string;
  readonly media: readonly MediaRef[];
  readonly replyTo?: PostId;
  readonly repostOf?: PostId;
  readonly visibility: Visibility;
  /** Already checked for form; unique in the tenant. */
  readonly requestId?: string;
}

export interface Published {
  readonly post: WrittenPost;
  readonly ownTimelinePending: boolean;
}

/**
 * Throws INVALID_FIELD for a post with nothing in it, TARGET_NOT_FOUND where a target is not visible to the author, AUTHOR_SUSPENDED, REQUEST_ID_REUSED, ID_LEASE_UNAVAILABLE,
 * DATABASE_UNAVAILABLE. After an abort the post may or may not be there: a retry with the same request ID tells.
 */
export type PublishPost = (call: Call, input: PublishInput) => Promise<Published>;

export interface PublishParts {
  readonly clock: Clock;
  readonly mint: MintPostId;
  readonly insertPost: (signal: AbortSignal, post: NewPost) => Promise<PublishOutcome>;
  readonly findRequest: (call: Call, requestId: string) => Promise<KnownRequest | undefined>;
  readonly findTargets: FindVisibleTargets;
  readonly showOwn: ShowOwn;
  readonly showPulled: ShowPulled;
  readonly nudge: (job: DueJob) => void;
  readonly published: (seconds: number, outcome: Outcome) => void;
}

/** An ID that is taken means that an import holds it: the next one is free. */
const ID_ATTEMPTS_MAX = 2;

export function createPublish(parts: PublishParts): PublishPost {
  async function publish(call: Call, input: PublishInput): Promise<Published> {
    if (
      input.text === '' &&
      input.media.length === 0 &&
      (input.repostOf === undefined || input.replyTo !== undefined)
    ) {
      throw invalidField('text', 'a post needs text or media; only a plain repost does without');
    }
    const contentHash = input.requestId === undefined ? undefined : hashContent(input);
    const targets = await parts.findTargets(call, input.author, input);
    if (targets.missing) {
      // The target may have gone after the first answer, which a retry is to get all the same.
      const first = await firstAnswer(call, input, contentHash);
      if (first) return first;
      throw new TributaryError('TARGET_NOT_FOUND', {
        message: 'the post to answer or repost is not there for this author',
      });
    }
    for (let attempt = 1; attempt <= ID_ATTEMPTS_MAX; attempt += 1) {
      const post = newPost(call, input, targets, await parts.mint(call.signal), contentHash);
      const outcome = await parts.insertPost(call.signal, post);
      switch (outcome.kind) {
        case 'published':
          parts.nudge({ tenant: call.tenant, postId: post.postId, generation: 1, lane: outcome.lane });
          return answer(call, post, outcome);
        case 'id_taken':
          continue;
        case 'request_known':
        case 'refused': {
          const first = await firstAnswer(call, input, contentHash);
          if (first) return first;
          if (outcome.kind === 'refused')
            throw new TributaryError('AUTHOR_SUSPENDED', { message: 'the author may not publish' });
          // The request row expired between the two statements.
          continue;
        }
        default:
          throw new Error(`unknown outcome: ${JSON.stringify(outcome satisfies never)}`);
      }
    }
    throw new TributaryError('ID_LEASE_UNAVAILABLE', { message: 'no free post ID was found', retryAfterMs: 10 });
  }

  /** The answer that an earlier call with this request ID got, made again from the content, which is the same by its hash. */
  async function firstAnswer(
    call: Call,
    input: PublishInput,
    contentHash: Buffer | undefined,
  ): Promise<Published | undefined> {
    if (input.requestId === undefined || contentHash === undefined) return undefined;
    const known = await parts.findRequest(call, input.requestId);
    if (!known) return undefined;
    if (!known.contentHash.equals(contentHash)) {
      throw new TributaryError('REQUEST_ID_REUSED', { message: 'this request ID came with other content before' });
    }
    return answer(call, newPost(call, input, known, known.postId, undefined), known);
  }

  async function answer(call: Call, post: NewPost, of: AuthorClass): Promise<Published> {
    const isListed = of.fanoutClass !== 'push' && post.visibility !== 'private';
    const [isShown] = await Promise.all([
      parts.showOwn(call, post.author, post.postId),
      isListed && parts.showPulled(call, { author: post.author, epoch: of.classEpoch, postId: post.postId }),
    ]);
    return { post: storedPost(post), ownTimelinePending: !isShown };
  }

  return async function measured(call, input) {
    const startedMs = parts.clock.monotonicMs();
    const secondsSince = (): number => (parts.clock.monotonicMs() - startedMs) / 1_000;
    try {
      const answer = await publish(call, input);
      parts.published(secondsSince(), 'ok');
      return answer;
    } catch (error) {
      parts.published(secondsSince(), outcomeOf(error));
      throw error;
    }
  };
}

interface Targets {
  readonly replyTo?: PostRef;
  readonly repostOf?: PostRef;
}

function newPost(
  call: Call,
  input: PublishInput,
  targets: Targets,
  postId: PostId,
  contentHash: Buffer | undefined,
): NewPost {
  return {
    tenant: call.tenant,
    author: input.author,
    postId,
    text: input.text,
    media: input.media,
    visibility: input.visibility,
    plainRepost:
      targets.repostOf !== undefined && targets.replyTo === undefined && input.text === '' && input.media.length === 0,
    ...(targets.replyTo && { replyTo: targets.replyTo }),
    ...(targets.repostOf && { repostOf: targets.repostOf }),
    ...(contentHash && input.requestId !== undefined && { request: { requestId: input.requestId, contentHash } }),
  };
}

/** The post as the publish statement stores it. */
function storedPost(post: NewPost): WrittenPost {
  const meta: PostMeta = {
    postId: post.postId,
    author: post.author,
    visibility: post.visibility,
    moderation: 'clear',
    deleted: false,
    plainRepost: post.plainRepost,
    metaVersion: 1,
    bodyVersion: 1,
    ...(post.replyTo && { replyTo: post.replyTo }),
    ...(post.repostOf && { repostOf: post.repostOf }),
  };
  return { meta, body: { text: post.text, media: post.media } };
}

/** SHA-256 over the content in a fixed order; JSON keeps the fields apart. */
function hashContent(input: PublishInput): Buffer {
  const media = input.media.map((ref) => [ref.address, ref.mediaType, ref.altText, ref.widthPixels, ref.heightPixels]);
  const content = [input.author, input.text, media, input.replyTo ?? 0, input.repostOf ?? 0, input.visibility];
  return createHash('sha256').update(JSON.stringify(content)).digest();
}
