/**
 * Owns how a contender is asked for the operations of Twip: so many at a time, those that touch one user in their order, and how it is found out at the end whether what it shows is right.
 * Invariant: all contenders are asked in the same way, and a contender that shows anybody anything wrong has no result.
 */
import { readText, type TwipOperation, type TwipRun, textOf } from './twip-operations.ts';

/** Texts of posts, in any order. */
export type Shown = readonly string[];

export interface TwipContender {
  readonly name: string;
  /** Resolves once the post is where every follower's check will find it. */
  post(of: { readonly tick: number; readonly user: number; readonly text: string }): Promise<void>;
  /** Resolves once the follower's checks find what the followee has posted so far. */
  subscribe(of: { readonly user: number; readonly to: number }): Promise<void>;
  /** What was posted in `[since, tick)` and has arrived; of the whole window where `since` is 0. */
  check(of: { readonly user: number; readonly since: number; readonly tick: number }): Promise<Shown>;
  /** Pages that came from somewhere else than they should have, or were marked as less than complete; absent for who has none. */
  readonly partials?: () => number;
}

/** Operations under way at once, for every contender. */
export const IN_FLIGHT = 32;

export interface AskedFor {
  /** Posts that checks showed. */
  readonly shown: number;
}

/** Asks for all of the operations; resolves when the last one is done. The first that fails ends the run. */
export async function askFor(
  contender: TwipContender,
  operations: readonly TwipOperation[],
  signal: AbortSignal,
): Promise<AskedFor> {
  /** What goes on for a user; operations wait for earlier ones alone, so no two wait for each other. */
  const busy = new Map<number, Promise<void>>();
  let next = 0;
  let shown = 0;
  let failed = false;

  async function perform(operation: TwipOperation): Promise<void> {
    switch (operation.kind) {
      case 'post':
        return contender.post({ ...operation, text: textOf(operation.tick, operation.user) });
      case 'subscribe':
        return contender.subscribe(operation);
      case 'check': {
        const { length } = await contender.check(operation);
        // Not in one expression, which would take the sum from before the wait.
        shown += length;
        return;
      }
      default:
        throw new Error(`unknown operation: ${operation satisfies never}`);
    }
  }

  async function work(): Promise<void> {
    for (;;) {
      const operation = operations[next++];
      if (operation === undefined || failed) return;
      signal.throwIfAborted();
      const users = usersOf(operation);
      const before = users.map((user) => busy.get(user)).filter((each) => each !== undefined);
      const done = before.length === 0 ? perform(operation) : Promise.all(before).then(() => perform(operation));
      for (const user of users) busy.set(user, done);
      try {
        await done;
      } catch (error) {
        failed = true;
        throw error;
      }
      for (const user of users) if (busy.get(user) === done) busy.delete(user);
    }
  }

  const workers = await Promise.allSettled(Array.from({ length: IN_FLIGHT }, work));
  for (const worker of workers) if (worker.status === 'rejected') throw worker.reason;
  return { shown };
}

function usersOf(operation: TwipOperation): readonly number[] {
  return operation.kind === 'subscribe' ? [operation.user, operation.to] : [operation.user];
}

/** Throws unless everybody who is logged in is shown exactly what they should be: every followee's posts of the window, whole, once. */
export async function verifyShown(contender: TwipContender, run: TwipRun, signal: AbortSignal): Promise<void> {
  const users = run.loggedIn.values();
  async function work(): Promise<void> {
    for (const user of users) {
      signal.throwIfAborted();
      const texts = await contender.check({ user, since: 0, tick: run.ticks + 1 });
      const shown = texts.map(readText).filter(({ author }) => author !== user);
      const expected = run.expectedFor(user);
      const ticks = new Set(shown.map(({ tick }) => tick));
      const missing = [...expected].filter((tick) => !ticks.has(tick)).length;
      const foreign = [...ticks].filter((tick) => !expected.has(tick)).length;
      const repeated = shown.length - ticks.size;
      if (missing + foreign + repeated === 0) continue;
      throw new Error(
        `${contender.name} is wrong: user ${user} lacks ${missing} posts of ${expected.size}, has ${foreign} too many and ${repeated} twice`,
      );
    }
  }
  const settled = await Promise.allSettled(Array.from({ length: IN_FLIGHT }, work));
  for (const each of settled) if (each.status === 'rejected') throw each.reason;
}
