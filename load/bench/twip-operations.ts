/**
 * Owns what Twip does, in which order: posts, checks, subscriptions and logouts by weight, one tick each. All of it is decided beforehand, so that every contender is asked for the very same.
 * Invariant: checks go round the shuffled active users; the run ends after 50 checks for each of them.
 */
import { type Seeded, shuffle } from '../../src/sample/seeded.ts';
import { createPick, followeesOf, type TwipGraph } from './twip-graph.ts';

/** A logout needs nothing of anybody: it shows in the next check of its user, which begins anew. */
export type TwipOperation =
  | { readonly kind: 'post'; readonly tick: number; readonly user: number }
  /** Reads `[since, tick)`; `since` 0 is the first since the login. */
  | { readonly kind: 'check'; readonly tick: number; readonly user: number; readonly since: number }
  | { readonly kind: 'subscribe'; readonly tick: number; readonly user: number; readonly to: number };

export interface TwipRun {
  readonly operations: readonly TwipOperation[];
  readonly ticks: number;
  readonly activeUsers: number;
  readonly logouts: number;
  /** Who is logged in at the end. */
  readonly loggedIn: readonly number[];
  /** Ticks of the posts that a user should have been shown in the window until the end: those of whoever they follow by then. */
  expectedFor(user: number): ReadonlySet<number>;
}

const WEIGHTS = { post: 1, check: 100, subscribe: 10, logout: 5 } as const;
const WEIGHTS_TOTAL = WEIGHTS.post + WEIGHTS.check + WEIGHTS.subscribe + WEIGHTS.logout;
const ACTIVE_PART = 0.7;
const CHECKS_EACH = 50;
/** What the first check after a login reads. */
export const WINDOW_TICKS = 1_000_000;
const TEXT_CHARS = 120;

export function planTwip(graph: TwipGraph, random: Seeded): TwipRun {
  const { users } = graph;
  const active = Array.from({ length: users }, (_, user) => user).filter(() => random.chance(ACTIVE_PART));
  shuffle(active, random);
  const pickPoster = createPick(graph.postWeights, random);
  const lastRead = new Float64Array(users);
  /** In the order of their logins. */
  const loggedIn = new Set<number>();
  const operations: TwipOperation[] = [];
  const checksMax = active.length * CHECKS_EACH;
  let checks = 0;
  let logouts = 0;
  let tick = 0;
  while (checks < checksMax) {
    tick += 1;
    const kind = draw(random);
    switch (kind) {
      case 'post':
        operations.push({ kind, tick, user: pickPoster() });
        break;
      case 'check': {
        const user = active[checks++ % active.length] as number;
        const since = lastRead[user] as number;
        operations.push({ kind, tick, user, since });
        loggedIn.add(user);
        lastRead[user] = tick;
        break;
      }
      case 'subscribe': {
        const user = random.below(users);
        const to = otherThan(user, users, random);
        operations.push({ kind, tick, user, to });
        break;
      }
      case 'logout': {
        const [longest] = loggedIn;
        if (longest === undefined) break;
        loggedIn.delete(longest);
        lastRead[longest] = 0;
        logouts += 1;
        break;
      }
      default:
        throw new Error(`unknown operation: ${kind satisfies never}`);
    }
  }
  return windowOf(graph, operations, { ticks: tick, activeUsers: active.length, logouts }, [...loggedIn]);
}

/** Works out what everybody should have been shown after these operations. */
export function windowOf(
  graph: TwipGraph,
  operations: readonly TwipOperation[],
  counts: Pick<TwipRun, 'ticks' | 'activeUsers' | 'logouts'>,
  loggedIn: readonly number[],
): TwipRun {
  const postsBy = new Map<number, number[]>();
  const subscribed = new Map<number, number[]>();
  const add = (to: Map<number, number[]>, key: number, value: number): void => {
    const values = to.get(key);
    if (values) values.push(value);
    else to.set(key, [value]);
  };
  for (const operation of operations) {
    if (operation.kind === 'post') add(postsBy, operation.user, operation.tick);
    if (operation.kind === 'subscribe') add(subscribed, operation.user, operation.to);
  }
  const from = counts.ticks + 1 - WINDOW_TICKS;
  return {
    operations,
    ...counts,
    loggedIn,
    expectedFor(user) {
      const authors = new Set([...followeesOf(graph, user), ...(subscribed.get(user) ?? [])]);
      const ticks = [...authors].flatMap((author) => postsBy.get(author) ?? []);
      return new Set(ticks.filter((tick) => tick >= from));
    },
  };
}

function draw(random: Seeded): keyof typeof WEIGHTS {
  let at = random.below(WEIGHTS_TOTAL);
  for (const kind of ['post', 'check', 'subscribe', 'logout'] as const) {
    if (at < WEIGHTS[kind]) return kind;
    at -= WEIGHTS[kind];
  }
  throw new Error('no operation was drawn');
}

function otherThan(user: number, users: number, random: Seeded): number {
  const other = random.below(users - 1);
  return other < user ? other : other + 1;
}

/** A post's text names its tick and author, so that whoever is shown it can tell which it is. */
export function textOf(tick: number, author: number): string {
  return `post ${tick} of ${author}: `.padEnd(TEXT_CHARS, 'what somebody has to say. ');
}

const TEXT_FORM = /^post (\d+) of (\d+): /;

/** Throws where a text is not the one that was posted. */
export function readText(text: string): { readonly tick: number; readonly author: number } {
  const [, tick, author] = TEXT_FORM.exec(text) ?? [];
  const found = { tick: Number(tick), author: Number(author) };
  if (text !== textOf(found.tick, found.author)) throw new Error(`not the text of a post: ${text}`);
  return found;
}
