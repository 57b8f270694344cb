/**
 * Owns grpc.reflection.v1 and v1alpha: what the server offers, told from the descriptors that it was generated with. An answer that names a
 * file brings what that file imports, google.protobuf included, so that a tool needs no schema of its own.
 */
import { type DescEnum, type DescFile, type DescMessage, type DescService, toBinary } from '@bufbuild/protobuf';
import { FileDescriptorProtoSchema } from '@bufbuild/protobuf/wkt';
import { file_google_rpc_error_details } from '../gen/google/rpc/error_details_pb.ts';
import { ServerReflection } from '../gen/grpc/reflection/v1/reflection_pb.ts';
import { ServerReflection as ServerReflectionAlpha } from '../gen/grpc/reflection/v1alpha/reflection_pb.ts';
import { CODE_NAMES, type CodeName } from '../metrics/rpc-metrics.ts';
import { type Method, stream } from './methods.ts';

/** A tool asks and goes; one that stays without a word is cut off. In milliseconds. */
const LIFETIME_MAX_MS = 60_000;
const OPTIONS = { access: 'open', lifetimeMaxMs: LIFETIME_MAX_MS } as const;

type Question =
  | {
      readonly case: 'fileByFilename' | 'fileContainingSymbol' | 'allExtensionNumbersOfType' | 'listServices';
      readonly value: string;
    }
  | { readonly case: 'fileContainingExtension'; readonly value: unknown }
  | { readonly case: undefined; readonly value?: undefined };

type Answer =
  | { readonly case: 'fileDescriptorResponse'; readonly value: { readonly fileDescriptorProto: Uint8Array[] } }
  | { readonly case: 'listServicesResponse'; readonly value: { readonly service: { readonly name: string }[] } }
  | {
      readonly case: 'allExtensionNumbersResponse';
      readonly value: { readonly baseTypeName: string; readonly extensionNumber: number[] };
    }
  | { readonly case: 'errorResponse'; readonly value: { readonly errorCode: number; readonly errorMessage: string } };

/** `services` is asked for with the first question, since the reflection services are among them. */
export function reflectionMethods(services: () => readonly DescService[]): readonly Method[] {
  let index: Index | undefined;
  const answer = (question: Question): Answer => {
    index ??= indexOf(services());
    return answerFrom(index, question);
  };
  return [
    stream(ServerReflection.method.serverReflectionInfo, OPTIONS, async function* (requests) {
      for await (const request of requests) {
        const { host: validHost, messageRequest } = request;
        yield { validHost, originalRequest: request, messageResponse: answer(messageRequest) };
      }
    }),
    stream(ServerReflectionAlpha.method.serverReflectionInfo, OPTIONS, async function* (requests) {
      for await (const request of requests) {
        const { host: validHost, messageRequest } = request;
        yield { validHost, originalRequest: request, messageResponse: answer(messageRequest) };
      }
    }),
  ];
}

interface Index {
  readonly serviceNames: readonly string[];
  readonly byFileName: ReadonlyMap<string, DescFile>;
  readonly bySymbol: ReadonlyMap<string, DescFile>;
  readonly messageNames: ReadonlySet<string>;
}

function indexOf(services: readonly DescService[]): Index {
  const byFileName = new Map<string, DescFile>();
  const bySymbol = new Map<string, DescFile>();
  const messageNames = new Set<string>();
  const addEnum = (item: DescEnum): void => {
    bySymbol.set(item.typeName, item.file);
    // Values live beside their enum, not inside it.
    const scope = item.typeName.slice(0, item.typeName.lastIndexOf('.') + 1);
    for (const value of item.values) bySymbol.set(`${scope}${value.name}`, item.file);
  };
  const addMessage = (item: DescMessage): void => {
    bySymbol.set(item.typeName, item.file);
    messageNames.add(item.typeName);
    for (const field of item.fields) bySymbol.set(`${item.typeName}.${field.name}`, item.file);
    item.nestedEnums.forEach(addEnum);
    item.nestedMessages.forEach(addMessage);
  };
  const addFile = (file: DescFile): void => {
    if (byFileName.has(file.proto.name)) return;
    byFileName.set(file.proto.name, file);
    file.enums.forEach(addEnum);
    file.messages.forEach(addMessage);
  };
  // No message names the details of errors, so tools can learn of them only here.
  withImports(file_google_rpc_error_details).forEach(addFile);
  for (const service of services) {
    withImports(service.file).forEach(addFile);
    bySymbol.set(service.typeName, service.file);
    for (const method of service.methods) bySymbol.set(`${service.typeName}.${method.name}`, service.file);
  }
  return { serviceNames: services.map((service) => service.typeName).sort(), byFileName, bySymbol, messageNames };
}

function answerFrom(index: Index, question: Question): Answer {
  switch (question.case) {
    case 'listServices':
      return { case: 'listServicesResponse', value: { service: index.serviceNames.map((name) => ({ name })) } };
    case 'fileByFilename':
      return fileAnswer(index.byFileName.get(question.value));
    case 'fileContainingSymbol':
      return fileAnswer(index.bySymbol.get(question.value.replace(/^\./, '')));
    case 'allExtensionNumbersOfType':
      // None of our messages is extended.
      return index.messageNames.has(question.value)
        ? { case: 'allExtensionNumbersResponse', value: { baseTypeName: question.value, extensionNumber: [] } }
        : refusal('NOT_FOUND', 'the server has no such type');
    case 'fileContainingExtension':
      return refusal('NOT_FOUND', 'the server has no such extension');
    case undefined:
      return refusal('INVALID_ARGUMENT', 'the request asks nothing');
    default:
      return question satisfies never;
  }
}

function fileAnswer(file: DescFile | undefined): Answer {
  if (file === undefined) return refusal('NOT_FOUND', 'the server has no such file or symbol');
  const fileDescriptorProto = withImports(file).map((each) => toBinary(FileDescriptorProtoSchema, each.proto));
  return { case: 'fileDescriptorResponse', value: { fileDescriptorProto } };
}

/** The file itself first, then all that it imports, each once. */
function withImports(file: DescFile): readonly DescFile[] {
  const files = new Set<DescFile>();
  const add = (each: DescFile): void => {
    if (files.has(each)) return;
    files.add(each);
    each.dependencies.forEach(add);
  };
  add(file);
  return [...files];
}

function refusal(code: CodeName, errorMessage: string): Answer {
  return { case: 'errorResponse', value: { errorCode: CODE_NAMES.indexOf(code), errorMessage } };
}
