/** Owns what an error is worth that a framework raised by itself, before or beside our chain: a reason of ours, and the code to send. */
import type { Reason } from '../errors.ts';
import type { CodeName } from '../metrics/rpc-metrics.ts';

export interface ForeignError {
  readonly reason: Reason;
  readonly code: CodeName;
  readonly message: string;
}

/** `begun`: the chain had taken the call, so what broke after it is our fault. */
export function reasonOfForeignError(code: CodeName, begun: boolean): ForeignError {
  switch (code) {
    case 'RESOURCE_EXHAUSTED':
      return {
        reason: 'MESSAGE_TOO_LARGE',
        code,
        message: 'the message is larger than the server takes, as it came or inflated',
      };
    case 'DEADLINE_EXCEEDED':
      return { reason: 'DEADLINE_EXCEEDED', code, message: 'the deadline passed before there was an answer' };
    case 'CANCELLED':
      return { reason: 'CALL_CANCELLED', code, message: 'the caller left' };
    case 'UNIMPLEMENTED':
      // The protocols want this code for a compression that the server does not know, and for more or fewer messages than one.
      return {
        reason: 'INVALID_MESSAGE',
        code,
        message: 'the request is not one message in an encoding that the server knows',
      };
    default:
      return begun
        ? { reason: 'INTERNAL', code: 'INTERNAL', message: 'internal error' }
        : {
            reason: 'INVALID_MESSAGE',
            code: 'INVALID_ARGUMENT',
            message: 'the request is not a valid message of its type',
          };
  }
}
