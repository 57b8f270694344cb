/**
 * Owns watching the commands that reach a Redis server, over a socket of its own: a client library that is told to monitor a busy server may meet the first lines before it knows that it
 * monitors.
 */
import { connect } from 'node:net';
import { createInterface } from 'node:readline';

export interface RedisMonitor {
  /** Commands so far, each with its arguments; those of scripts are left out. */
  readonly commands: readonly (readonly string[])[];
  close(): void;
}

const QUOTED = /"((?:[^"\\]|\\.)*)"/g;

/** Watches from the moment it resolves. `seen` is told of each command. */
export async function openRedisMonitor(
  url: string,
  seen: (args: readonly string[]) => void = () => undefined,
): Promise<RedisMonitor> {
  const { hostname, port, password } = new URL(url);
  const socket = connect(Number(port), hostname);
  const commands: (readonly string[])[] = [];
  const watching = Promise.withResolvers<void>();
  socket.on('error', watching.reject);
  let accepted = 0;
  const expected = password === '' ? 1 : 2;
  createInterface({ input: socket }).on('line', (line) => {
    if (line.startsWith('-')) return watching.reject(new Error(line));
    if (accepted < expected) {
      accepted += 1;
      if (accepted === expected) watching.resolve();
      return;
    }
    // +<seconds> [<database> <address, or "lua">] "<command>" "<argument>" …
    if (/^\+\S+ \[\d+ lua\]/.test(line)) return;
    const args = [...line.matchAll(QUOTED)].map(([, text]) => text as string);
    commands.push(args);
    seen(args);
  });
  if (password !== '') socket.write(`AUTH ${decodeURIComponent(password)}\r\n`);
  socket.write('MONITOR\r\n');
  await watching.promise;
  return { commands, close: () => socket.destroy() };
}
