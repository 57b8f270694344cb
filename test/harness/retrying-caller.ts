/**
 * Owns the caller that a fleet has to be good to: grpc-js with the standard retry (UNAVAILABLE alone is tried again) and round robin over all addresses. Addresses come from a resolver that tells
 * what a name server would: the list of now, when it is asked again, which a client does when a connection ends.
 */

import type { DescMessage } from '@bufbuild/protobuf';
import {
  create,
  type DescMethodUnary,
  fromBinary,
  type MessageInitShape,
  type MessageShape,
  toBinary,
} from '@bufbuild/protobuf';
import * as grpc from '@grpc/grpc-js';

export interface Caller {
  /** Rejects with grpc-js' own error where the last try failed. */
  call<Input extends DescMessage, Output extends DescMessage>(
    method: DescMethodUnary<Input, Output>,
    request: MessageInitShape<Input>,
    timeoutMs: number,
  ): Promise<MessageShape<Output>>;
  /** What the next resolution gives. */
  move(ports: readonly number[]): void;
  close(): void;
}

const RETRY = {
  loadBalancingConfig: [{ round_robin: {} }],
  methodConfig: [
    {
      name: [{}],
      retryPolicy: {
        maxAttempts: 5,
        initialBackoff: '0.05s',
        maxBackoff: '1s',
        backoffMultiplier: 2,
        retryableStatusCodes: ['UNAVAILABLE'],
      },
    },
  ],
};

/** By the name of each caller: a resolver is made by grpc-js itself, from a target. */
const ports = new Map<string, readonly number[]>();
let made = 0;

class FleetResolver implements grpc.experimental.Resolver {
  readonly #name: string;
  readonly #listener: grpc.experimental.ResolverListener;

  constructor(target: { readonly path: string }, listener: grpc.experimental.ResolverListener) {
    this.#name = target.path;
    this.#listener = listener;
  }

  updateResolution(): void {
    // Never from within the call, as the interface asks.
    setImmediate(() => {
      const addresses = (ports.get(this.#name) ?? []).map((port) => ({ addresses: [{ host: '127.0.0.1', port }] }));
      this.#listener({ ok: true, value: addresses } as never, {}, null, '');
    });
  }

  destroy(): void {}

  static getDefaultAuthority(): string {
    return 'fleet';
  }
}
grpc.experimental.registerResolver('fleet', FleetResolver as never);

export function openCaller(options: { readonly ports: readonly number[]; readonly key: string }): Caller {
  made += 1;
  const name = `caller-${made}`;
  ports.set(name, options.ports);
  const client = new grpc.Client(`fleet:${name}`, grpc.credentials.createInsecure(), {
    'grpc.service_config': JSON.stringify(RETRY),
    'grpc.use_local_subchannel_pool': 1,
    'grpc.initial_reconnect_backoff_ms': 100,
    'grpc.max_reconnect_backoff_ms': 500,
    // A connection that goes silent is given up within two seconds.
    'grpc.keepalive_time_ms': 1_000,
    'grpc.keepalive_timeout_ms': 1_000,
  });
  return {
    call({ parent, name: method, input, output }, request, timeoutMs) {
      const metadata = new grpc.Metadata();
      metadata.set('authorization', `Bearer ${options.key}`);
      return new Promise((resolve, reject) => {
        client.makeUnaryRequest(
          `/${parent.typeName}/${method}`,
          (message) => Buffer.from(toBinary(input, message)),
          (bytes) => fromBinary(output, bytes),
          create(input, request),
          metadata,
          { deadline: Date.now() + timeoutMs },
          (error, answer) => (error || answer === undefined ? reject(error) : resolve(answer)),
        );
      });
    },
    move: (to) => void ports.set(name, to),
    close() {
      client.close();
      ports.delete(name);
    },
  };
}
