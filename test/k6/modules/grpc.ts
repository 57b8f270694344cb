/**
 * Stand-in for the module `k6/net/grpc`: only what our scripts use. Descriptors come from `src/gen`, which is checked against `proto/`; here
 * it is checked that the files a script loads are where it says, with all they import.
 */
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { addSample, callAndWait, currentTask, timeoutFrom } from '../host.ts';
import type { Tags } from '../messages.ts';

interface ConnectParams {
  readonly plaintext?: boolean;
  readonly timeout?: string | number;
}

interface Params {
  readonly metadata?: Readonly<Record<string, string>>;
  readonly tags?: Tags;
  readonly timeout?: string | number;
}

/** As k6 has them. */
const CONNECT_TIMEOUT_MS = 60_000;
const INVOKE_TIMEOUT_MS = 120_000;

const STATUS_OK = 0;

let clientsMade = 0;

class Client {
  readonly #id: number;
  readonly #services = new Set<string>();
  #address: string | undefined;

  constructor() {
    clientsMade += 1;
    this.#id = clientsMade;
  }

  load(importPaths: readonly string[], ...files: readonly string[]): void {
    if (currentTask() !== undefined) throw new Error('load must be called in the init context');
    const folders = importPaths.map((each) => (each.startsWith('file:') ? fileURLToPath(each) : each));
    const seen = new Set<string>();
    for (const file of files) for (const service of servicesIn(file, folders, seen)) this.#services.add(service);
  }

  connect(address: string, { plaintext = false, timeout }: ConnectParams = {}): void {
    const timeoutMs = timeoutFrom(timeout, CONNECT_TIMEOUT_MS);
    callAndWait({ kind: 'grpc connect', client: this.#id, address, plaintext, timeoutMs });
    this.#address = address;
  }

  invoke(url: string, request: object, { metadata = {}, tags = {}, timeout }: Params = {}) {
    if (this.#address === undefined) throw new Error('no gRPC connection, you must call connect first');
    const [service = '', method = ''] = url.replace(/^\//, '').split('/');
    if (!this.#services.has(service)) throw new Error(`method "/${service}/${method}" not found in file descriptors`);
    const timeoutMs = timeoutFrom(timeout, INVOKE_TIMEOUT_MS);
    const { status, body, error, durationMs } = callAndWait({
      kind: 'grpc invoke',
      client: this.#id,
      service,
      method,
      request: JSON.stringify(request),
      metadata,
      timeoutMs,
    });
    addSample('grpc_req_duration', durationMs, { name: url, status: String(status), ...tags });
    return {
      status,
      message: JSON.parse(body) as object,
      error: error === '' ? null : { code: status, message: error },
    };
  }

  close(): void {
    if (this.#address !== undefined)
      callAndWait({ kind: 'grpc close', client: this.#id, timeoutMs: CONNECT_TIMEOUT_MS });
    this.#address = undefined;
  }
}

/** Full names of the services of a file and of what it imports. Protobuf's own files are built into k6. */
function servicesIn(file: string, folders: readonly string[], seen: Set<string>): readonly string[] {
  if (seen.has(file) || file.startsWith('google/protobuf/')) return [];
  seen.add(file);
  const found = folders.map((folder) => path.join(folder, file)).find((each) => existsSync(each));
  if (found === undefined) throw new Error(`open ${file}: no such file in ${folders.join(', ')}`);
  const text = readFileSync(found, 'utf8');
  const pack = /^package ([\w.]+);/m.exec(text)?.[1] ?? '';
  const imported = [...text.matchAll(/^import (?:public )?"([^"]+)";/gm)].flatMap(([, each = '']) =>
    servicesIn(each, folders, seen),
  );
  return [...imported, ...[...text.matchAll(/^service (\w+)/gm)].map(([, name = '']) => `${pack}.${name}`)];
}

export default { Client, StatusOK: STATUS_OK };
