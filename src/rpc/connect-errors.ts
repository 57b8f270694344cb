/**
 * Owns errors on the HTTP listener. The chain's errors become ConnectErrors; and what connect-node refuses by itself (a message too
 * large, broken JSON, an unknown compression) is completed on its way out, in the form of its protocol: so that every error carries an
 * ErrorInfo, whoever raised it, and is recorded once.
 */

import type { Any } from '@bufbuild/protobuf/wkt';
import { type Code, ConnectError, type ConnectRouter, encodeBinaryHeader } from '@connectrpc/connect';
import { codeToHttpStatus } from '@connectrpc/connect/protocol-connect';
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

/** Names the error that a framework raised, and records it. `text` is what the framework says of it. */
export type NameForeignError = (code: CodeName, text: string) => Status;

interface ForeignJson {
  readonly code?: string;
  readonly message?: string;
  readonly details?: readonly unknown[];
}

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

/** The whole response for a method that the server does not have. */
export function errorResponse(status: Status, form: ErrorForm, header: Headers): UniversalResponse {
  switch (form) {
    case 'connect':
    case 'connect_stream':
      header.set('content-type', 'application/json');
      return { status: 404, header, body: once(connectErrorBody(status)) };
    case 'grpc':
      header.set('content-type', 'application/grpc');
      return { status: 200, header, body: none(), trailer: new Headers(grpcErrorTrailers(status)) };
    case 'grpc_web':
      header.set('content-type', 'application/grpc-web+proto');
      for (const [key, value] of Object.entries(grpcErrorTrailers(status))) header.set(key, value);
      return { status: 200, header, body: none() };
    default:
      return form satisfies never;
  }
}

function connectErrorBody(status: Status): Uint8Array {
  return Buffer.from(JSON.stringify(connectErrorJson(status)));
}

function grpcErrorTrailers(status: Status): Record<string, string> {
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
  const error: ForeignJson =
    chunks.length === 0 ? { code: 'invalid_argument' } : JSON.parse(Buffer.from(body).toString());
  const header = new Headers(response.header);
  let httpStatus = response.status;
  if (isForeign(error)) {
    const status = name(codeNameOf(error), error.message ?? '');
    body = connectErrorBody(status);
    // A caller's fault must not look like ours to proxies; 405 and 415, which come without a body, say more than a code does.
    if (chunks.length > 0) httpStatus = codeToHttpStatus(status.code);
    header.set('content-type', 'application/json');
    header.set('content-length', String(body.length));
  }
  return { ...response, status: httpStatus, header, body: once(body) };
}

function isForeign(error: ForeignJson): boolean {
  return (error.details?.length ?? 0) === 0;
}

function codeNameOf(error: ForeignJson): CodeName {
  const code = (error.code ?? '').toUpperCase().replace('CANCELED', 'CANCELLED');
  return CODE_NAMES.find((each) => each === code) ?? 'UNKNOWN';
}

function completeEndOfStream(chunk: Uint8Array, name: NameForeignError): Uint8Array {
  if (((chunk[0] ?? 0) & END_OF_CONNECT_STREAM) === 0) return chunk;
  const end = JSON.parse(Buffer.from(chunk.subarray(ENVELOPE_HEAD_BYTES)).toString()) as {
    readonly error?: ForeignJson;
  };
  if (end.error === undefined || !isForeign(end.error)) return chunk;
  const error = connectErrorJson(name(codeNameOf(end.error), end.error.message ?? ''));
  return enveloped(END_OF_CONNECT_STREAM, JSON.stringify({ ...end, error }));
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
  const status = name(CODE_NAMES[code] ?? 'UNKNOWN', decodeURIComponent(trailer.get('grpc-message') ?? ''));
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

async function* none(): AsyncIterable<Uint8Array> {}
