/**
 * Owns grpc.health.v1. The server as a whole, and a service that only reads, are as ready as the process is for pages; a service that changes something serves while changes can be made. Readiness alone
 * decides; whether a single call would succeed now does not.
 */
import { TributaryError } from '../errors.ts';
import { Health, HealthCheckResponse_ServingStatus as Status } from '../gen/grpc/health/v1/health_pb.ts';
import { type Method, stream, unary } from './methods.ts';
import type { Readiness } from './serving.ts';

export function healthMethods(readiness: Readiness, servedMethods: () => readonly Method[]): readonly Method[] {
  const statusOf = (service: string): Status => {
    const methods = servedMethods().filter(({ descriptor }) => descriptor.parent.typeName === service);
    if (service !== '' && methods.length === 0) return Status.SERVICE_UNKNOWN;
    const changes = methods.some((method) => method.kind === 'unary' && method.effect === 'write');
    return (changes ? readiness.takesWrites() : readiness.isReady()) ? Status.SERVING : Status.NOT_SERVING;
  };
  return [
    unary(Health.method.check, { effect: 'read', access: 'open' }, ({ service }) => {
      const status = statusOf(service);
      if (status === Status.SERVICE_UNKNOWN) {
        throw new TributaryError('SERVICE_NOT_FOUND', { message: 'the server has no such service' });
      }
      return { status };
    }),
    stream(Health.method.watch, { access: 'open' }, async function* (requests, signal) {
      let service: string | undefined;
      for await (const request of requests) service ??= request.service;
      if (service === undefined) throw new TributaryError('INVALID_MESSAGE', { message: 'the request is missing' });
      let sent: Status | undefined;
      const changes = watch(readiness, signal);
      try {
        for (;;) {
          const changed = changes.next();
          const status = statusOf(service);
          if (status !== sent) {
            sent = status;
            yield { status };
          }
          await changed;
          signal.throwIfAborted();
        }
      } finally {
        changes.close();
      }
    }),
  ];
}

/** A change between two looks is never missed: `next` is asked for before the state is read. */
function watch(readiness: Readiness, signal: AbortSignal): { next(): Promise<void>; close(): void } {
  let waiting = Promise.withResolvers<void>();
  const wake = (): void => {
    waiting.resolve();
    waiting = Promise.withResolvers<void>();
  };
  const end = readiness.onChange(wake);
  signal.addEventListener('abort', wake, { once: true });
  return {
    next: () => waiting.promise,
    close() {
      end();
      signal.removeEventListener('abort', wake);
    },
  };
}
