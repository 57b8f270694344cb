/**
 * Owns the sentences in which tests arrange a graph, and their meaning as a list of acts. Strict: a sentence that is not one of
 * these, or a label that was never given, is an error that quotes the sentence. Pure; `play.ts` carries the acts out.
 *
 *   alice follows bob, carol          alice unfollows bob            bob removes follower alice
 *   dave blocks erin                  dave unblocks erin
 *   frank mutes gina                  frank mutes gina for 10 minutes       frank unmutes gina
 *   hugo is protected                 hugo is open                   hugo is suspended            hugo is restored
 *   bob posts "hi" as b1              bob posts "hi" to followers as b2     bob posts "hi" to nobody as b3
 *   bob posts 30 times as b           (labels b1 to b30, oldest first)
 *   carol reposts b1 as c1            carol quotes b1 "look" as c2   dave replies to b1 "yes" as d1
 *   bob deletes b1                    bob edits b1 "hello"           bob shows b1 to everybody | followers | nobody
 *   moderation hides b1               moderation marks b1            moderation clears b1
 *
 * Sentences end at ";" or at the end of the line. Reposts, quotes and replies take "to followers" and "to nobody" like posts. A
 * list of names may stand wherever one name does after the verb. "as" may be left out where nothing refers to the post.
 */
import type { ModerationState, Visibility } from '../../src/timeline/post.ts';

export type Act =
  | {
      readonly kind: 'follow' | 'unfollow' | 'block' | 'unblock' | 'unmute' | 'remove_follower';
      readonly who: string;
      readonly whom: string;
    }
  | { readonly kind: 'mute'; readonly who: string; readonly whom: string; readonly forMs?: number }
  | { readonly kind: 'protect'; readonly who: string; readonly protected: boolean }
  | { readonly kind: 'suspend' | 'restore'; readonly who: string }
  | PublishAct
  | { readonly kind: 'delete'; readonly who: string; readonly label: string }
  | { readonly kind: 'edit'; readonly who: string; readonly label: string; readonly text: string }
  | { readonly kind: 'show'; readonly who: string; readonly label: string; readonly visibility: Visibility }
  | { readonly kind: 'moderate'; readonly label: string; readonly state: ModerationState };

export interface PublishAct {
  readonly kind: 'publish';
  readonly who: string;
  readonly text: string;
  readonly visibility: Visibility;
  readonly replyTo?: string;
  readonly repostOf?: string;
  readonly label?: string;
}

const NAME = '[A-Za-z0-9_.~-]+';
const NAMES = `${NAME}(?:\\s*,\\s*${NAME})*`;
const TEXT = '"(?<text>[^"]*)"';
const TO = '(?:\\s+to\\s+(?<to>everybody|followers|nobody))?';
const AS = `(?:\\s+as\\s+(?<as>${NAME}))?`;
const UNIT_MS = { second: 1_000, minute: 60_000, hour: 3_600_000 } as const;
const AUDIENCE: Readonly<Record<string, Visibility>> = {
  everybody: 'public',
  followers: 'followers',
  nobody: 'private',
};
const PAIR_VERBS = {
  follows: 'follow',
  unfollows: 'unfollow',
  'removes follower': 'remove_follower',
  blocks: 'block',
  unblocks: 'unblock',
  unmutes: 'unmute',
} as const;
const MODERATION: Readonly<Record<string, ModerationState>> = { hides: 'hidden', marks: 'sensitive', clears: 'clear' };

type Groups = Readonly<Record<string, string | undefined>>;
interface Form {
  readonly pattern: RegExp;
  acts(groups: Groups): readonly Act[];
}

function form(pattern: string, acts: (groups: Groups) => readonly Act[]): Form {
  return { pattern: new RegExp(`^${pattern}$`), acts };
}

const FORMS: readonly Form[] = [
  form('moderation\\s+(?<verb>hides|marks|clears)\\s+(?<label>\\S+)', (said) => [
    { kind: 'moderate', label: need(said, 'label'), state: MODERATION[need(said, 'verb')] ?? 'clear' },
  ]),
  form(`(?<who>${NAME})\\s+(?<verb>${Object.keys(PAIR_VERBS).join('|')})\\s+(?<whom>${NAMES})`, (said) =>
    namesIn(said).map((whom) => ({
      kind: PAIR_VERBS[need(said, 'verb') as keyof typeof PAIR_VERBS],
      who: need(said, 'who'),
      whom,
    })),
  ),
  form(
    `(?<who>${NAME})\\s+mutes\\s+(?<whom>${NAMES})(?:\\s+for\\s+(?<amount>\\d+)\\s+(?<unit>second|minute|hour)s?)?`,
    (said) =>
      namesIn(said).map((whom) => ({
        kind: 'mute',
        who: need(said, 'who'),
        whom,
        ...(said['amount'] === undefined
          ? {}
          : { forMs: Number(said['amount']) * UNIT_MS[need(said, 'unit') as keyof typeof UNIT_MS] }),
      })),
  ),
  form(`(?<who>${NAME})\\s+is\\s+(?<state>protected|open)`, (said) => [
    { kind: 'protect', who: need(said, 'who'), protected: said['state'] === 'protected' },
  ]),
  form(`(?<who>${NAME})\\s+is\\s+(?<state>suspended|restored)`, (said) => [
    { kind: said['state'] === 'suspended' ? 'suspend' : 'restore', who: need(said, 'who') },
  ]),
  form(`(?<who>${NAME})\\s+posts\\s+(?<times>\\d+)\\s+times${TO}${AS}`, (said) =>
    Array.from({ length: Number(said['times']) }, (_, at) => {
      const numbered = `${said['as'] ?? 'post '}${at + 1}`;
      return publish({
        ...said,
        text: `${said['who']} says ${numbered}`,
        as: said['as'] === undefined ? undefined : numbered,
      });
    }),
  ),
  form(`(?<who>${NAME})\\s+posts\\s+${TEXT}${TO}${AS}`, (said) => [publish(said)]),
  form(`(?<who>${NAME})\\s+reposts\\s+(?<repostOf>${NAME})${TO}${AS}`, (said) => [publish(said)]),
  form(`(?<who>${NAME})\\s+quotes\\s+(?<repostOf>${NAME})\\s+${TEXT}${TO}${AS}`, (said) => [publish(said)]),
  form(`(?<who>${NAME})\\s+replies\\s+to\\s+(?<replyTo>${NAME})\\s+${TEXT}${TO}${AS}`, (said) => [publish(said)]),
  form(`(?<who>${NAME})\\s+deletes\\s+(?<label>${NAME})`, (said) => [
    { kind: 'delete', who: need(said, 'who'), label: need(said, 'label') },
  ]),
  form(`(?<who>${NAME})\\s+edits\\s+(?<label>${NAME})\\s+${TEXT}`, (said) => [
    { kind: 'edit', who: need(said, 'who'), label: need(said, 'label'), text: said['text'] ?? '' },
  ]),
  form(`(?<who>${NAME})\\s+shows\\s+(?<label>${NAME})\\s+to\\s+(?<to>everybody|followers|nobody)`, (said) => [
    { kind: 'show', who: need(said, 'who'), label: need(said, 'label'), visibility: audience(said) },
  ]),
];

/** The acts a script stands for, in order. `known` are labels given by earlier scripts. Throws an Error that quotes the faulty sentence. */
export function parseScript(script: string, known: Iterable<string> = []): readonly Act[] {
  const labels = new Set(known);
  return sentencesOf(script).flatMap((sentence) => {
    const acts = parseSentence(sentence);
    for (const act of acts) checkLabels(act, labels, sentence);
    return acts;
  });
}

/** Splits at ";" and line ends, but not inside quotation marks. */
function sentencesOf(script: string): readonly string[] {
  const quotes = script.split('"').length - 1;
  if (quotes % 2 !== 0) throw new Error(`a quotation mark is left open in: ${script.trim()}`);
  return (script.match(/(?:"[^"]*"|[^";\n])+/g) ?? [])
    .map((sentence) => sentence.trim())
    .filter((sentence) => sentence !== '');
}

function parseSentence(sentence: string): readonly Act[] {
  for (const { pattern, acts } of FORMS) {
    const match = pattern.exec(sentence);
    if (match) return acts(match.groups ?? {});
  }
  throw new Error(`not a sentence of the graph language: ${sentence}`);
}

function checkLabels(act: Act, labels: Set<string>, sentence: string): void {
  const used = act.kind === 'publish' ? [act.replyTo, act.repostOf] : 'label' in act ? [act.label] : [];
  for (const label of used) {
    if (label !== undefined && !labels.has(label)) throw new Error(`no post is called ${label}: ${sentence}`);
  }
  if (act.kind !== 'publish' || act.label === undefined) return;
  if (labels.has(act.label)) throw new Error(`two posts are called ${act.label}: ${sentence}`);
  labels.add(act.label);
}

function publish(said: Groups): PublishAct {
  return {
    kind: 'publish',
    who: need(said, 'who'),
    text: said['text'] ?? '',
    visibility: said['to'] === undefined ? 'public' : audience(said),
    ...(said['replyTo'] === undefined ? {} : { replyTo: said['replyTo'] }),
    ...(said['repostOf'] === undefined ? {} : { repostOf: said['repostOf'] }),
    ...(said['as'] === undefined ? {} : { label: said['as'] }),
  };
}

function audience(said: Groups): Visibility {
  return AUDIENCE[need(said, 'to')] ?? 'public';
}

function namesIn(said: Groups): readonly string[] {
  return need(said, 'whom').split(/\s*,\s*/);
}

function need(said: Groups, group: string): string {
  const value = said[group];
  if (value === undefined) throw new Error(`the form names no ${group}`);
  return value;
}
