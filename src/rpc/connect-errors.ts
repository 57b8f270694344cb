/**
 * Owns errors on the HTTP listener. The chain's errors become ConnectErrors; and what connect-node refuses by itself (a message too
 * large, broken JSON, an unknown compression) is completed on its way out, in the form of its protocol: so that every error carries an
 * ErrorInfo, whoever raised it, and is recorded once.
 */

import type { Any } from '@bufbuild/protobuf/wkt';
import { type Code, ConnectError, type ConnectRouter, encodeBinaryHeader } from '@connectrpc/connect';
import type { TributaryError } from '../errors.ts';
import { type Status, StatusSchema } from '../gen/google/rpc/status_pb.ts';
import { CODE_NAMES, type CodeName } from '../metrics/rpc-metrics.ts';
import { statusOf } from './errors-to-wire.ts';

export type UniversalResponse = Awaited<ReturnType<ConnectRouter['handlers'][number]>>;

/** How a protocol of the HTTP listener writes an error. */
export type ErrorForm = 'connect' | 'connect_stream' | 'grpc' | 'grpc_web';

const DETAILS_TRAILER = 'grpc-status-details-bin';
const END_OF_CONNECT_STREAM = 0x02;
const GRPC_WEB_TRAILER = 0x80;
const ENVELOPE_HEAD_BYTES = 5;

export function errorFormOf(contentType: string): ErrorForm {
  if (contentType.startsWith('application/grpc-web')) return 'grpc_web';
  if (contentType.startsWith('application/grpc')) return 'grpc';
  return contentType.startsWith('application/connect+') ? 'connect_stream' : 'connect';
}

export function connectErrorFrom(error: TributaryError): ConnectError {
  const status = statusOf(error);
  const connectError = new ConnectError(status.message, status.code as Code);
  connectError.details = status.details.map((detail) => ({ type: typeNameOf(detail), value: detail.value }));
  return connectError;
}

/** Names the error that a framework raised with `code`, and records it. */
export type NameForeignError = (code: CodeName) => Status;

/** The response with its error completed, where it is one that carries no details. */
export async function completeResponse(
  response: UniversalResponse,
  form: ErrorForm,
  name: NameForeignError,
): Promise<UniversalResponse> {
  switch (form) {
    case 'connect':
      return completeConnect(response, name);
    case 'connect_stream':
      return withBody(response, (chunk) => completeEndOfStream(chunk, name));
    case 'grpc_web':
      return withBody(response, (chunk) => completeWebTrailer(chunk, name));
    case 'grpc':
      return withEnd(response, () => {
        if (response.trailer !== undefined) completeTrailer(response.trailer, name);
      });
    default:
      return form satisfies never;
  }
}

/** The error as the body of a unary Connect answer. */
export function connectErrorBody(status: Status): Uint8Array {
  return Buffer.from(JSON.stringify(connectErrorJson(status)));
}

/** The error as trailers of gRPC. */
export function grpcErrorTrailers(status: Status): Record<string, string> {
  return {
    'grpc-status': String(status.code),
    'grpc-message': encodeURIComponent(status.message),
    [DETAILS_TRAILER]: encodeBinaryHeader(status, StatusSchema),
  };
}

async function completeConnect(response: UniversalResponse, name: NameForeignError): Promise<UniversalResponse> {
  if (response.status === 200) return response;
  const chunks: Uint8Array[] = [];
  for await (const chunk of response.body ?? []) chunks.push(chunk);
  let body: Uint8Array = Buffer.concat(chunks);
  const code = chunks.length === 0 ? 'INVALID_ARGUMENT' : foreignCode(body);
  const header = new Headers(response.header);
  if (code !== undefined) {
    body = connectErrorBody(name(code));
    header.set('content-type', 'application/json');
    header.set('content-length', String(body.length));
  }
  return { ...response, header, body: once(body) };
}

/** The code of an error in Connect's JSON that has no details; undefined where it has some. */
function foreignCode(body: Uint8Array): CodeName | undefined {
  const error = JSON.parse(Buffer.from(body).toString()) as { readonly code?: string; readonly details?: unknown[] };
  if ((error.details?.length ?? 0) > 0) return undefined;
  const code = (error.code ?? '').toUpperCase().replace('CANCELED', 'CANCELLED');
  return CODE_NAMES.find((each) => each === code) ?? 'UNKNOWN';
}

function completeEndOfStream(chunk: Uint8Array, name: NameForeignError): Uint8Array {
  if (((chunk[0] ?? 0) & END_OF_CONNECT_STREAM) === 0) return chunk;
  const end = JSON.parse(Buffer.from(chunk.subarray(ENVELOPE_HEAD_BYTES)).toString()) as { error?: unknown };
  if (end.error === undefined) return chunk;
  const code = foreignCode(Buffer.from(JSON.stringify(end.error)));
  if (code === undefined) return chunk;
  return enveloped(END_OF_CONNECT_STREAM, JSON.stringify({ ...end, error: connectErrorJson(name(code)) }));
}

function completeWebTrailer(chunk: Uint8Array, name: NameForeignError): Uint8Array {
  if (((chunk[0] ?? 0) & GRPC_WEB_TRAILER) === 0) return chunk;
  const trailer = new Headers();
  for (const line of Buffer.from(chunk.subarray(ENVELOPE_HEAD_BYTES)).toString().split('\r\n')) {
    const colon = line.indexOf(':');
    if (colon > 0) trailer.append(line.slice(0, colon), line.slice(colon + 1).trim());
  }
  if (!completeTrailer(trailer, name)) return chunk;
  return enveloped(GRPC_WEB_TRAILER, [...trailer].map(([key, value]) => `${key}: ${value}\r\n`).join(''));
}

/** True where the trailer held an error without details; it has them now. */
function completeTrailer(trailer: Headers, name: NameForeignError): boolean {
  const code = Number(trailer.get('grpc-status') ?? '0');
  if (code === 0 || trailer.has(DETAILS_TRAILER)) return false;
  const status = name(CODE_NAMES[code] ?? 'UNKNOWN');
  for (const [key, value] of Object.entries(grpcErrorTrailers(status))) trailer.set(key, value);
  return true;
}

function connectErrorJson(status: Status): Record<string, unknown> {
  return {
    code: (CODE_NAMES[status.code] ?? 'UNKNOWN').toLowerCase().replace('cancelled', 'canceled'),
    message: status.message,
    details: status.details.map((detail) => ({
      type: typeNameOf(detail),
      value: Buffer.from(detail.value).toString('base64').replace(/=+$/, ''),
    })),
  };
}

function typeNameOf(detail: Any): string {
  return detail.typeUrl.slice(detail.typeUrl.lastIndexOf('/') + 1);
}

function enveloped(flags: number, text: string): Uint8Array {
  const data = Buffer.from(text);
  const head = Buffer.alloc(ENVELOPE_HEAD_BYTES);
  head.writeUInt8(flags, 0);
  head.writeUInt32BE(data.length, 1);
  return Buffer.concat([head, data]);
}

function withBody(response: UniversalResponse, change: (chunk: Uint8Array) => Uint8Array): UniversalResponse {
  const { body } = response;
  if (body === undefined) return response;
  return {
    ...response,
    body: (async function* () {
      for await (const chunk of body) yield change(chunk);
    })(),
  };
}

function withEnd(response: UniversalResponse, end: () => void): UniversalResponse {
  const { body } = response;
  if (body === undefined) return response;
  return {
    ...response,
    body: (async function* () {
      yield* body;
      end();
    })(),
  };
}

async function* once(bytes: Uint8Array): AsyncIterable<Uint8Array> {
  yield bytes;
}
