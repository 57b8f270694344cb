/** Owns the promise that bodies for load tools are right: what `npm run body` writes is answered with the viewer's page, as those tools send it. */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { connect } from 'node:http2';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fromBinary } from '@bufbuild/protobuf';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { GetHomeTimelineResponseSchema } from '../../src/gen/tributary/v1/timeline_service_pb.ts';
import { startTestService, type TestService, type TestTenant } from '../harness/service.ts';

const BODY = path.resolve(import.meta.dirname, '../../load/outside/body.ts');
const PATH = '/tributary.v1.TimelineService/GetHomeTimeline';
const TIMEOUT_MS = 20_000;

let folder = '';
let service: TestService;
let tenant: TestTenant;

beforeAll(async () => {
  folder = mkdtempSync(path.join(tmpdir(), 'tributary-body-'));
  service = await startTestService();
  tenant = await service.tenant();
  await tenant.cast().play('alice follows bob; bob posts 3 times as b');
});
afterAll(async () => {
  await service?.stop();
  rmSync(folder, { recursive: true, force: true });
});

function makeBody(...args: readonly string[]): {
  readonly body: Buffer;
  readonly stderr: string;
  readonly status: number | null;
} {
  const out = path.join(folder, 'body');
  rmSync(out, { force: true });
  const { status, stderr } = spawnSync(process.execPath, [BODY, '--out', out, ...args], { encoding: 'utf8' });
  return { status, stderr, body: status === 0 ? readFileSync(out) : Buffer.alloc(0) };
}

/** As h2load does: HTTP/2 without TLS, headers of gRPC, the body as it is. */
async function sendHttp2(body: Buffer): Promise<{ readonly answer: Buffer; readonly grpcStatus: unknown }> {
  const session = connect(`http://127.0.0.1:${service.service.grpcPort}`);
  const { promise, resolve, reject } = Promise.withResolvers<{ answer: Buffer; grpcStatus: unknown }>();
  session.once('error', reject);
  try {
    const stream = session.request({
      ':method': 'POST',
      ':path': PATH,
      'content-type': 'application/grpc',
      te: 'trailers',
      authorization: `Bearer ${tenant.key}`,
    });
    const chunks: Buffer[] = [];
    let grpcStatus: unknown;
    stream.setTimeout(TIMEOUT_MS, () => stream.close());
    stream.on('error', reject).on('data', (chunk: Buffer) => chunks.push(chunk));
    stream.on('trailers', (trailers) => {
      grpcStatus = trailers['grpc-status'];
    });
    stream.on('close', () => resolve({ answer: Buffer.concat(chunks), grpcStatus }));
    stream.end(body);
    return await promise;
  } finally {
    session.destroy();
  }
}

describe('a body for load tools', () => {
  it('by gRPC is answered with the page of the viewer', async () => {
    const { body } = makeBody('--viewer', 'alice', '--page-size', '2');
    const { answer, grpcStatus } = await sendHttp2(body);
    expect(grpcStatus).toBe('0');
    expect(answer.readUInt32BE(1)).toBe(answer.byteLength - 5);
    const page = fromBinary(GetHomeTimelineResponseSchema, answer.subarray(5));
    expect(page.entries.map(({ post }) => post?.authorId)).toEqual(['bob', 'bob']);
  });

  it('by Connect JSON too', async () => {
    const { body } = makeBody('--viewer', 'alice', '--page-size', '2', '--format', 'json');
    const answer = await fetch(`http://127.0.0.1:${service.service.httpPort}${PATH}`, {
      method: 'POST',
      headers: {
        authorization: `Bearer ${tenant.key}`,
        'content-type': 'application/json',
        'connect-protocol-version': '1',
      },
      body: body.toString('utf8'),
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    expect(answer.status).toBe(200);
    const page = (await answer.json()) as { readonly entries: readonly unknown[] };
    expect(page.entries).toHaveLength(2);
  });

  it.each([
    { what: 'no viewer', args: [] },
    { what: 'a page that is too long', args: ['--viewer', 'alice', '--page-size', '101'] },
  ])('is not made with $what', ({ args }) => {
    const { status, stderr } = makeBody(...args);
    expect(status).toBe(2);
    expect(stderr).toContain('Usage: npm run body');
  });
});
