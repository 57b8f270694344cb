/** Owns the typed clients of tests, the same for gRPC and for Connect JSON, and what an error that reached a client says. */
import { Agent } from 'node:http';
import { type Client, Code, ConnectError, createClient, type Interceptor, type Transport } from '@connectrpc/connect';
import { createConnectTransport, createGrpcTransport, Http2SessionManager } from '@connectrpc/connect-node';
import { ErrorInfoSchema } from '../../src/gen/google/rpc/error_details_pb.ts';
import { GraphService } from '../../src/gen/tributary/v1/graph_service_pb.ts';
import { PostService } from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';

export const PROTOCOLS = ['grpc', 'json'] as const;
export type Protocol = (typeof PROTOCOLS)[number];

export interface Clients {
  readonly posts: Client<typeof PostService>;
  readonly graph: Client<typeof GraphService>;
  readonly timeline: Client<typeof TimelineService>;
  close(): void;
}

/** gRPC goes to the gRPC listener over clear-text HTTP/2; JSON is Connect over HTTP/1.1 to the HTTP listener. */
export function connectClients(options: {
  readonly protocol: Protocol;
  readonly grpcPort: number;
  readonly httpPort: number;
  readonly key: string;
}): Clients {
  const authorize: Interceptor = (next) => (request) => {
    request.header.set('authorization', `Bearer ${options.key}`);
    return next(request);
  };
  const { transport, close } =
    options.protocol === 'grpc'
      ? grpcTransport(options.grpcPort, authorize)
      : jsonTransport(options.httpPort, authorize);
  return {
    posts: createClient(PostService, transport),
    graph: createClient(GraphService, transport),
    timeline: createClient(TimelineService, transport),
    close,
  };
}

function grpcTransport(port: number, authorize: Interceptor): { transport: Transport; close: () => void } {
  const baseUrl = `http://127.0.0.1:${port}`;
  const sessionManager = new Http2SessionManager(baseUrl);
  const transport = createGrpcTransport({ baseUrl, sessionManager, interceptors: [authorize] });
  return { transport, close: () => sessionManager.abort() };
}

function jsonTransport(port: number, authorize: Interceptor): { transport: Transport; close: () => void } {
  const agent = new Agent({ keepAlive: true });
  const transport = createConnectTransport({
    baseUrl: `http://127.0.0.1:${port}`,
    httpVersion: '1.1',
    useBinaryFormat: false,
    nodeOptions: { agent },
    interceptors: [authorize],
  });
  return { transport, close: () => agent.destroy() };
}

export interface Refusal {
  /** Name of the status code, as gRPC spells it, such as INVALID_ARGUMENT. */
  readonly code: string;
  /** Reason of the ErrorInfo; undefined where the answer had none. */
  readonly reason: string | undefined;
  readonly message: string;
}

/** What a call failed with. Throws where it did not fail. */
export async function refusalOf(call: Promise<unknown>): Promise<Refusal> {
  let answer: unknown;
  try {
    answer = await call;
  } catch (fault) {
    return refusalFrom(fault);
  }
  throw new Error(
    `the call was not refused but answered ${JSON.stringify(answer, (_, value: unknown) => (typeof value === 'bigint' ? `${value}` : value))}`,
  );
}

export function refusalFrom(fault: unknown): Refusal {
  if (!(fault instanceof ConnectError)) throw fault;
  const [info] = fault.findDetails(ErrorInfoSchema);
  const code = Code[fault.code].replace(/(?<=[a-z])(?=[A-Z])/g, '_').toUpperCase();
  return { code, reason: info?.reason, message: fault.rawMessage };
}
