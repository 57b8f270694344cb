/** Owns the list of flows that the front door hands requests to. Types only: `main.ts` makes them, `rpc/` never does. */
import type { ListAuthorPosts } from '../read/author-posts.ts';
import type { GraphLists } from '../read/graph-lists.ts';
import type { HomeTimeline } from '../read/home-timeline.ts';
import type { ReadPosts } from '../read/posts.ts';
import type { DeletePost } from '../write/delete.ts';
import type { EditPost } from '../write/edit.ts';
import type { PublishPost } from '../write/publish.ts';
import type { Relate } from '../write/relate.ts';

export interface Flows {
  readonly publish: PublishPost;
  readonly edit: EditPost;
  readonly remove: DeletePost;
  readonly relate: Relate;
  readonly home: HomeTimeline;
  readonly posts: ReadPosts;
  readonly authorPosts: ListAuthorPosts;
  readonly graph: GraphLists;
}
