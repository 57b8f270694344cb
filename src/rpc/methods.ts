/**
 * Owns the registration table: every method the server has, once, from its generated descriptor. Both listeners, reflection and health
 * read the same table, so that none can offer what another lacks.
 */
import type {
  DescMessage,
  DescMethodBiDiStreaming,
  DescMethodServerStreaming,
  DescMethodUnary,
  DescService,
  MessageInitShape,
  MessageShape,
} from '@bufbuild/protobuf';
import type { Call } from '../runtime.ts';
import type { TenantId } from '../timeline/ids.ts';

/** Decides the default and the longest deadline. */
export type Effect = 'read' | 'write';

/** `open` needs no key; `service` any key; `admin` one with that role. */
export type Access = 'open' | 'service' | 'admin';

export interface UnaryMethod {
  readonly kind: 'unary';
  /** `package.Service/Method`, as on the wire and in metrics. */
  readonly name: string;
  readonly descriptor: DescMethodUnary;
  readonly effect: Effect;
  readonly access: Access;
  /** Answers with a message or with its encoding. `request` is a message of the descriptor's input. */
  handle(request: unknown, call: Call): Promise<unknown>;
}

export interface StreamMethod {
  readonly kind: 'stream';
  readonly name: string;
  readonly descriptor: DescMethodServerStreaming | DescMethodBiDiStreaming;
  readonly access: Access;
  /** Longest life of a stream, in milliseconds; without one it may live as long as its connection. */
  readonly lifetimeMaxMs?: number;
  handle(requests: AsyncIterable<unknown>, signal: AbortSignal): AsyncIterable<unknown>;
}

export type Method = UnaryMethod | StreamMethod;

/** Stands in calls of open methods, which touch no tenant's data. No tenant can have this name: it is empty. */
export const NO_TENANT = '' as TenantId;

declare const encodedAs: unique symbol;
/** A message in its binary form. The gRPC listener sends it as it is, the Connect listener decodes it. */
export type Encoded<Output extends DescMessage> = Uint8Array & { readonly [encodedAs]: Output };

type Answer<Output extends DescMessage> = MessageInitShape<Output> | Encoded<Output>;

export function unary<Input extends DescMessage, Output extends DescMessage>(
  descriptor: DescMethodUnary<Input, Output>,
  options: { readonly effect: Effect; readonly access: Access },
  handle: (request: MessageShape<Input>, call: Call) => Promise<Answer<Output>> | Answer<Output>,
): UnaryMethod {
  return {
    kind: 'unary',
    name: nameOf(descriptor),
    descriptor,
    ...options,
    handle: async (request, call) => handle(request as MessageShape<Input>, call),
  };
}

export function stream<Input extends DescMessage, Output extends DescMessage>(
  descriptor: DescMethodServerStreaming<Input, Output> | DescMethodBiDiStreaming<Input, Output>,
  options: { readonly access: Access; readonly lifetimeMaxMs?: number },
  handle: (
    requests: AsyncIterable<MessageShape<Input>>,
    signal: AbortSignal,
  ) => AsyncIterable<MessageInitShape<Output>>,
): StreamMethod {
  return {
    kind: 'stream',
    name: nameOf(descriptor),
    descriptor,
    ...options,
    handle: (requests, signal) => handle(requests as AsyncIterable<MessageShape<Input>>, signal),
  };
}

export interface MethodTable {
  readonly services: readonly DescService[];
  readonly methods: readonly Method[];
}

/** Throws where a method is there twice or a service lacks one of its methods: both are faults of ours. */
export function methodTable(methods: readonly Method[]): MethodTable {
  const services = new Set(methods.map((method) => method.descriptor.parent));
  const names = new Set(methods.map((method) => method.name));
  if (names.size !== methods.length) throw new Error('a method is registered twice');
  for (const service of services) {
    for (const descriptor of service.methods) {
      if (!names.has(nameOf(descriptor))) throw new Error(`${nameOf(descriptor)} is not registered`);
    }
  }
  return { services: [...services], methods };
}

function nameOf(descriptor: { readonly name: string; readonly parent: DescService }): string {
  return `${descriptor.parent.typeName}/${descriptor.name}`;
}
