/**
 * Owns the calls of the service as scripts make them: by gRPC from our own `proto/`, and by Connect JSON over HTTP, with one interface.
 * Invariants: every call has a time-out and counts once in `calls_failed`; tags come from closed sets; nothing is retried, so that no
 * failure is hidden.
 */
import http from 'k6/http';
import { Rate } from 'k6/metrics';
import grpc from 'k6/net/grpc';
import type { Protocol, Settings } from './settings.ts';

/** Messages in protobuf's JSON form, as far as scripts need them. JSON leaves out what is empty, k6's gRPC does not. */
export interface Calls {
  readonly PublishPost: Call<
    { readonly authorId: string; readonly text: string; readonly requestId: string },
    { readonly post?: PostMessage; readonly ownTimelinePending?: boolean }
  >;
  readonly DeletePost: Call<{ readonly authorId: string; readonly postId: string }, object>;
  readonly ListAuthorPosts: Call<
    { readonly viewerId: string; readonly authorId: string; readonly pageSize: number; readonly pageToken: string },
    PageMessage
  >;
  readonly Follow: Call<Pair, { readonly relationVersion?: string }>;
  readonly BatchFollow: Call<
    { readonly followerId: string; readonly followeeIds: readonly string[] },
    { readonly results?: readonly { readonly refusal?: string }[] }
  >;
  readonly GetRelationship: Call<
    { readonly viewerId: string; readonly otherId: string },
    { readonly following?: boolean }
  >;
  readonly GetHomeTimeline: Call<
    { readonly viewerId: string; readonly pageSize: number; readonly pageToken: string },
    PageMessage & { readonly headToken?: string }
  >;
  readonly GetHomeHead: Call<
    { readonly viewerId: string; readonly sinceToken: string },
    { readonly newCount?: number; readonly completeness?: string }
  >;
}

interface Call<Request, Answer> {
  readonly request: Request;
  readonly answer: Answer;
}

interface Pair {
  readonly followerId: string;
  readonly followeeId: string;
}

interface PostMessage {
  readonly postId?: string;
}

export interface PageMessage {
  readonly entries?: readonly { readonly post?: PostMessage }[];
  readonly nextPageToken?: string;
  readonly completeness?: string;
}

export type CallName = keyof Calls;

/** What a call is for, where one scenario makes the same call for different reasons. */
export type Purpose = 'first' | 'again';

export interface Caller {
  /** Undefined where the call failed, which is counted and, once a VU, logged. */
  call<Name extends CallName>(
    name: Name,
    request: Calls[Name]['request'],
    purpose?: Purpose,
  ): Calls[Name]['answer'] | undefined;
  /** Ends the connection; the next call opens another. */
  close(): void;
}

// k6 has it, its types leave it to the DOM's.
declare const console: { error(text: string): void };

const SERVICES: Readonly<Record<CallName, string>> = {
  PublishPost: 'PostService',
  DeletePost: 'PostService',
  ListAuthorPosts: 'PostService',
  Follow: 'GraphService',
  BatchFollow: 'GraphService',
  GetRelationship: 'GraphService',
  GetHomeTimeline: 'TimelineService',
  GetHomeHead: 'TimelineService',
};

/** Above the service's own deadlines: the service says first that it was too slow. */
const TIMEOUT = '10s';

const failed = new Rate('calls_failed');

// Loading is for the init context alone, connecting for the others.
const client = new grpc.Client();
client.load(
  [import.meta.resolve('../../proto')],
  'tributary/v1/post_service.proto',
  'tributary/v1/graph_service.proto',
  'tributary/v1/timeline_service.proto',
);
let isConnected = false;
let hasLogged = false;

export function callerOf(protocol: Protocol, settings: Settings): Caller {
  return protocol === 'grpc' ? grpcCaller(settings) : jsonCaller(settings);
}

function grpcCaller(settings: Settings): Caller {
  const metadata = { authorization: `Bearer ${settings.apiKey}` };
  return {
    call(name, request, purpose) {
      try {
        if (!isConnected) client.connect(settings.grpcAddress, { plaintext: !settings.grpcTls, timeout: TIMEOUT });
        isConnected = true;
        const tags = tagsOf(name, purpose);
        const answer = client.invoke(methodOf(name), request, { metadata, tags, timeout: TIMEOUT });
        // Of a failed call k6 hands over an empty message, not none.
        if (answer.status !== grpc.StatusOK) return failedBy('grpc', name, `status ${answer.status}`);
        count('grpc', name, false);
        return answer.message;
      } catch (error) {
        return failedBy('grpc', name, String(error));
      }
    },
    close() {
      if (isConnected) client.close();
      isConnected = false;
    },
  };
}

function jsonCaller(settings: Settings): Caller {
  const headers = {
    authorization: `Bearer ${settings.apiKey}`,
    'content-type': 'application/json',
    'connect-protocol-version': '1',
  };
  return {
    call(name, request, purpose) {
      const answer = http.post(`${settings.httpUrl}/${methodOf(name)}`, JSON.stringify(request), {
        headers,
        tags: tagsOf(name, purpose),
        timeout: TIMEOUT,
        responseType: 'text',
      });
      if (answer.status !== 200) return failedBy('json', name, `status ${answer.status} ${answer.error}`);
      count('json', name, false);
      return JSON.parse(answer.body);
    },
    // k6 keeps HTTP connections by itself; `noVUConnectionReuse` ends them with the iteration.
    close: () => undefined,
  };
}

function methodOf(name: CallName): string {
  return `tributary.v1.${SERVICES[name]}/${name}`;
}

/** `name` replaces the address, which k6 would use else. */
function tagsOf(name: CallName, purpose: Purpose | undefined): { [tag: string]: string } {
  return purpose === undefined ? { name } : { name, purpose };
}

function failedBy(protocol: Protocol, name: CallName, why: string): undefined {
  count(protocol, name, true);
  if (!hasLogged) console.error(`${name} by ${protocol}: ${why} (this VU logs no further failures)`);
  hasLogged = true;
}

function count(protocol: Protocol, name: CallName, hasFailed: boolean): void {
  failed.add(hasFailed, { protocol, name });
}
