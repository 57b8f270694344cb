/** Owns the wire form of PostService. Decides nothing: fields in, flow, message out. */

import type { PublishPostRequest, UpdatePostRequest } from '../gen/tributary/v1/post_service_pb.ts';
import { PostService } from '../gen/tributary/v1/post_service_pb.ts';
import { LIMITS } from '../timeline/limits.ts';
import type { EditInput } from '../write/edit.ts';
import type { PublishInput } from '../write/publish.ts';
import { encodeAuthorPage, encodeBatch, encodeSingle } from './encoded-page.ts';
import { readFields } from './fields.ts';
import type { Flows } from './flows.ts';
import { type Method, unary } from './methods.ts';
import { postToWire } from './post-to-wire.ts';

const READ = { effect: 'read', access: 'service' } as const;
const WRITE = { effect: 'write', access: 'service' } as const;

export function postServiceMethods(
  flows: Pick<Flows, 'publish' | 'edit' | 'remove' | 'posts' | 'authorPosts'>,
): readonly Method[] {
  const { method } = PostService;
  return [
    unary(method.publishPost, WRITE, async (request, call) => {
      const { post, ownTimelinePending } = await flows.publish(call, publishInput(request));
      return { post: postToWire(post), ownTimelinePending };
    }),
    unary(method.updatePost, WRITE, async (request, call) => {
      return { post: postToWire(await flows.edit(call, editInput(request))) };
    }),
    unary(method.deletePost, WRITE, async (request, call) => {
      const input = readFields((fields) => ({
        author: fields.user('author_id', request.authorId),
        postId: fields.post('post_id', request.postId),
      }));
      await flows.remove(call, input);
      return {};
    }),
    unary(method.getPost, READ, async (request, call) => {
      const input = readFields((fields) => ({
        viewer: fields.user('viewer_id', request.viewerId),
        postId: fields.post('post_id', request.postId),
      }));
      const single = await flows.posts.one(call, input);
      if (single.views.length !== 1) throw new Error(`a single read answered with ${single.views.length} posts`);
      return encodeSingle(single);
    }),
    unary(method.batchGetPosts, READ, async (request, call) => {
      const input = readFields((fields) => ({
        viewer: fields.user('viewer_id', request.viewerId),
        postIds: fields.posts('post_ids', request.postIds, LIMITS.batchPostsMax),
      }));
      return encodeBatch(await flows.posts.batch(call, input));
    }),
    unary(method.listAuthorPosts, READ, async (request, call) => {
      const input = readFields((fields) => ({
        viewer: fields.user('viewer_id', request.viewerId),
        author: fields.user('author_id', request.authorId),
        pageSize: fields.pageSize('page_size', request.pageSize),
        pageToken: request.pageToken,
      }));
      return encodeAuthorPage(await flows.authorPosts(call, input));
    }),
  ];
}

function publishInput(request: PublishPostRequest): PublishInput {
  return readFields((fields) => {
    const replyTo = fields.optionalPost('reply_to_post_id', request.replyToPostId);
    const repostOf = fields.optionalPost('repost_of_post_id', request.repostOfPostId);
    if (request.text === '' && request.media.length === 0 && request.repostOfPostId === '') {
      fields.refuse('text', 'text, media or repost_of_post_id must be given');
    }
    return {
      author: fields.user('author_id', request.authorId),
      text: fields.text('text', request.text, LIMITS.textCodePointsMax),
      media: fields.media('media', request.media),
      visibility: fields.visibility('visibility', request.visibility) ?? 'public',
      ...(replyTo === undefined ? {} : { replyTo }),
      ...(repostOf === undefined ? {} : { repostOf }),
      ...(request.requestId === undefined ? {} : { requestId: fields.requestId('request_id', request.requestId) }),
    };
  });
}

function editInput(request: UpdatePostRequest): EditInput {
  return readFields((fields) => {
    const visibility = fields.visibility('visibility', request.visibility);
    return {
      author: fields.user('author_id', request.authorId),
      postId: fields.post('post_id', request.postId),
      ...(request.text === undefined ? {} : { text: fields.text('text', request.text, LIMITS.textCodePointsMax) }),
      ...(request.media === undefined ? {} : { media: fields.media('media.media', request.media.media) }),
      ...(visibility === undefined ? {} : { visibility }),
      ...(request.expectedMetaVersion === undefined
        ? {}
        : { expectedMetaVersion: fields.version('expected_meta_version', request.expectedMetaVersion) }),
    };
  });
}
