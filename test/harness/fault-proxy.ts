/**
 * Owns a TCP proxy that can fail in the ways networks do. Invariant: after `stop` none of its sockets is open.
 *
 * Delay needs a timer; everything else happens at once. Faults hold for connections that are open and for those to come.
 */
import { createServer, connect as dial, type Server, type Socket } from 'node:net';

export interface FaultProxy {
  readonly port: number;
  /** The same address, by way of the proxy. */
  through(url: string): string;
  /** Connections taken so far, and those open now. */
  readonly connectionsTaken: number;
  readonly connectionsOpen: number;
  /** Bytes that clients sent and that the target sent, also where they were dropped. */
  readonly bytesUp: number;
  readonly bytesDown: number;
  /** How often clients sent something after an answer had been passed on to one of them. Exact where answers are delayed by longer than what is sent together takes. */
  readonly turnsUp: number;
  /** Ends what is open and refuses what comes, as a stopped server does. */
  refuse(): Promise<void>;
  /** Resets what is open; later connections work. */
  reset(): void;
  /** Takes connections and bytes and passes nothing on, as a firewall that drops packets does. */
  blackhole(): void;
  /** What is open goes silent for good, without an end; later connections work. As when a firewall forgets, or the host behind an address is another. */
  forget(): void;
  /** Passes every chunk on after `ms`, in order. */
  delay(ms: number): void;
  /** Passes `bytes` more to clients, over all connections, then resets the connection that would get the next one. Once. */
  cutAfter(bytes: number): void;
  /** Passes `bytes` more of clients on, over all connections, then keeps back whatever either side sends. Resolves at that moment. Once. */
  holdAfter(bytes: number): Promise<void>;
  /** Passes on what clients send, and keeps back what the target answers. */
  holdAnswers(): void;
  /** Connections to come go to this port; those that are open stay where they are. */
  retarget(port: number): void;
  /** Passes everything on again, first what was kept back. What was dropped stays dropped. */
  restore(): Promise<void>;
  stop(): Promise<void>;
}

/** `uncounted`: connections on which a client ever says this are left out of `turnsUp`. */
export async function startFaultProxy(target: {
  readonly host?: string;
  readonly port: number;
  readonly uncounted?: string;
}): Promise<FaultProxy> {
  const pairs = new Map<Socket, Socket>();
  const forgotten = new WeakSet<Socket>();
  let server: Server | undefined;
  let port = 0;
  let connectionsTaken = 0;
  let bytesUp = 0;
  let bytesDown = 0;
  const leftOut = new WeakSet<Socket>();
  let turnsUp = 0;
  let answered = true;
  let dropping = false;
  let delayMs = 0;
  let leftUntilCut: number | undefined;
  let targetPort = target.port;
  let leftUntilHeld: { bytes: number; readonly reached: () => void } | undefined;
  let holding: 'nothing' | 'answers' | 'everything' = 'nothing';
  let kept: (() => void)[] = [];

  function resetPair(client: Socket): void {
    const upstream = pairs.get(client);
    pairs.delete(client);
    client.resetAndDestroy();
    upstream?.resetAndDestroy();
  }

  /** Passes chunks and the end of the stream on, in order, each `delayMs` after it came. */
  function pump(from: Socket, to: Socket, seen: (chunk: Buffer) => boolean): void {
    const pass = (act: () => void): void => {
      if (holding === 'everything' || (holding === 'answers' && pairs.has(to))) kept.push(() => !to.destroyed && act());
      else if (delayMs > 0) setTimeout(() => !to.destroyed && act(), delayMs);
      else act();
    };
    from.on('data', (chunk: Buffer) => {
      if (!seen(chunk) || dropping || forgotten.has(from)) return;
      pass(() => {
        if (pairs.has(to) && !leftOut.has(to)) answered = true;
        if (to.write(chunk)) return;
        from.pause();
        to.once('drain', () => from.resume());
      });
    });
    from.on('end', () => {
      if (!dropping) pass(() => to.end());
    });
  }

  function accept(client: Socket): void {
    connectionsTaken += 1;
    const upstream = dial({ host: target.host ?? '127.0.0.1', port: targetPort, allowHalfOpen: true });
    pairs.set(client, upstream);
    client.setNoDelay(true);
    upstream.setNoDelay(true);
    pump(client, upstream, (chunk) => {
      bytesUp += chunk.length;
      if (target.uncounted !== undefined && chunk.includes(target.uncounted)) leftOut.add(client);
      if (!leftOut.has(client)) {
        if (answered) turnsUp += 1;
        answered = false;
      }
      if (leftUntilHeld === undefined || dropping || forgotten.has(client)) return true;
      const { bytes, reached } = leftUntilHeld;
      leftUntilHeld.bytes -= chunk.length;
      if (chunk.length <= bytes) return true;
      upstream.write(chunk.subarray(0, bytes));
      kept.push(() => !upstream.destroyed && upstream.write(chunk.subarray(bytes)));
      holding = 'everything';
      leftUntilHeld = undefined;
      reached();
      return false;
    });
    pump(upstream, client, (chunk) => {
      bytesDown += chunk.length;
      if (leftUntilCut === undefined || dropping || forgotten.has(client)) return true;
      if (chunk.length <= leftUntilCut) {
        leftUntilCut -= chunk.length;
        return true;
      }
      client.write(chunk.subarray(0, leftUntilCut), () => resetPair(client));
      leftUntilCut = undefined;
      return false;
    });
    // A fault of one side is passed to the other by closing it; who uses the proxy sees it there.
    client.on('error', () => upstream.destroy());
    upstream.on('error', () => client.destroy());
    client.on('close', () => {
      pairs.delete(client);
      if (!dropping) upstream.destroy();
    });
    upstream.on('close', () => {
      if (!dropping) client.destroySoon();
    });
  }

  async function listen(): Promise<void> {
    const fresh = createServer({ allowHalfOpen: true }, accept);
    await new Promise<void>((resolve, reject) => {
      fresh.once('error', reject);
      fresh.listen({ host: '127.0.0.1', port }, resolve);
    });
    const address = fresh.address();
    if (address === null || typeof address === 'string') throw new Error('the proxy has no port');
    port = address.port;
    server = fresh;
  }

  function resetAll(): void {
    for (const client of [...pairs.keys()]) resetPair(client);
  }

  async function refuse(): Promise<void> {
    const closing = server;
    server = undefined;
    const closed = closing && new Promise<void>((resolve) => closing.close(() => resolve()));
    resetAll();
    await closed;
  }

  await listen();
  return {
    get port() {
      return port;
    },
    get connectionsTaken() {
      return connectionsTaken;
    },
    get connectionsOpen() {
      return pairs.size;
    },
    get bytesUp() {
      return bytesUp;
    },
    get bytesDown() {
      return bytesDown;
    },
    get turnsUp() {
      return turnsUp;
    },
    through(url) {
      const parsed = new URL(url);
      parsed.hostname = '127.0.0.1';
      parsed.port = String(port);
      return parsed.toString();
    },
    refuse,
    reset: resetAll,
    blackhole() {
      dropping = true;
    },
    forget() {
      for (const sockets of pairs) for (const socket of sockets) forgotten.add(socket);
    },
    delay(ms) {
      delayMs = ms;
    },
    cutAfter(bytes) {
      leftUntilCut = bytes;
    },
    holdAfter(bytes) {
      const { promise, resolve } = Promise.withResolvers<void>();
      leftUntilHeld = { bytes, reached: resolve };
      return promise;
    },
    holdAnswers() {
      holding = 'answers';
    },
    retarget(other) {
      targetPort = other;
    },
    async restore() {
      // Streams with a hole in them would only confuse both ends.
      if (dropping) resetAll();
      dropping = false;
      delayMs = 0;
      leftUntilCut = undefined;
      leftUntilHeld = undefined;
      holding = 'nothing';
      const acts = kept;
      kept = [];
      for (const act of acts) act();
      if (!server) await listen();
    },
    stop: refuse,
  };
}
