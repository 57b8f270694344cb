/** Owns carrying out a script of the graph language by RPC, as a caller would, and the way back from labels to posts. */
import { timestampFromMs } from '@bufbuild/protobuf/wkt';
import { Visibility as WireVisibility } from '../../src/gen/tributary/v1/post_pb.ts';
import type { ModerationState, Visibility } from '../../src/timeline/post.ts';
import type { Clients } from './clients.ts';
import { type Act, type PublishAct, parseScript } from './graph-dsl.ts';

export interface Stage {
  readonly clients: Clients;
  /** What callers cannot do and operators can. */
  readonly operator: {
    suspend(author: string): Promise<void>;
    restore(author: string): Promise<void>;
    moderate(postId: string, state: ModerationState): Promise<void>;
  };
  nowMs(): number;
}

export interface StagedPost {
  readonly postId: string;
  readonly author: string;
}

export interface Cast {
  /** Carries out one more script; labels of earlier ones hold. */
  play(script: string): Promise<void>;
  /** Gives a post that no script made a label. */
  adopt(label: string, post: StagedPost): void;
  /** The post of a label. Throws where there is none. */
  post(label: string): StagedPost;
  /** Post IDs of labels, in the order given. */
  ids(...labels: readonly string[]): readonly string[];
  /** The label of a post ID, or the ID itself where it bears none: for messages that can be read. */
  labelOf(postId: string): string;
}

export const WIRE_VISIBILITY: Readonly<Record<Visibility, WireVisibility>> = {
  public: WireVisibility.PUBLIC,
  followers: WireVisibility.FOLLOWERS,
  private: WireVisibility.PRIVATE,
};

export function createCast(stage: Stage): Cast {
  const posts = new Map<string, StagedPost>();
  const { graph, posts: rpc } = stage.clients;

  function post(label: string): StagedPost {
    const found = posts.get(label);
    if (!found) throw new Error(`no post is called ${label}`);
    return found;
  }

  async function publish(act: PublishAct): Promise<void> {
    const { post: made } = await rpc.publishPost({
      authorId: act.who,
      text: act.text,
      visibility: WIRE_VISIBILITY[act.visibility],
      replyToPostId: act.replyTo === undefined ? '' : post(act.replyTo).postId,
      repostOfPostId: act.repostOf === undefined ? '' : post(act.repostOf).postId,
    });
    if (!made) throw new Error('a publish was answered without its post');
    if (act.label !== undefined) posts.set(act.label, { postId: made.postId, author: act.who });
  }

  function carryOut(act: Act): Promise<unknown> {
    switch (act.kind) {
      case 'follow':
        return graph.follow({ followerId: act.who, followeeId: act.whom });
      case 'unfollow':
        return graph.unfollow({ followerId: act.who, followeeId: act.whom });
      case 'remove_follower':
        return graph.removeFollower({ authorId: act.who, followerId: act.whom });
      case 'block':
        return graph.block({ blockerId: act.who, blockedId: act.whom });
      case 'unblock':
        return graph.unblock({ blockerId: act.who, blockedId: act.whom });
      case 'mute': {
        const until = act.forMs === undefined ? {} : { until: timestampFromMs(stage.nowMs() + act.forMs) };
        return graph.mute({ muterId: act.who, mutedId: act.whom, ...until });
      }
      case 'unmute':
        return graph.unmute({ muterId: act.who, mutedId: act.whom });
      case 'protect':
        return graph.putAuthor({ authorId: act.who, displayName: act.who, protected: act.protected });
      case 'suspend':
        return stage.operator.suspend(act.who);
      case 'restore':
        return stage.operator.restore(act.who);
      case 'publish':
        return publish(act);
      case 'delete':
        return rpc.deletePost({ authorId: act.who, postId: post(act.label).postId });
      case 'edit':
        return rpc.updatePost({ authorId: act.who, postId: post(act.label).postId, text: act.text });
      case 'show':
        return rpc.updatePost({
          authorId: act.who,
          postId: post(act.label).postId,
          visibility: WIRE_VISIBILITY[act.visibility],
        });
      case 'moderate':
        return stage.operator.moderate(post(act.label).postId, act.state);
    }
  }

  return {
    async play(script) {
      for (const act of parseScript(script, posts.keys())) {
        try {
          await carryOut(act);
        } catch (cause) {
          throw new Error(
            `could not carry out ${JSON.stringify(act)}: ${cause instanceof Error ? cause.message : cause}`,
            { cause },
          );
        }
      }
    },
    adopt: (label, made) => {
      posts.set(label, made);
    },
    post,
    ids: (...labels) => labels.map((label) => post(label).postId),
    labelOf: (postId) => [...posts].find(([, staged]) => staged.postId === postId)?.[0] ?? postId,
  };
}

/** `prefix1` to `prefixN`: the labels that "posts N times as prefix" gives, oldest first. */
export function labels(prefix: string, count: number): readonly string[] {
  return Array.from({ length: count }, (_, at) => `${prefix}${at + 1}`);
}
