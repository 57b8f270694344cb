/**
 * Owns `npm run body`: the request of one home page as a file, for load tools that send a body as it is: `h2load` by gRPC, `wrk` by
 * Connect JSON. Both are told one viewer; whoever wants many makes many files, or runs the k6 scripts.
 */
import { writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { create, toBinary, toJsonString } from '@bufbuild/protobuf';
import { GetHomeTimelineRequestSchema } from '../../src/gen/tributary/v1/timeline_service_pb.ts';

export type BodyFormat = 'grpc' | 'json';

const USAGE = 'Usage: npm run body -- --viewer <id> --out <file> [--format grpc|json] [--page-size n]';
const PAGE_SIZE_MAX = 100;

/** By gRPC a message has five bytes before it: whether it is compressed (no), and its length, most significant byte first. */
export function homeRequestBody(
  format: BodyFormat,
  request: { readonly viewerId: string; readonly pageSize: number },
): Uint8Array {
  const message = create(GetHomeTimelineRequestSchema, request);
  if (format === 'json') return Buffer.from(toJsonString(GetHomeTimelineRequestSchema, message));
  const encoded = toBinary(GetHomeTimelineRequestSchema, message);
  const prefix = Buffer.alloc(5);
  prefix.writeUInt32BE(encoded.byteLength, 1);
  return Buffer.concat([prefix, encoded]);
}

function main(args: readonly string[]): void {
  const { values } = parseArgs({
    args: [...args],
    options: {
      viewer: { type: 'string' },
      out: { type: 'string' },
      format: { type: 'string', default: 'grpc' },
      'page-size': { type: 'string', default: '20' },
    },
  });
  const { viewer, out, format, 'page-size': size } = values;
  const pageSize = Number(size);
  if (viewer === undefined || out === undefined) throw new Error('Which viewer, and into which file?');
  if (format !== 'grpc' && format !== 'json') throw new Error('--format is grpc or json.');
  if (!Number.isInteger(pageSize) || pageSize < 1 || pageSize > PAGE_SIZE_MAX) {
    throw new Error(`--page-size takes a whole number from 1 to ${PAGE_SIZE_MAX}.`);
  }
  writeFileSync(out, homeRequestBody(format, { viewerId: viewer, pageSize }));
}

if (import.meta.main) {
  try {
    main(process.argv.slice(2));
  } catch (error) {
    console.error(`${error instanceof Error ? error.message : error}\n${USAGE}`);
    process.exitCode = 2;
  }
}
