/**
 * Owns the calls that VUs of the k6 stand-in make: each VU has its own connections, and waits while a call is made here.
 * Invariant: every call is answered, failed ones too; whatever was opened is closed with the VU.
 */
import { Agent, request as httpRequest } from 'node:http';
import {
  createRegistry,
  type DescMethod,
  fromBinary,
  fromJsonString,
  toBinary,
  toJsonString,
} from '@bufbuild/protobuf';
import * as grpc from '@grpc/grpc-js';
import { GraphService } from '../../src/gen/tributary/v1/graph_service_pb.ts';
import { PostService } from '../../src/gen/tributary/v1/post_service_pb.ts';
import { TimelineService } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import type { Answered, Call, CallAnswer } from './messages.ts';

export interface Outside {
  perform(call: Call): Promise<Answered>;
  /** Ends HTTP connections that wait for further calls. */
  endHttp(): void;
  close(): void;
}

type HttpCall = Extract<Call, { kind: 'http' }>;
type InvokeCall = Extract<Call, { kind: 'grpc invoke' }>;

const SERVICES = createRegistry(PostService, GraphService, TimelineService);

export function createOutside(): Outside {
  let agent = new Agent({ keepAlive: true, maxSockets: 1 });
  const clients = new Map<number, grpc.Client>();

  function closeClient(id: number): void {
    clients.get(id)?.close();
    clients.delete(id);
  }

  async function connect({ client: id, address, plaintext, timeoutMs }: Extract<Call, { kind: 'grpc connect' }>) {
    closeClient(id);
    const credentials = plaintext ? grpc.credentials.createInsecure() : grpc.credentials.createSsl();
    // Else grpc-js lets all VUs share one connection.
    const client = new grpc.Client(address, credentials, { 'grpc.use_local_subchannel_pool': 1 });
    clients.set(id, client);
    const { promise, resolve, reject } = Promise.withResolvers<void>();
    client.waitForReady(Date.now() + timeoutMs, (error) => (error === undefined ? resolve() : reject(error)));
    await promise;
    return done();
  }

  async function perform(call: Call): Promise<Answered> {
    switch (call.kind) {
      case 'http':
        return post(call, agent);
      case 'grpc connect':
        return connect(call);
      case 'grpc invoke':
        return invoke(call, clients.get(call.client));
      case 'grpc close':
        closeClient(call.client);
        return done();
    }
  }

  function endHttp(): void {
    agent.destroy();
    agent = new Agent({ keepAlive: true, maxSockets: 1 });
  }

  return {
    perform: (call) => perform(call).catch((error: unknown) => ({ refusal: String(error) })),
    endHttp,
    close() {
      agent.destroy();
      for (const id of [...clients.keys()]) closeClient(id);
    },
  };
}

function done(): CallAnswer {
  return { status: 0, body: '', error: '', durationMs: 0 };
}

async function post({ method, url, body, headers, timeoutMs }: HttpCall, agent: Agent): Promise<CallAnswer> {
  const startedMs = performance.now();
  const { promise, resolve } = Promise.withResolvers<CallAnswer>();
  const answer = (status: number, text: string, error: string): void =>
    resolve({ status, body: text, error, durationMs: performance.now() - startedMs });
  const signal = AbortSignal.timeout(timeoutMs);
  const sent = httpRequest(url, { method, headers, agent, signal }, (response) => {
    const chunks: Buffer[] = [];
    response.on('data', (chunk: Buffer) => chunks.push(chunk));
    response.on('end', () => answer(response.statusCode ?? 0, Buffer.concat(chunks).toString('utf8'), ''));
    response.on('error', (error) => answer(0, '', String(error)));
  });
  sent.on('error', (error) => answer(0, '', String(error)));
  sent.end(body);
  return promise;
}

async function invoke(call: InvokeCall, client: grpc.Client | undefined): Promise<CallAnswer> {
  const service = SERVICES.getService(call.service);
  const method = service?.methods.find((each) => each.name === call.method);
  if (client === undefined || method === undefined) throw new Error(`no way to ${call.service}/${call.method}`);
  const metadata = new grpc.Metadata();
  for (const [name, value] of Object.entries(call.metadata)) metadata.set(name, value);
  const request = fromJsonString(method.input, call.request);
  const startedMs = performance.now();
  const { promise, resolve } = Promise.withResolvers<CallAnswer>();
  client.makeUnaryRequest(
    `/${call.service}/${call.method}`,
    (message: typeof request) => Buffer.from(toBinary(method.input, message)),
    (bytes: Buffer) => jsonOf(method, bytes),
    request,
    metadata,
    { deadline: Date.now() + call.timeoutMs },
    (error, body) => {
      const status = error?.code ?? grpc.status.OK;
      // k6 hands over an empty message of the type, not none, where the call failed.
      const text = body ?? jsonOf(method, Buffer.alloc(0));
      resolve({ status, body: text, error: error?.details ?? '', durationMs: performance.now() - startedMs });
    },
  );
  return promise;
}

/** With empty fields, as k6 has it. */
function jsonOf({ output }: DescMethod, bytes: Buffer): string {
  return toJsonString(output, fromBinary(output, bytes), { alwaysEmitImplicit: true });
}
