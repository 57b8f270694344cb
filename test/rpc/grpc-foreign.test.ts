import type * as grpc from '@grpc/grpc-js';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { completeForeignErrors, timeoutOf } from '../../src/rpc/grpc-foreign.ts';
import { RECEIVE_MAX_MS } from '../../src/rpc/listener.ts';

type Listener = Parameters<grpc.ServerInterceptingCall['start']>[0];
interface SentStatus {
  readonly code: number;
  readonly details: string;
}

beforeEach(() => {
  vi.useFakeTimers({ toFake: ['setTimeout', 'clearTimeout', 'Date'] });
});
afterEach(() => {
  vi.useRealTimers();
});

/** A call of grpc-js with nothing behind it: what is sent, and the events of its request. */
function intercepted(deadline: grpc.Deadline = Number.POSITIVE_INFINITY) {
  const sent: SentStatus[] = [];
  const refused = vi.fn();
  let events: Listener | undefined;
  const call = {
    sendStatus: (status: SentStatus) => void sent.push(status),
    start: (listener: Listener) => {
      events = listener;
    },
    getDeadline: () => deadline,
  };
  const clock = { nowMs: () => Date.now(), monotonicMs: () => 0 };
  const intercept = completeForeignErrors({ byPath: new Map(), chain: { refused }, clock });
  const wrapped = intercept({ path: '/x/Y' } as never, call as never);
  const listener = {
    onReceiveMetadata: vi.fn(),
    onReceiveMessage: vi.fn(),
    onReceiveHalfClose: vi.fn(),
    onCancel: vi.fn(),
  };
  wrapped.start(listener as unknown as Listener);
  return { sent, refused, listener, call, events: events as unknown as typeof listener };
}

describe('a request by gRPC', () => {
  it('that never arrives whole is given up after a bound', () => {
    const { sent, refused } = intercepted();
    vi.advanceTimersByTime(RECEIVE_MAX_MS);
    expect(sent).toMatchObject([{ code: 4 }]);
    expect(refused).toHaveBeenCalledTimes(1);
  });

  it.each(['onReceiveHalfClose', 'onCancel'] as const)('has no such bound after %s', (event) => {
    const { sent, events, listener } = intercepted();
    events[event]();
    expect(listener[event]).toHaveBeenCalledTimes(1);
    expect(vi.getTimerCount()).toBe(0);
    vi.advanceTimersByTime(RECEIVE_MAX_MS);
    expect(sent).toEqual([]);
  });

  it('is not ended by a deadline so far away that grpc-js takes it for passed', () => {
    const wrapped = intercepted(Date.now() - 1_702_967_296);
    wrapped.call.sendStatus({ code: 4, details: 'Deadline exceeded' });
    expect(wrapped.sent).toEqual([]);
    const passed = intercepted(Date.now() - 1);
    passed.call.sendStatus({ code: 4, details: 'Deadline exceeded' });
    expect(passed.sent).toMatchObject([{ code: 4 }]);
  });

  it('is recorded once: by the chain as soon as the chain has it', () => {
    const { call, events, refused } = intercepted();
    call.sendStatus({ code: 8, details: 'too large' });
    expect(refused).toHaveBeenCalledTimes(1);
    events.onReceiveHalfClose();
    call.sendStatus({ code: 4, details: 'Deadline exceeded' });
    expect(refused).toHaveBeenCalledTimes(1);
  });
});

it('a deadline is none, what is left of it, or too far away to tell', () => {
  expect(timeoutOf(Number.POSITIVE_INFINITY)).toBeUndefined();
  expect(timeoutOf(new Date(Date.now() + 250))).toBe(250);
  expect(timeoutOf(Date.now() - 5)).toBe(-5);
  expect(timeoutOf(Date.now() - 2 ** 30)).toBe(Number.POSITIVE_INFINITY);
});
