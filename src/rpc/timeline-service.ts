/** Owns the wire form of TimelineService. Decides nothing: fields in, flow, message out. */
import { TimelineService } from '../gen/tributary/v1/timeline_service_pb.ts';
import { encodeHomePage } from './encoded-page.ts';
import { readFields } from './fields.ts';
import type { Flows } from './flows.ts';
import { type Method, unary } from './methods.ts';
import { COMPLETENESS } from './post-to-wire.ts';

const READ = { effect: 'read', access: 'service' } as const;

export function timelineServiceMethods(flows: Pick<Flows, 'home'>): readonly Method[] {
  const { method } = TimelineService;
  return [
    unary(method.getHomeTimeline, READ, async (request, call) => {
      const input = readFields((fields) => ({
        viewer: fields.user('viewer_id', request.viewerId),
        pageSize: fields.pageSize('page_size', request.pageSize),
        pageToken: request.pageToken,
      }));
      return encodeHomePage(await flows.home.page(call, input));
    }),
    unary(method.getHomeHead, READ, async (request, call) => {
      const input = readFields((fields) => ({
        viewer: fields.user('viewer_id', request.viewerId),
        sinceToken: request.sinceToken,
      }));
      const head = await flows.home.head(call, input);
      return {
        newCount: head.newCount,
        newestPostId: head.newestPostId === undefined ? '' : String(head.newestPostId),
        headToken: head.headToken,
        completeness: COMPLETENESS[head.completeness],
      };
    }),
  ];
}
